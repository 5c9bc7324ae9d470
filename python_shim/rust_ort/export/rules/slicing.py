"""Gradients of slices."""

from __future__ import annotations

from typing import Any

import torch
from torch import SymInt, Tensor

from rust_ort.export.rules.registry import decomposed
from rust_ort.export.rules.sizes import least
from rust_ort.torch_private import torchs_decompositions

aten = torch.ops.aten

SLOW = "written into zeros by an index, through two Transposes: 20 to 60 times slower than zeros put around it"


@decomposed("aten.slice_backward.default", why=SLOW)
def slice_backward(grad_output: Tensor, input_sizes: list[int], dim: int, start: int, end: int, step: int) -> Any:
    """The gradient with zeros around it; torch's own where it is spread, or sizes do not tell how many there are."""
    size, length = input_sizes[dim], grad_output.shape[dim]
    before = _first(size, start, end) if step == 1 else None
    padded = None if before is None else _between_zeros(grad_output, dim, before, size - before - length)
    if padded is not None:
        return padded
    return torchs_decompositions()[aten.slice_backward.default](grad_output, input_sizes, dim, start, end, step)


@decomposed("aten.select_backward.default", why=SLOW)
def select_backward(grad_output: Tensor, input_sizes: list[int], dim: int, index: int) -> Any:
    """The gradient of a slice of one."""
    size = input_sizes[dim]
    known = not isinstance(index, SymInt)
    before = index + size if known and index < 0 else index
    axis = dim % len(input_sizes)
    padded = _between_zeros(grad_output.unsqueeze(axis), axis, before, size - before - 1) if known else None
    if padded is not None:
        return padded
    return torchs_decompositions()[aten.select_backward.default](grad_output, input_sizes, dim, index)


def _first(size: int, start: int, end: int) -> int | None:
    """Where a slice begins; None where that depends on sizes that are not known."""
    if isinstance(start, SymInt) or isinstance(end, SymInt):
        return None
    if not isinstance(size, SymInt):
        return slice(start, end).indices(size)[0]
    if least(size) < abs(start):
        return None
    return start if start >= 0 else size + start


def _between_zeros(tensor: Tensor, dim: int, before: int, after: int) -> Tensor | None:
    """None where ONNX has no form, or one of the sizes might be below zero."""
    if not tensor.is_floating_point() or least(before) < 0 or least(after) < 0:
        return None
    behind = tensor.dim() - 1 - dim % tensor.dim()
    padded: Tensor = aten.constant_pad_nd.default(tensor.contiguous(), [0, 0] * behind + [before, after])
    return padded
