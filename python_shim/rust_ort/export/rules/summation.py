"""Sums and means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed, ints, op, translated
from rust_ort.export.rules.sizes import known

aten = torch.ops.aten

LONG_ROWS = "{} adds a long row of floats one after the other, where torch adds in a tree"
SUMS = LONG_ROWS.format("ReduceSum") + "; int64 in float64"
HALF_AN_INT64 = 2**31
SHORTEST_STAGE = 4


@dataclass(frozen=True)
class Limits:
    """From how many terms on a sum has two stages. even: where rows divide their number. uneven: where a stage would
    still have so many, and a copy is made to be filled up."""

    even: int
    uneven: int


INSIDE = Limits(even=2**7, uneven=2**11)
AT_THE_END = Limits(even=2**13, uneven=2**16)
"""Of the last dimensions, whose terms ReduceSum adds in eight lanes: equal ones are off by 1e-5 at 2**13."""
MEANS_AT_THE_END = Limits(even=2**8, uneven=2**16)
"""Of means, from which little may be left where they are subtracted: equal terms are off by 16 roundings of one."""


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
    if self.dtype.is_integer() and self.dtype != ir.DataType.INT64:
        # ReduceSum adds them in float64 and stops at the largest: eager begins again at the smallest.
        return op.Cast(sum_over(self, dim, keepdim, ir.DataType.INT64), to=self.dtype)
    if self.dtype != ir.DataType.INT64 or (narrow.bitwidth < 32 and not narrow.is_floating_point()):
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
    """In float64, half precision in float32, small integers in int64; from 0.0 on, which the sum of -0.0 is, too."""
    from onnxscript import ir

    if dtype == -1:
        dtype = self.dtype if self.dtype.is_floating_point() else ir.DataType.INT64
    self = _converted(self, dtype)
    if len(self.shape) == 0:
        return op.Identity(self)
    wide = {16: ir.DataType.FLOAT, 32: ir.DataType.DOUBLE}.get(self.dtype.bitwidth, self.dtype)
    if not self.dtype.is_floating_point():
        if self.dtype.bitwidth >= 32:
            return op.CumSum(self, ints([dim]))
        return op.Cast(op.CumSum(op.Cast(self, to=ir.DataType.INT64), ints([dim])), to=dtype)
    zero = op.Constant(value=ir.tensor(0.0, dtype=wide))
    total = op.Add(op.CumSum(op.Cast(self, to=wide) if wide != self.dtype else self, ints([dim])), zero)
    return op.Cast(total, to=self.dtype) if wide != self.dtype else total


def _converted(value: Any, dtype: int) -> Any:
    from onnxscript import ir

    if dtype in (-1, value.dtype):
        return value
    made = op.Cast(value, to=dtype)
    made.dtype, made.shape = ir.DataType(dtype), value.shape
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
    """Of a long row, or of several, the sum, divided."""
    sizes = list(self.shape)
    self = _converted(self, dtype)
    if not sizes:
        return op.Identity(self)
    dims = _counted(dim, len(sizes))
    if not _is_wide(self, sizes, dims) and _is_one_operator(_stages(sizes, dims, averaged=True)):
        return op.ReduceMean(self, ints(dims), keepdims=keepdim)
    return _sum_of_floats(self, sizes, dims, keepdim, averaged=True)


@translated("aten.mean.default", why=LONG_ROWS.format("ReduceMean"), upstream="onnxruntime", silent=True)
def mean_of_all(self: Any, dtype: int = -1) -> Any:
    """The mean over every dimension."""
    return mean(self, None, dtype=dtype)


def _counted(dim: Sequence[int] | int | None, rank: int) -> list[int]:
    """Dimensions from 0, in order."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    return sorted(axis % rank for axis in dims)


def _sum_of_floats(self: Any, sizes: list[Any], dims: list[int], keepdim: bool, *, averaged: bool = False) -> Any:
    """In float64 of each channel, else stage after stage from the last dimensions, which is faster, too; half precision
    in float32 where that is more than one ReduceSum. averaged: divided by how many there were.
    """
    from onnxscript import ir

    stages = _stages(sizes, dims, averaged=averaged)
    wide = ir.DataType.FLOAT if self.dtype.bitwidth == 16 else self.dtype
    if _is_wide(self, sizes, dims):
        total = op.Cast(self, to=ir.DataType.DOUBLE)
        if not averaged or known([sizes[axis] for axis in dims]):
            reduced = op.ReduceMean if averaged else op.ReduceSum
            return op.Cast(reduced(total, ints(dims), keepdims=keepdim), to=wide)
        # The mean of nothing is NaN, and ReduceMean's is 0.
        total = op.Cast(op.ReduceSum(total, ints(dims), keepdims=False), to=wide)
    elif _is_one_operator(stages):
        return op.ReduceSum(self, ints(dims), keepdims=keepdim)
    else:
        total = op.Cast(self, to=wide) if wide != self.dtype else self
        for stage in stages:
            total = (_sum_of_rows if stage.is_long else _sum_at_once)(total, stage)
    if averaged and known([sizes[axis] for axis in dims]):
        number = math.prod(sizes[axis] for axis in dims)
        total = op.Div(total, op.Constant(value=ir.tensor(number, dtype=wide)))
    elif averaged:
        added = _joined(*(_sizes(self, sizes, axis, axis + 1) for axis in dims))
        total = op.Div(total, op.Cast(op.ReduceProd(added, keepdims=False), to=wide))
    total = op.Unsqueeze(total, ints(dims)) if keepdim else total
    return op.Cast(total, to=self.dtype) if wide != self.dtype else total


def _is_wide(self: Any, sizes: list[Any], dims: list[int]) -> bool:
    """Whether a sum of float32 is taken in float64: over all axes but one, from the first on, as a bias' gradient is.
    An operator of ours adds up so faster than ReduceSum in float32."""
    from onnxscript import ir

    if self.dtype != ir.DataType.FLOAT or len(dims) != len(sizes) - 1 or dims[:1] != [0]:
        return False
    added = [sizes[axis] for axis in dims]
    return not known(added) or math.prod(added) >= INSIDE.even


@dataclass(frozen=True)
class Stage:
    """sizes: when it is this stage's turn. dims: adjacent ones, which it sums over. averaged: for a mean. is_last: no
    other symbolic size comes after."""

    sizes: list[Any]
    dims: list[int]
    averaged: bool
    is_last: bool

    @property
    def is_long(self) -> bool:
        """The last symbolic size may be: those before it have made the copy small that two stages take. But sums over
        the last of several dimensions, as softmax has them, are left alone: a copy costs more than the sum, and eight
        lanes are enough for a million terms. Not so for means: what they are subtracted from may leave few digits."""
        if not known(self.added):
            return self.is_last and (self.averaged or self.limits is INSIDE or self.dims[0] == 0)
        number: int = math.prod(self.added)
        return _row(number, self.limits) < number

    @property
    def limits(self) -> Limits:
        """Its dimensions'."""
        if self.dims[-1] != len(self.sizes) - 1:
            return INSIDE
        return MEANS_AT_THE_END if self.averaged else AT_THE_END

    @property
    def added(self) -> list[Any]:
        """Sizes of `dims`."""
        return [self.sizes[axis] for axis in self.dims]


def _stages(sizes: list[Any], dims: list[int], *, averaged: bool) -> list[Stage]:
    """Dimensions from the last on, adjacent ones together where their sizes are known: the others are stages without
    a copy."""
    runs: list[list[int]] = []
    for axis in reversed(dims):
        if runs and runs[-1][0] == axis + 1 and known(sizes[axis : axis + 2]):
            runs[-1].insert(0, axis)
        else:
            runs.append([axis])
    last = min((axis for axis in dims if not known([sizes[axis]])), default=None)
    stages, left = [], list(sizes)
    for run in runs:
        stages.append(Stage(left, run, averaged, is_last=last in run))
        left = left[: run[0]] + left[run[-1] + 1 :]
    return stages


def _is_one_operator(stages: list[Stage]) -> bool:
    return len(stages) == 1 and not stages[0].is_long


def _sum_of_rows(value: Any, stage: Stage) -> Any:
    """A stage as two: over rows about as long as there are rows, filled up with zeros where they are uneven, then over
    the rows."""
    sizes, first, end = stage.sizes, stage.dims[0], stage.dims[-1] + 1
    before, after = _sizes(value, sizes, 0, first), _sizes(value, sizes, end, len(sizes))
    if known(stage.added):
        number = math.prod(stage.added)
        row_length = _row(number, stage.limits)
        whole, row, short = [number], [row_length], [-number % row_length]
    else:
        from onnxscript import ir

        whole = op.Shape(value, start=first, end=end)
        row = op.Cast(op.Ceil(op.Sqrt(op.Cast(whole, to=ir.DataType.FLOAT))), to=ir.DataType.INT64)
        short = op.Mod(op.Neg(whole), row)
    if short != [0]:
        value = op.Reshape(value, _joined(before, whole, after)) if len(stage.dims) > 1 else value
        rank = len(sizes) - len(stage.dims) + 1
        value = op.Pad(value, _joined([0] * (rank + first), short, [0] * (len(sizes) - end)))
    value = op.Reshape(value, _joined(before, [-1], row, after))
    return op.ReduceSum(op.ReduceSum(value, ints([first + 1]), keepdims=False), ints([first]), keepdims=False)


def _sum_at_once(value: Any, stage: Stage) -> Any:
    return op.ReduceSum(value, ints(stage.dims), keepdims=False)


def _row(number: int, limits: Limits) -> int:
    """About the square root; all of a short one, and of one that only a copy makes even."""
    if number < limits.even:
        return number
    root = math.isqrt(number)
    even = next((n for n in range(root, SHORTEST_STAGE - 1, -1) if number % n == 0), number)
    return root if max(even, number // even) >= limits.uneven else even


def _sizes(value: Any, sizes: list[Any], begin: int, end: int) -> Any:
    """Of dimensions `begin` to `end`, as they are known: a list or a tensor."""
    return sizes[begin:end] if known(sizes[begin:end]) else op.Shape(value, start=begin, end=end)


def _joined(*parts: Any) -> Any:
    """One tensor of lists of integers and tensors of rank 1."""
    if all(isinstance(part, list) for part in parts):
        return ints([size for part in parts for size in part])
    return op.Concat(*(ints(part) if isinstance(part, list) else part for part in parts if part != []), axis=0)
