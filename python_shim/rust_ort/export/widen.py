"""bfloat16 for a runtime without bfloat16 arithmetic: each node computes in float32 and rounds its result.

ONNX Runtime's CPU provider has no bfloat16 kernel for Add, Mul, MatMul, Where, Expand and others (1.31.1). torch's own
CPU kernels compute in float32 inside an operator and round once, which is what this writes down.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

aten = torch.ops.aten

WIDE_SUFFIX = "__float32"
"""Appended to a node's name for its float32 value; the name itself is the rounded one."""

NARROW_IS_FINE = frozenset(
    {
        aten._to_copy.default,
        aten.clone.default,
        aten.permute.default,
        aten.squeeze.dim,
        aten.squeeze.dims,
        aten.t.default,
        aten.transpose.int,
        aten.unsqueeze.default,
        aten.view.default,
        aten.reshape.default,
        torch.ops.prims.convert_element_type.default,
    }
)
"""Operators that become Cast, Identity, Reshape, Transpose, Squeeze or Unsqueeze, which take bfloat16."""


def widen_bfloat16(graph: fx.Graph) -> None:
    """Rewrites `graph` in place: every CPU node that reads or makes bfloat16 computes in float32. Names stay."""
    wide: dict[fx.Node, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target in NARROW_IS_FINE:
            continue
        if node.target is operator.getitem:
            if _is_bfloat16(node.meta.get("val")):
                _round(graph, node)
            continue
        sources = [source for source in node.all_input_nodes if _is_bfloat16(source.meta.get("val"))]
        if not sources and not any(_is_bfloat16(leaf) for leaf in pytree.tree_leaves(node.meta.get("val"))):
            continue
        for source in sources:
            if source not in wide:
                wide[source] = _cast_before(graph, node, source)
        node.args = fx.map_arg(node.args, lambda n: wide.get(n, n))
        node.kwargs = fx.map_arg(node.kwargs, lambda n: wide.get(n, n))
        node.args, node.kwargs = pytree.tree_map(_wide_dtype, (node.args, node.kwargs))
        if _is_bfloat16(node.meta.get("val")):
            _round(graph, node)
        else:
            node.meta["val"] = pytree.tree_map(_wide_value, node.meta.get("val"))


def _cast_before(graph: fx.Graph, node: fx.Node, source: fx.Node) -> fx.Node:
    with graph.inserting_before(node):
        cast = graph.call_function(aten._to_copy.default, (source,), {"dtype": torch.float32})
    cast.meta.update(val=source.meta["val"].to(torch.float32), nn_module_stack={}, fx_name=source.name)
    return cast


def _round(graph: fx.Graph, node: fx.Node) -> None:
    """`node` becomes the float32 value; a cast after it takes its name and its users."""
    name, narrow = node.name, node.meta["val"]
    node.meta["fx_name"] = name
    node.meta["val"] = narrow.to(torch.float32)
    with graph.inserting_after(node):
        cast = graph.call_function(aten._to_copy.default, (node,), {"dtype": torch.bfloat16})
    node.replace_all_uses_with(cast, delete_user_cb=lambda user: user is not cast)
    node.name, cast.name = name + WIDE_SUFFIX, name
    cast.meta.update(val=narrow, nn_module_stack={}, fx_name=name)


def _is_bfloat16(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16 and value.device.type == "cpu"


def _wide_dtype(argument: Any) -> Any:
    return torch.float32 if argument is torch.bfloat16 else argument


def _wide_value(value: Any) -> Any:
    """Of one output of several; its getitem rounds."""
    return value.to(torch.float32) if _is_bfloat16(value) else value
