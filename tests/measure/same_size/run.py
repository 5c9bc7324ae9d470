"""A function compared with eager node by node, with a fault planted or none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

import rust_ort
from measure.same_size.faults import Fault, plant
from measure.same_size.sites import Place

ALL = {"compare": "nodes", "compare_float64": "all"}


@dataclass(kw_only=True)
class Measured:
    """What float64 says of one node. noise: as the report has it; worse: all nodes of the run whose own kernel is worse
    than eager's; n_nodes: that were measured; fault: None for none; local: whether it is within tolerance."""

    place: str
    direction: str
    node: str
    noise: dict[str, Any]
    local: str
    seed: int
    size: float
    worse: list[str] = field(default_factory=list)
    n_nodes: int = 0
    fault: Fault | None = None

    @property
    def kind(self) -> str:
        return str(self.noise["kind"])

    @property
    def error(self) -> float:
        """The candidate's largest distance from float64."""
        return float(self.noise["candidate_error"])


def measured(
    place: Place, dtype: torch.dtype, *, seed: int, size: float, fault: Fault | None = None, node: str = ""
) -> Measured:
    """fault: planted in the value of `node`. Errors: LookupError where no node is the place's."""
    n_models = 0

    def change(proto: Any) -> None:
        nonlocal n_models
        n_models += 1
        if fault is not None and n_models == 1 + place.backward:
            plant(proto, node, fault)

    torch.compiler.reset()
    arguments = place.arguments(dtype, seed, size)
    options = {**ALL, "transforms": [change]}
    report = rust_ort.compare(place.function, *arguments, backward=place.backward, options=options)
    nodes: list[tuple[str, Any]] = [(graph, found) for graph, found in report.nodes if found.local.noise is not None]
    wanted = "backward" if place.backward else ""
    ours = [found for graph, found in nodes if found.op == place.op and wanted in graph and _rounds(found)]
    if not ours:
        raise LookupError(
            f"{place.name}: no node of {place.op} rounds to {dtype}; there are {[n.op for _, n in nodes]}"
        )
    found = max(ours, key=lambda found: found.local.noise["rounding"]["n"])
    worse = [n.name for _, n in nodes if n.local.noise and n.local.noise["kind"] == "candidate_worse"]
    noise = found.local.noise
    assert noise is not None
    return Measured(
        place=place.name, direction="backward" if place.backward else "forward", node=found.name, noise=noise,
        local=found.local.kind, seed=seed, size=size, worse=worse, n_nodes=len(nodes),
        fault=fault,
    )  # fmt: skip


def _rounds(node: Any) -> bool:
    """Whether its value is of half precision and not exact."""
    return node.local.noise.get("rounding") is not None and float(node.local.noise["reference_error"]) > 0
