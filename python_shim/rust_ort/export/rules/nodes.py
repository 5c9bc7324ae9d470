"""What a rule's condition asks of an FX node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from rust_ort.torch_private import pytree


def argument(node: fx.Node, name: str) -> Any:
    """Argument `name` of an ATen node, by its schema; the default when it is not given."""
    if name in node.kwargs:
        return node.kwargs[name]
    for position, declared in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        if declared.name == name:
            return node.args[position] if position < len(node.args) else declared.default_value
    return None


def draws(node: fx.Node) -> bool:
    """Whether an ATen node draws random numbers: it is of an operator that does, and drops out something."""
    tags = node.target.tags  # type: ignore[union-attr]
    return torch.Tag.nondeterministic_seeded in tags and argument(node, "dropout_p") != 0.0


def dtype(node: fx.Node, name: str = "self") -> torch.dtype | None:
    """dtype of the tensor that argument `name` is, None when it is no tensor."""
    value = argument(node, name)
    value = value.meta.get("val") if isinstance(value, fx.Node) else value
    return value.dtype if isinstance(value, torch.Tensor) else None


def holds(wanted: torch.dtype, *nodes: fx.Node) -> bool:
    """Whether a value of one of the nodes is a tensor of this dtype."""
    return any(value.dtype is wanted for node in nodes for value in tensors(node.meta.get("val")))


def tensors(value: Any) -> Sequence[torch.Tensor]:
    """Those that a node's value holds; mostly it is one, for which pytree takes its time."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if value is None or isinstance(value, (torch.SymInt, int)):
        return ()
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def of_rank_0(node: fx.Node) -> bool:
    """Whether argument `self` has no dimension."""
    return bool(argument(node, "self").meta["val"].dim() == 0)


def floating(node: fx.Node) -> bool:
    """Whether `self` or `other` is a floating-point tensor."""
    found = (dtype(node, name) for name in ("self", "other") if argument(node, name) is not None)
    return any(found_dtype is not None and found_dtype.is_floating_point for found_dtype in found)


def integral_result(node: fx.Node) -> bool:
    """Whether the result is a tensor of integers or bools."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value.dtype.is_floating_point
