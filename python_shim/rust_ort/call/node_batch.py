"""Requests that compare nodes of a part: values in, two verdicts a node out. Judging is the daemon's; of a part on a
device all values stay there, but for scalars of the host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rust_ort.call.on_device import shown
from rust_ort.call.part import Part
from rust_ort.call.staging import as_sent, placed_ref
from rust_ort.errors import DaemonLost, ExecutorLost
from rust_ort.link import wire
from rust_ort.link.connection import Connection
from rust_ort.link.specs import Policy, Verdict, verdict_from, verdicts_from
from rust_ort.memory import device, process
from rust_ort.memory.layout import ONNX_CODE, Layout

Value = torch.Tensor | int | float


@dataclass(kw_only=True)
class NodeFeed:
    """A value that nodes read. candidate: as it drifted; the reference itself where nothing could drift."""

    name: str
    reference: Value
    candidate: Value


@dataclass(kw_only=True)
class NodeValue:
    """A node to run. `candidate` and `local` are made here and written by the executor; local None: not judged. exact:
    float64 of the node on the references; exact_cumulative: as it drifted there; no_float64: why one is missing."""

    name: str
    reference: torch.Tensor
    reference_ns: int = 0
    candidate: torch.Tensor = field(init=False)
    local: torch.Tensor | None = field(init=False, default=None)
    judge: bool = True
    exact: torch.Tensor | None = None
    exact_cumulative: torch.Tensor | None = None
    no_float64: str = ""

    def __post_init__(self) -> None:
        self.candidate = like(self.reference)
        if self.judge:
            self.local = like(self.reference)


def like(value: torch.Tensor) -> torch.Tensor:
    """Memory that the executor reaches for a row-major tensor of this dtype and shape, where the value lies."""
    ordinal = device.ordinal(value)
    if ordinal is not None:
        return device.empty(value.shape, value.dtype, ordinal)
    return process.arena().empty(Layout(value.dtype, value.shape, None))[0]


def reachable(value: torch.Tensor) -> torch.Tensor:
    """A value of eager's, row-major, where the executor reaches it and nobody writes it: on a device itself, if it
    is so there, else a copy."""
    value = value.detach()
    return like(value).copy_(value) if device.ordinal(value) is None else device.aligned(as_sent("a value", value))


@dataclass(kw_only=True)
class NotCompared:
    """A node without anything to compare, and why. nothing: whoever looks, as of memory that nobody wrote; else
    something was left out."""

    name: str
    reason: str
    nothing: bool = False


@dataclass(kw_only=True, eq=False)
class NodesOf:
    """One part's comparison of nodes in one call, which one daemon keeps from its first request to its last."""

    part: Part
    step: int
    _first: int | None = field(default=None, init=False)
    """Number of the connection of the first."""

    def compare(
        self,
        feeds: Sequence[NodeFeed],
        values: Sequence[NodeValue | NotCompared],
        *,
        policy: Policy,
        dump_values: bool,
    ) -> list[tuple[Verdict, Verdict, list[dict[str, Any]]]]:
        """(local, cumulative, births) of each value that is judged or not compared. Fills candidates and locals.
        dump_values: the references go to the open dump."""
        connection = self.part.prepare()
        request = wire.Request()
        message = request.compare_nodes
        message.handle = self.part.handle
        self._name(message)
        held: list[object] = []
        for feed in feeds:
            entry = message.feeds.add(name=feed.name)
            entry.reference.CopyFrom(_ref(f"reference of {feed.name!r}", feed.reference, held))
            same = feed.candidate is feed.reference
            entry.candidate.CopyFrom(
                entry.reference if same else _ref(f"candidate of {feed.name!r}", feed.candidate, held)
            )
        for value in values:
            entry = message.values.add(name=value.name)
            if isinstance(value, NotCompared):
                entry.not_compared, entry.nothing = value.reason, value.nothing
                continue
            entry.reference_ns, entry.judge = value.reference_ns, value.judge
            entry.reference.CopyFrom(_ref(f"reference of {value.name!r}", value.reference, held))
            entry.candidate.CopyFrom(_ref(value.name, value.candidate, held))
            if value.exact is not None:
                entry.exact.CopyFrom(_ref(f"float64 of {value.name!r}", value.exact, held))
            if value.exact_cumulative is not None:
                entry.exact_cumulative.CopyFrom(_ref(f"float64 of {value.name!r}", value.exact_cumulative, held))
            entry.no_float64 = value.no_float64
            if value.local is not None:
                entry.local.CopyFrom(_ref(value.name, value.local, held))
        policy.set(message)
        message.dump_values = dump_values
        compared = self._ask(connection, request, held)
        births = [json.loads(entry.births_json) if entry.births_json else [] for entry in compared.verdicts]
        return [(local, drift, born) for (local, drift), born in zip(_verdicts(compared), births, strict=True)]

    def settle(
        self,
        node: str,
        exact: torch.Tensor,
        *,
        reference: torch.Tensor,
        local: torch.Tensor,
        terms: torch.Tensor | None,
    ) -> tuple[Verdict, Verdict]:
        """The verdicts of a local mismatch when values in float64 are known: of all elements, or of those that decide,
        one after the other. terms: Σ|terms| of each. All of one shape."""
        request = wire.Request()
        message = request.settle_node
        self._name(message)
        message.name = node
        held: list[object] = []
        tensors = {"exact": exact, "reference": reference, "local": local, "terms": terms}
        for name, tensor in tensors.items():
            if tensor is not None:
                getattr(message, name).CopyFrom(_ref(f"{name} of {node!r}", tensor, held))
        return _verdicts(self._ask(self.part.client.connection(), request, held))[0]

    def settle_drift(self, value: NodeValue, terms: torch.Tensor) -> tuple[Verdict, Verdict]:
        """The verdicts of a value that drifted out of tolerance when what it adds up is known. terms: Σ|terms| of each
        element, float64, of its shape."""
        request = wire.Request()
        message = request.settle_node
        self._name(message)
        message.name = value.name
        held: list[object] = []
        tensors = {"reference": value.reference, "candidate": value.candidate, "terms": terms}
        for name, tensor in tensors.items():
            getattr(message, name).CopyFrom(_ref(f"{name} of {value.name!r}", tensor, held))
        return _verdicts(self._ask(self.part.client.connection(), request, held))[0]

    def settle_as_right(self, value: NodeValue, why: str) -> tuple[Verdict, Verdict]:
        """The verdicts of a local mismatch that is as right as eager's value."""
        request = wire.Request()
        message = request.settle_node
        self._name(message)
        message.name, message.as_right = value.name, why
        return _verdicts(self._ask(self.part.client.connection(), request, []))[0]

    def finish(
        self, plain: Sequence[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor | None]], *, dump: bool,
        policy: Policy,
    ) -> list[Verdict]:  # fmt: skip
        """Ends the comparison; a verdict for each (output, instrumented session's value, plain session's, its
        Σ|terms| where that is known)."""
        request = wire.Request()
        message = request.finish_nodes
        self._name(message)
        message.dump = dump
        held: list[object] = []
        for name, instrumented, candidate, terms in plain:
            pair = message.plain.add(name=name)
            if terms is not None:
                pair.terms.CopyFrom(_ref(f"terms of {name!r}", terms, held))
            pair.reference.CopyFrom(_ref(name, instrumented, held))
            pair.candidate.CopyFrom(_ref(name, candidate, held))
        policy.set(message)
        return verdicts_from(self._ask(self.part.client.connection(), request, held))

    def _ask(self, connection: Connection, request: Any, held: list[object]) -> Any:
        """Errors: also DaemonFault with what CUDA says, ClientError where memory cannot be shared."""
        self._first = self._first or connection.number
        if connection.number != self._first:
            why = "the daemon that compared its first nodes went away; the next call compares all of them"
            raise DaemonLost(why, graph=self.part.spec.graph.name)
        shown(connection, self.part.spec.device)
        try:
            return connection.ask(request, keep=held, about=f"nodes of graph {self.part.spec.graph.name}")
        except (ExecutorLost, DaemonLost):
            connection.hold(held)
            raise

    def _name(self, message: Any) -> None:
        message.graph_id, message.part, message.step = self.part.spec.graph.graph_id, self.part.spec.part, self.step


def _ref(what: str, value: Any, held: list[object]) -> Any:
    if isinstance(value, int | float):
        value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
    return placed_ref(what, value, held)


def _verdicts(compared: Any) -> list[tuple[Verdict, Verdict]]:
    return [(verdict_from(entry.local), verdict_from(entry.cumulative)) for entry in compared.verdicts]


def can_travel(value: object) -> bool:
    """Whether a value of eager may be a feed or a reference."""
    if isinstance(value, torch.Tensor):
        return (value.is_cpu or value.is_cuda) and value.layout is torch.strided and value.dtype in ONNX_CODE
    return isinstance(value, int | float) and not isinstance(value, bool)
