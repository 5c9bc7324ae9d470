"""Branches that rounding turned between a forward and its backward excuse what follows from them, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from onnx import helper
from torch import Tensor, nn

import rust_ort
from rust_ort.observe.turned import Another, Following, Turned

pytestmark = pytest.mark.usefixtures("daemon")

DRAW = torch.Generator().manual_seed(0)
X, WEIGHT = torch.randn(8, 4096, generator=DRAW), torch.randn(4096, 64, generator=DRAW)


@pytest.fixture(autouse=True)
def nothing_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """What float64 and other roundings say would excuse so small a model as well."""
    monkeypatch.setattr("rust_ort.compare.in_wide", lambda *_, **__: {})
    monkeypatch.setattr("rust_ort.compare.spreads", lambda *_, **__: {})


class Rectified(nn.Module):
    """Half of its rectifiers stand at what rounding leaves, beside values so large that this is inside tolerance."""

    def __init__(self, *, scaled: float = 1.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(128))
        self.scaled = scaled

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        rounding = (x * 1.0001) @ weight - (x @ weight) * 1.0001
        hidden = torch.cat([rounding, torch.full_like(rounding, 1000.0)], dim=1)
        factor = self.scaled if torch.compiler.is_compiling() else 1.0
        return torch.relu(hidden + self.bias * factor)


def verdict_of_bias(model: nn.Module, **options: Any) -> Any:
    report = rust_ort.compare(model, X, WEIGHT, options=options)
    return next(verdict for verdict in report.verdicts if verdict.name == "grad of bias"), report


def test_a_gradient_behind_turned_rectifiers_is_a_tie() -> None:
    verdict, report = verdict_of_bias(Rectified(), compare="nodes")
    assert verdict.kind == "tie", report
    assert "of relu took the other branch by rounding" in verdict.reason
    assert report.ok


def test_what_turned_branches_do_not_explain_stays_a_mismatch() -> None:
    """The gradient is 1.5 times eager's beside, and every node is right."""
    verdict, report = verdict_of_bias(Rectified(scaled=1.5), compare="nodes")
    assert verdict.kind == "mismatch" and report.first_wrong_node is None, report


def test_a_wrong_node_is_not_excused() -> None:
    def doubled(proto: Any) -> None:
        for node in proto.graph.node:
            if node.op_type == "ReduceSum":
                node.op_type = "ReduceMean"

    doubled.cache_key = "test_turned"  # type: ignore[attr-defined]
    verdict, report = verdict_of_bias(Rectified(), compare="nodes", transforms=[doubled])
    assert verdict.kind == "mismatch" and report.first_wrong_node is not None, report


def leaky(proto: Any) -> None:
    """Where a rectifier gives zero comes a tiny positive number: inside tolerance, and the mask is all ones."""
    for node in proto.graph.node:
        if node.op_type == "Relu":
            node.op_type = "LeakyRelu"
            node.attribute.append(helper.make_attribute("alpha", -1e-9))


leaky.cache_key = "leaky"  # type: ignore[attr-defined]


@pytest.mark.parametrize("inplace", [False, True])
def test_a_rectifier_far_from_zero_was_turned_by_no_rounding(inplace: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=inplace), nn.Linear(16, 4))
    report = rust_ort.compare(model, torch.randn(16, 16), options={"transforms": [leaky], "compare": "nodes"})
    kinds = {verdict.name: verdict.kind for verdict in report.verdicts}
    assert kinds["grad of 0.weight"] == "mismatch" and not report.ok, report


def test_a_tolerance_that_was_given_is_not_excused() -> None:
    verdict, report = verdict_of_bias(Rectified(), compare="nodes", tolerance={"rtol": 1e-5, "atol": 1e-6})
    assert verdict.kind == "mismatch" and not report.ok, report


def test_a_branch_that_eager_cannot_take_still_ties() -> None:
    """The output hangs on a comparison, which is followed, and on a choice of indices, which is not saved."""

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(64))
            self.table = nn.Parameter(torch.arange(64.0).repeat(64, 1).T.contiguous())

        def forward(self, x: Tensor, weight: Tensor) -> Tensor:
            rounding = (x * 1.0001) @ weight - (x @ weight) * 1.0001
            return torch.where(rounding > 0, self.bias, 3 * self.bias + 1) + self.table[rounding.argmax(1)]

    report = rust_ort.compare(Chosen(), X, WEIGHT, options={"compare": "nodes"})
    assert report.first_wrong_node is None
    assert {verdict.name: verdict.kind for verdict in report.verdicts}["output"] == "tie", report


def test_eager_that_calls_other_operators_is_not_followed() -> None:
    one = Turned(
        node="relu", operator="aten.relu", ordinal=0, shape=(3,), places=torch.tensor([1]),
        values=torch.tensor([1.0]),
    )  # fmt: skip
    operators = {"relu": "aten.relu.default"}
    with Following([([one], operators)]) as following:
        assert torch.relu(torch.tensor([-1.0, -1.0, 2.0])).tolist() == [0.0, 1.0, 2.0]
    following.check()
    with Following([([one], operators)]) as following:
        torch.relu(torch.ones(3)), torch.relu(torch.ones(3))
    with pytest.raises(Another):
        following.check()
    with pytest.raises(Another, match="another shape"), Following([([one], operators)]):
        torch.relu(torch.ones(4))
