"""Tensors joined along a dimension."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed

aten = torch.ops.aten


@decomposed(
    "aten.cat.default",
    why="torch.tensor([]), with which a cache of keys begins, has no elements: its node stays in eager",
    upstream="onnxruntime",
)
def cat(tensors: list[Tensor], dim: int = 0) -> Any:
    """Without the tensors of shape (0,), which torch passes over, where they do not make the result's dtype."""
    joined = [tensor for tensor in tensors if not _is_passed_over(tensor)]
    if not joined or len(joined) == len(tensors) or _dtype(joined) != _dtype(tensors):
        return NotImplemented
    return aten.cat.default(joined, dim) if len(joined) > 1 else joined[0].clone()


def _is_passed_over(tensor: Tensor) -> bool:
    return tensor.dim() == 1 and type(tensor.shape[0]) is int and tensor.shape[0] == 0


def _dtype(tensors: list[Tensor]) -> torch.dtype:
    return functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors])
