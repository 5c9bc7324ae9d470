"""A graph that is one part and nothing else, as one call without the outer module."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from rust_ort.export.hash import attribute

if TYPE_CHECKING:
    from rust_ort.call.part import Part
    from rust_ort.export.plan import Plan


def fast_path(plan: Plan, parts: Sequence[Part]) -> Callable[[list[Any]], Any] | None:
    """The whole graph as one call of its only part, None when it is more than that."""
    nodes = list(plan.cut.outer.graph.nodes)
    calls = [node for node in nodes if node.op == "call_module"]
    if len(parts) != 1 or len(calls) != 1:
        return None
    placeholders = [node for node in nodes if node.op == "placeholder"]
    constants = [node for node in nodes if node.op == "get_attr"]
    unpacks = {node: node.args[1] for node in calls[0].users}
    if len(placeholders) + len(constants) + len(unpacks) + 2 != len(nodes):
        return None
    planned, part = plan.parts[0], parts[0]
    if not all(isinstance(result, int) for result in planned.results):
        return None
    position = {node: index for index, node in enumerate([*placeholders, *constants])}
    try:
        pick = _getter([position[calls[0].args[index]] for index in planned.pick])
    except KeyError:
        return None
    values = [attribute(plan.cut.outer, str(node.target)) for node in constants]
    assemble = _assembler(plan.cut.outer.graph.output_node(), unpacks, planned.results, position)
    if assemble is None:
        return None

    def fast(args: list[Any]) -> Any:
        if values:
            args = [*args, *values]
        return assemble(part(pick(args)), args)

    return fast


def _getter(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    if len(positions) == 1:
        only = positions[0]
        return lambda values: (values[only],)
    if not positions:
        return lambda values: ()
    return operator.itemgetter(*positions)


def _assembler(
    output: fx.Node, unpacks: Mapping[fx.Node, Any], results: Sequence[Any], position: Mapping[fx.Node, int]
) -> Callable[[list[Any], Sequence[Any]], Any] | None:
    """How the graph's outputs come from the part's outputs and the inputs: Python code made once."""
    pieces = []
    returned = output.args[0]
    if not isinstance(returned, (list, tuple)):
        return None
    for item in returned:
        if isinstance(item, fx.Node) and item in unpacks:
            pieces.append(f"o[{results[unpacks[item]]}]")
        elif isinstance(item, fx.Node):
            if item not in position:
                return None
            pieces.append(f"a[{position[item]}]")
        elif item is None or isinstance(item, (bool, int, float)):
            pieces.append(repr(item))
        else:
            return None
    if pieces == [f"o[{index}]" for index in range(len(results))]:
        return lambda outputs, args: outputs
    function: Callable[[list[Any], Sequence[Any]], Any] = eval(f"lambda o, a: [{', '.join(pieces)}]", {})
    return function
