"""Where the first NaN or infinity comes from, forward and backward, in eager and in ONNX Runtime."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rust_ort

NODES = {"compare": "nodes", "tolerance": {"rtol": 1e-2, "atol": 1e-3, "equal_nan": True}}


def births_of(model: Any, x: Tensor, **options: Any) -> rust_ort.Report:
    torch.manual_seed(0)
    torch.compiler.reset()
    return rust_ort.compare(model, x, options={**NODES, **options})


def firsts(report: rust_ort.Report) -> dict[tuple[str, bool], tuple[str, str, str]]:
    """{(side, whether NaN): (direction, node's operator, kind)}."""
    return {
        (birth["side"], birth["kind"] == "nan"): (graph.split("-")[1], node.op, birth["kind"])
        for graph, node, birth in report.first_births
    }


class Grows(nn.Module):
    """float16: 300 · 300 is beyond 65504; what follows is infinite, then NaN."""

    def forward(self, x: Tensor) -> Tensor:
        large = x * x
        return (large + 1) - large * 2


@pytest.mark.usefixtures("daemon")
def test_an_overflow_of_half_precision_in_the_forward_is_named_at_its_node() -> None:
    x = torch.linspace(1, 300, 32, dtype=torch.float16)
    report = births_of(Grows(), x)
    found = firsts(report)
    for side in ("candidate", "reference"):
        assert found[side, False] == ("forward" if x.requires_grad else "inference", "aten.mul.Tensor", "overflow")
        assert found[side, True][1:] == ("aten.sub.Tensor", "nan")
    graph, node, birth = next(entry for entry in report.first_births if entry[2]["kind"] == "overflow")
    assert birth["limit"] == 65504 and birth["largest"] <= 65504 and birth["value"]["inf"] > 0
    (read,) = birth["read"]
    assert (read["dtype"], read["dims"], read["min"], read["max"]) == ("float16", [32], 1.0, 300.0)
    metrics: Any = node.cumulative.metrics
    assert metrics["candidate_inf"] == metrics["reference_inf"] == birth["value"]["inf"]
    assert (
        f"first infinity of ONNX Runtime: {graph}: mul (aten.mul.Tensor): overflow of float16 (largest 65504)"
        in str(report)
    )
    plain = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert plain["graphs"][0]["nodes"][0]["births"][0]["kind"] == "overflow"


class Steep(nn.Module):
    """Of the backward alone: its factor of a thousand, twice, on gradients of half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.001, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.weight * x * 300).tanh() * 1000 * 0.5).sum() * 30


@pytest.mark.usefixtures("daemon")
def test_an_overflow_in_the_backward_is_named_there() -> None:
    report = births_of(Steep(), torch.full((4,), 0.01, dtype=torch.float16))
    found = firsts(report)
    assert {side for side, _ in found} == {"candidate", "reference"}, report
    for side in ("candidate", "reference"):
        direction, op, kind = found[side, False]
        assert (direction, op, kind) == ("backward", "aten.mul.Tensor", "overflow"), report


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (1 / (x - x)).exp()


@pytest.mark.usefixtures("daemon")
def test_a_division_by_zero_is_an_infinity_and_no_overflow() -> None:
    found = firsts(births_of(Divided(), torch.ones(4, dtype=torch.float16)))
    assert found["candidate", False][2] == found["reference", False][2] == "infinity"
    assert ("candidate", True) not in found


def only_ours(proto: Any) -> None:
    """A transform: Tanh becomes a quotient of zeros."""
    for node in proto.graph.node:
        if node.op_type == "Tanh":
            proto.graph.node.add(op_type="Sub", input=[node.input[0]] * 2, output=["zero_of"], name="zero_of_n")
            node.op_type = "Div"
            del node.input[:]
            node.input.extend(["zero_of", "zero_of"])
    nodes = sorted(proto.graph.node, key=lambda node: node.op_type == "Div")
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


@pytest.mark.usefixtures("daemon")
def test_a_nan_of_one_side_alone_is_that_sides() -> None:
    report = births_of(torch.tanh, torch.randn(8), transforms=[only_ours])
    assert set(firsts(report)) == {("candidate", True)}, report
    assert "first NaN of ONNX Runtime" in str(report) and "first NaN of eager" not in str(report)


@pytest.mark.usefixtures("daemon")
def test_what_became_zero_is_counted() -> None:
    def flushed(proto: Any) -> None:
        for node in list(proto.graph.node):
            if node.op_type == "Exp":
                node.op_type, name = "Relu", node.output[0]
                node.output[0] = f"{name}_relu"
                proto.graph.node.add(op_type="Identity", input=[node.output[0]], output=[name], name=f"{name}_n")

    x = torch.tensor([-1.0, -2.0, 1.0, 2.0])
    report = births_of(torch.exp, x, transforms=[flushed])
    metrics: Any = report.nodes[0][1].local.metrics
    assert metrics["underflow"] == 0.5
    assert report.first_births == []
