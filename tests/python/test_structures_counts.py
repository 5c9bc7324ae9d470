"""Bodies of higher-order operators in what is counted and told: every node of them ran in eager."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from test_structures_control import branches
from torch import Tensor

import rust_ort
from rust_ort.call.client import Client
from rust_ort.options import Options

pytestmark = pytest.mark.usefixtures("served")

OPERATORS = {"cond": 1, "aten.mm.default": 2, "aten.sin.default": 1, "aten.mul.Tensor": 1, "aten.cos.default": 1}
OPERATORS |= {"aten.exp.default": 1, "aten.sub.Tensor": 1}
"""Of `branches`, left to eager: the operator and what its two bodies hold."""


def test_explain_lists_what_bodies_hold() -> None:
    with torch.no_grad():
        found = rust_ort.explain(branches, torch.rand(3, 4), torch.rand(4, 4), backward=False)
    (graph,) = found.graphs
    assert Counter(node.op for node in graph.eager) == Counter(OPERATORS)
    assert graph.compute_nodes == sum(map(len, graph.parts)) + len(graph.eager)
    (outside,) = (node for node in graph.eager if not node.inside)
    inside = [node for node in graph.eager if node.inside]
    assert outside.op == "cond" and {node.inside for node in inside} == {outside.name}
    assert len({node.name for node in graph.eager}) == len(graph.eager)
    assert all(node.name.startswith(f"{outside.name}.") and "cond" in node.reason for node in inside)
    assert any("test_structures_control.py" in node.source for node in inside)
    text = str(found)
    assert f"{outside.name} (cond): " in text
    assert "its bodies hold 7 nodes: 2 aten.mm.default, aten.sin.default, aten.mul.Tensor, aten.cos.default" in text


def test_bodies_inside_bodies_and_bodies_used_twice_count() -> None:
    def function(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            return torch.cond(y.mean() > 1, lambda z: z.sin(), lambda z: z.cos(), (y,))

        return torch.cond(x.sum() > 0, lambda y: inner(y).tanh(), lambda y: y.abs(), (x * 2,))

    region = torch.compiler.nested_compile_region(lambda x: x.sin().cos())
    with torch.no_grad():
        nested = rust_ort.explain(function, torch.rand(3), backward=False)
        repeated = rust_ort.explain(lambda x: region(region(x) * 2), torch.rand(3), backward=False)
    operators = Counter(node.op for node in nested.eager)
    assert (operators["cond"], operators["aten.sin.default"], operators["aten.tanh.default"]) == (2, 1, 1)
    operators = Counter(node.op for node in repeated.eager)
    assert (operators["aten.sin.default"], operators["aten.cos.default"]) == (2, 2), operators


def test_the_daemon_and_the_dump_count_the_nodes_of_bodies(tmp_path: Path) -> None:
    def in_eager() -> int:
        return int(Client.get(Options()).status()["counters"]["nodes_in_eager"])

    x, w = torch.rand(3, 4), torch.rand(4, 4)
    compiled = torch.compile(branches, backend=rust_ort)
    with torch.no_grad():
        compiled(x, w)
        before = in_eager()
        with rust_ort.dump("counts", folder=tmp_path) as path:
            compiled(x, w)
        assert in_eager() - before == sum(OPERATORS.values())
    (parts,) = (json.loads(file.read_text()) for file in path.glob("*/parts.json"))
    assert parts["eager_nodes"] == sum(OPERATORS.values()) == len(parts["eager"])
    assert sum(node["inside"] == "cond" for node in parts["eager"]) == sum(OPERATORS.values()) - 1


def test_a_body_in_half_precision_decides_how_a_difference_is_measured() -> None:
    def function(x: Tensor) -> Tensor:
        def half(y: Tensor) -> Tensor:
            return (y.bfloat16() @ y.bfloat16()).float()

        return torch.cond(x.sum() > 0, half, lambda y: y * 2, (x + 1,)) * 3

    with torch.no_grad():
        (graph,) = rust_ort.explain(function, torch.rand(4, 4), backward=False).graphs
    assert graph.lowest_precision is torch.bfloat16
