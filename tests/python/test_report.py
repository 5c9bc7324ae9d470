"""What a comparison says: as text, rows, JSON, HTML and exception, and when it is ok."""

from __future__ import annotations

import json
import math
import re
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.errors import ClientError, NumericMismatch
from rust_ort.export.partition import COMPLEX
from rust_ort.observe.graph_info import GraphInfo, in_order
from rust_ort.observe.report import Report
from rust_ort.observe.sides import ZEROS_FOR_NONE, scalar_loss
from rust_ort.studies.main_job import rows_of

pytestmark = pytest.mark.usefixtures("daemon")

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7


def add_is_sub(proto: Any) -> None:
    """The planted wrong kernel."""
    for node in proto.graph.node:
        if node.op_type == "Add":
            node.op_type = "Sub"


def named_outputs(x: Tensor) -> dict[str, Tensor]:
    return {"right": x * 2, "<b>wrong": x + 1}


PLANTED = {"transforms": [add_is_sub]}


def test_a_report_that_is_ok_passes_its_check() -> None:
    report = rust_ort.compare(nn.Linear(4, 4), X)
    assert report.check() is report


def test_a_mismatch_is_raised_with_the_worst_value_and_what_to_do() -> None:
    report = rust_ort.compare(named_outputs, X, options=PLANTED)
    with pytest.raises(NumericMismatch) as caught:
        report.check()
    message = str(caught.value)
    assert message.startswith("1 of 2 values differ from eager's:\n") and '"output.<b>wrong"' in message
    assert "8 of 8 outside" in message and "would pass" in message and "rust_ort.blame(" in message
    assert caught.value.code == "MISMATCH"


def test_a_mismatch_names_the_first_wrong_node() -> None:
    report = rust_ort.compare(named_outputs, X, options={**PLANTED, "compare": "nodes"})
    with pytest.raises(NumericMismatch, match=r"first wrong node: .*-inference: add \(aten.add.Tensor") as caught:
        report.check()
    assert caught.value.node == "add" and caught.value.graph.endswith("-inference")


def test_a_node_whose_own_kernel_is_wrong_is_not_ok_where_no_value_shows_it() -> None:
    report = rust_ort.compare(lambda x: (x + 1) * 0, X, options={**PLANTED, "compare": "nodes"})
    assert [verdict.kind for verdict in report.verdicts] == ["match"]
    assert not report.ok
    with pytest.raises(NumericMismatch, match="first wrong node"):
        report.check()


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (torch.rand_like, "ran in eager: it draws random numbers"),
        (lambda x: x, "no graph was compiled: torch.compile found nothing to compute on tensors"),
        (lambda x: None, "the model gave no tensor"),
        (lambda x: 3.0, "the model gave no tensor"),
    ],
    ids=["random", "identity", "none", "number"],
)
def test_where_nothing_is_compared_nothing_passes(model: Any, text: str) -> None:
    report = rust_ort.compare(model, X)
    assert not report.ok and text in str(report)
    with pytest.raises(ClientError, match="nothing was compared with eager") as caught:
        report.check()
    assert text in str(caught.value) and caught.value.code == "NOT_COMPARED"


def test_values_that_cannot_be_compared_are_raised_too() -> None:
    def model(x: Tensor) -> Tensor:
        return (x + 1)[:1] if torch.compiler.is_compiling() else x + 1

    with pytest.raises(NumericMismatch, match=r"output: shapes differ: expected float32\[2, 4\]"):
        rust_ort.compare(model, X).check()


def test_a_value_of_one_side_alone_is_never_a_pass() -> None:
    def model(x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return (x * 2, x * 3) if torch.compiler.is_compiling() else (x * 2,)

    report = rust_ort.compare(model, X)
    assert [(verdict.name, verdict.kind) for verdict in report.verdicts] == [
        ("output[0]", "match"),
        ("output[1]", "failed"),
    ]
    with pytest.raises(NumericMismatch, match=r"output\[1\]: a value comes from one side alone: the backend"):
        report.check()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.used(x), self.unused(x)


def first_output(outputs: tuple[Tensor, Tensor]) -> Tensor:
    return outputs[0].sum()


def test_zeros_of_an_output_that_the_loss_does_not_use_accuse_nobody() -> None:
    report = rust_ort.compare(TwoHeads(), X, loss=first_output)
    assert {verdict.name for verdict in report.verdicts if verdict.reason == ZEROS_FOR_NONE} == {
        "grad of unused.weight",
        "grad of unused.bias",
    }
    assert report.check().ok


def test_a_gradient_that_eager_lacks_and_that_is_not_zero_is_never_a_pass() -> None:
    def every_output(outputs: tuple[Tensor, Tensor]) -> Tensor:
        return sum((one.sum() for one in outputs), torch.zeros(()))

    class Compiled(TwoHeads):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            used, unused = super().forward(x)
            return (used, unused) if torch.compiler.is_compiling() else (used, unused.detach())

    report = rust_ort.compare(Compiled(), X, loss=every_output)
    assert {verdict.name for verdict in report.verdicts if verdict.kind == "failed"} == {
        "grad of unused.weight",
        "grad of unused.bias",
    }


@pytest.mark.parametrize(
    ("patterns", "missing"),
    [
        (["qqqq"], ["no node matched 'qqqq'; the operators: aten.t.default, aten.addmm.default"]),
        (["aten.adm*"], ["no node matched 'aten.adm*'; the nearest: aten.addmm.default"]),
        (["aten.addmm*", "qqqq"], ["no node matched 'qqqq'; the operators"]),
        (["aten.bernoulli*"], ["bernoulli: ran in eager: it draws random numbers"]),
        (["aten.addmm*"], []),
        (["0"], []),
    ],
)
def test_a_pattern_that_compares_nothing_is_not_ok(patterns: list[str], missing: list[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    report = rust_ort.compare(model, X, options={"compare": "nodes", "compare_only": patterns})
    reasons = [verdict.reason for verdict in report.missing]
    assert report.ok == (not missing) and len(reasons) == len(missing)
    for reason, text in zip(reasons, missing, strict=True):
        assert text in reason
    if missing:
        assert missing[0] in str(report)
        with pytest.raises(ClientError, match="not all that was asked for was compared"):
            report.check()
    else:
        assert report.nodes and report.check() is report


def test_compare_only_without_nodes_says_what_it_lacks() -> None:
    report = rust_ort.compare(nn.Linear(4, 4), X, options={"compare_only": ["aten.mm*"]})
    assert not report.ok and "use compare='nodes'" in report.missing[0].reason


def test_json_has_nodes_and_every_metric() -> None:
    report = rust_ort.compare(named_outputs, X, options={**PLANTED, "compare": "nodes"})
    plain = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert plain["schema"] == 7 and plain["ok"] is False and plain["missing"] == []
    (wrong,) = (entry for entry in plain["verdicts"] if entry["verdict"] == "mismatch")
    assert wrong["name"] == "output.<b>wrong"
    assert {"cosine", "rmse", "max_ulp", "above", "worst", "required", "tolerance", "max_diff"} <= set(wrong["metrics"])
    (graph,) = plain["graphs"]
    assert [(node["name"], node["local"]["verdict"]) for node in graph["nodes"]] == [
        ("mul", "match"),
        ("add", "mismatch"),
    ]
    assert graph["nodes"][1]["local"]["metrics"]["worst"]["reference"] == pytest.approx(1.0, abs=1.0)


def test_json_and_rows_hold_numbers_that_are_not_finite() -> None:
    differs = {"compare": "nodes", "tolerance": {"equal_nan": False}}
    report = rust_ort.compare(lambda x: x / 0 * 0, X, options=differs)
    (entry,) = json.loads(report.to_json(), parse_constant=pytest.fail)["verdicts"]
    assert entry["max_abs"] == "inf" and entry["metrics"]["max_abs"] == "inf"
    assert report.rows()[0]["max_abs"] == math.inf
    assert "set equal_nan to accept them" in str(report)


@pytest.mark.parametrize("equal_nan", [False, True])
def test_nan_is_judged_in_nodes_as_in_values(equal_nan: bool) -> None:
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, math.nan)
    options = {"compare": "nodes", "tolerance": {"atol": 1e-6, "equal_nan": equal_nan}}
    report = rust_ort.compare(model, X, backward=False, options=options)
    assert report.ok == equal_nan
    kind = "match" if equal_nan else "mismatch"
    assert {verdict.kind for verdict in report.verdicts} == {node.local.kind for _, node in report.nodes} == {kind}


def test_rows_are_flat_and_have_the_same_keys() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    rows = rust_ort.compare(model, X, options={"compare": "nodes"}).rows()
    assert len({tuple(row) for row in rows}) == 1
    assert all(value is None or isinstance(value, str | int | float | bool) for row in rows for value in row.values())
    assert {row["judged"] for row in rows} == {"value", "local", "cumulative"}
    (weight,) = (row for row in rows if row["name"] == "grad of 0.weight")
    assert weight["verdict"] == "match" and weight["shape"] == "[4, 4]" and weight["graph"] is None
    (addmm,) = (row for row in rows if row["name"] == "addmm" and row["judged"] == "local")
    assert addmm["op"] == "aten.addmm.default" and addmm["module"] == "0" and addmm["tolerance_rtol"] > 0
    (drawn,) = (row for row in rows if row["op"] == "aten.bernoulli.p" and row["judged"] == "local")
    assert drawn["verdict"] == "not_compared" and drawn["max_abs"] is None


def test_html_is_escaped() -> None:
    text = rust_ort.compare(named_outputs, X, options={**PLANTED, "compare": "nodes"})._repr_html_()
    assert "output.&lt;b&gt;wrong" in text and "<b>" not in text
    assert "aten.add.Tensor" in text and "first wrong node" in text
    explained = rust_ort.explain(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), X)._repr_html_()
    assert "torch&#x27;s generator" in explained and "aten.bernoulli.p" in explained


def test_the_option_compare_has_a_report_too() -> None:
    backend = rust_ort.backend(compare="outputs")
    model = torch.compile(nn.Linear(4, 4), backend=backend)
    with pytest.raises(ClientError, match="no call was compared; call the model"):
        backend.report().check()
    model(X).sum().backward()
    report = backend.report().check()
    assert {verdict.kind for verdict in report.verdicts} == {"match"}
    assert any("-backward, call 0: " in verdict.name for verdict in report.verdicts)
    planted = rust_ort.backend(compare="outputs", **PLANTED)
    torch.compile(named_outputs, backend=planted)(X)
    with pytest.raises(NumericMismatch, match="-inference, call 0: add"):
        planted.report().check()


def test_backward_is_listed_after_its_forward() -> None:
    def info(name: str) -> GraphInfo:
        direction = name.rpartition("-")[2]
        return GraphInfo(name=name, direction=direction, graph_id=name, compute_nodes=0, parts=[], eager=[], seconds={})

    made = ["0_0-backward", "0_0-forward", "1_0-forward", "2_0-inference", "1_0-backward"]
    listed = ["0_0-forward", "0_0-backward", "1_0-forward", "1_0-backward", "2_0-inference"]
    assert [graph.name for graph in in_order(map(info, made))] == listed
    assert [row.graph for row in rows_of("model", [info(name) for name in made])] == listed


def test_explain_lists_the_forward_before_its_backward() -> None:
    def model(x: Tensor) -> Tensor:
        y = (x * 2).exp()
        torch._dynamo.graph_break()
        return (y + 1).sin()

    explained = rust_ort.explain(model, X.clone().requires_grad_())
    assert [graph.direction for graph in explained.graphs] == ["forward", "backward"] * 2
    assert len({graph.name.rpartition("-")[0] for graph in explained.graphs[:2]}) == 1


def test_explain_says_why_there_is_no_graph() -> None:
    explained = rust_ort.explain(lambda x: x, X)
    text = "0 graphs, 0 graph breaks; no graph was compiled: torch.compile found nothing to compute on tensors"
    assert text in str(explained) and text in explained._repr_html_()


def test_explain_says_each_kind_of_break_once_with_its_places_and_the_setting_that_spares_it() -> None:
    def model(x: Tensor) -> Tensor:
        y = x * x.sum().item()
        if y.sum() > 0:
            y = y + 1
        if y.sum() > 1:
            y = y + 2
        return y

    explained = rust_ort.explain(model, X)
    breaks = [line.strip() for line in str(explained).splitlines() if line.startswith("  break (")]
    assert len(breaks) == 2 < len(explained.breaks), breaks
    assert breaks[0].endswith(": torch._dynamo.config.capture_scalar_outputs = True has Dynamo trace it")
    line = model.__code__.co_firstlineno
    assert breaks[1] == f"break (2): Data-dependent branching ({__file__}:{line + 2}, {__file__}:{line + 4})"
    assert explained._repr_html_().count("Data-dependent branching") == 1


NO_FORM = f"{COMPLEX}: aten.tanh.default has no form of pairs"


def spectrum(x: Tensor) -> Tensor:
    """Nodes of complex numbers, one without a form of pairs."""
    y = torch.fft.rfft(x)
    y = y * torch.conj(torch.fft.rfft(x * 2)) * 0.5
    return torch.fft.irfft((y * y).tanh()) + 1


def test_explain_says_each_reason_for_eager_once_with_what_it_holds_and_where() -> None:
    with torch.no_grad():
        found = rust_ort.explain(spectrum, X, backward=False)
    text, n_nodes = str(found), len(found.eager)
    assert n_nodes > 5 and {node.reason for node in found.eager} == {NO_FORM}
    assert text.count(COMPLEX) == 1 and f"    {n_nodes} nodes: {NO_FORM}\n" in text
    (operators,) = (line for line in text.splitlines() if "2 aten._fft_r2c.default" in line)
    assert all(op in operators for op in {node.op for node in found.eager})
    line = spectrum.__code__.co_firstlineno
    assert f"{__file__}:{line + 2}, :{line + 3}, :{line + 4}\n" in text


def test_a_graph_is_logged_with_each_reason_for_eager_once(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        torch.compile(spectrum, backend="rust_ort")(X)
    (record,) = (record for record in caplog.records if "run in eager" in record.getMessage())
    assert record.getMessage().count(COMPLEX) == 1
    assert re.search(r"_fft_r2c \(aten._fft_r2c.default\), .+ and \d+ more: ", record.getMessage())


def test_explain_says_what_failed_where_tracing_for_the_backend_breaks_a_graph() -> None:
    def model(x: Tensor) -> Tensor:
        half = torch.div(torch.tensor(x.shape[0]), 2, rounding_mode="trunc")
        return x.view(half, -1) * 2

    (line,) = (line.strip() for line in str(rust_ort.explain(model, X)).splitlines() if line.startswith("  break ("))
    place = f"{__file__}:{model.__code__.co_firstlineno + 2}"
    assert line == f"break (1): Backend compiler `rust_ort` failed with aten._local_scalar_dense.default ({place})"


def test_of_jagged_tensors_the_values_are_judged() -> None:
    jagged = torch.nested.nested_tensor([X, X[:1] + 1], layout=torch.jagged, requires_grad=True)
    report = rust_ort.compare(lambda x: x * 2, jagged).check()
    assert [verdict.name for verdict in report.verdicts] == ["output", "loss", "grad of input[0]"]
    assert {verdict.metrics["n"] for verdict in report.verdicts if verdict.metrics} == {12, 1}


def test_sparse_tensors_are_no_graph_of_torch_compiles() -> None:
    report = rust_ort.compare(lambda s: s * 2, X.to_sparse())
    with pytest.raises(ClientError, match="output: no graph was compiled: Attempted to wrap sparse Tensor"):
        report.check()


def test_arguments_are_named_as_they_were_given() -> None:
    def model(x: Tensor, *, scale: Tensor) -> Tensor:
        x.add_(1)
        return x * scale

    report = rust_ort.compare(model, X.clone(), scale=torch.tensor(2.0, requires_grad=True))
    # Both sides wrote the same into x.
    assert [verdict.name for verdict in report.check().verdicts] == ["output", "loss", "grad of input.scale"]


def test_an_argument_that_the_sides_left_different_is_named() -> None:
    report = rust_ort.compare(lambda x: x.add_(1).mul(0), X.clone(), options=PLANTED)
    kinds = {verdict.name: verdict.kind for verdict in report.verdicts}
    assert kinds == {"output": "match", "input[0] afterwards": "mismatch"}


def test_an_argument_with_nan_that_nobody_wrote_into_is_no_mismatch() -> None:
    x = torch.tensor([3.0, math.nan, 1.0])
    report = rust_ort.compare(lambda x: torch.where(x.isnan(), 0.0, x) * 2, x)
    assert [verdict.name for verdict in report.check().verdicts] == ["output"]


def test_tensors_without_elements_are_no_comparison() -> None:
    report = rust_ort.compare(lambda x: x.exp()[:0], X)
    assert [verdict.kind for verdict in report.verdicts] == ["not_compared"] and not report.ok


def test_comparisons_in_threads_do_not_meet() -> None:
    reports: list[Report] = []

    def work() -> None:
        model = nn.Linear(4, 4)
        reports.extend(rust_ort.compare(model, X, backward=False, options={"compare": "nodes"}) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(report.ok, len(report.nodes)) for report in reports] == [(True, 2)] * 20


def test_a_report_has_the_verdicts_of_its_own_thread_alone() -> None:
    """Another thread calls the same compiled code meanwhile."""
    model = torch.compile(lambda x: pause(x * 2) + 1, backend="rust_ort", options={"compare": "nodes"})

    @torch._dynamo.disable
    def pause(x: Tensor) -> Tensor:
        if armed and not torch.compiler.is_compiling() and threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=model, args=(X,))
            other.start()
            other.join()
        return x

    armed: list[bool] = []
    model(X)
    armed.append(True)
    report = rust_ort.compare(model, X)
    assert [node.name for _, node in report.nodes] == ["mul", "add"], str(report)


@pytest.mark.parametrize(("function", "why"), [
    (torch.linalg.inv, "torchlib has no function for aten.linalg_inv_ex.default"),
    (lambda x: x, "no graph was compiled: torch.compile found nothing to compute on tensors"),
])  # fmt: skip
def test_tools_say_why_nothing_of_a_model_ran(function: Any, why: str) -> None:
    blamed = str(rust_ort.blame(function, torch.eye(3)))
    assert blamed.startswith("nothing of it ran on ONNX Runtime, so there is nothing to blame: ") and why in blamed
    text = f"nothing of it ran on ONNX Runtime, so there is nothing to keep: .*{re.escape(why)}"
    with pytest.raises(ClientError, match=text) as caught:
        rust_ort.keep_in_float32(function, torch.eye(3))
    assert caught.value.code == "NOT_COMPARED"


def test_values_that_are_zero_on_both_sides_are_told_to_tell_little() -> None:
    head = nn.Linear(4, 3)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(nn.Linear(4, 4), head)
    report = rust_ort.compare(model, X).check()
    told = [line for line in str(report).splitlines() if line.startswith("zero on both sides, so that")]
    assert [line.partition("): ")[2] for line in told] == ["output and 3 more"]  # loss, gradients of the first layer
    nn.init.ones_(head.weight)
    assert "zero on both sides" not in str(rust_ort.compare(model, X))
    assert "zero on both sides" not in str(rust_ort.compare(lambda x: x > 9, X))


@pytest.mark.filterwarnings("error:Casting complex values to real")
def test_gradients_of_complex_outputs_are_of_both_parts() -> None:
    real, imaginary = X.clone().requires_grad_(), (X + 1).requires_grad_()
    report = rust_ort.compare(lambda x, y: torch.complex(x * 2, y * y), real, imaginary).check()
    gradients = [verdict for verdict in report.verdicts if verdict.name.startswith("grad of ")]
    sizes = [verdict.metrics["max_reference"] for verdict in gradients if verdict.metrics is not None]
    assert len(sizes) == 2 and all(sizes), gradients
    conjugate = torch.complex(real, imaginary).conj()
    loss = scalar_loss(conjugate, None)
    assert loss is not None
    assert all(gradient.any() for gradient in torch.autograd.grad(loss, (real, imaginary)))
