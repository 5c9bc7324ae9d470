"""Tensors without elements, of a size that is plainly 0: what is computed of them alone is left out of an AOT graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument, draws
from rust_ort.export.scalars import COPIED
from rust_ort.export.shapes import fills_its_storage, has_no_elements, is_symbolic
from rust_ort.torch_private import OpOverload

aten = torch.ops.aten


def leave_out(gm: fx.GraphModule) -> None:
    """Of nothing written into a tensor a copy of that tensor is left, of its gradient zeros; what nobody reads then
    goes."""
    nodes = list(gm.graph.nodes)
    if not any(map(_is_empty, nodes)):
        return
    for node in nodes:
        if node.target is aten.slice_scatter.default and _is_empty(argument(node, "src")):
            _put(gm, node, aten.clone.default, (argument(node, "self"),), {})
        elif node.target is aten.slice_backward.default and _is_empty(argument(node, "grad_output")):
            value = node.meta["val"]
            named = {"dtype": value.dtype, "device": value.device}
            _put(gm, node, aten.full.default, (argument(node, "input_sizes"), 0), named)
    for node in reversed(gm.graph.nodes):
        if _is_empty(node) and not node.users and _is_pure(node):
            gm.graph.erase_node(node)
    gm.recompile()


def _is_empty(node: Any) -> bool:
    """Whether a node gives a tensor that has no elements, whatever the call."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and not is_symbolic(value) and has_no_elements(value)


def _is_pure(node: fx.Node) -> bool:
    target = node.target
    is_atens = isinstance(target, OpOverload) and target.namespace in ("aten", "prims")
    return is_atens and not target._schema.is_mutable and not draws(node)  # type: ignore[union-attr]


def _put(gm: fx.GraphModule, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Another operator in the place of a node, where that has the layout that the operator gives: a view's storage is
    copied whole."""
    value = node.meta["val"]
    source = args[0].meta["val"] if isinstance(args[0], fx.Node) else None
    if is_symbolic(value) or not fills_its_storage(value if source is None else source):
        return
    if value.stride() != (value.contiguous() if source is None else source).stride():
        return
    with gm.graph.inserting_before(node):
        made = gm.graph.call_function(target, args, kwargs)
    made.meta = {name: node.meta[name] for name in (*COPIED, "val", "original_aten") if name in node.meta}
    node.replace_all_uses_with(made)
    gm.graph.erase_node(node)
