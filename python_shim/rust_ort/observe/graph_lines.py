"""One compiled graph as people read it: what runs where, and why."""

from __future__ import annotations

from rust_ort.observe import work
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.observe.reasons import explained


def graph_lines(graph: GraphInfo) -> list[str]:
    """A headline of counts, and behind it, indented, what else there is to say."""
    lines = [
        f"{graph.name}: {graph.compute_nodes} nodes, {graph.onnxruntime_nodes} on ONNX Runtime in "
        f"{len(graph.parts)} part(s), {graph.eager_nodes} in eager{work.in_eager([graph])}"
    ]
    if graph.fallen_back:
        lines.append(f"  {graph.fallen_back}")
    if graph.division.rules:
        lines.append(f"  {graph.division}")
    if graph.placement:
        lines.append(f"  {graph.placement}")
    return lines + [f"  {line}" for line in explained(graph.eager)]


def time_line(seconds: dict[str, float]) -> str:
    return "time: " + ", ".join(f"{phase} {spent * 1e3:.0f} ms" for phase, spent in seconds.items())
