"""Memory that nobody wrote into: which nodes give it. Its values are chance, so they are never compared."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from rust_ort.torch_private import OpOverload

UNWRITTEN = "memory that nobody wrote into"
_EMPTY = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
_STATES: Mapping[Any, tuple[int, ...]] = {
    torch.ops.aten._scaled_dot_product_flash_attention.default: (6, 7),
    torch.ops.aten._scaled_dot_product_cudnn_attention.default: (6, 7),
    torch.ops.aten._scaled_dot_product_efficient_attention.default: (2, 3),
}
"""Results that are a random generator's state, which is written where something is dropped."""


def is_unwritten(node: fx.Node) -> bool:
    """Whether `node` gives memory that nobody wrote into: its values are chance."""
    if node.target is operator.getitem and isinstance(source := node.args[0], fx.Node):
        return node.args[1] in _STATES.get(source.target, ()) and not drops(source.target, source.args, source.kwargs)
    return leaves_unwritten(node.target)


def drops(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator that draws random numbers does; one that is told to drop out nothing draws none."""
    for position, declared in enumerate(target._schema.arguments):
        if declared.name == "dropout_p":
            given = args[position] if position < len(args) else kwargs.get("dropout_p", declared.default_value)
            return bool(given != 0.0)
    return True


def leaves_unwritten(target: object) -> bool:
    """The same of an operator."""
    return isinstance(target, OpOverload) and str(target.overloadpacket).removeprefix("aten.") in _EMPTY
