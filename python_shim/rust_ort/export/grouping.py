"""Grouping of the nodes that ONNX Runtime runs into as few parts as possible, in time linear in the graph.

torch's CapabilityBasedPartitioner asks for each node which nodes come after it: quadratic, and so is its memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable

from torch import fx


def grouped(graph: fx.Graph, place: Callable[[fx.Node], Hashable]) -> list[list[fx.Node]]:
    """The nodes of each part, in the graph's order; the parts in that of their first nodes. place: where ONNX Runtime
    runs a node, which a part has one of; None: it is eager's. What takes one value out of a node's tuple is where that
    node is, whatever `place` says of it.

    Round of a node: how often, at most, a path from it to the graph's end leaves a place, for another one or for eager.
    Nodes of one round and place are one part, so each is as late as its readers allow. Along an edge rounds do not
    rise, and a path that leaves a part goes on in a lower round: no part reads what comes after it. A path of round n
    needs n parts however it is cut; where all is in one place, n are made.
    """
    nodes = list(graph.nodes)
    tuples = [node for node in nodes if all(map(_takes_one_out, node.users))]
    source = {user: node for node in tuples for user in node.users}
    at: dict[fx.Node, Hashable] = {}
    for node in nodes:
        at[node] = at[source[node]] if node in source else place(node)
    rounds = {node: int(at[node] is not None) for node in nodes}  # after the end comes eager
    for node in reversed(nodes):
        for user in node.users:
            rounds[node] = max(rounds[node], rounds[user] + (at[node] is not None and at[node] != at[user]))
    parts: dict[tuple[int, Hashable], list[fx.Node]] = {}
    for node in nodes:
        if node in source:
            rounds[node] = rounds[source[node]]
        if at[node] is not None:
            parts.setdefault((rounds[node], at[node]), []).append(node)
    return list(parts.values())


def _takes_one_out(user: fx.Node) -> bool:
    return user.op == "call_function" and user.target is operator.getitem
