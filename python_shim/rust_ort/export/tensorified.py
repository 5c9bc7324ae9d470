"""Nodes that torch adds when the graph is traced already, where it makes tensors of numbers that only a call knows
(`tensorify_python_scalars`): they come apart here as AOTAutograd makes all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from rust_ort.torch_private import OpOverload, pytree, traced

COPIED = ("autograd_backward", "partitioner_tag")
"""What is known of a node that holds for each of those in its place, too."""


def decompose(gm: fx.GraphModule, table: Callable[[], Mapping[Any, Callable[..., Any]]]) -> None:
    """Puts the nodes of its decomposition in the place of each node that torch has added, where the table has one.
    table: asked for if there are any."""
    added = [node for node in gm.graph.nodes if _is_added(node)]
    if not added:
        return
    known = table()
    for node in added:
        if node.target in known:
            _come_apart(gm, node, known)
    gm.recompile()


def _is_added(node: fx.Node) -> bool:
    """Tracing notes the operator of the program with each node."""
    return isinstance(node.target, OpOverload) and "original_aten" not in node.meta and "val" in node.meta


def _come_apart(gm: fx.GraphModule, node: fx.Node, table: Mapping[Any, Callable[..., Any]]) -> None:
    operator: Any = node.target
    given, structure = pytree.tree_flatten((node.args, node.kwargs))
    nodes = [leaf for leaf in given if isinstance(leaf, fx.Node)]

    def run(*values: Any) -> Any:
        left = iter(values)
        args, kwargs = pytree.tree_unflatten(
            [next(left) if isinstance(leaf, fx.Node) else leaf for leaf in given], structure
        )
        made = table[operator](*args, **kwargs)
        return operator(*args, **kwargs) if made is NotImplemented else made

    part = traced(run, [leaf.meta["val"] for leaf in nodes], table)
    if [inner.target for inner in part.graph.nodes if inner.op == "call_function"] == [operator]:
        return
    node.replace_all_uses_with(_inlined(gm, node, part, nodes))
    gm.graph.erase_node(node)


def _inlined(gm: fx.GraphModule, node: fx.Node, part: fx.GraphModule, given: Sequence[fx.Node]) -> fx.Node:
    """The value of a part whose placeholders are `given`; its nodes go before `node`."""
    placeholders = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    values: dict[fx.Node, fx.Node] = dict(zip(placeholders, given, strict=True))
    with gm.graph.inserting_before(node):
        for inner in part.graph.nodes:
            if inner.op == "output":
                return values[inner.args[0]]
            if inner.op == "placeholder":
                continue
            made = values[inner] = gm.graph.node_copy(inner, values.__getitem__)
            made.meta = {**inner.meta, **{name: node.meta[name] for name in COPIED if name in node.meta}}
            if inner.op == "get_attr":
                made.target = f"_{made.name}"
                gm.register_buffer(made.target, getattr(part, str(inner.target)))
    raise AssertionError(f"{node.name}: a graph without an output")
