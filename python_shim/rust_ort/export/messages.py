"""Exports as bytes that later processes read. `rust_ort.export.SOURCES` covers it: a new form meets no old bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import fx

from rust_ort.export.partition import PartGraph, Partition, Support, partition
from rust_ort.export.plan import Plan, PlannedPart, plan_part
from rust_ort.export.translate import Translated
from rust_ort.link import wire


def operators_message(names: Iterable[str]) -> bytes:
    """Names of operators."""
    return "\n".join(sorted(names)).encode()


def operators_from(content: bytes) -> frozenset[str]:
    """What `operators_message` wrote."""
    return frozenset(content.decode().splitlines())


def plan_message(plan: Plan) -> bytes:
    """What a plan decided, and its models."""
    message = wire.ExportPlan(eager=plan.cut.reasons)
    for part in plan.parts:
        message.parts.add(**vars(part.translated))
    content: bytes = message.SerializeToString(deterministic=True)
    return content


class _Known(Support):
    """Answers as the process did that made the plan."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__()
        self._reasons = reasons

    def _decide(self, node: fx.Node) -> str | None:
        return self._reasons.get(node.name)


def plan_from(gm: fx.GraphModule, content: bytes) -> Plan:
    """The plan of `gm` that `plan_message` wrote. Errors: DecodeError, KeyError, ValueError when it is another
    graph's."""
    message = wire.ExportPlan.FromString(content)
    cut = partition(gm, _Known(dict(message.eager)))
    parts = [_part(cut, graph, exported) for graph, exported in zip(cut.parts, message.parts, strict=True)]
    return Plan(cut=cut, parts=parts)


def _part(cut: Partition, graph: PartGraph, exported: Any) -> PlannedPart:
    translated = Translated(
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
