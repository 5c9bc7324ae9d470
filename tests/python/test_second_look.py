"""What is outside tolerance is looked at once more: noise and ties are told from faults, everywhere in one word."""

import contextlib
import importlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from onnxscript import opset18
from torch import Tensor, nn

import rust_ort
from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.observe import second_look
from rust_ort.observe.wide import Wide, in_wide

pytestmark = pytest.mark.usefixtures("daemon")

DRAW = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(8, 4096, generator=DRAW), torch.randn(4096, 64, generator=DRAW)


def rounding_alone(x: Tensor, weight: Tensor) -> Tensor:
    """Zero but for rounding."""
    return (x * 1.0001) @ weight - (x @ weight) * 1.0001


def enlarged(x: Tensor, weight: Tensor) -> Tensor:
    """What rounding leaves, a thousandfold; what it adds up nobody knows behind tanh."""
    return torch.tanh(rounding_alone(x, weight) * 1000)


def turned(x: Tensor, weight: Tensor) -> Tensor:
    """Rounding decides."""
    return torch.where(rounding_alone(x, weight) > 0, 1.0, -1.0) * 2


def scaled(factor: float, operator: str = "Tanh") -> Any:
    """A transform: the operator times a factor."""

    def transform(proto: Any) -> None:
        for node in list(proto.graph.node):
            if node.op_type == operator:
                value = node.output[0]
                node.output[0] = f"{value}_right"
                proto.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [], [factor]))
                proto.graph.node.append(
                    helper.make_node("Mul", [f"{value}_right", "factor"], [value], name="planted_mul")
                )

    return transform


def said(*arguments: str | Path) -> tuple[int, str]:
    """(exit code, text) of the program."""
    command = [os.environ["RUST_ORT_BINARY"], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["outputs", "nodes"])
def test_noise_is_ok_counted_and_shown(mode: str) -> None:
    report = rust_ort.compare(enlarged, X, WEIGHT, options={"compare": mode})
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.is_pass, report.ok) == ("noise", True, True), report
    assert verdict.outside > 0 and verdict.noise is not None
    assert report.check() is report
    assert "1 noise" in str(report) and "from float64 eager is" in str(report)
    assert json.loads(report.to_json())["verdicts"][0]["verdict"] == "noise"


@pytest.mark.parametrize("mode", ["outputs", "nodes"])
def test_a_fault_beside_the_noise_is_none(mode: str) -> None:
    options = {"compare": mode, "transforms": [scaled(3.0)]}
    report = rust_ort.compare(enlarged, X, WEIGHT, options=options)
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"] and not report.ok, report


@pytest.mark.parametrize("mode", ["off", "outputs", "nodes"])
def test_nothing_is_noise_beside_a_wrong_node_whenever_it_is_found(mode: str, tmp_path: Path) -> None:
    """Under "off" and "outputs" the nodes are looked at after noise was told."""

    def both(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return enlarged(x, weight), x.sin()

    options = {"compare": mode, "transforms": [scaled(3.0, "Sin")]}
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(both, X, WEIGHT, options=options)
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch", "mismatch"], report
    assert report.first_wrong_node is not None and report.first_wrong_node[1].op == "aten.sin.default"
    if mode != "off":
        written = next((tmp_path / "run").glob("*/part_0/comparison_0.json"))
        verdicts = json.loads(written.read_text())["verdicts"]
        assert {verdict["verdict"]["kind"] for verdict in verdicts} == {"mismatch"}, verdicts


def stepped(steps: int) -> Any:
    """A transform: the first Mul is so many steps of float32 too large. Up to 16 are right for a kernel alone."""

    def transform(proto: Any) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "Mul")
        value = node.output[0]
        node.output[0] = f"{value}_right"
        proto.graph.initializer.append(helper.make_tensor("steps", TensorProto.FLOAT, [], [1 + steps * 2.0**-23]))
        proto.graph.node.append(helper.make_node("Mul", [f"{value}_right", "steps"], [value], name="planted_mul"))

    return transform


@pytest.mark.parametrize("mode", ["off", "outputs", "nodes"])
@pytest.mark.parametrize("steps", [8, 40, 160])
def test_what_rounding_may_move_as_far_is_noise_where_no_node_is_wrong(mode: str, steps: int) -> None:
    """8 steps are right for a kernel alone, and take the output to more than 1.5 times eager's own error."""
    report = rust_ort.compare(enlarged, X, WEIGHT, options={"compare": mode, "transforms": [stepped(steps)]})
    (verdict,), named = report.verdicts, report.first_wrong_node
    if steps == 8:
        assert (verdict.kind, named, report.ok) == ("noise", None, True) and verdict.noise is not None, report
        assert verdict.noise["spread"]["largest"] > 0 and verdict.noise["kind"] == "ill_conditioned"
        assert verdict.noise["candidate_rms"] > 1.5 * verdict.noise["reference_rms"]
    else:
        assert (verdict.kind, report.ok) == ("mismatch", False) and "spread" not in (verdict.noise or {}), report
        assert named is not None and named[1].op == "aten.mul.Tensor"


def is_candidate() -> bool:
    return torch.compiler.is_compiling()


EXACT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor": lambda x, t: t[(x[:, :8].sigmoid() * 7.9).floor().long()] * (1.5 if is_candidate() else 1),
    "where it is the largest": lambda x, t: (
        (x[:, :8] == x[:, :8].amax(-1, keepdim=True)).float() @ t * (1.5 if is_candidate() else 1)
    ),
    "relu": lambda x, t: (x[:, :8].relu() == x[:, :8]).float() @ t * (1.5 if is_candidate() else 1),
    "a mask of numbers": lambda x, t: (
        x[:, :8].masked_fill(1 - (x[:, :8] > 0).float() == 1.0, 0) @ t * (1.1 if is_candidate() else 1)
    ),
}
"""What is wrong beside the graph, of values that no rounding moves: each node alone is right of what it was given."""


@pytest.mark.parametrize("case", EXACT)
def test_what_rounding_cannot_move_is_no_noise(case: str) -> None:
    report = rust_ort.compare(EXACT[case], X, torch.randn(8, 16, generator=torch.Generator().manual_seed(1)))
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"] and not report.ok, report


@torch._dynamo.disable
def chosen_in_eager(value: Tensor) -> Tensor:
    return torch.where(value > 0, 1.0, -1.0)


def chosen_between_graphs(x: Tensor, weight: Tensor) -> Tensor:
    """Rounding decides, and no graph of ours holds the choice."""
    return chosen_in_eager(rounding_alone(x, weight)) * 2 + x.tanh().sum()


@pytest.mark.parametrize("mode", ["off", "nodes"])
def test_a_choice_that_rounding_turns_between_graphs_accuses_nobody(mode: str) -> None:
    report = rust_ort.compare(chosen_between_graphs, X, WEIGHT, options={"compare": mode})
    (verdict,) = report.verdicts
    assert (verdict.kind, report.ok) == ("noise", True) and verdict.outside > 0, report
    faulty = {"compare": mode, "transforms": [scaled(3.0)]}
    report = rust_ort.compare(chosen_between_graphs, X, WEIGHT, options=faulty)
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"] and not report.ok, report
    assert report.first_wrong_node is not None and report.first_wrong_node[1].op == "aten.tanh.default"


def test_the_default_loss_of_outputs_that_are_ties_is_a_tie_and_no_other_loss() -> None:
    def weighed(x: Tensor, weight: Tensor) -> Tensor:
        return turned(x, weight.detach()) * weight.sum()

    weight = WEIGHT.clone().requires_grad_()
    kinds = kinds_of(rust_ort.compare(weighed, X, weight))
    assert kinds["output"] == "tie" and kinds["loss"] in ("tie", "match"), kinds
    calls = [0.0]

    def counting(made: Tensor) -> Tensor:
        calls[0] += 1
        return made.sum() * calls[0]

    report = rust_ort.compare(weighed, X, weight, loss=counting)
    assert kinds_of(report)["loss"] == "not_compared", report  # eager itself gives another each time


def kinds_of(report: rust_ort.Report) -> dict[str, str]:
    return {verdict.name: verdict.kind for verdict in report.verdicts}


def test_a_wrong_node_that_moves_no_output_is_told_by_blame() -> None:
    def hidden(x: Tensor) -> Tensor:
        return torch.tanh(x[:4]) * 1e-9 + x[:4]

    blamed = rust_ort.blame(hidden, X, options={"transforms": [scaled(1.01)]})
    assert blamed.culprit is None, blamed
    first = str(blamed).partition("\n")[0]
    assert first.startswith("nobody is to blame: every output is as right as eager's; tanh (aten.tanh.default"), first
    assert first.endswith("alone differs from eager's, and takes no output out of tolerance"), first


def test_blame_counts_what_is_right_by_its_kind() -> None:
    blamed = rust_ort.blame(turned, X, WEIGHT)
    assert blamed.culprit is None and "every output is as right as eager's: 1 tie" in str(blamed), blamed


def test_what_was_not_looked_at_is_not_excused(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"compare": "nodes", "transforms": [stepped(8)]}
    only = rust_ort.compare(enlarged, X, WEIGHT, options={**options, "compare_only": ["aten.tanh.default"]})
    assert [verdict.kind for verdict in only.verdicts] == ["mismatch"], only
    look_nowhere(monkeypatch)
    unknown = rust_ort.compare(enlarged, X, WEIGHT, options={**options, "compare": "outputs"})
    assert [verdict.kind for verdict in unknown.verdicts] == ["mismatch"], unknown


def test_a_dump_without_the_spread_of_a_value_does_not_excuse_it(tmp_path: Path) -> None:
    options = {"compare": "outputs", "transforms": [stepped(8)]}
    with rust_ort.dump("run", folder=tmp_path):
        assert rust_ort.compare(enlarged, X, WEIGHT, options=options).ok
    (comparison,) = (tmp_path / "run").glob("*/part_0/comparison_0.json")
    written = json.loads(comparison.read_text())
    assert [verdict["verdict"]["kind"] for verdict in written["verdicts"]] == ["noise"]
    assert said("compare", tmp_path / "run")[0] == said("replay", tmp_path / "run")[0] == 0
    del written["verdicts"][0]["noise"]["spread"]
    comparison.write_text(json.dumps(written))
    code, text = said("compare", tmp_path / "run")
    assert code != 0 and "noise" not in text, text


@pytest.mark.parametrize("mode", ["outputs", "nodes"])
def test_every_tool_says_what_the_report_says(mode: str, tmp_path: Path) -> None:
    options = {"compare": mode, "dump_values": mode == "nodes"}
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(enlarged, X, WEIGHT, options=options)
    run = tmp_path / "run"
    assert [verdict.kind for verdict in report.verdicts] == ["noise"]
    (comparison,) = run.glob("*/part_0/comparison_0.json")
    written = json.loads(comparison.read_text())
    assert written["summary"]["noise"] == 1 and written["policy"]["noise_factor"] == 1.5
    assert len(list(run.glob("*/part_0/test_data_set_0/float64_0.pb"))) == 1
    assert "1 noise" in said("ls", run)[1]
    assert said("compare", run)[0] == 0 and "noise" in said("compare", run)[1]
    assert "noise" in said("replay", run)[1]
    code, text = said("blame", run)
    assert (code, text.partition("\n")[0]) == (0, "nobody is to blame: every output is as right as eager's"), text


def test_half_precision_is_judged_alike_in_the_call_and_from_its_dump(tmp_path: Path) -> None:
    """Floats by the steps of bfloat16, integers exactly: a policy of the graph, which its dump tells."""
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        made = model(x)
        return made.float() * 1.0, made.argmax(-1)

    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(
            function, torch.randn(32, 64), autocast=torch.bfloat16, backward=False, options={"compare": "outputs"}
        )
    assert report.ok, report
    (comparison,) = (tmp_path / "run").glob("*/part_0/comparison_0.json")
    written = json.loads(comparison.read_text())
    assert written["policy"]["through"] == "BF16"
    tolerances = {
        verdict["metrics"]["dtype"]: verdict["metrics"]["tolerance"]["rtol"] for verdict in written["verdicts"]
    }
    assert tolerances == {"F32": 4 * 2**-7, "I64": 0.0}
    for command in ("compare", "replay"):
        code, text = said(command, tmp_path / "run", "--json")
        assert code == 0, text


@pytest.mark.parametrize("compare", ["outputs", "nodes"])
def test_another_branch_is_a_tie_where_every_node_is_right(compare: str, tmp_path: Path) -> None:
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(turned, X, WEIGHT, options={"compare": compare})
    (verdict,) = report.verdicts
    assert (verdict.kind, report.ok) == ("tie", True), report
    assert "of 512 elements of gt took the other branch, by " in verdict.reason
    for command in ("compare", "sbs", "replay"):
        assert said(command, tmp_path / "run")[0] == 0, said(command, tmp_path / "run")[1]
    assert "1 tie" in said("ls", tmp_path / "run")[1]


def test_another_branch_is_found_without_being_asked_for() -> None:
    for _ in range(2):  # an equal backend compiled it before, the second time
        (verdict,) = rust_ort.compare(turned, X, WEIGHT).verdicts
        assert verdict.kind == "tie" and "took the other branch" in verdict.reason


def look_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever eager takes is too long for nodes to be compared."""
    for module in ("rust_ort.runtime.compiled_graph", "rust_ort.compare"):
        monkeypatch.setattr(importlib.import_module(module), "LOOKS_INSIDE_SECONDS", -1.0)


def test_no_node_is_looked_at_where_eager_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    look_nowhere(monkeypatch)
    report = rust_ort.compare(turned, X, WEIGHT, options={"compare": "outputs"})
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"], "what decides is not known"
    assert "rust_ort.blame(" in str(report) and not report.nodes


def test_a_branch_goes_from_part_to_part_and_its_own_word_with_it() -> None:
    def parted(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y = turned(x, weight)
        drawn = torch.bernoulli(torch.full_like(y, 1.0))  # in eager: what comes before and after are two parts
        return torch.tanh(y * drawn), y

    report = rust_ort.compare(parted, X, WEIGHT, options={"compare": "outputs"})
    assert len(report.graphs[0].parts) == 2, report
    assert {verdict.kind for verdict in report.verdicts} == {"tie"} and report.ok, report


@pytest.mark.parametrize("compare", ["off", "outputs", "nodes"])
def test_another_branch_excuses_no_wrong_node(compare: str) -> None:
    def spoiled(x: Tensor, weight: Tensor) -> Tensor:
        return torch.tanh(turned(x, weight))

    report = rust_ort.compare(spoiled, X, WEIGHT, options={"compare": compare, "transforms": [scaled(1.5)]})
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"] and not report.ok, report
    assert report.first_wrong_node is not None and report.first_wrong_node[1].op == "aten.tanh.default"


@pytest.mark.parametrize("compare", ["off", "outputs"])
def test_a_wrong_node_is_named_each_time(compare: str) -> None:
    """An equal backend is the same graph, which knows of the node from the run before."""

    def tanh(x: Tensor) -> Tensor:
        return torch.tanh(x)

    options = {"compare": compare, "transforms": [scaled(1.5)]}
    reports = [rust_ort.compare(tanh, X, options=options) for _ in range(3)]
    found = [report.first_wrong_node for report in reports]
    assert [node is not None and node[1].op for node in found] == ["aten.tanh.default"] * 3


def test_memory_that_the_nodes_would_take_fails_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr("rust_ort.observe.nodes.PartNodes._compare", full)
    compiled = torch.compile(turned, backend="rust_ort", options={"compare": "outputs"})
    assert compiled(X, WEIGHT).shape == (8, 64)
    assert rust_ort.graphs()[-1].verdicts[-1][1].kind == "mismatch"


def test_nan_of_both_sides_is_equal_and_its_birth_is_told() -> None:
    def masked(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(y == 0, x, x / y)

    x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.0, 4.0])
    report = rust_ort.compare(masked, x, y, options={"compare": "nodes"})
    assert report.ok and report.first_wrong_node is None, report
    assert {(node.name, birth["side"]) for _, node, birth in report.first_births} == {
        ("div", "reference"),
        ("div", "candidate"),
    }
    differs = rust_ort.compare(masked, x, y, options={"compare": "nodes", "tolerance": {"equal_nan": False}})
    assert not differs.ok


def test_a_nan_on_one_side_is_never_noise() -> None:
    def transform(proto: Any) -> None:
        for node in list(proto.graph.node):
            if node.op_type == "Tanh":
                node.op_type = "Log"

    report = rust_ort.compare(enlarged, X, WEIGHT, options={"transforms": [transform]})
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"], report


def test_float64_beside_eager_writes_into_what_is_no_float_once() -> None:
    places, flags = torch.tensor([1, 2]), torch.tensor([True, False])
    with Wide():
        places += torch.tensor([10, 20])
        flags.logical_not_()
        torch.add(places, 1, out=places)
    assert places.tolist() == [12, 23] and flags.tolist() == [False, True]


def test_float64_ends_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="rust_ort"):
        found = in_wide(lambda: {"y": X @ WEIGHT}, seconds=-1.0)
    assert found == {"y": None}
    assert "float64 of everything takes more than" in caplog.text
    with Wide() as wide:
        y = X @ WEIGHT
    torch.testing.assert_close(wide.of(y), X.double() @ WEIGHT.double())


def test_a_mismatch_whose_float64_took_too_long_is_undetermined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rust_ort.compare.seconds_for", lambda eager: -1.0)
    monkeypatch.setattr("rust_ort.observe.second_look.seconds_for", lambda eager: -1.0)
    report = rust_ort.compare(enlarged, X, WEIGHT)
    (verdict,) = report.verdicts
    assert verdict.kind == "mismatch", report
    assert "undetermined" in verdict.reason and "float64 of everything takes more than" in verdict.reason
    assert "undetermined" in str(report)


def test_float64_ends_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rust_ort.observe.wide.SMALL_BYTES", 0)
    monkeypatch.setattr("rust_ort.observe.wide.free_bytes_beside", lambda tensor: 1 << 10)
    with Wide() as wide:
        y = X @ WEIGHT
    assert wide.of(y) is None and "MiB are free" in wide.stopped


def test_float64_goes_on_through_complex_numbers() -> None:
    """What is complex itself has none to be judged by."""
    with Wide() as wide:
        spectrum = torch.fft.rfft(X) * torch.conj(torch.fft.rfft(X * 3))
        real = torch.fft.irfft(spectrum) + torch.view_as_real(spectrum * 0.5j)[:, :1, 0]
        exact = wide.of(real)
        assert wide.of(spectrum) is None
    assert exact is not None
    whole = torch.fft.rfft(X.double()) * torch.conj(torch.fft.rfft(X.double() * 3))
    torch.testing.assert_close(exact, torch.fft.irfft(whole) + torch.view_as_real(whole * 0.5j)[:, :1, 0])


@pytest.mark.parametrize("options", [{}, {"compare": "outputs"}, {"compare": "nodes", "compare_float64": "all"}])
def test_what_drifts_through_complex_numbers_is_noise(options: dict[str, Any]) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return enlarged(torch.fft.irfft(torch.fft.rfft(x) * (1 + 0.5j)), weight)

    report = rust_ort.compare(function, X, WEIGHT, options=options)
    assert [verdict.kind for verdict in report.verdicts] == ["noise"], report
    if "compare_float64" in options:
        reasons = {node.no_float64 for _, node in report.nodes if node.op == "aten.tanh.default"}
        assert reasons == {""}


@pytest.mark.parametrize("draw", [
    lambda y: y.bernoulli_(0.5), lambda y: y.uniform_(0.5, 1.0), lambda y: y.normal_(), lambda y: y.exponential_(),
])  # fmt: skip
def test_float64_goes_on_behind_numbers_drawn_into_a_tensor(draw: Callable[[Tensor], Tensor]) -> None:
    """Of what was in it nothing is left, as of the rows that a stochastic depth drops."""

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return enlarged(x * draw(torch.empty_like(x[:, :1])), weight)

    report = rust_ort.compare(function, X, WEIGHT, options={"compare": "outputs"})
    assert [verdict.kind for verdict in report.verdicts] == ["noise"], report
    inside = [verdict for graph in report.graphs for _, verdict in graph.verdicts]
    assert [verdict.kind for verdict in inside if verdict.kind != "match"] == ["noise"], inside


@pytest.fixture
def pooled() -> Iterator[dict[str, Any]]:
    """{namespace: an operator of it that a library registers}: `pooled(x)` is the mean of each row."""
    with contextlib.ExitStack() as stack:
        found = {}
        for namespace in ("torchvision", "strangers"):
            library = stack.enter_context(torch.library._scoped_library(namespace, "FRAGMENT"))
            library.define("pooled(Tensor x) -> Tensor")
            library.impl("pooled", lambda x: x.mean(-1), "CompositeExplicitAutograd")
            library.impl("pooled", lambda x: x.new_empty(x.shape[:-1]), "Meta")
            found[namespace] = getattr(torch.ops, namespace).pooled
        yield found


def test_float64_goes_on_behind_torchvisions_operators_and_ends_at_a_strangers(pooled: dict[str, Any]) -> None:
    """Those do what their schemas say; what another one does, as counting its calls, is done once."""
    with Wide() as wide:
        made = {namespace: operator(X @ WEIGHT) + 1 for namespace, operator in pooled.items()}
        exact = wide.of(made["torchvision"])
        assert wide.of(made["strangers"]) is None
    assert exact is not None
    torch.testing.assert_close(exact, (X.double() @ WEIGHT.double()).mean(-1) + 1)


@pytest.mark.parametrize("namespace", ["torchvision", "strangers"])
def test_what_drifts_through_torchvisions_operators_is_noise(pooled: dict[str, Any], namespace: str) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return enlarged(pooled[namespace](x.expand(3, *x.shape).movedim(0, -1)), weight)

    kind = {"torchvision": "noise", "strangers": "mismatch"}[namespace]
    report = rust_ort.compare(function, X, WEIGHT, options={"compare": "outputs"})
    assert [verdict.kind for verdict in report.verdicts] == [kind], report


def test_nothing_runs_again_where_all_is_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    # Named by what imports them, which is imported before.
    for module in (second_look, importlib.import_module("rust_ort.compare")):
        monkeypatch.setattr(module, "in_wide", lambda *_, **__: pytest.fail("float64"))
        monkeypatch.setattr(module, "terms_of", lambda *_: pytest.fail("terms"))
    assert rust_ort.compare(lambda x: x.tanh() * 2, torch.randn(8), options={"compare": "outputs"}).ok


def test_a_report_of_many_values_shows_what_differs_and_counts_the_rest() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
    text = str(rust_ort.compare(model, torch.randn(2, 4)))
    assert len(text.splitlines()) < 12 and re.search(r"\nand \d+ more \(\d+ match\): report.rows\(\) has all\n", text)


def test_a_report_of_many_wrong_values_shows_the_worst_and_counts_the_rest() -> None:
    def wrong(proto: Any) -> None:
        for node in proto.graph.node:
            node.op_type = "Cos" if node.op_type == "Sin" else node.op_type

    report = rust_ort.compare(
        lambda x: [x.sin() / k for k in range(1, 60)], torch.randn(8), options={"transforms": [wrong]}
    )
    text, n_wrong = str(report), sum(verdict.kind == "mismatch" for verdict in report.verdicts)
    assert n_wrong > 50 and len(text.splitlines()) < 32
    assert f"and {n_wrong - 20} more ({n_wrong - 20} mismatch): report.rows() has all" in text
    rows = [row for row in report.rows() if row["judged"] == "value"]
    assert len(rows) == len(report.verdicts) and report._repr_html_().count("<tr>") >= 21
    assert "report.rows() has all" in report._repr_html_()


def test_the_gradient_of_a_parameter_is_asked_for_as_the_report_names_it() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    options = {"transforms": [scaled(1.5)]}
    for name in ("0.weight", "grad of 0.weight"):
        blamed = rust_ort.blame(model, torch.randn(3, 4), gradient=name, options=options)
        assert len(blamed.answers) == 1, blamed
    blamed = rust_ort.blame(model, torch.randn(3, 4), options=options)
    first = str(blamed).partition("\n")[0]
    assert first.startswith("to blame: node tanh (exporter") and "your transforms ran on this graph: " in first


def test_what_eager_does_not_give_twice_has_no_float64() -> None:
    """A generator of the model's own draws on: float64 of another draw would excuse anything."""
    own = torch.Generator().manual_seed(0)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return enlarged(x, weight) + torch.rand(64, generator=own)

    report = rust_ort.compare(function, X, WEIGHT, options={"transforms": [scaled(1.5)]})
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"], report


def test_a_tolerance_that_was_asked_for_is_not_excused(tmp_path: Path) -> None:
    options = {"compare": "outputs", "tolerance": {"atol": 1e-9}}
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(enlarged, X, WEIGHT, options=options)
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"], report
    assert said("compare", tmp_path / "run")[0] == 1


def test_a_rounded_value_is_a_choice() -> None:
    with Wide() as wide:
        y = (torch.full((4,), 0.1) * 3 * 10 - 1e-8).floor()
    assert torch.equal(wide.of(y), y.double())


@pytest.mark.parametrize("deciding", [lambda a, b: (a > 0) == (b > 0), lambda a, b: (a > 0) == 1.0])
def test_branches_of_bools_are_counted(deciding: Any) -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        rounded = rounding_alone(x, weight)
        return torch.where(deciding(rounded, -rounded.roll(1)), 1.0, -1.0)

    report = rust_ort.compare(function, X, WEIGHT, options={"compare": "nodes"})
    assert [verdict.kind for verdict in report.verdicts] == ["tie"], report


def test_what_another_part_gave_is_looked_at_again_as_it_was_traced() -> None:
    def model(x: Tensor, weight: Tensor) -> Tensor:
        turned = x.cos().transpose(1, 2)
        drawn = torch.bernoulli(turned.sum((1, 2)).sigmoid())  # in eager, between two parts
        return torch.mm(turned.transpose(1, 2).view(-1, 4), weight).tanh() * (1 + drawn.mean())

    def wrong(proto: Any) -> None:
        for node in proto.graph.node:
            node.op_type = "Sin" if node.op_type == "Tanh" else node.op_type

    torch.manual_seed(0)
    asked = {"compare": "outputs", "transforms": [wrong]}
    report = rust_ort.compare(model, torch.randn(2, 3, 4), torch.randn(4, 4), options=asked)
    assert [len(graph.parts) for graph in report.graphs] == [2]
    assert {verdict.kind for verdict in report.verdicts} == {"mismatch"}


def wrong_beyond_five(x: Any) -> Any:
    """A translation of tanh, off by 1e-2 where x is more than 5."""
    far = opset18.Cast(opset18.Greater(x, opset18.Constant(value_float=5.0)), to=1)
    return opset18.Sub(opset18.Tanh(x), opset18.Mul(far, opset18.Constant(value_float=1e-2)))


class Cancelling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin((torch.tanh(x) + 1e5) - 1e5)


class CancellingTwice(nn.Module):
    """Its part's second call reaches what is wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Cancelling()

    def forward(self, x: Tensor) -> list[Tensor]:
        given = []
        for factor in (1.0, 100.0):  # a break in a loop leaves the part a graph of its own
            given.append(self.part(x * factor))
            torch._dynamo.graph_break()
        return given


@pytest.mark.parametrize("compare", ["off", "nodes"])
def test_a_call_whose_nodes_nobody_looked_at_is_excused_by_no_other(compare: str) -> None:
    x = torch.rand(4, 64, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.1
    wrong = {torch.ops.aten.tanh.default: wrong_beyond_five}
    options = {"compare": compare, "compare_every": 2, "custom_translations": wrong}
    report = rust_ort.compare(CancellingTwice(), x, backward=False, options=options)
    kinds = {verdict.name: verdict.kind for verdict in report.verdicts}
    assert kinds["output[1]"] == "mismatch" and not report.ok, report


def test_what_follows_from_a_part_that_is_wrong_is_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is off as a whole, as by an optimizer, each of its nodes alone being right."""
    observed = Part.observed

    def off(self: Part, *args: Any, references: Any = None, **known: Any) -> Any:
        given, verdicts, rest = observed(self, *args, references=references, **known)
        if references is not None and any("tanh" in verdict.name for verdict in verdicts):
            given = [value + 5e-3 for value in given]
            pairs = [(v.name, a, b, "") for v, a, b in zip(verdicts, references, given, strict=True)]
            verdicts = Client.get(rust_ort.Options()).compare(pairs, known["policy"])
        return given, verdicts, rest

    monkeypatch.setattr(Part, "observed", off)

    def two_parts(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        return torch.sin((torch.polygamma(2, y) * 0 + y + 1e5) - 1e5)

    x = torch.rand(4, 64, generator=torch.Generator().manual_seed(0)) + 50
    report = rust_ort.compare(two_parts, x, backward=False, options={"compare": "nodes"})
    (graph,) = report.graphs
    assert len(graph.parts) == 2 and [verdict.kind for _, verdict in graph.verdicts] == ["mismatch"] * 2, report
    assert [verdict.kind for verdict in report.verdicts] == ["mismatch"], report


def test_each_part_that_asks_has_the_float64_of_its_values() -> None:
    def ill(y: Tensor) -> Tensor:
        return torch.sin(y.sum(1, keepdim=True) * 3e3 + y)

    def two_parts(x: Tensor) -> tuple[Tensor, Tensor]:
        y = ill(x @ WEIGHT)
        return y, ill(torch.polygamma(2, y.abs() + 1.0) * 1e-3 + y)

    compiled = torch.compile(two_parts, backend="rust_ort", options={"compare": "outputs"})
    compiled(X)
    graph = rust_ort.graphs()[-1]
    assert len(graph.parts) == 2
    for _, verdict in graph.verdicts:
        assert verdict.is_pass and (verdict.kind == "match" or verdict.noise is not None), graph.verdicts
    assert "noise" in {verdict.kind for _, verdict in graph.verdicts}, graph.verdicts
