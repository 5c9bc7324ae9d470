"""The share of a graph's work that is done in eager: one node may be the model."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import rust_ort
from rust_ort.observe import work

aten = torch.ops.aten


def node(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Such a node, with meta tensors for values."""
    graph = fx.Graph()

    def placed(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        source = graph.placeholder("x")
        source.meta["val"] = value
        return source

    made = graph.call_function(target, tuple(map(placed, args)), kwargs)
    made.meta["val"] = target(*args, **kwargs)
    return made


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (node(aten.mm.default, meta(3, 4), meta(4, 5)), 2 * 3 * 4 * 5),
        (node(aten.bmm.default, meta(2, 3, 4), meta(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (
            node(aten.convolution.default, meta(1, 2, 8, 8), meta(4, 2, 3, 3), None, *[[1, 1]] * 3, False, [0, 0], 1),
            2 * 8 * 8 * 4 * 2 * 9,
        ),
        (
            node(aten._scaled_dot_product_flash_attention_for_cpu.default, *[meta(1, 2, 6, 8)] * 3),
            2 * 2 * 2 * 6 * 6 * 8,
        ),
        (node(aten.exp.default, meta(3, 4)), 2 * 4 * 12),
        (node(aten.add.Tensor, meta(3, 4, dtype=torch.float16), 1), 2 * 2 * 12),
        (node(aten.topk.default, meta(10), 3), 4 * 10 + 4 * 3 + 8 * 3),
        (node(aten.view.default, meta(3, 4), [12]), 0),
    ],
    ids=["product", "products", "convolution", "attention", "pointwise", "half", "two results", "view"],
)  # fmt: skip
def test_work_is_by_torchs_formula_or_the_bytes(made: fx.Node, expected: int) -> None:
    assert work.of_node(made) == expected


def test_a_formula_that_does_not_fit_is_no_error() -> None:
    made = node(aten.mm.default, meta(3, 4), meta(4, 5))
    made.args[1].meta["val"] = meta(0, 5)  # type: ignore[union-attr]
    assert work.of_node(made) == 4 * (3 * 4 + 3 * 5)


@dataclasses.dataclass
class Graph:
    work: float
    eager_work: float
    fallen_back: str = ""


@pytest.mark.parametrize(
    ("graphs", "text"),
    [
        ([], ""),
        ([Graph(100, 0)], ""),
        ([Graph(100, 93)], ", 93 % of the work"),
        ([Graph(100, 0), Graph(300, 300)], ", 75 % of the work"),
        ([Graph(1000, 3)], ", less than 1 % of the work"),
        ([Graph(100, 0, "1 of 1 calls ran in eager")], ", 100 % of the work"),
    ],
)
def test_the_share_is_said_where_nodes_are_in_eager(graphs: list[Graph], text: str) -> None:
    assert work.in_eager(graphs) == text


class Model(nn.Module):
    """Its products run in eager, a hidden part of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64, bias=False), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x).sin().cos().exp().tanh().sigmoid().neg().abs())


@pytest.mark.usefixtures("daemon")
def test_reports_and_explanations_say_the_share() -> None:
    model, x = Model(), torch.randn(32, 64)

    def left(*args: Any) -> Any:
        raise ValueError("left to eager")

    options = {"custom_translations": {"aten::mm": left}}
    with torch.no_grad():
        explained = rust_ort.explain(model, x, backward=False, options=options)
    (graph,) = explained.graphs
    assert [found.op for found in graph.eager] == ["aten.mm.default"]
    percent = re.search(r"1 in eager, (\d+) % of the work", str(explained))
    assert percent is not None and 40 < int(percent[1]) < 60, str(explained)
    assert f"1, {percent[1]} % of the work" in explained._repr_html_()
    torch._dynamo.reset()
    with torch.no_grad():
        report = rust_ort.compare(model, x, backward=False, options=options)
    assert f"1 in eager, {percent[1]} % of the work" in str(report)


@pytest.mark.usefixtures("daemon")
def test_what_a_loops_body_does_is_work_of_its_node() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y @ y @ y, lambda y: y @ y, (x.tanh(),)) + 1

    with torch.no_grad():
        (graph,) = rust_ort.explain(function, torch.randn(64, 64), backward=False).graphs
    assert "torch.cond" in {node.op for node in graph.eager} or "cond" in {node.name for node in graph.eager}
    assert 2 * 3 * 64**3 < graph.eager_work < graph.work < 2 * 4 * 64**3
