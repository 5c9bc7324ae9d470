"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument, dtype, floating, of_rank_0
from rust_ort.export.rules.registry import decomposed, in_eager, whole
from rust_ort.export.rules.sizes import steps

aten = torch.ops.aten

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)


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
    strides = steps(self.shape)
    rows, columns = strides[dim1], strides[dim2]
    others = [stride for axis, stride in enumerate(strides) if axis not in (dim1 % self.dim(), dim2 % self.dim())]
    return _written(self, src, [*others, rows + columns], offset * columns if offset >= 0 else -offset * rows)


@decomposed("aten.slice_scatter.default", why="ScatterND of nothing into something fails", upstream="onnxruntime")
def slice_scatter(
    self: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """Of a source without elements: the tensor as it is."""
    return self.clone() if any(isinstance(size, int) and size == 0 for size in src.shape) else NotImplemented


@decomposed(
    "aten.take.default", why="an index of rank 0 is taken for a number that is known when tracing", upstream="torch"
)
def take(self: Tensor, index: Tensor) -> Any:
    """By one index of the flat tensor, negative ones too."""
    return aten.index.Tensor(self.reshape(-1), [index])


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


in_eager(
    "aten.scatter",
    "aten.scatter_add",
    why="torchlib's ScatterElements takes no rank 0",
    silent=False,
    when=of_rank_0,
)


def _badly_reduced(node: fx.Node) -> bool:
    reduce = argument(node, "reduce")
    if reduce in ("amax", "amin"):
        return of_rank_0(node) or floating(node) or dtype(node) is torch.bool
    return of_rank_0(node) or reduce == "mean"


in_eager(
    "aten.scatter_reduce",
    why="torchlib's scatter_reduce is wrong for means and for extremes of NaN and infinities; it takes no rank 0",
    when=_badly_reduced,
)

HALVES = (torch.float16, torch.bfloat16)
UPDATES = "ONNX's updates have the shape of the indices, torch's source may be larger; no kernel adds half precision"


@decomposed("aten.scatter.src", why=UPDATES)
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """With as much of the source as there are indices."""
    return NotImplemented if _fits(src, index) else aten.scatter.src(self, dim, index, _cut(src, index))


@decomposed("aten.scatter_add.default", why=UPDATES, upstream="onnxruntime")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """In float32, rounded once, with as much of the source as there are indices."""
    if self.dtype not in HALVES and _fits(src, index):
        return NotImplemented
    total, source = _added_as(self), _added_as(_cut(src, index))
    return aten.scatter_add.default(total, dim, index, source).to(self.dtype)


@decomposed("aten.scatter_reduce.two", why=UPDATES, upstream="onnxruntime")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """In float32, rounded once, with as much of the source as there are indices."""
    if reduce == "mean" or (_fits(src, index) and (self.dtype not in HALVES or reduce in ("amax", "amin"))):
        return NotImplemented
    total, source = _added_as(self), _added_as(_cut(src, index))
    return aten.scatter_reduce.two(total, dim, index, source, reduce, include_self=include_self).to(self.dtype)


REDUCTIONS = {"add": "sum", "multiply": "prod"}


@decomposed("aten.scatter.reduce", why="torchlib has no form")
def scatter_by(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Any:
    """Under its newer name."""
    return aten.scatter_reduce.two(self, dim, index, src, REDUCTIONS[reduce])


@decomposed("aten.scatter.value_reduce", why="torchlib has no form")
def scatter_value_by(self: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Any:
    """Of a tensor of the number."""
    source = aten.full(index.shape, value, dtype=self.dtype, device=self.device)
    return aten.scatter_reduce.two(self, dim, index, source, REDUCTIONS[reduce])


def _index_put(operator: Any) -> Callable[..., Any]:
    def function(
        self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
    ) -> Any:
        long = _long(indices)
        adds_half = accumulate and self.dtype in HALVES
        if long is None and not adds_half:
            return NotImplemented
        total, source = (_added_as(self), _added_as(values)) if adds_half else (self, values)
        return operator(total, indices if long is None else long, source, accumulate).to(self.dtype)

    return function


def _index(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor, indices: Sequence[Tensor | None]) -> Any:
        long = _long(indices)
        return NotImplemented if long is None else operator(self, long)

    return function


INDICES = "ONNX's indices are int64; no kernel adds half precision"
for _name in ("index_put", "_unsafe_index_put"):
    decomposed(f"aten.{_name}.default", why=INDICES, upstream="onnxruntime")(_index_put(getattr(aten, _name).default))
for _name in ("index", "_unsafe_index"):
    decomposed(f"aten.{_name}.Tensor", why="ONNX's indices are int64", upstream="onnxruntime")(
        _index(getattr(aten, _name).Tensor)
    )


@decomposed("aten.put.default", why="torchlib has no form")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """index_put of the flat tensor."""
    flat = aten.index_put.default(self.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)


@decomposed("aten.squeeze.dim", why="refused where the dimension is not 1", upstream="torchlib")
def squeeze(self: Tensor, dim: int) -> Any:
    """Unchanged where the dimension is known not to be 1."""
    size = self.shape[dim] if self.dim() else 1
    return aten.alias.default(self) if isinstance(size, int) and size != 1 else NotImplemented


@decomposed("aten.bucketize.Tensor", why="of rank 0 it is decomposed to a value read while compiling", upstream="torch")
def bucketize(self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Any:
    """torch's own, of rank 1."""
    own = torch._decomp.decomposition_table[aten.bucketize.Tensor]
    return own(self.reshape(-1), boundaries, out_int32=out_int32, right=right).reshape(self.shape)


@decomposed("aten.repeat_interleave.Tensor", why="torchlib does not know `output_size`")
def repeat_interleave(repeats: Tensor, *, output_size: int | None = None) -> Any:
    """For each position, how many ends of repeats are not after it."""
    if output_size is None:
        return NotImplemented
    positions = torch.arange(output_size, device=repeats.device).unsqueeze(1)
    return (positions >= repeats.cumsum(0)).sum(1).to(repeats.dtype)


def _fits(src: Tensor, index: Tensor) -> bool:
    return tuple(src.shape) == tuple(index.shape)


def _cut(src: Tensor, index: Tensor) -> Tensor:
    return src[tuple(slice(length) for length in index.shape)]


def _added_as(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float32) if tensor.dtype in HALVES else tensor


def _long(indices: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """The indices as int64; None when they are."""
    if not any(index is not None and index.dtype in (torch.int32, torch.int16, torch.int8) for index in indices):
        return None
    return [index.to(torch.int64) if index is not None and index.dtype.is_signed else index for index in indices]
