"""Sizes that a submodule computes with, asked of its own tensors: as a function it takes no other module's numbers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import fx

from rust_ort.export.shapes import expression

aten = torch.ops.aten

Call = tuple[Hashable, ...]
"""The calls of modules that a node runs in."""


def ask_own_tensors(graph: fx.Graph) -> None:
    """Gives each call of a submodule sizes of its own, where a tensor that it reads tells them; what is then asked for
    by nobody is gone."""
    known: dict[Call, dict[Any, tuple[fx.Node, int]]] = {}
    made: dict[Call, dict[Any, fx.Node]] = {}
    for node in list(graph.nodes):
        call = tuple(node.meta.get("nn_module_stack") or ())
        if node.op != "call_function" or not call or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
            continue
        read = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
        found = [
            (expression(size), (one, axis))
            for one in read
            for axis, size in enumerate(one.meta["val"].shape)
            if isinstance(size, torch.SymInt)
        ]
        for depth in range(1, len(call) + 1):  # what a call inside reads, the outer one has
            for size, where in found:
                known.setdefault(call[:depth], {}).setdefault(size, where)
        sizes = known.get(call, {})
        own = _Own(graph, node, sizes, made.setdefault(call, {}))
        for one in node.all_input_nodes:
            if isinstance(one.meta.get("val"), torch.SymInt) and (other := own.of(one)) is not None:
                node.replace_input_with(one, other)
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and isinstance(node.meta.get("val"), torch.SymInt):
            graph.erase_node(node)


class _Own:
    """Sizes of the call that `node` is in, made before it. known: {size: the tensor and axis that tell it}."""

    def __init__(
        self, graph: fx.Graph, node: fx.Node, known: dict[Any, tuple[fx.Node, int]], made: dict[Any, fx.Node]
    ) -> None:
        self._graph, self._node, self._known, self._made = graph, node, known, made

    def of(self, size: fx.Node) -> fx.Node | None:
        """The same size; None where the call's tensors do not tell it."""
        key = expression(size.meta["val"])
        if key not in self._made:
            if key in self._known:
                self._made[key] = self._new(aten.sym_size.int, self._known[key], size)
            elif (computed := self._computed(size)) is not None:
                self._made[key] = computed
        return self._made.get(key)

    def _computed(self, size: fx.Node) -> fx.Node | None:
        if size.op != "call_function" or size.kwargs or size.target is aten.sym_size.int:
            return None
        args = [self.of(one) if isinstance(one, fx.Node) else one for one in size.args]
        if not any(isinstance(one, fx.Node) for one in size.args) or None in args:
            return None
        return self._new(size.target, tuple(args), size)

    def _new(self, target: Any, args: tuple[Any, ...], size: fx.Node) -> fx.Node:
        with self._graph.inserting_before(self._node):
            node = self._graph.call_function(target, args)
        stack: dict[str, Any] = {
            key: self._node.meta[key] for key in ("nn_module_stack", "stack_trace") if key in self._node.meta
        }
        node.meta = stack | {"val": size.meta["val"]}
        return node
