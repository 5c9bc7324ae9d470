"""Which execution providers have the nodes of graphs, where there is another than the CPU's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Placement", "total"]

CPU = "CPUExecutionProvider"
COPIES = ("MemcpyFromHost", "MemcpyToHost")
"""What ONNX Runtime puts between a node of a device and one of the CPU."""


@dataclass(kw_only=True)
class Placement:
    """ONNX nodes of a graph's parts, as ONNX Runtime's optimizers left them, of parts that have another execution
    provider than the CPU's. nodes: {provider: count}; ops: {provider: {operator: count}}, where it tells them: of a
    part whose nodes are all one provider's it tells the number. unknown: parts of which it tells nothing. Empty on the
    CPU."""

    nodes: dict[str, int] = field(default_factory=dict)
    ops: dict[str, dict[str, int]] = field(default_factory=dict)
    unknown: int = 0

    @staticmethod
    def of(prepared: Iterable[Any]) -> Placement:
        """Of the Prepared messages of a graph's parts."""
        told = []
        for message in prepared:
            nodes = {entry.provider: entry.nodes for entry in message.placed}
            ops = {entry.provider: {op.op: op.nodes for op in entry.ops} for entry in message.placed if entry.ops}
            told.append(Placement(nodes=nodes, ops=ops, unknown=int(message.placement_unknown)))
        return total(told)

    def __bool__(self) -> bool:
        return bool(self.nodes or self.unknown)

    def __str__(self) -> str:
        """One line; empty on the CPU."""
        if not self:
            return ""
        parts = "1 part" if self.unknown == 1 else f"{self.unknown} parts"
        unknown = f"unknown of {parts}: ONNX Runtime does not tell" if self.unknown else ""
        if not self.nodes:
            return f"nodes by execution provider: {unknown}"
        return "; ".join(filter(None, (f"nodes {self._told()}", unknown)))

    def _told(self) -> str:
        others = [f"on {_short(provider)} {count}" for provider, count in sorted(self.nodes.items()) if provider != CPU]
        copies = sum(self.ops.get(provider, {}).get(op, 0) for provider in self.nodes for op in COPIES)
        if copies:
            others.append(f"{copies} of them copies to or from the CPU")
        here = self.nodes.get(CPU, 0)
        if not others:
            return f"on the CPU {here}, on no other provider"
        if not here:
            return ", ".join([*others, "none on the CPU"])
        listed = sorted(self.ops.get(CPU, {}).items(), key=lambda entry: (-entry[1], entry[0]))
        ops = ", ".join(f"{op} ×{count}" if count > 1 else op for op, count in listed)  # noqa: RUF001
        return ", ".join([*others, f"on the CPU beside it {here}"]) + (f": {ops}" if ops else "")


def total(placements: Iterable[Placement]) -> Placement:
    """All of them together."""
    nodes: Counter[str] = Counter()
    ops: dict[str, Counter[str]] = {}
    unknown = 0
    for placement in placements:
        nodes.update(placement.nodes)
        for provider, counts in placement.ops.items():
            ops.setdefault(provider, Counter()).update(counts)
        unknown += placement.unknown
    return Placement(nodes=dict(nodes), ops={name: dict(counts) for name, counts in ops.items()}, unknown=unknown)


def _short(provider: str) -> str:
    return provider.removesuffix("ExecutionProvider")
