"""How much of a graph's work its nodes are: a count of nodes hides that one of them may be the model.

An estimate from shapes: floating-point operations by torch's own formulas, of products, convolutions and attention; of
what has no formula the bytes that it reads and writes, one for an operation. Views do nothing,
nor does memory that nobody wrote.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import fx

from rust_ort.export.partition import body_nodes, is_compute
from rust_ort.export.shapes import hint
from rust_ort.export.unwritten import leaves_unwritten
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.torch_private import pytree

aten = torch.ops.aten

LIKE = {
    aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: aten._scaled_dot_product_flash_attention_backward,
}
"""{operator without a formula: one whose formula is its own}."""


def of_graph(gm: fx.GraphModule, eager: Collection[str]) -> tuple[float, float]:
    """(work of all compute nodes, of those in eager). eager: their names. A body counts once, with its operator."""
    done = {
        node.name: of_node(node) + sum(of_node(inner) for _, inner in body_nodes(gm, node) if is_compute(inner))
        for node in gm.graph.nodes
        if is_compute(node)
    }
    return sum(done.values()), sum(spent for name, spent in done.items() if name in eager)


def of_node(node: fx.Node) -> float:
    """By torch's formula for the operator, else the bytes of what it reads and gives; 0 of what does nothing."""
    from torch.utils.flop_counter import flop_registry

    target: Any = node.target
    if getattr(target, "is_view", False) or leaves_unwritten(target):
        return 0.0
    reads: Any = (node.args, node.kwargs, node)
    args, kwargs, made = fx.map_arg(reads, lambda source: source.meta.get("val"))
    tensors = [value for value in pytree.tree_leaves((args, kwargs, made)) if isinstance(value, torch.Tensor)]
    packet: Any = getattr(target, "overloadpacket", None)
    formula = flop_registry.get(LIKE.get(packet, packet))
    if formula is not None:
        given = pytree.tree_map_only(torch.Tensor, lambda tensor: [*map(hint, tensor.shape)], (args, kwargs, made))
        # A size that only the runtime knows is 0 here, beside others that it equals.
        with contextlib.suppress(AssertionError):
            return float(formula(*given[0], **given[1], out_val=given[2]))
    return float(sum(math.prod(map(hint, tensor.shape)) * tensor.dtype.itemsize for tensor in tensors))


def in_eager(graphs: Iterable[GraphInfo]) -> str:
    """`, 93 % of the work` behind a count of nodes in eager; "" where there are none."""
    graphs = list(graphs)
    work = sum(graph.work for graph in graphs)
    eager = sum(graph.work if graph.fallen_back else graph.eager_work for graph in graphs)
    if not eager:
        return ""
    percent = 100 * eager / work
    return f", {'less than 1' if percent < 1 else round(percent)} % of the work"
