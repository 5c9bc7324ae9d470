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


MOST_SHIFTS = 32
"""Additions of whole tensors; of more, one addition by an index is faster."""


@decomposed(
    "aten.unfold_backward.default", why="torch adds by an index, once for each element of a window", upstream="torch"
)
def unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Any:
    """Sums of overlapping windows: each is cut into pieces of `step`, and pieces of one place in theirs lie side by
    side. An element's windows are added from the first to the last, as torch's kernel adds them."""
    if not input_sizes:
        return NotImplemented
    axis = dim % len(input_sizes)
    if not isinstance(input_sizes[axis], SymInt) and grad.shape[axis] == 1:
        step = size  # of one window no step is taken
    shifts = -(-size // step)
    if shifts > MOST_SHIFTS:
        return _added_by_index(grad, input_sizes, axis, size, step)
    pieces = aten.constant_pad_nd.default(grad, [0, shifts * step - size]).unflatten(-1, (shifts, step))
    whole = None
    for shift in reversed(range(shifts)):
        side_by_side = pieces.select(-2, shift).movedim(-1, axis + 1).flatten(axis, axis + 1)
        # A step of zeros more, which the tensor's last elements are where no window reaches them.
        around = [0, 0] * (len(input_sizes) - 1 - axis) + [shift * step, (shifts - shift) * step]
        placed = aten.constant_pad_nd.default(side_by_side, around)
        whole = placed if whole is None else whole + placed
    assert whole is not None, "a window has elements"
    return whole.narrow(axis, 0, input_sizes[axis])


def _added_by_index(grad: Tensor, input_sizes: list[int], axis: int, size: int, step: int) -> Tensor:
    begins = torch.arange(grad.shape[axis], device=grad.device) * step
    places = (begins.unsqueeze(-1) + torch.arange(size, device=grad.device)).flatten()
    rows = grad.movedim(-1, axis + 1).flatten(axis, axis + 1)
    return grad.new_zeros(input_sizes).index_add(axis, places, rows)
