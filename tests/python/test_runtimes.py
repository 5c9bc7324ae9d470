"""The option runtimes: nodes of a compiled model on libtorch, beside those on ONNX Runtime.

What needs rust-ort-torch is skipped where there is none: `make test-torch` makes it, or RUST_ORT_TORCH_BINARY names
it.
"""

import json
import logging
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, alive, wait_until
from support import TORCH_PROGRAM, needs_libtorch
from torch import Tensor, nn

import rust_ort
from measure import torch_cases
from rust_ort.observe import graph_info
from rust_ort.studies import llama_models

TORCH_LIB = Path(torch.__path__[0]) / "lib"


class Normed(nn.Module):
    """A published example of two kernels that cannot be exchanged: a LayerNormalization, then a product and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(self.norm(x))
        return output


@pytest.fixture
def mixed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon that has rust-ort-torch for its executors."""
    assert TORCH_PROGRAM is not None
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", str(TORCH_PROGRAM))
    return daemon


def replay(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What rust-ort-torch makes of a dump's data sets."""
    assert TORCH_PROGRAM is not None
    made = torch_cases.replay(TORCH_PROGRAM, folder, *arguments)
    assert made
    return made


def on(graphs: Any) -> dict[str, Counter[str]]:
    """{direction: {runtime: ONNX nodes}}."""
    found: dict[str, Counter[str]] = {}
    for graph in graphs:
        found.setdefault(graph.direction, Counter()).update(graph.division.nodes)
    return found


@needs_libtorch
@pytest.mark.parametrize("runtime", ["torch", "torch-f64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_an_exchanged_norm_gives_what_replay_gives(
    mixed: Daemon, tmp_path: Path, dtype: torch.dtype, runtime: str
) -> None:
    model, x = Normed().to(dtype), torch.randn(8, 64).to(dtype)
    options = {"compare": "outputs", "runtimes": {runtime: ["norm"]}}
    with rust_ort.dump("run", folder=tmp_path), graph_info.called() as called:
        output = torch.compile(model, backend="rust_ort", options=options)(x)
        output.square().sum().backward()
    nodes = on(called())
    for direction in ("forward", "backward"):
        assert nodes[direction][runtime] > 0 and nodes[direction]["ort"] > 0, nodes
    again = replay(tmp_path / "run")
    assert len(again) == 2
    for data_set in again:
        assert data_set["nodes_on"][runtime] > 0 and data_set["nodes_on"]["ort"] > 0
        assert [rule["rule"] for rule in data_set["rules"]] == [f"{runtime}:norm"]
        assert data_set["actuals"] and all(actual["same_bits"] for actual in data_set["actuals"]), data_set
        assert {verdict["verdict"]["kind"] for verdict in data_set["verdicts"]} == {"match"}, data_set
    # The other assignment of the same dump.
    alone = replay(tmp_path / "run", "--on", "ort:*")
    assert all(set(data_set["nodes_on"]) == {"ort"} for data_set in alone)


@needs_libtorch
def test_a_llama_layer_with_its_norms_on_libtorch_trains_as_eager(mixed: Daemon) -> None:
    def trained(compiled: bool) -> list[float]:
        study = llama_models.build("decoder", llama_models.SIZES["small"], attention="sdpa")
        options = {"runtimes": {"torch": ("*norm*",)}}
        call = torch.compile(study.module, backend="rust_ort", options=options) if compiled else study.module
        optimizer = torch.optim.Adam(study.module.parameters(), lr=1e-2)
        torch.manual_seed(1)
        inputs = [torch.randn_like(tensor) if tensor.requires_grad else tensor for tensor in study.inputs]
        losses = []
        for _ in range(5):
            optimizer.zero_grad()
            loss = call(*inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        return losses

    expected = trained(False)
    with graph_info.called() as called:
        got = trained(True)
    nodes = on(called())
    for direction in ("forward", "backward"):
        assert nodes[direction]["torch"] > 0 and nodes[direction]["ort"] > nodes[direction]["torch"], nodes
    assert expected[-1] < expected[0]
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-4, atol=1e-6)


@needs_libtorch
def test_each_node_is_compared_on_its_runtime(mixed: Daemon) -> None:
    model, x = Normed(), torch.randn(8, 64)
    report = rust_ort.compare(model, x, options={"compare": "nodes", "runtimes": {"torch": ["*norm*"]}})
    report.check()
    assert {node.local.kind for _, node in report.nodes} == {"match"}
    assert " on torch" in str(report), str(report)
    assert "rule 'torch'" in str(report)
    assert json.loads(report.to_json())["graphs"][0]["division"]["nodes"]["torch"] > 0


@needs_libtorch
def test_the_table_of_nodes_tells_where_each_ran(mixed: Daemon, tmp_path: Path) -> None:
    options = {"compare": "nodes", "runtimes": {"torch-f64": ["norm"]}}
    with rust_ort.dump("run", folder=tmp_path):
        torch.compile(Normed(), backend="rust_ort", options=options)(torch.randn(8, 64)).sum().backward()
    tables = [json.loads(path.read_text()) for path in (tmp_path / "run").rglob("nodes_*.json")]
    assert len(tables) == 2
    for table in tables:
        ran = {(node["module"], tuple(node["runtimes"])) for node in table["nodes"] if node["module"]}
        assert ran == {("norm", ("torch-f64",)), ("linear", ("ort",))}, ran


@needs_libtorch
def test_a_rule_that_fits_nothing_is_warned_of(mixed: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    model, x = Normed(), torch.randn(8, 64)
    backend = rust_ort.Backend({"compare": "outputs", "runtimes": {"torch": ["*nrom*"], "torch-f64": ["norm"]}})
    compiled = torch.compile(model, backend=backend)
    with caplog.at_level(logging.WARNING, logger="rust_ort"):
        for _ in range(2):
            compiled(x).sum().backward()
    warned = [record.getMessage() for record in caplog.records if "decides over no node" in record.getMessage()]
    assert len(warned) == 1 and "'torch': '*nrom*'" in warned[0], warned
    report = str(backend.report())
    assert "rule 'torch': NO nodes" in report and "rule 'torch-f64': NO" not in report, report


@needs_libtorch
def test_what_libtorch_does_not_take_is_refused(mixed: Daemon) -> None:
    """Nothing of it goes elsewhere, to eager or to ONNX Runtime."""
    with pytest.raises(rust_ort.errors.RustOrtError, match="a rule gives nodes to torch"):
        torch.compile(
            lambda x: torch.ops.aten.relu.default(x) * 2,
            backend="rust_ort",
            options={"runtimes": {"torch": ["*"]}, "custom_translations": {}, "transforms": [unknown_operator]},
        )(torch.randn(4))


def unknown_operator(proto: Any) -> None:
    """One that ONNX Runtime has, and this runtime not."""
    import onnx

    node = next(node for node in proto.graph.node if node.op_type == "Relu")
    node.op_type, node.domain = "Inverse", "com.microsoft"
    if all(opset.domain != "com.microsoft" for opset in proto.opset_import):
        proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))


@needs_libtorch
def test_values_are_kept_in_float32_on_onnxruntime_alone(mixed: Daemon) -> None:
    options = {"runtimes": {"torch": ["norm"]}, "precision_rules": {"float32": ["*"]}}
    model, x = Normed().bfloat16(), torch.randn(8, 64).bfloat16()
    with pytest.raises(rust_ort.errors.ClientError, match=r"precision_rules.*gives to torch"):
        torch.compile(model, backend="rust_ort", options=options)(x)
    # What has no half precision is not kept: float32 on libtorch is float32.
    torch.testing.assert_close(
        torch.compile(model.float(), backend="rust_ort", options=options)(x.float()), model(x.float())
    )


@needs_libtorch
def test_a_killed_executor_is_told_and_another_follows(mixed: Daemon) -> None:
    x = torch.randn(8, 64)
    plain, model = Normed(), Normed()
    alone = torch.compile(plain, backend="rust_ort")
    compiled = torch.compile(model, backend="rust_ort", options={"runtimes": {"torch": ["norm"]}})
    with torch.no_grad():
        torch.testing.assert_close(alone(x), plain(x))
        torch.testing.assert_close(compiled(x), model(x))
        executors = mixed.client().status()["executors"]
        (killed,) = [executor["pid"] for executor in executors if executor["libtorch"]]
        (spared,) = [executor["pid"] for executor in executors if not executor["libtorch"]]
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not alive(killed), "the executor's end")
        try:
            got = compiled(x)
        except rust_ort.errors.ExecutorLost:
            got = compiled(x)
        torch.testing.assert_close(got, model(x))
        torch.testing.assert_close(alone(x), plain(x))
    pids = {executor["pid"]: executor["libtorch"] for executor in mixed.client().status()["executors"]}
    assert killed not in pids and pids[spared] is None
    assert any(libtorch == str(TORCH_LIB) for libtorch in pids.values()), pids


def test_without_the_program_it_says_how_to_get_it(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", "/nonexistent/rust-ort-torch")
    with pytest.raises(rust_ort.errors.RustOrtError) as caught:
        torch.compile(Normed(), backend="rust_ort", options={"runtimes": {"torch": ["norm"]}})(torch.randn(8, 64))
    text = str(caught.value)
    assert "/nonexistent/rust-ort-torch" in text and "make build-torch" in text, text


def test_a_program_that_cannot_be_started_is_no_fault_that_eager_makes_good(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "rust-ort-torch"
    program.write_text("no program")
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", str(program))
    options = {"runtimes": {"torch": ["norm"]}, "on_daemon_error": "eager"}
    with pytest.raises(rust_ort.errors.ClientError, match="make build-torch"):
        torch.compile(Normed(), backend="rust_ort", options=options)(torch.randn(8, 64))


@needs_libtorch
def test_a_program_that_was_built_anew_is_started_anew(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, x = tmp_path / "rust-ort-torch", torch.randn(8, 64)
    program.symlink_to(str(TORCH_PROGRAM))
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", str(program))
    options = {"runtimes": {"torch": ["norm"]}}
    torch.compile(Normed(), backend="rust_ort", options=options)(x)
    (before,) = (executor["pid"] for executor in daemon.client().status()["executors"])
    rust_ort.shutdown()
    program.unlink()
    program.write_text("#!/bin/sh\nexit 7\n")
    program.chmod(0o755)
    torch.compiler.reset()
    with pytest.raises(rust_ort.errors.RustOrtError, match="exit"):
        torch.compile(Normed(), backend="rust_ort", options=options)(x)
    wait_until(lambda: not alive(before), "the executor of the program that was there before")


def test_a_program_that_does_not_start_shows_its_log(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one that was built for another torch: the dynamic linker ends it before it can say anything itself."""
    program = tmp_path / "rust-ort-torch"
    program.write_text("#!/bin/sh\necho 'undefined symbol: _ZN2at5other' >&2\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", str(program))
    with pytest.raises(rust_ort.errors.RustOrtError) as caught:
        torch.compile(Normed(), backend="rust_ort", options={"runtimes": {"torch": ["norm"]}})(torch.randn(8, 64))
    text = str(caught.value)
    assert "undefined symbol: _ZN2at5other" in text and "built for" in text, text


def test_rules_for_onnxruntime_alone_need_no_libtorch(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_ORT_TORCH_BINARY", "/nonexistent/rust-ort-torch")
    model, x = Normed(), torch.randn(8, 64)
    with torch.no_grad():
        got = torch.compile(model, backend="rust_ort", options={"runtimes": {"ort": ["*"]}})(x)
        torch.testing.assert_close(got, model(x))


@needs_libtorch
def test_equal_graphs_of_other_modules_have_folders_of_their_own(mixed: Daemon, tmp_path: Path) -> None:
    """A rule may fit the module of the one and not the other's."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.LayerNorm(8), nn.LayerNorm(8)

        def forward(self, x: Tensor) -> Tensor:
            made = self.one(x)
            torch._dynamo.graph_break()
            output: Tensor = self.other(made)
            return output

    options = {"runtimes": {"torch-f64": ("one",)}}
    compiled = torch.compile(Two(), backend="rust_ort", options=options)
    with torch.no_grad(), rust_ort.dump("run", folder=tmp_path), graph_info.called() as called:
        compiled(torch.randn(3, 8))
    on_float64 = sorted(graph.division.nodes.get("torch-f64", 0) for graph in called())
    assert on_float64[0] == 0 < on_float64[1], on_float64
    data_sets = replay(tmp_path / "run")
    assert sorted(data_set["nodes_on"].get("torch-f64", 0) for data_set in data_sets) == on_float64
    assert all(actual["same_bits"] for data_set in data_sets for actual in data_set["actuals"])


@needs_libtorch
def test_replay_keeps_in_float32_what_the_run_kept(mixed: Daemon, tmp_path: Path) -> None:
    model, x = Normed().bfloat16(), torch.randn(8, 64).bfloat16()
    options = {"runtimes": {"torch": ["*norm"]}, "precision_rules": {"float32": ["*mm*"]}}
    with torch.no_grad(), rust_ort.dump("run", folder=tmp_path):
        torch.compile(nn.Sequential(model, nn.GELU()), backend="rust_ort", options=options)(x)
    (data_set,) = replay(tmp_path / "run")
    assert data_set["nodes_on"]["torch"] > 0
    assert data_set["actuals"] and all(actual["same_bits"] for actual in data_set["actuals"]), data_set


@needs_libtorch
@pytest.mark.parametrize("rules", [(), ("--on", "torch:*"), ("--on", "torch-f64:*linear", "--on", "torch:*norm*")])
def test_a_planted_fault_is_named_whatever_runs_it(mixed: Daemon, tmp_path: Path, rules: tuple[str, ...]) -> None:
    """No rules: those of the run, which gives the faulty node to libtorch."""

    def transform(proto: Any) -> None:
        for node in proto.graph.node:
            if node.op_type == "Tanh":
                node.op_type = "Sigmoid"

    transform.cache_key = "tanh as sigmoid"  # type: ignore[attr-defined]
    options = {"compare": "nodes", "dump_values": True, "runtimes": {"torch": ["*tanh*"]}, "transforms": [transform]}
    model = nn.Sequential(Normed(), nn.Tanh(), nn.Linear(64, 8))
    with torch.no_grad(), rust_ort.dump("run", folder=tmp_path):
        torch.compile(model, backend=rust_ort.Backend(options))(torch.randn(8, 64))
    said = torch_cases.said(TORCH_PROGRAM, "blame", tmp_path / "run", *rules)
    (answer,) = said["answers"]
    assert (answer["culprit"]["kind"], answer["culprit"]["name"]) == ("node", "tanh"), said["text"]
    assert answer["complete"], said["text"]


@needs_libtorch
def test_an_operator_with_several_results_goes_by_its_name(mixed: Daemon) -> None:
    def function(x: Tensor) -> Tensor:
        values, _ = torch.topk(x.exp(), 3)
        return values * 2

    x = torch.randn(4, 8)
    backend = rust_ort.Backend({"runtimes": {"torch": ["aten.topk.default"]}})
    torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
    (graph,) = backend.graphs
    assert graph.division.nodes["torch"] > 0 and graph.division.nodes["ort"] > 0, graph.division
