"""What values of a graph add up, where they are asked for while eager's values are at hand."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor, fx

from rust_ort.export.partition import has_effect
from rust_ort.observe.sums import Sums
from rust_ort.torch_private import OpOverload


class Terms:
    """Of the nodes of a graph. env: eager's values, as many as there still are: nodes whose inputs are among them run
    once more where a value asks for what it is made of."""

    def __init__(self, env: Mapping[fx.Node, Any]) -> None:
        self._env = env
        self._sums = Sums()
        self._ran: set[fx.Node] = set()

    def of(self, node: fx.Node) -> Tensor | None:
        """Σ|terms| of each element of the node's value, float64; None where it is no sum, or that is not known."""
        for source in self._behind(node):
            args, kwargs = fx.map_arg((source.args, source.kwargs), lambda read: self._env[read])
            self._sums.repeat(source.target, args, kwargs, self._env[source])
        return self._sums.of(self._env[node])

    def _behind(self, node: fx.Node) -> list[fx.Node]:
        """What the node is made of, and the node last, as far as that can run again and has not."""
        found: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            last = waiting.pop()
            if last not in self._ran and self._runs_again(last):
                self._ran.add(last)
                found.add(last)
                waiting += last.all_input_nodes
        return sorted(found)  # as the graph has them

    def _runs_again(self, node: fx.Node) -> bool:
        target = node.target
        is_plain = isinstance(target, OpOverload) and not has_effect(node)
        return (
            node.op == "call_function"
            and (is_plain or target is operator.getitem)
            and node in self._env
            and all(read in self._env for read in node.all_input_nodes)
        )
