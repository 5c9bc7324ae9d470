"""What was exported once is not exported again: plans, and what the decomposition table is made of, kept by the daemon.

A warm process loads neither torch.onnx nor onnxscript. What cannot be had from the daemon is made anew.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from torch import fx

from rust_ort.errors import DaemonFault, RustOrtError
from rust_ort.export import decompositions, exporter, translate
from rust_ort.export.hash import operators_key
from rust_ort.export.partition import PartGraph, Partition, Support, partition
from rust_ort.export.plan import Plan, PlannedPart, plan_part
from rust_ort.transport import wire

if TYPE_CHECKING:
    from rust_ort.client import Client

log = logging.getLogger("rust_ort")


def decomposition_table(client: Client, *, daemon_needed: bool) -> dict[Any, Callable[..., Any]]:
    """`decompositions.table()`."""
    return decompositions.table(_whole_operators(client, operators_key(), daemon_needed))


@functools.cache
def _whole_operators(client: Client, key: str, daemon_needed: bool) -> frozenset[str]:
    known = _get(client, key, daemon_needed)
    if known:
        return frozenset(known.decode().splitlines())
    names = exporter.whole_operators()
    _put(client, key, "\n".join(sorted(names)).encode())
    return names


def load(client: Client, graph_id: str, gm: fx.GraphModule, *, daemon_needed: bool) -> Plan | None:
    """The plan of `gm` as an earlier process made it; None when there is none that fits."""
    start = time.perf_counter()
    known = _get(client, graph_id, daemon_needed)
    if known is None:
        return None
    loaded = time.perf_counter()
    try:
        plan = _rebuilt(gm, wire.ExportPlan.FromString(known))
    except (DecodeError, KeyError, ValueError) as error:
        log.warning("the plan kept of graph %s does not fit, it is exported again: %r", graph_id[:8], error)
        return None
    plan.seconds = {"load": loaded - start, "partition": time.perf_counter() - loaded}
    return plan


def save(client: Client, graph_id: str, plan: Plan) -> None:
    """Keeps a plan whose parts the runtime took."""
    message = wire.ExportPlan(eager=plan.cut.reasons)
    for part in plan.parts:
        message.parts.add(**vars(part.translated))
    _put(client, graph_id, message.SerializeToString(deterministic=True))


def count(client: Client, graph_id: str) -> None:
    """Tells of an export that later processes cannot use."""
    _put(client, graph_id, b"")


def _get(client: Client, key: str, daemon_needed: bool) -> bytes | None:
    try:
        return client.plan(key)
    except DaemonFault as error:
        if daemon_needed:
            raise
        log.debug("no plan: %s", error)
        return None


def _put(client: Client, key: str, plan: bytes) -> None:
    try:
        client.put_plan(key, plan)
    except RustOrtError as error:
        log.warning("a plan is not kept, later processes export again: %s", error)


class _Known(Support):
    """Answers as the process did that made the plan."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__()
        self._reasons = reasons

    def _decide(self, node: fx.Node) -> str | None:
        return self._reasons.get(node.name)


def _rebuilt(gm: fx.GraphModule, message: Any) -> Plan:
    """Raises KeyError, ValueError when the message is another graph's."""
    cut = partition(gm, _Known(dict(message.eager)))
    parts = [_part(cut, graph, exported) for graph, exported in zip(cut.parts, message.parts, strict=True)]
    return Plan(cut=cut, parts=parts)


def _part(cut: Partition, graph: PartGraph, exported: Any) -> PlannedPart:
    translated = translate.Translated(
        model=exported.model,
        input_names=list(exported.input_names),
        output_names=list(exported.output_names),
        fx_values=dict(exported.fx_values),
        onnx_nodes=dict(exported.onnx_nodes),
        named_values=list(exported.named_values),
    )
    planned = plan_part(cut, graph, lambda part, *, keep_inputs: translated)
    nodes = {node.name for node in graph.module.graph.nodes}
    strangers = {*translated.fx_values, *translated.named_values} - nodes
    missing = set(graph.compute_nodes) - set(translated.fx_values)
    if strangers or missing or planned.tensor_outputs != translated.output_names:
        raise ValueError(
            f"part {graph.index}: strangers {sorted(strangers)[:5]}, missing {sorted(missing)[:5]}, "
            f"outputs {translated.output_names[:5]}, expected {planned.tensor_outputs[:5]}"
        )
    return planned
