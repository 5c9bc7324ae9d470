"""libtorch as a runtime: `rust-ort-torch replay --runtime torch` on ONNX's node tests and on real models' graphs.

Skipped where there is no rust-ort-torch: `make build-torch` makes it, or RUST_ORT_TORCH_BINARY names it.
"""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
import torch
from conftest import Daemon

import rust_ort
from measure import op_census, torch_cases, torch_nodes
from measure.architectures import TABLE
from rust_ort.link.daemon import find_binary

ROOT = Path(__file__).resolve().parents[2]
PLACES = [
    Path(os.environ.get("RUST_ORT_TORCH_BINARY") or "/nonexistent"),
    ROOT / "target" / "release" / "rust-ort-torch",
]
BINARY = next((place for place in PLACES if place.is_file()), None)

needs_libtorch = pytest.mark.skipif(BINARY is None, reason="no rust-ort-torch: `make build-torch` makes it")


@needs_libtorch
def test_onnx_node_tests_are_passed_or_need_an_operator_that_has_no_kernel(tmp_path: Path) -> None:
    assert BINARY is not None
    skipped = torch_cases.write(tmp_path / "cases")
    counts = torch_cases.count(torch_cases.replay(BINARY, tmp_path / "cases", "--runtime", "torch"), skipped)
    print(f"{len(counts.passed)} passed, {len(counts.rounded)} rounded, unsupported: {counts.operators()}")
    assert counts.wrong == {}
    assert len(counts.passed) > 1300


@needs_libtorch
@pytest.mark.parametrize("name", ["llama", "bert", "convnext", "mamba"])
def test_graphs_of_real_models_give_what_onnxruntime_gave(name: str, daemon: Daemon, tmp_path: Path) -> None:
    assert BINARY is not None
    backend = rust_ort.Backend({"compare": "outputs", "socket": str(daemon.socket)})
    torch._dynamo.reset()
    with rust_ort.dump("run", folder=tmp_path, options={"socket": str(daemon.socket)}) as run:
        case = TABLE[name].build("eager")
        op_census.values(case, "frozen", lambda module: torch.compile(module, backend=backend))
    made = torch_nodes.row(name, [("eager/frozen", run)], BINARY)
    assert made.graphs >= 2
    for runtime, side in made.sides.items():
        assert side.outputs > 0, runtime
        assert (side.missing, side.failed, side.wrong) == ([], [], []), (runtime, dataclasses.asdict(side))


def test_a_program_without_libtorch_says_where_it_is(tmp_path: Path) -> None:
    case = tmp_path / "run" / "graph" / "part_0" / "test_data_set_0"
    case.mkdir(parents=True)
    done = subprocess.run(
        [find_binary(), "replay", "--runtime", "torch", case], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "built without libtorch; use rust-ort-torch, made by `make build-torch`" in done.stderr
