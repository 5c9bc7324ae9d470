"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.nodes import floating, integral_result
from rust_ort.export.rules.registry import decomposed, in_eager, op, translated

aten = torch.ops.aten

in_eager(
    "aten.argmax",
    "aten.argmin",
    "aten.max",
    "aten.min",
    why="ONNX Runtime's ArgMax and ArgMin pass NaN over",
    upstream="onnxruntime",
    when=floating,
)
in_eager(
    "aten.prod",
    why="ONNX Runtime computes products of integers in floating point",
    upstream="onnxruntime",
    when=integral_result,
)
in_eager("aten.logcumsumexp", why="torchlib's logcumsumexp underflows far below the largest element")


@translated("aten.amax.default", why="ReduceMax passes NaN over", upstream="onnxruntime", silent=True)
def amax(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN."""
    return _with_nan(op.ReduceMax, self, dim, keepdim)


@translated("aten.amin.default", why="ReduceMin passes NaN over", upstream="onnxruntime", silent=True)
def amin(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN."""
    return _with_nan(op.ReduceMin, self, dim, keepdim)


@decomposed("aten.mean.dim", why="`dtype` comes after the mean: integers are averaged as integers", silent=True)
def mean(self: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Converted first, then averaged."""
    if dtype in (None, self.dtype):
        return NotImplemented
    return aten.mean.dim(self.to(dtype), dim, keepdim)


@decomposed(
    "aten.linalg_vector_norm.default",
    why="`keepdim` without `dim` is ignored, rank 0 refused, NaN passed over by infinite orders, half precision overflows",
    silent=True,
)
def vector_norm(
    self: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False,
    *, dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """Of every dimension by its name, half precision in float32; infinite orders by amax and amin."""
    result, dims = dtype or self.dtype, list(dim or range(self.dim()))
    if math.isinf(ord):
        return (torch.amax if ord > 0 else torch.amin)(self.abs().to(result), dims, keepdim)
    if self.dim() == 0:
        return (self != 0 if ord == 0 else self.abs()).to(result)
    wide = torch.float32 if result in (torch.float16, torch.bfloat16) else result
    if wide is self.dtype and dim:
        return NotImplemented
    return aten.linalg_vector_norm(self.to(wide), ord, dims, keepdim).to(result)


@decomposed("aten.cumprod.default", why="decomposed to prims.prod", upstream="torch")
def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Row i of a table holds what product i is of."""
    self = self if dtype is None else self.to(dtype)
    if self.dim() == 0:
        return self.clone()
    dim = dim % self.dim()
    length = self.shape[dim]
    positions = torch.arange(length, device=self.device)
    wanted = (positions.unsqueeze(1) <= positions).reshape(length, length, *[1] * (self.dim() - dim - 1))
    return torch.prod(torch.where(wanted, self.unsqueeze(dim + 1), 1), dim)


INTEGER_SUMS = "ReduceSum adds int64 in float64"
HALF_AN_INT64 = 2**31


@translated("aten.sum.default", why=INTEGER_SUMS, upstream="onnxruntime", silent=True)
def sum_of_all(self: Any, dtype: int = -1) -> Any:
    """The sum over every dimension."""
    return sum_over(self, None, False, dtype)


@translated("aten.sum.dim_IntList", why=INTEGER_SUMS, upstream="onnxruntime", silent=True)
def sum_over(self: Any, dim: Sequence[int] | int | None = None, keepdim: bool = False, dtype: int = -1) -> Any:
    """Integers that may be large are added in two halves, each of which float64 holds."""
    from onnxscript import ir

    if len(self.shape) == 0:
        return op.Cast(self, to=self.dtype if dtype == -1 else dtype)
    narrow = self.dtype if dtype != -1 else _before_promotion(self)
    if dtype != -1 and self.dtype != dtype:
        self = op.Cast(self, to=dtype)
        self.dtype = ir.DataType(dtype)
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    axes = op.Constant(value=ir.tensor(dims, dtype=ir.DataType.INT64))
    if self.dtype != ir.DataType.INT64 or narrow.bitwidth < 32:
        return op.ReduceSum(self, axes, keepdims=keepdim)
    half = op.Constant(value=ir.tensor(HALF_AN_INT64, dtype=ir.DataType.INT64))
    high = op.Div(self, half)
    low = op.Sub(self, op.Mul(high, half))
    sums = [op.ReduceSum(part, axes, keepdims=keepdim) for part in (high, low)]
    return op.Add(op.Mul(sums[0], half), sums[1])


def _before_promotion(value: Any) -> Any:
    """The dtype that a tensor had before it was cast for this node."""
    cast = value.producer()
    return cast.inputs[0].dtype if cast is not None and cast.op_type == "Cast" else value.dtype


def _with_nan(reduce: Any, self: Any, dim: Sequence[int], keepdim: bool) -> Any:
    from onnxscript import ir

    if len(self.shape) == 0:
        return op.Identity(self)
    axes = op.Constant(value=ir.tensor(list(dim), dtype=ir.DataType.INT64))
    plain = reduce(self, axes, keepdims=keepdim)
    if not self.dtype.is_floating_point():
        return plain
    found = op.ReduceMax(op.Cast(op.IsNaN(self), to=ir.DataType.UINT8), axes, keepdims=keepdim)
    nan = op.Constant(value=ir.tensor(float("nan"), dtype=self.dtype))
    return op.Where(op.Cast(found, to=ir.DataType.BOOL), nan, plain)
