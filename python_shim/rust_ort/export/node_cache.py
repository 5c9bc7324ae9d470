"""Answers about a node that depend on its operator and arguments alone, cached for like nodes: repeated layers are most
of a model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import fx

from rust_ort.export.arguments import HELD
from rust_ort.torch_private import OpOverload

PLAIN = frozenset({bool, int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


class _Unlike(Exception):
    """Something of which it cannot be told whether it is alike."""


class NodeCache:
    """What is known of the nodes of a graph, while its values live.

    Alike are nodes of one ATen operator, come of the same operator, whose tensors, their own and those they are given,
    have the same dtypes, sizes, strides and devices, all of them known, and whose other arguments are the same. Any
    other node is asked about by itself.
    """

    def __init__(self) -> None:
        self._fine = set[Hashable]()
        self._kinds: dict[fx.Node, Hashable] = {}
        self._tensors: dict[int, tuple[torch.Tensor, Hashable]] = {}
        """By id; the tensor is kept, so that no other comes to have its id."""

    def once(self, what: str, node: fx.Node, ask: Callable[[], str | None]) -> str | None:
        """What speaks against a node, as `ask` says it. Where nothing did for one alike, it is not asked: `what` it
        was. (What speaks against a node may name it.)"""
        if node not in self._kinds:
            try:
                self._kinds[node] = self._kind(node)
            except _Unlike:
                self._kinds[node] = None
        kind = self._kinds[node]
        if (what, kind) in self._fine:
            return None
        answer = ask()
        if answer is None and kind is not None:
            self._fine.add((what, kind))
        return answer

    def _kind(self, node: fx.Node) -> Hashable:
        if not isinstance(node.target, OpOverload) or node.target in HELD:  # of those the value of a tensor counts
            raise _Unlike
        given = tuple(map(self._argument, node.args))
        named = tuple((name, self._argument(value)) for name, value in node.kwargs.items())
        return node.target, given, named, self._result(node.meta.get("val")), str(node.meta.get("original_aten", ""))

    def _result(self, value: Any) -> Hashable:
        return tuple(map(self._value, value)) if isinstance(value, (tuple, list)) else self._value(value)

    def _argument(self, argument: Any) -> Hashable:
        if isinstance(argument, fx.Node):
            return self._value(argument.meta.get("val"))
        if type(argument) in PLAIN:
            return type(argument), argument
        if type(argument) is float:
            return float, argument.hex()  # 0.0 is not -0.0, and nan is nan
        if isinstance(argument, (list, tuple)):
            return type(argument), tuple(map(self._argument, argument))
        raise _Unlike

    def _value(self, value: Any) -> Hashable:
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            raise _Unlike
        if id(value) not in self._tensors:
            layout = (*value.shape, *value.stride(), value.storage_offset())
            if not all(type(number) is int for number in layout):
                raise _Unlike
            self._tensors[id(value)] = value, (value.dtype, value.device, type(value), value.dim(), layout[:-1])
        return self._tensors[id(value)][1]
