"""Artifacts in torch's structured trace (TORCH_TRACE=folder), which tlparse shows beside torch's own: what of a graph
runs where, each part's ONNX model as text, and what comparisons found. Without a trace nothing is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rust_ort.export.plan import Plan
from rust_ort.link.specs import Verdict
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.observe.graph_lines import graph_lines, time_line
from rust_ort.torch_private import trace_artifact, traces

MOST_BYTES = 4 << 20
"""Of a model that is written as text, which is several times as long."""
MOST_CALLS = 16
"""Of a graph whose verdicts are written."""


def compiled(graph: GraphInfo, plan: Plan) -> None:
    """Writes what of a graph runs where, and its models."""
    if not traces():
        return
    _write(graph, "", "string", lambda: "\n".join([*graph_lines(graph), time_line(graph.seconds)]))
    _write(graph, "_parts", "json", lambda: _parts(graph))
    for index, part in enumerate(plan.parts):
        _write(graph, f"_part_{index}", "string", lambda model=part.translated.model: _as_text(model))


def compared(graph: GraphInfo, step: int, verdicts: Sequence[Verdict]) -> None:
    """Writes what was found of the outputs of a call."""
    if traces() and step < MOST_CALLS:
        _write(graph, f"_step_{step}_outputs", "json", lambda: [_plain(verdict) for verdict in verdicts])


def compared_nodes(graph: GraphInfo, step: int, nodes: Sequence[NodeVerdict]) -> None:
    """Writes what was found of the nodes of a call, each by its own kernel."""
    if traces() and step < MOST_CALLS:
        _write(graph, f"_step_{step}_nodes", "json", lambda: [_plain_node(node) for node in nodes])


def _write(graph: GraphInfo, of: str, encoding: str, payload: Any) -> None:
    trace_artifact(f"rust_ort_{graph.name}{of}", encoding, payload, graph.compile_id)


def _parts(graph: GraphInfo) -> dict[str, Any]:
    left = [
        {"node": node.name, "op": node.op, "why": node.reason, "source": node.source, "module": node.module}
        for node in graph.eager
    ]
    return {"graph": graph.name, "direction": graph.direction, "parts": graph.parts, "eager": left}


def _as_text(model: bytes) -> str:
    import onnx

    if len(model) > MOST_BYTES:
        return f"a model of {len(model)} bytes, which is not written as text; rust_ort.dump keeps it as it is"
    return str(onnx.printer.to_text(onnx.load_model_from_string(model)))


def _plain(verdict: Verdict) -> dict[str, Any]:
    numbers = {"max_abs": str(verdict.max_abs), "outside": verdict.outside} if verdict.is_measured else {}
    return {"name": verdict.name, "verdict": verdict.kind, "reason": verdict.reason, **numbers}


def _plain_node(node: NodeVerdict) -> dict[str, Any]:
    return {**_plain(node.local), "name": node.name, "op": node.op, "part": node.part, "source": node.source}
