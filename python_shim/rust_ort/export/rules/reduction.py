"""Extremes, orders, scans and norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.nodes import dtype, integral_result
from rust_ort.export.rules.promotion import computed
from rust_ort.export.rules.registry import decomposed, in_eager, ints, op, torchs_own, translated
from rust_ort.export.rules.summation import LONG_ROWS

aten = torch.ops.aten


torchs_own("aten.linalg_vector_norm.default", why="passes NaN over when the order is infinite", silent=True)

in_eager(
    "aten.prod",
    why="ONNX Runtime computes products of integers in floating point",
    upstream="onnxruntime",
    when=integral_result,
)
MULTIPLIED = 64
"""As many whole numbers are multiplied one with the other."""


@decomposed(
    "aten.prod.default", "aten.prod.dim_int", why="ONNX Runtime computes products of integers in floating point",
    upstream="onnxruntime",
)  # fmt: skip
def prod(self: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Few whole numbers by halves; a tensor of rank 0 by a dimension of one element."""
    if dim is not None and not self.dim():
        return aten.prod.dim_int(self.unsqueeze(0), 0, dtype=dtype)
    made = torch.int64 if dtype is None and not self.dtype.is_floating_point else dtype or self.dtype
    line = self.reshape(-1) if dim is None else self
    axis = dim or 0
    if made.is_floating_point or made.is_complex or self.is_complex() or made is torch.bool or not line.dim():
        return NotImplemented
    length = line.shape[axis]
    if not isinstance(length, int) or not 0 < length <= MULTIPLIED:
        return NotImplemented
    rows = list(line.to(made).unbind(axis))
    while len(rows) > 1:
        odd = rows[len(rows) & ~1 :]
        rows = [first * second for first, second in zip(rows[::2], rows[1::2], strict=False)] + odd
    return rows[0].unsqueeze(axis) if keepdim else rows[0]


in_eager("aten.logcumsumexp", why="torchlib's logcumsumexp underflows far below the largest element")


@translated(
    "aten.amax.default",
    why="ReduceMax passes NaN over, and is wrong for int64 beyond int32",
    upstream="onnxruntime",
    silent=True,
)
def amax(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN."""
    return _extreme(op.ReduceMax, op.ArgMax, self, dim, keepdim)


@translated(
    "aten.amin.default",
    why="ReduceMin passes NaN over, and is wrong for int64 beyond int32",
    upstream="onnxruntime",
    silent=True,
)
def amin(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN."""
    return _extreme(op.ReduceMin, op.ArgMin, self, dim, keepdim)


def _extreme(reduce: Any, select: Any, self: Any, dim: Sequence[int], keepdim: bool) -> Any:
    from onnxscript import ir

    if len(self.shape) > 0 and self.dtype == ir.DataType.INT64:
        return _selected(select, self, list(dim) or list(range(len(self.shape))), keepdim)
    return _with_nan(reduce, self, dim, keepdim)


def _selected(select: Any, self: Any, dims: list[int], keepdim: bool) -> Any:
    for axis in dims:
        self = op.GatherElements(self, select(self, axis=axis, keepdims=True), axis=axis)
    return self if keepdim else op.Squeeze(self, ints(dims))


LONGEST_TABLE = 512


@decomposed("aten.cumprod.default", why="decomposed to prims.prod", upstream="torch")
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Row i of a table holds what product i is of."""
    integral = not self.dtype.is_floating_point and not self.dtype.is_complex
    dtype = dtype or (torch.int64 if integral else self.dtype)
    self = self.to(dtype)
    if self.dim() == 0:
        return self.clone()
    dim = dim % self.dim()
    length = self.shape[dim]
    if not isinstance(length, int) or length > LONGEST_TABLE:
        return NotImplemented
    positions = torch.arange(length, device=self.device)
    wanted = (positions.unsqueeze(1) <= positions).reshape(length, length, *[1] * (self.dim() - dim - 1))
    return torch.prod(torch.where(wanted, self.unsqueeze(dim + 1), 1), dim, dtype=dtype)


def _with_nan(reduce: Any, self: Any, dim: Sequence[int], keepdim: bool) -> Any:
    from onnxscript import ir

    if len(self.shape) == 0:
        return op.Identity(self)
    axes = ints(dim)
    if self.dtype == ir.DataType.BOOL:
        numbers = op.Cast(self, to=ir.DataType.UINT8)
        return op.Cast(reduce(numbers, axes, keepdims=keepdim), to=ir.DataType.BOOL)
    plain = reduce(self, axes, keepdims=keepdim)
    if not self.dtype.is_floating_point():
        return plain
    found = op.ReduceMax(op.Cast(op.IsNaN(self), to=ir.DataType.UINT8), axes, keepdims=keepdim)
    nan = op.Constant(value=ir.tensor(float("nan"), dtype=self.dtype))
    return op.Where(op.Cast(found, to=ir.DataType.BOOL), nan, plain)


ARG = "ArgMax and ArgMin pass NaN over"


@translated("aten.argmax.default", why=ARG, upstream="onnxruntime", silent=True)
def argmax(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Where the first NaN is, or the first of the largest."""
    return _position(op.ArgMax, self, dim, keepdim)


@translated("aten.argmin.default", why=ARG, upstream="onnxruntime", silent=True)
def argmin(self: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Where the first NaN is, or the first of the smallest."""
    return _position(op.ArgMin, self, dim, keepdim)


def _position(select: Any, self: Any, dim: int | None, keepdim: bool) -> Any:
    rank = len(self.shape)
    if dim is not None and rank > 0:
        return _position_along(select, self, self.dtype, dim, keepdim)
    flat = op.Reshape(self, ints([-1]))
    return op.Reshape(_position_along(select, flat, self.dtype, 0, True), ints([1] * rank if keepdim else []))


def _position_along(select: Any, self: Any, dtype: Any, axis: int, keepdims: bool) -> Any:
    from onnxscript import ir

    if not dtype.is_floating_point():
        return select(self, axis=axis, keepdims=keepdims)
    wide = op.Cast(self, to=ir.DataType.FLOAT) if dtype.bitwidth == 16 else self
    nan = op.Cast(op.IsNaN(self), to=ir.DataType.INT32)
    found = op.Cast(op.ReduceMax(nan, ints([axis]), keepdims=keepdims), to=ir.DataType.BOOL)
    first = op.ArgMax(nan, axis=axis, keepdims=keepdims)
    return op.Where(found, first, select(wide, axis=axis, keepdims=keepdims))


@decomposed("aten.max.dim", why=ARG, upstream="onnxruntime", silent=True)
def max_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """amax and argmax."""
    where = self.to(torch.uint8) if self.dtype is torch.bool else self
    return self.amax(dim, keepdim), where.argmax(dim, keepdim)


@decomposed("aten.min.dim", why=ARG, upstream="onnxruntime", silent=True)
def min_dim(self: Tensor, dim: int, keepdim: bool = False) -> Any:
    """amin and argmin."""
    where = self.to(torch.uint8) if self.dtype is torch.bool else self
    return self.amin(dim, keepdim), where.argmin(dim, keepdim)


@decomposed("aten.max.default", why="ReduceMax passes NaN over", upstream="onnxruntime", silent=True)
def max_all(self: Tensor) -> Tensor:
    """amax of all."""
    return self.amax()


@decomposed("aten.min.default", why="ReduceMin passes NaN over", upstream="onnxruntime", silent=True)
def min_all(self: Tensor) -> Tensor:
    """amin of all."""
    return self.amin()


RANK_0 = "torchlib reduces a dimension that a tensor of rank 0 has not"


def _of_one_element(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor, dim: int, keepdim: bool = False, **options: Any) -> Any:
        """Of rank 0, by a dimension of one element."""
        return operator(self.unsqueeze(0), 0, **options) if self.dim() == 0 else NotImplemented

    return function


for _name in ("all.dim", "any.dim"):
    _packet, _, _overload = _name.partition(".")
    decomposed(f"aten.{_name}", why=RANK_0)(_of_one_element(getattr(getattr(aten, _packet), _overload)))


@decomposed("aten.flip.default", why="torchlib flips a dimension that a tensor of rank 0 has not")
def flip(self: Tensor, dims: Sequence[int]) -> Any:
    """Of rank 0."""
    return self.clone() if self.dim() == 0 else NotImplemented


def _no_dimensions(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False) -> Any:
        """Of none, or of rank 0, element by element."""
        return NotImplemented if dim is None or (dim and self.dim()) else operator(self.unsqueeze(0), 0)

    return function


for _name in ("all", "any"):
    decomposed(f"aten.{_name}.dims", why="of no dimensions nothing is reduced; the fake tensor is", upstream="torch")(
        _no_dimensions(getattr(aten, _name).dim)
    )


TOPK = "TopK sorts NaN by chance, torch's is the largest number"


@translated("aten.sort.default", why=TOPK, upstream="onnxruntime", silent=True)
def sort(self: Any, dim: int = -1, descending: bool = False) -> Any:
    """Stable, NaN as the largest number."""
    return _sorted(self, None, dim, descending)


@translated("aten.sort.stable", why="torchlib has no form; " + TOPK, upstream="onnxruntime")
def stable_sort(self: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Stable, NaN as the largest number."""
    return _sorted(self, None, dim, descending)


@translated("aten.topk.default", why=TOPK, upstream="onnxruntime", silent=True)
def topk(self: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """NaN as the largest number. Of equal elements, the first."""
    return _sorted(self, k, dim, largest)


def _sorted(self: Any, k: Any, dim: int, largest: bool) -> Any:
    from onnxscript import ir

    if len(self.shape) == 0:
        return op.Identity(self), op.Constant(value=ir.tensor(0, dtype=ir.DataType.INT64))
    size = op.Reshape(op.Gather(op.Shape(self), dim, axis=0) if k is None else k, ints([1]))
    if not self.dtype.is_floating_point():
        return op.TopK(self, size, axis=dim, largest=largest, sorted=True)
    # As float64 there is room for NaN above infinity.
    infinity, large = (op.Constant(value=ir.tensor(value, dtype=ir.DataType.DOUBLE)) for value in (math.inf, 1e300))
    wide = op.Cast(self, to=ir.DataType.DOUBLE)
    key = op.Where(op.IsNaN(wide), infinity, op.Where(op.Equal(wide, infinity), large, wide))
    _, indices = op.TopK(key, size, axis=dim, largest=largest, sorted=True)
    return op.GatherElements(self, indices, axis=dim), indices


for _name in ("sort", "topk"):
    in_eager(f"aten.{_name}", why=TOPK, upstream="onnxruntime", when=lambda node: dtype(node) is torch.float64)


@decomposed(
    "aten.logsumexp.default",
    why="overflows in float16; infinite where there is an infinity beside NaN",
    upstream="onnxruntime",
    silent=True,
)
def logsumexp(self: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    """As torch's kernel, half precision in float32. Integers are left to torchlib."""
    if not self.dtype.is_floating_point:
        return NotImplemented
    x, dtype = computed(self)
    largest = x.amax(list(dim), keepdim=True)
    largest = torch.where(largest.abs() == math.inf, 0, largest)
    summed = (x - largest).exp().sum(list(dim), keepdim=keepdim).log()
    return (summed + (largest if keepdim else largest.sum(list(dim)))).to(dtype)


@decomposed(
    "aten._log_softmax.default",
    why="a row of float64 is finite where NaN comes after a number",
    upstream="onnxruntime",
    silent=True,
)
def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    """Of float64, as torch's kernel."""
    if self.dtype is not torch.float64 or self.dim() == 0:
        return NotImplemented
    shifted = self - self.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


@decomposed("aten.var.correction", why=LONG_ROWS.format("ReduceMean"), upstream="onnxruntime", silent=True)
def var(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """The first of `var_mean`."""
    return aten.var_mean.correction(self, dim, correction=correction, keepdim=keepdim)[0]


@decomposed(
    "aten.var_mean.correction",
    why=LONG_ROWS.format("ReduceMean") + "; negative when the correction exceeds the number",
    upstream="onnxruntime",
    silent=True,
)
def var_mean(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Any:
    """The mean of squared deviations from the mean; infinity or NaN when the correction takes away all there is."""
    if not self.dtype.is_floating_point:
        return NotImplemented
    x, dtype = computed(self)
    dims = list(dim) if dim and x.dim() else list(range(x.dim()))
    number = math.prod(x.shape[axis] for axis in dims)
    mean = x.mean(dims, keepdim=True)
    deviation = x - mean
    variance = (deviation * deviation).mean(dims, keepdim=keepdim)
    lost = 1.0 if correction is None else float(correction)
    left = torch.sym_max(number - (int(lost) if lost.is_integer() else lost), 0)
    if not isinstance(left, torch.SymInt | torch.SymFloat):
        variance = variance * (number / left) if left else variance / 0.0
    elif lost:
        variance = variance / left * number  # two numbers: torch has trouble with quotients of sizes
    return variance.to(dtype), (mean if keepdim or not dims else mean.squeeze(dims)).to(dtype)
