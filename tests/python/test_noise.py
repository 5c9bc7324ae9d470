"""Noise: how far ONNX Runtime and eager are from float64, at every node; a fault of its size is told apart."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, fx, nn

import rust_ort
from rust_ort.errors import OptionError
from rust_ort.link.specs import Verdict
from rust_ort.observe.spread import spreads
from rust_ort.observe.wide import DRAWN, EXACT, NoFloat64, Unknown, Wide, WideGraph, in_float64

aten = torch.ops.aten
ALL = {"compare": "nodes", "compare_float64": "all"}


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x)))).softmax(-1)


def compared(dtype: torch.dtype = torch.float32, **options: Any) -> rust_ort.Report:
    torch.manual_seed(0)
    torch.compiler.reset()
    return rust_ort.compare(Mlp().to(dtype), torch.randn(24, 32).to(dtype), options={**ALL, **options})


def wrong_tanh(by: float) -> Any:
    """A transform: what Tanh gives is off by this share, at every other element of the last axis (64 wide)."""

    def change(proto: Any) -> None:
        for node in list(proto.graph.node):
            if node.op_type == "Tanh":
                right = f"{node.output[0]}_right"
                code = next(i.type.tensor_type.elem_type for i in proto.graph.input)
                factors = [1.0 + by * (index % 2) for index in range(64)]
                proto.graph.initializer.append(helper.make_tensor("off_by", code, [64], factors))
                multiplied = helper.make_node("Mul", [right, "off_by"], [node.output[0]], name=f"{right}_off")
                node.output[0] = right
                proto.graph.node.append(multiplied)

    return change


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_floating_node_forward_and_backward_has_both_noises(dtype: torch.dtype) -> None:
    report = compared(dtype)
    assert report.ok, report
    for graph, node in report.nodes:
        assert node.local.noise is not None and node.cumulative.noise is not None, (graph, node.name, node.no_float64)
    assert {graph.split("-")[1] for graph, _ in report.nodes} == {"forward", "backward"}
    assert set(report.noise["local"]) == {"noise"}, report
    values = {verdict.name: verdict.noise for verdict in report.verdicts}
    assert {"output", "loss", "grad of first.weight"} <= set(values) and None not in values.values()


@pytest.mark.usefixtures("daemon")
def test_a_planted_fault_is_told_from_noise_of_its_size_at_the_node() -> None:
    """In bfloat16 eager is off by some percent of the largest output; so is a Tanh of half a percent more."""
    clean, planted = compared(torch.bfloat16), compared(torch.bfloat16, transforms=[wrong_tanh(0.02)])
    assert set(clean.noise["local"]) == set(clean.noise["cumulative"]) == {"noise"}, clean
    assert clean.first_worse_node is None
    assert planted.first_worse_node is not None
    graph, node = planted.first_worse_node
    assert (graph.split("-")[1], node.op) == ("forward", "aten.tanh.default")
    worse = [n.name for _, n in planted.nodes if n.local.noise and n.local.noise["kind"] == "candidate_worse"]
    assert worse == [node.name]
    noise: Any = node.local.noise
    # As large as what eager itself is off by further down.
    size = max(float(n.cumulative.noise["reference_error"]) for _, n in clean.nodes if n.cumulative.noise)
    assert 0.3 * size < float(noise["candidate_error"]) < 3 * size, size
    assert float(noise["ratio"]) > 2 and float(node.cumulative.noise["ratio"]) > 1.5  # type: ignore[index]


def a_part_of_a_step_off(proto: Any) -> None:
    """A transform: Tanh in float32, times 1 and a quarter of half precision's step, and rounded then."""
    for node in list(proto.graph.node):
        if node.op_type == "Tanh":
            read, value = node.input[0], node.output[0]
            code = next(i.type.tensor_type.elem_type for i in proto.graph.input)
            step = 2.0**-7 if code == TensorProto.BFLOAT16 else 2.0**-10
            proto.graph.initializer.append(helper.make_tensor("off_by", TensorProto.FLOAT, [], [1 + 0.25 * step]))
            node.input[0], node.output[0] = f"{value}_wide", f"{value}_right"
            proto.graph.node.extend(
                [
                    helper.make_node("Cast", [read], [f"{value}_wide"], name="planted_wide", to=TensorProto.FLOAT),
                    helper.make_node("Mul", [f"{value}_right", "off_by"], [f"{value}_off"], name="planted_mul"),
                    helper.make_node("Cast", [f"{value}_off"], [value], name="planted_back", to=code),
                ]
            )


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_fault_within_rounding_is_told_by_how_all_elements_are_rounded(dtype: torch.dtype) -> None:
    clean, planted = compared(dtype), compared(dtype, transforms=[a_part_of_a_step_off])
    assert clean.first_worse_node is None and planted.first_worse_node is not None, planted
    _, node = planted.first_worse_node
    noise: Any = node.local.noise
    assert (node.op, node.local.kind) == ("aten.tanh.default", "match")
    # By its largest error it is noise.
    assert float(noise["candidate_excess"]) < 1.5 * max(float(noise["reference_excess"]), 1.0)
    rounding = noise["rounding"]
    assert rounding["n"] == 24 * 64 and rounding["reference_beyond"] == 0 < rounding["candidate_beyond"]
    assert float(rounding["candidate_rms"]) > 1.1 * float(rounding["reference_rms"])
    assert "in steps of the type: root mean square 0." in str(planted)


@pytest.mark.usefixtures("daemon")
def test_a_fault_within_rounding_that_a_sum_enlarges_is_blamed_where_float64_is_asked_of_all() -> None:
    def enlarged(x: Tensor) -> Tensor:
        return (torch.tanh(x).float() - 0.7616).sum(0)

    draw = torch.Generator().manual_seed(0)
    x = (1 + 0.2 * torch.randn(4096, 8, generator=draw)).bfloat16()
    for float64, transforms, expected in (
        ("all", [], "nobody"),
        ("mismatches", [a_part_of_a_step_off], "nobody"),
        ("all", [a_part_of_a_step_off], "node"),
    ):
        torch.compiler.reset()
        options = {"transforms": transforms, "compare_float64": float64}
        blame = rust_ort.blame(enlarged, x, options=options)
        culprits = [answer["culprit"] for answer in blame.answers]
        assert [culprit["kind"] for culprit in culprits] == [expected], blame
        # Without float64 of all the output is right by what it adds up, in the report as here.
        assert (expected == "node") == any(answer["complaints"] for answer in blame.answers), blame
    assert culprits[0]["name"] == "tanh" and "wrong" in str(blame), blame


@pytest.mark.usefixtures("daemon")
def test_the_report_tells_it_as_text_as_json_and_as_rows() -> None:
    report = compared(torch.bfloat16, transforms=[wrong_tanh(0.02)])
    text = str(report)
    assert "against float64, nodes alone: " in text and "1 candidate worse" in text
    assert "-forward: tanh (aten.tanh.default): candidate worse: from float64" in text
    plain = json.loads(report.to_json())
    assert plain["schema"] == 7 and plain["noise"]["local"]["candidate_worse"] == 1
    node = next(node for node in plain["graphs"][0]["nodes"] if node["name"] == "tanh")
    assert node["local"]["noise"]["kind"] == "candidate_worse" and node["no_float64"] == ""
    row = next(row for row in report.rows() if row["name"] == "tanh" and row["judged"] == "local")
    assert row["noise_kind"] == "candidate_worse" and row["noise_ratio"] > 2
    assert "noise" not in compared_plainly()


def compared_plainly() -> str:
    torch.compiler.reset()
    return str(rust_ort.compare(Mlp(), torch.randn(3, 32), options={"compare": "nodes"}))


@pytest.mark.usefixtures("daemon")
def test_the_factor_is_an_option() -> None:
    wide = compared(torch.bfloat16, transforms=[wrong_tanh(0.02)], noise_factor=1000.0)
    assert wide.first_worse_node is None
    with pytest.raises(OptionError, match="noise_factor"):
        rust_ort.Options(noise_factor=0.9)


class Chosen(nn.Module):
    """Integers, dropped values, and a part after an operator that stays in eager."""

    def forward(self, x: Tensor) -> Tensor:
        order = x.argsort(-1)
        kept = torch.nn.functional.dropout(x.gather(-1, order).exp(), 0.5)
        return (torch.linalg.inv(kept.T @ kept + 8 * torch.eye(8)) @ x.sum(0)).tanh() * 2


@pytest.mark.usefixtures("daemon")
def test_what_has_no_float64_says_so_and_it_is_carried_through_eager_nodes() -> None:
    torch.manual_seed(0)
    report = rust_ort.compare(Chosen(), torch.randn(6, 8), options=ALL)
    assert report.ok, report
    nodes = {node.name: node for graph, node in report.nodes if "forward" in graph or "inference" in graph}
    none = {node.op: node.no_float64 for node in nodes.values() if node.no_float64}
    assert none.get("aten.sort.stable") == EXACT or EXACT in none.values(), none
    last: Any = next(node for node in nodes.values() if node.op == "aten.tanh.default")
    assert last.local.noise is not None and last.cumulative.noise is not None, last.no_float64
    assert float(last.cumulative.noise["reference_error"]) < 1e-4


# --- Float64 beside eager --------------------------------------------------------------------------------------------


def test_an_operator_is_run_in_float64_or_says_why_not() -> None:
    x = torch.tensor([1.0, 2.0]).bfloat16()
    wide: Any = in_float64(aten._to_copy.default, (x.double(),), {"dtype": torch.float16}, x.half())
    assert wide.dtype is torch.float64
    assert in_float64(aten.gt.Scalar, (x.double(), 1), {}, x > 1).dtype is torch.bool
    values, places = x.sort()
    made = in_float64(aten.sort.default, (x.double(),), {}, (values, places))
    assert made[0].dtype is torch.float64 and made[1] is places
    drawn = torch.rand(3)
    assert in_float64(aten.rand.default, ([3],), {}, drawn).tolist() == drawn.double().tolist()
    dropped = torch.native_dropout(x, 0.5, True)
    kept: Any = in_float64(aten.native_dropout.default, (x.double(), 0.5, True), {}, dropped)
    assert kept[0].tolist() == (x.double() * dropped[1] / 0.5).tolist()
    for target, args, result, why in (
        (aten.bernoulli.default, (x.double(),), x, "draws random numbers"),
        (aten.add_.Tensor, (x.double(), 1.0), x, "writes"),
        (aten.view.dtype, (x.double(), torch.int16), x.view(torch.float16), "no float64"),
        (aten.neg.default, (Unknown("not known from a"),), x, "not known from a"),
        (aten.mm.default, (x.double(), x.double()), x, "cannot"),
    ):
        with pytest.raises(NoFloat64, match=why):
            in_float64(target, args, {}, result)


def test_what_is_made_of_the_unknown_is_unknown_and_says_from_where() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    flipped = graph.call_function(aten.bernoulli.default, (x,))
    after = graph.call_function(aten.neg.default, (flipped,))
    value = torch.tensor([0.5])
    wide = WideGraph()
    wide.take(x, value)
    for node in (flipped, after):
        wide.step(node, value)
    assert wide.carried(x)[0] is not None
    reason = "not known from 'bernoulli_default' on: it draws random numbers by its values"
    assert wide.carried(flipped) == wide.carried(after) == (None, reason)
    assert wide.alone(after, value, {flipped: value, after: value})[0].tolist() == [-0.5]  # type: ignore[union-attr]
    assert DRAWN.startswith("random numbers")


def test_a_model_runs_in_float64_beside_itself_through_its_gradients() -> None:
    torch.manual_seed(0)
    model, x = Mlp(), torch.randn(5, 32)
    twin = Mlp().double()
    twin.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    twin(x.double()).square().sum().backward()
    with Wide() as wide:
        made = model(x)
        made.square().sum().backward()
        total = torch.zeros(3)
        total.add_(made.detach()[0, :3]).mul_(2)
        found = {name: wide.of(parameter.grad) for name, parameter in model.named_parameters()}
        summed = wide.of(total)
    for name, parameter in twin.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=1e-12, atol=1e-14), name  # type: ignore[arg-type]
    assert summed is not None and math.isclose(summed[0].item(), 2 * twin(x.double())[0, 0].item(), rel_tol=1e-12)


def test_what_is_drawn_and_computed_of_is_not_known_and_what_drops_nothing_is() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    with Wide() as wide:
        dropped, _ = torch.native_dropout(x, 0.5, False)
        noise = torch.empty(4, 6)
        leaky = aten.rrelu_with_noise.default(x, noise, 0.1, 0.3, True)
        found, drawn, of_noise = wide.of(dropped), wide.of(leaky), wide.of(noise)
    assert found is not None and torch.equal(found, x.double())
    assert drawn is None and of_noise is None
    assert in_float64(aten.native_dropout.default, (x.double(), 0.5, False), {}, (dropped, x < 9))[0].equal(x.double())


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("fill", [torch.finfo(torch.float32).min, -1e13])
def test_an_elements_rounding_is_not_measured_by_another_that_is_huge(fill: float) -> None:
    """A mask's fill in a tensor whose other elements come out twice as large as they are."""

    def doubled(proto: Any) -> None:
        (node,) = [node for node in proto.graph.node if node.op_type == "Mul"]
        right, made = f"{node.output[0]}_right", node.output[0]
        node.output[0] = right
        proto.graph.initializer.append(helper.make_tensor("two", TensorProto.FLOAT, [1], [2.0]))
        proto.graph.initializer.append(helper.make_tensor("limit", TensorProto.FLOAT, [1], [-1e5]))
        proto.graph.node.append(helper.make_node("Mul", [right, "two"], ["twice"], name="twice"))
        proto.graph.node.append(helper.make_node("Greater", [right, "limit"], ["usual"], name="usual"))
        proto.graph.node.append(helper.make_node("Where", ["usual", "twice", right], [made], name="chosen"))

    torch.manual_seed(0)
    x, y = torch.randn(4, 8), torch.rand(4, 8) + 0.5
    x[:, -1], y[:, -1] = fill, 0.5
    for transforms, wrong in (([], None), ([doubled], "mul")):
        torch.compiler.reset()
        options = {"compare": "nodes", "transforms": transforms}
        report = rust_ort.compare(torch.mul, x, y, options=options)
        assert (report.first_wrong_node and report.first_wrong_node[1].name) == wrong, report


def test_what_float16_has_as_zero_is_moved_by_its_least_step() -> None:
    """A gradient without a scaled loss: eager rounds each summand to zero, and another kernel up as well."""
    x, least = torch.full((1000,), 3e-4, dtype=torch.float16), 2.0**-24

    def run() -> dict[str, Tensor]:
        return {"sum": (x * 9e-5).float().sum()}  # each 2.7e-8: less than half of the least step

    value, exact = run()["sum"], torch.tensor(1000 * 2.7e-8, dtype=torch.float64)
    assert value == 0
    wrong = Verdict(
        name="sum", kind="mismatch", reason="", metrics={"max_reference": 0.0}, max_abs=500 * least,
        max_rel_to_max=math.inf, outside=1,
    )  # fmt: skip
    (moved,) = spreads({"sum": wrong}, run, {"sum": exact}, seconds=60).values()
    assert least < moved.largest < 1000 * least
