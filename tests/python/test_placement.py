"""What is said of who has the nodes of a graph."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rust_ort.explain import Explanation
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.observe.placement import Placement, total
from rust_ort.observe.report import Report

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MIXED = Placement(
    nodes={CPU: 3, CUDA: 120}, ops={CPU: {"NonZero": 1, "Shape": 2}, CUDA: {"MatMul": 118, "MemcpyToHost": 2}}
)


@pytest.mark.parametrize(
    ("placement", "line"),
    [
        (Placement(), ""),
        (Placement(nodes={CUDA: 7}), "nodes on CUDA 7, none on the CPU"),
        (Placement(nodes={CPU: 7}), "nodes on the CPU 7, on no other provider"),
        (
            MIXED,
            "nodes on CUDA 120, 2 of them copies to or from the CPU, on the CPU beside it 3: Shape ×2, NonZero",  # noqa: RUF001
        ),
        (
            dataclasses.replace(MIXED, ops={}),
            "nodes on CUDA 120, on the CPU beside it 3",
        ),
        (Placement(unknown=1), "nodes by execution provider: unknown of 1 part: ONNX Runtime does not tell"),
        (
            Placement(nodes={CUDA: 7}, unknown=2),
            "nodes on CUDA 7, none on the CPU; unknown of 2 parts: ONNX Runtime does not tell",
        ),
    ],
)
def test_one_line_says_who_has_the_nodes(placement: Placement, line: str) -> None:
    assert str(placement) == line
    assert bool(placement) == bool(line)


def test_parts_are_added_up_and_what_is_unknown_stays_so() -> None:
    both = total([MIXED, Placement(nodes={CUDA: 5}), MIXED, Placement(unknown=1), Placement()])
    assert both.nodes == {CPU: 6, CUDA: 245} and both.unknown == 1
    assert both.ops == {CPU: {"NonZero": 2, "Shape": 4}, CUDA: {"MatMul": 236, "MemcpyToHost": 4}}
    assert total([]) == Placement()


def graph(**more: Any) -> GraphInfo:
    return GraphInfo(
        name="0_0-inference", direction="inference", graph_id="0" * 64, compute_nodes=3, parts=[["a", "b", "c"]],
        eager=[], seconds={}, **more,
    )  # fmt: skip


def test_explanation_and_report_show_it() -> None:
    graphs = [graph(placement=MIXED), graph()]
    said = str(Explanation(graphs=graphs, breaks={}, seconds={}))
    assert said.count("nodes on CUDA") == 1 and f"\n    {MIXED}\n" in said
    assert "nodes on CUDA 120" in Explanation(graphs=graphs, breaks={}, seconds={})._repr_html_()
    report = Report(graphs=graphs)
    assert str(report).splitlines()[-1] == str(MIXED)
    with_it, without = json.loads(report.to_json())["graphs"]
    assert with_it["placement"] == {"nodes": MIXED.nodes, "ops": MIXED.ops, "unknown": 0}
    assert without["placement"] == {"nodes": {}, "ops": {}, "unknown": 0}
    assert "nodes on" not in str(Report(graphs=[graph()])).splitlines()[-1].partition(" graphs, ")[2].partition(";")[2]
