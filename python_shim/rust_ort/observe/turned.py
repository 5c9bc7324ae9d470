"""Branches that rounding turned in what a forward saves for its backward: a rectifier on one side of zero in eager and
on the other in ONNX Runtime, a comparison. Gradients follow them, and no graph is wrong.
Eager runs once more with ONNX Runtime's branches: what then matches was turned by rounding alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.provenance import operator_name
from rust_ort.observe.branches import COMPARING, RECTIFYING, rectifier
from rust_ort.torch_private import OpOverload, TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True, kw_only=True)
class Turned:
    """A value of a forward, elements of which took another branch. operator: without overload, such as "aten.relu";
    ordinal: of the node among those of the graph with this operator; places: of these elements in the value laid flat;
    values: what ONNX Runtime has there."""

    node: str
    operator: str
    ordinal: int
    shape: tuple[int, ...]
    places: Tensor
    values: Tensor

    def __str__(self) -> str:
        n = self.places.numel()
        return f"{n:,} of {torch.Size(self.shape).numel():,} elements of {self.node} took the other branch by rounding"


def turned(
    outputs: Iterable[fx.Node], operators: Mapping[str, str], reference: Mapping[str, Any],
    plain: Mapping[str, Tensor], near: Mapping[str, Tensor | None],
) -> list[Turned]:  # fmt: skip
    """Of a part's outputs. operators: {compute node of the graph: its operator}, in graph order; reference: eager's
    values; plain: ONNX Runtime's; near: {node: where what it reads may come out otherwise}. What is not near there was
    turned by no rounding."""
    found = []
    for node in outputs:
        one, other, source = reference.get(node.name), plain.get(node.name), node
        if not isinstance(one, Tensor) or other is None or one.shape != other.shape:
            continue
        if node.target in RECTIFYING:
            differs = (one > 0) != (other > 0)
        elif node.target in COMPARING:
            differs = one != other
            if (of := rectifier(node)) is not None:  # saved in the rectifier's place
                source, other = of, torch.where(other, 0.0, torch.finfo(torch.float32).tiny)
        else:
            continue
        allowed = near.get(source.name)
        if allowed is None or not bool(allowed.expand(differs.shape)[differs].all()):
            continue
        places = differs.flatten().nonzero().flatten()
        if not places.numel():
            continue
        kind = _without_overload(operator_name(source))
        same = [name for name, known in operators.items() if _without_overload(known) == kind]
        if source.name in same:
            found.append(Turned(
                node=node.name, operator=kind, ordinal=same.index(source.name), shape=tuple(one.shape),
                places=places.cpu(), values=other.flatten()[places].detach().cpu(),
            ))  # fmt: skip
    return found


def _without_overload(name: str) -> str:
    namespace, packet, *_ = name.split(".")
    return f"{namespace}.{packet}"


class Another(Exception):
    """Eager does not call operators as the graphs do."""


class Following(TorchDispatchMode):
    """Inside, eager takes the branches of these values. graphs: of each forward in the order in which they ran, what
    was turned and {compute node: operator}. Errors: Another where a value is not there, or has another shape."""

    def __init__(self, graphs: Sequence[tuple[Sequence[Turned], Mapping[str, str]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wanted: dict[tuple[str, int], list[Turned]] = {}
        self._seen: Counter[str] = Counter()
        before: Counter[str] = Counter()
        for values, operators in graphs:
            for value in values:
                self._wanted.setdefault((value.operator, value.ordinal + before[value.operator]), []).append(value)
            before.update(map(_without_overload, operators.values()))
        self._kinds = {kind: before[kind] for kind, _ in self._wanted}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not isinstance(func, OpOverload):
            return made
        kind = f"{func.namespace}.{func.overloadpacket.__name__.removesuffix('_')}"
        if kind in self._kinds:
            for value in self._wanted.pop((kind, self._seen[kind]), ()):
                _turn(made, value)
            self._seen[kind] += 1
        return made

    def check(self) -> None:
        """Errors: Another where eager called an operator more or less often than the graphs do."""
        if self._wanted or any(self._seen[kind] != count for kind, count in self._kinds.items()):
            raise Another("eager calls other operators than the graphs")


def _turn(made: Any, value: Turned) -> None:
    if not isinstance(made, Tensor) or tuple(made.shape) != value.shape:
        raise Another(f"{value.node}: another shape in eager")
    with torch.no_grad():
        flat = made.flatten().clone()
        flat[value.places.to(made.device)] = value.values.to(made.device, made.dtype)
        made.copy_(flat.reshape(made.shape))
