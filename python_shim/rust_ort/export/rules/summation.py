"""Sums and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed, ints, op, translated
from rust_ort.export.rules.sizes import known

aten = torch.ops.aten

LONG_ROWS = "{} adds a long row of floats one after the other, where torch adds in a tree"
SUMS = LONG_ROWS.format("ReduceSum") + "; int64 in float64"
HALF_AN_INT64 = 2**31
LONG, LONG_AT_THE_END = 2**7, 2**16
"""From so many terms on, a sum has two stages; ReduceSum adds the last dimensions' in several lanes."""
SHORTEST_STAGE = 4


@translated("aten.sum.default", why=SUMS, upstream="onnxruntime", silent=True)
def sum_of_all(self: Any, dtype: int = -1) -> Any:
    """The sum over every dimension."""
    return sum_over(self, None, False, dtype)


@translated("aten.sum.dim_IntList", why=SUMS, upstream="onnxruntime", silent=True)
def sum_over(self: Any, dim: Sequence[int] | int | None = None, keepdim: bool = False, dtype: int = -1) -> Any:
    """Long sums of floats in two stages; of integers that may be large in two halves, each of which float64 holds."""
    from onnxscript import ir

    if len(self.shape) == 0:
        return op.Cast(self, to=self.dtype if dtype == -1 else dtype)
    sizes = list(self.shape)
    narrow = self.dtype if dtype != -1 else _before_promotion(self)
    self = _converted(self, dtype)
    dims = _counted(dim, len(sizes))
    if self.dtype.is_floating_point():
        return _sum_of_floats(self, sizes, dims, keepdim)
    if self.dtype != ir.DataType.INT64 or narrow.bitwidth < 32:
        return op.ReduceSum(self, ints(dims), keepdims=keepdim)
    half = op.Constant(value=ir.tensor(HALF_AN_INT64, dtype=ir.DataType.INT64))
    high = op.Div(self, half)
    low = op.Sub(self, op.Mul(high, half))
    sums = [op.ReduceSum(part, ints(dims), keepdims=keepdim) for part in (high, low)]
    return op.Add(op.Mul(sums[0], half), sums[1])


@translated(
    "aten.cumsum.default", why="CumSum adds float32 in float32, torch in float64", upstream="onnxruntime", silent=True
)
def cumsum(self: Any, dim: int, dtype: int = -1) -> Any:
    """In float64, half precision in float32, integers as int64; from 0.0 on, which the sum of -0.0 is, too."""
    from onnxscript import ir

    if dtype == -1:
        dtype = self.dtype if self.dtype.is_floating_point() else ir.DataType.INT64
    self = _converted(self, dtype)
    if len(self.shape) == 0:
        return op.Identity(self)
    wide = {16: ir.DataType.FLOAT, 32: ir.DataType.DOUBLE}.get(self.dtype.bitwidth, self.dtype)
    if not self.dtype.is_floating_point():
        return op.CumSum(self, ints([dim]))
    zero = op.Constant(value=ir.tensor(0.0, dtype=wide))
    total = op.Add(op.CumSum(op.Cast(self, to=wide) if wide != self.dtype else self, ints([dim])), zero)
    return op.Cast(total, to=self.dtype) if wide != self.dtype else total


def _converted(value: Any, dtype: int) -> Any:
    from onnxscript import ir

    if dtype in (-1, value.dtype):
        return value
    made = op.Cast(value, to=dtype)
    made.dtype = ir.DataType(dtype)
    return made


def _before_promotion(value: Any) -> Any:
    """The dtype that a tensor had before it was cast for this node."""
    cast = value.producer()
    return cast.inputs[0].dtype if cast is not None and cast.op_type == "Cast" else value.dtype


@decomposed("aten.mean.dim", why="`dtype` comes after the mean: integers are averaged as integers", silent=True)
def converted_mean(
    self: Tensor, dim: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Converted first, then averaged."""
    if dtype in (None, self.dtype):
        return NotImplemented
    return aten.mean.dim(self.to(dtype), dim, keepdim)


@translated("aten.mean.dim", why=LONG_ROWS.format("ReduceMean"), upstream="onnxruntime", silent=True)
def mean(self: Any, dim: Sequence[int] | int | None, keepdim: bool = False, dtype: int = -1) -> Any:
    """Of a long row the sum, divided."""
    sizes = list(self.shape)
    self = _converted(self, dtype)
    if not sizes:
        return op.Identity(self)
    dims = _counted(dim, len(sizes))
    if not any(_inner(sizes, run) for run in _runs(dims)):
        return op.ReduceMean(self, ints(dims), keepdims=keepdim)
    number = math.prod(sizes[axis] for axis in dims)
    return _sum_of_floats(self, sizes, dims, keepdim, divisor=number)


@translated("aten.mean.default", why=LONG_ROWS.format("ReduceMean"), upstream="onnxruntime", silent=True)
def mean_of_all(self: Any, dtype: int = -1) -> Any:
    """The mean over every dimension."""
    return mean(self, None, dtype=dtype)


def _counted(dim: Sequence[int] | int | None, rank: int) -> list[int]:
    """Dimensions from 0, in order."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return sorted(axis % rank for axis in dims)


def _sum_of_floats(self: Any, sizes: list[Any], dims: list[int], keepdim: bool, *, divisor: int = 1) -> Any:
    """Run after run of dimensions from the last, which is faster, too; half precision in float32 where that is more
    than one ReduceSum.
    """
    from onnxscript import ir

    runs = _runs(dims)
    if len(runs) == 1 and not _inner(sizes, runs[0]):
        return op.ReduceSum(self, ints(dims), keepdims=keepdim)
    wide = ir.DataType.FLOAT if self.dtype.bitwidth == 16 else self.dtype
    total = op.Cast(self, to=wide) if wide != self.dtype else self
    for run in runs:
        before, after = sizes[: run[0]], sizes[run[-1] + 1 :]
        inner = _inner(sizes, run)
        sizes = [*before, *([1] * len(run) if keepdim else []), *after]
        if inner is None:
            total = op.ReduceSum(total, ints(run), keepdims=keepdim)
            continue
        total = op.Reshape(total, ints([*before, -1, inner, *after]))
        for axis in (run[0] + 1, run[0]):
            total = op.ReduceSum(total, ints([axis]), keepdims=False)
        if keepdim:
            total = op.Reshape(total, ints(sizes))
    if divisor != 1:
        total = op.Div(total, op.Constant(value=ir.tensor(divisor, dtype=wide)))
    return op.Cast(total, to=self.dtype) if wide != self.dtype else total


def _runs(dims: list[int]) -> list[list[int]]:
    """Adjacent ones together, the last first."""
    runs: list[list[int]] = []
    for axis in reversed(dims):
        if runs and runs[-1][0] == axis + 1:
            runs[-1].insert(0, axis)
        else:
            runs.append([axis])
    return runs


def _inner(sizes: list[Any], run: list[int]) -> int | None:
    """Elements of the first stage, about the square root of all; None: one stage."""
    if not known(sizes) or 0 in sizes:
        return None
    number = math.prod(sizes[axis] for axis in run)
    if number < (LONG_AT_THE_END if run[-1] == len(sizes) - 1 else LONG):
        return None
    return next((n for n in range(math.isqrt(number), SHORTEST_STAGE - 1, -1) if number % n == 0), None)
