"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument, dtype, floating, of_rank_0
from rust_ort.export.rules.registry import decomposed, in_eager, whole

aten = torch.ops.aten

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)
whole("aten.diagonal_scatter.default", why="decomposed to prims.copy_to, which is not functional")

in_eager("aten._embedding_bag", why="torchlib's embedding_bag gives offsets that make gradients wrong")
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
