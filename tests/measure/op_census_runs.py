"""What the census finds out of an architecture in one mode."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True)
class Graph:
    """One AOT graph. on_ort: {operator: nodes}; eager: {operator: {reason: nodes}}."""

    name: str
    direction: str
    parts: int
    on_ort: dict[str, int]
    eager: dict[str, dict[str, int]]


@dataclass(kw_only=True)
class Run:
    """One architecture in one mode. max_rel: largest max|Δ|/max|r| of outputs, gradients and buffers, `worst` the value
    it is of; rounding: how many gradients are nothing but rounding; mismatches: {value: by how much}; error: of a run
    that raised or whose process died."""

    architecture: str
    attention: str
    mode: str
    seconds: float = 0.0
    breaks: dict[str, int] = field(default_factory=dict)
    graphs: list[Graph] = field(default_factory=list)
    compared: int = 0
    rounding: int = 0
    max_rel: float = 0.0
    worst: str = ""
    mismatches: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def nodes_on_ort(self) -> int:
        return sum(sum(graph.on_ort.values()) for graph in self.graphs)

    @property
    def nodes_in_eager(self) -> int:
        return sum(sum(reasons.values()) for graph in self.graphs for reasons in graph.eager.values())

    @property
    def title(self) -> str:
        return f"{self.architecture}/{self.attention}/{self.mode}"


def read(path: Path) -> list[Run]:
    """The runs that `work` or --raw wrote."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Run(**{**fields, "graphs": [Graph(**graph) for graph in fields["graphs"]]}) for fields in map(json.loads, lines)
    ]
