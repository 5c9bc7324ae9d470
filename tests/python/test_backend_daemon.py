"""The whole way, with the daemon: comparison judged in Rust, dumps on disk, counts that add up."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import binary, serving
from test_backend_interface import Norm, wrong_epsilon, wrong_subtraction
from torch import nn

import rust_ort
from rust_ort.call.client import Client


@pytest.fixture(scope="module")
def daemon_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    assert binary() is not None, "no rust-ort program: build it and set RUST_ORT_BINARY"
    folder = tmp_path_factory.mktemp("daemon")
    with serving(folder):
        yield folder


@pytest.fixture(autouse=True)
def fresh(daemon_folder: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def counters() -> dict[str, int]:
    return dict(Client.get(rust_ort.Options.parse()).status()["counters"])


def test_the_planted_wrong_kernel_is_a_mismatch_in_forward_and_backward(caplog: pytest.LogCaptureFixture) -> None:
    right = rust_ort.compare(Norm(), torch.randn(5, 4))
    assert right.ok, str(right)
    planted = rust_ort.compare(Norm(), torch.randn(5, 4), options={"transforms": [wrong_epsilon]})
    wrong = {verdict.name for verdict in planted.verdicts if verdict.kind == "mismatch"}
    assert {"output.out", "grad of linear.weight"} <= wrong
    known = len(rust_ort.graphs())
    options = {"compare": "outputs", "transforms": [wrong_epsilon, wrong_subtraction]}
    compiled = torch.compile(Norm(), backend=rust_ort, options=options)
    compiled(torch.randn(5, 4))["out"].square().sum().backward()
    for info in rust_ort.graphs()[known:]:
        assert "mismatch" in {verdict.kind for _, verdict in info.verdicts}, info.direction


def test_nodes_on_onnxruntime_and_in_eager_add_up() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.LayerNorm(8))
    compiled = torch.compile(model, backend=rust_ort)
    known = len(rust_ort.graphs())
    compiled(torch.randn(3, 4)).sum().backward()
    before = counters()
    for _ in range(3):
        compiled(torch.randn(3, 4)).sum().backward()
    after = counters()
    infos = rust_ort.graphs()[known:]
    assert len(infos) == 2
    on_ort = sum(len(part) for info in infos for part in info.parts)
    in_eager = sum(len(info.eager) for info in infos)
    assert in_eager > 0
    assert sum(info.compute_nodes for info in infos) == on_ort + in_eager
    assert after["nodes_on_ort"] - before["nodes_on_ort"] == 3 * on_ort
    assert after["nodes_in_eager"] - before["nodes_in_eager"] == 3 * in_eager


def test_a_dump_holds_graphs_models_and_data_sets(tmp_path: Path) -> None:
    compiled = torch.compile(Norm(), backend=rust_ort, options={"compare": "outputs"})
    with rust_ort.dump("norm", folder=tmp_path) as path:
        for _ in range(2):
            compiled(torch.randn(5, 4))["out"].square().sum().backward()
    # One run may hold graphs of several options: each says its own.
    assert "options" not in json.loads((path / "run.json").read_text())
    graphs = sorted(folder.name for folder in path.iterdir() if folder.is_dir())
    assert [name.rsplit("-", 1)[1] for name in graphs] == ["backward", "forward"]
    for name in graphs:
        assert {"dynamo.txt", "joint.txt", "fx.txt", "parts.json", "part_0"} <= {
            p.name for p in (path / name).iterdir()
        }
        part = path / name / "part_0"
        assert [p.name for p in sorted(part.glob("test_data_set_*"))] == ["test_data_set_0"]
        assert (part / "test_data_set_0" / "output_0.pb").exists()
        verdicts = json.loads((part / "comparison_0.json").read_text())
        assert verdicts
        assert json.loads((path / name / "parts.json").read_text())["options"]["compare"] == "outputs"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("autocast", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("given", [{}, {"use_cache": False}], ids=["as it is", "no cache"])
def test_llama_causal_lm(attention: str, autocast: torch.dtype | None, given: dict[str, bool]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 128, (2, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = rust_ort.compare(model, input_ids=ids, labels=ids, autocast=autocast, **given)
    assert report.ok, str(report)
    assert all(not graph.eager for graph in report.graphs), sys.argv


def test_a_graph_compiled_again_is_dumped_under_its_newest_name(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    for run in ("first", "second"):
        torch._dynamo.reset()
        backend = rust_ort.Backend()
        with torch.no_grad(), rust_ort.dump(run, folder=tmp_path) as path:
            torch.compile(model, backend=backend)(torch.ones(4, 3))
        (graph,) = backend.graphs
        assert (path / graph.name / "part_0" / "test_data_set_0" / "manifest.json").is_file(), run
