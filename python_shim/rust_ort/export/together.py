"""Which of the nodes that ONNX Runtime runs are in one part: as few parts as there can be, in time linear in the graph.

torch's CapabilityBasedPartitioner asks for each node which nodes come after it: quadratic, and so is its memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch import fx


def together(graph: fx.Graph, runs: Callable[[fx.Node], bool]) -> list[list[fx.Node]]:
    """The nodes of each part, in the graph's order; the parts in that of their first nodes. runs: whether ONNX Runtime
    may run a node. What takes one value out of a node's tuple is where that node is, whatever `runs` says of it.

    Round of a node: how often, at most, a path from it to the graph's end goes from a part to eager. Nodes of one round
    are one part, so each is as late as its readers allow. Along an edge rounds do not rise, and a path that leaves a
    part by eager goes on in a lower round: no part reads what comes after it. A path of round n needs n parts however
    it is cut.
    """
    nodes = list(graph.nodes)
    tuples = [node for node in nodes if all(map(_takes_one_out, node.users))]
    source = {user: node for node in tuples for user in node.users}
    in_part: dict[fx.Node, bool] = {}
    for node in nodes:
        in_part[node] = in_part[source[node]] if node in source else runs(node)
    rounds = {node: int(in_part[node]) for node in nodes}  # after the end comes eager
    for node in reversed(nodes):
        for user in node.users:
            rounds[node] = max(rounds[node], rounds[user] + (in_part[node] and not in_part[user]))
    parts: dict[int, list[fx.Node]] = {}
    for node in nodes:
        if node in source:
            rounds[node] = rounds[source[node]]
        if in_part[node]:
            parts.setdefault(rounds[node], []).append(node)
    return list(parts.values())


def _takes_one_out(user: fx.Node) -> bool:
    return user.op == "call_function" and user.target is operator.getitem
