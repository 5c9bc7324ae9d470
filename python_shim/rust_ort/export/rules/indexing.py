"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument, of_rank_0
from rust_ort.export.rules.registry import decomposed, in_eager, whole

aten = torch.ops.aten

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)


def _strides(shape: Sequence[int]) -> list[int]:
    """Of a contiguous tensor."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _written(self: Tensor, src: Tensor, stride: Sequence[int], offset: int) -> Any:
    """`self` with `src` at these strides of its elements in their order."""
    positions = aten.full([1] * src.dim(), offset, dtype=torch.int64, device=self.device)
    for axis, (length, step) in enumerate(zip(src.shape, stride, strict=True)):
        line = torch.arange(length, device=self.device) * step
        positions = positions + line.reshape([length if other == axis else 1 for other in range(src.dim())])
    flat = aten.scatter.src(self.reshape(-1), 0, positions.reshape(-1), src.reshape(-1))
    return flat.reshape(self.shape)


def _static(*tensors: Tensor) -> bool:
    return all(isinstance(size, int) and size > 0 for tensor in tensors for size in tensor.shape)


@decomposed("aten.diagonal_scatter.default", why="decomposed to prims.copy_to, which is not functional")
def diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Where the sizes are known."""
    if not _static(self, src):
        return NotImplemented
    strides = _strides(self.shape)
    rows, columns = strides[dim1], strides[dim2]
    others = [stride for axis, stride in enumerate(strides) if axis not in (dim1 % self.dim(), dim2 % self.dim())]
    return _written(self, src, [*others, rows + columns], offset * columns if offset >= 0 else -offset * rows)


@decomposed("aten.as_strided_scatter.default", why="decomposed to prims.as_strided_scatter, which has no ONNX form")
def as_strided_scatter(
    self: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Of a contiguous tensor that is its whole storage's beginning, within it."""
    own_offset = self.storage_offset()
    if not _static(self, src) or not self.is_contiguous() or own_offset != 0:
        return NotImplemented
    offset = storage_offset or 0
    if offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) >= self.numel():
        return NotImplemented
    return _written(self, src, stride, offset)


@decomposed("aten.masked_scatter_backward.default", why="the gradient has no ONNX form")
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Any:
    """Element i of the source went where i elements of the mask were before: the others go to a place beyond."""
    length = math.prod(sizes)
    if not isinstance(length, int):
        return NotImplemented
    chosen = mask.expand(grad.shape).reshape(-1)
    places = torch.where(chosen, torch.cumsum(chosen, 0) - 1, length)
    zeros = aten.full([length + 1], 0, dtype=grad.dtype, device=grad.device)
    return aten.scatter.src(zeros, 0, places, grad.reshape(-1))[:length].reshape(sizes)


MOST_DIFFERENCES = 2**24
"""Of two sets of points: ONNX Runtime would hold them all."""


def _differences(x1: Tensor, x2: Tensor, p: float) -> Tensor | None:
    """x1[i] - x2[j] along each dimension; None where there are too many, or no form for the norm."""
    number = x1.numel() * x2.shape[-2]
    if not _static(x1, x2) or number > MOST_DIFFERENCES or p not in (1, 2, math.inf):
        return None
    return x1.unsqueeze(-2) - x2.unsqueeze(-3)


CDIST = "no ONNX form"


@decomposed("aten._cdist_forward.default", why=CDIST)
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Any:
    """From the differences."""
    differences = _differences(x1, x2, p)
    if differences is None:
        return NotImplemented
    if p == 2:
        return torch.sqrt((differences * differences).sum(-1))
    return differences.abs().sum(-1) if p == 1 else differences.abs().amax(-1)


@decomposed("aten._cdist_backward.default", why=CDIST)
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Any:
    """0 where points are the same."""
    differences = _differences(x1, x2, p)
    if differences is None:
        return NotImplemented
    grad, distance = grad.unsqueeze(-1), cdist.unsqueeze(-1)
    if p == 2:
        slope = torch.where(distance == 0, 0, differences / torch.where(distance == 0, 1, distance))
    elif p == 1:
        slope = torch.sign(differences)
    else:
        slope = torch.where(differences.abs() == distance, torch.sign(differences), 0)
    return (grad * slope).sum(-2)


def _reads_beyond(node: fx.Node) -> bool:
    """Whether an as_strided node reads elements of a storage that are not its tensor's, or another layout."""
    tensor = argument(node, "self").meta["val"]
    size, stride = argument(node, "size"), argument(node, "stride")
    offset = argument(node, "storage_offset")
    if not tensor.is_contiguous() or not all(isinstance(number, int) for number in (*size, *stride, tensor.numel())):
        return True
    first = tensor.storage_offset() if offset is None else offset
    last = first + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    own = range(tensor.storage_offset(), tensor.storage_offset() + tensor.numel())
    return tensor.storage_offset() != 0 or (0 not in size and (first not in own or last not in own))


in_eager(
    "aten.as_strided",
    why="it reads elements of a storage that its tensor does not show",
    silent=False,
    when=_reads_beyond,
)
in_eager("aten._embedding_bag", why="torchlib's embedding_bag gives offsets that make gradients wrong")
in_eager(
    "aten.scatter",
    "aten.scatter_add",
    why="torchlib's ScatterElements takes no rank 0",
    silent=False,
    when=of_rank_0,
)
in_eager(
    "aten.scatter_reduce",
    why="torchlib's scatter_reduce(mean) gives wrong values, its ScatterElements takes no rank 0",
    when=lambda node: argument(node, "reduce") == "mean" or of_rank_0(node),
)
