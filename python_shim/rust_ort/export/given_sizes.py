"""Sizes that a part's outputs have and none of its inputs tells: the part is given them by the graph's own inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import fx

from rust_ort.export.shapes import Binder, expression, is_symbolic


def give_sizes(outer: fx.GraphModule, part: fx.GraphModule, call: fx.Node) -> None:
    """Makes inputs of `part` of the symbols that it lacks, as far as `outer`, in which `call` calls it, has them."""
    values = [node.meta.get("val") for node in part.graph.nodes if node.op == "placeholder"]
    sizes = [size for node in part.graph.output_node().all_input_nodes for size in _sizes(node)]
    if not sizes:
        return
    missing = Binder(values).missing(sizes)
    for source in _tell(outer, missing) if missing else ():
        with _after_inputs(part.graph):
            given = part.graph.placeholder(source.name)
        given.meta["val"] = source.meta["val"]
        call.args = (*call.args, source)


def _after_inputs(graph: fx.Graph) -> contextlib.AbstractContextManager[None]:
    """Computing nodes may stand among the placeholders of a part."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    return graph.inserting_after(inputs[-1] if inputs else None)


def _sizes(node: fx.Node) -> Iterator[torch.SymInt]:
    value = node.meta.get("val")
    found = (*value.shape, *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    yield from (size for size in found if is_symbolic(size))


def _tell(outer: fx.GraphModule, missing: frozenset[str]) -> Iterator[fx.Node]:
    """Numbers of `outer` that are known before anything is computed: its inputs, and sizes of them."""
    inputs = [node for node in outer.graph.nodes if node.op == "placeholder"]
    left = set(missing)
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and str(expression(value)) in left:
            left.remove(str(expression(value)))
            yield node
    for node in inputs:
        value = node.meta.get("val")
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if is_symbolic(size) and str(expression(size)) in left:
                left.remove(str(expression(size)))
                yield _size(outer.graph, node, axis)


def _size(graph: fx.Graph, tensor: fx.Node, axis: int) -> fx.Node:
    with _after_inputs(graph):
        node = graph.call_function(torch.ops.aten.sym_size.int, (tensor, axis))
    node.meta["val"] = tensor.meta["val"].shape[axis]
    return node
