"""Comparisons, extremes and bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number, as_dtype, is_half, pair, rounded
from rust_ort.export.rules.registry import decomposed

aten = torch.ops.aten

INT64 = "ONNX Runtime compares int64 wrongly beyond int32 in Max, Min, Clip, Relu and Sign"


@decomposed("aten.heaviside.default", why="torchlib's heaviside of NaN is 1", silent=True)
def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 for NaN."""
    if self.dtype is torch.bool:
        return torch.logical_or(self, values)
    return torch.where(self == 0, values, (self > 0).to(self.dtype))


@decomposed("aten.sign.default", why="Sign of NaN is NaN, torch's is 0; " + INT64, upstream="onnxruntime", silent=True)
def sign(self: Tensor) -> Any:
    """0 for NaN, where ONNX's Sign says NaN."""
    if not self.dtype.is_floating_point and self.dtype is not torch.int64:
        return NotImplemented
    return (self > 0).to(self.dtype) - (self < 0).to(self.dtype)


@decomposed("aten.relu.default", why=INT64 + "; of int16 it refuses Relu", upstream="onnxruntime", silent=True)
def relu(self: Tensor) -> Any:
    """Of integers, by a comparison."""
    if self.dtype.is_floating_point:
        return NotImplemented
    return torch.where(self > 0, self, 0)


@decomposed("aten.maximum.default", why=INT64, upstream="onnxruntime", silent=True)
def maximum(self: Tensor, other: Tensor) -> Any:
    """Of int64, by a comparison."""
    return _chosen(self, other, torch.gt)


@decomposed("aten.minimum.default", why=INT64, upstream="onnxruntime", silent=True)
def minimum(self: Tensor, other: Tensor) -> Any:
    """Of int64, by a comparison."""
    return _chosen(self, other, torch.lt)


def _chosen(self: Tensor, other: Tensor, better: Callable[[Tensor, Tensor], Tensor]) -> Any:
    if torch.result_type(self, other) is not torch.int64:
        return NotImplemented
    first, second, _ = pair(self, other)
    return torch.where(better(first, second), first, second)


CLIP = "Clip without a bound turns infinity into the largest number, a NaN bound is ignored, and -0.0 is 0.0; " + INT64


@decomposed("aten.clamp.default", why=CLIP, upstream="onnxruntime", silent=True)
def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> Any:
    """By Max and Min, but between two numbers, which ONNX's Clip has right; by comparison with 0, where -0.0 stays."""
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(self, bound) for bound in bounds), self.dtype)
    # To ask a number of sizes whether it is NaN would fix the sizes.
    between = len(bounds) == 2 and type(min) is type(max)
    between &= all(isinstance(bound, (int, float)) and not math.isnan(bound) for bound in bounds)
    if dtype is self.dtype and between and 0 not in bounds and dtype not in (torch.int64, torch.int16):
        return NotImplemented
    result = self.to(dtype)
    if min is not None:
        bound = as_dtype(min, dtype, self)
        result = torch.where(result < 0, bound, result) if min == 0 else torch.maximum(result, bound)
    if max is not None:
        bound = as_dtype(max, dtype, self)
        result = torch.where(result > 0, bound, result) if max == 0 else torch.minimum(result, bound)
    return result


@decomposed("aten.clamp.Tensor", why=INT64, upstream="onnxruntime", silent=True)
def clamp_tensor(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Any:
    """By maximum and minimum."""
    result = self if min is None else torch.maximum(self, min)
    return result if max is None else torch.minimum(result, max)


@decomposed("aten.clamp_min.Tensor", why=CLIP, upstream="onnxruntime", silent=True)
def clamp_min_tensor(self: Tensor, min: Tensor) -> Tensor:
    """By maximum."""
    return torch.maximum(self, min)


@decomposed("aten.clamp_max.Tensor", why=CLIP, upstream="onnxruntime", silent=True)
def clamp_max_tensor(self: Tensor, max: Tensor) -> Tensor:
    """By minimum."""
    return torch.minimum(self, max)


@decomposed("aten.clamp_min.default", why=CLIP, upstream="onnxruntime", silent=True)
def clamp_min(self: Tensor, min: Number) -> Any:
    """By Max."""
    return clamp(self, min=min)


@decomposed("aten.clamp_max.default", why=CLIP, upstream="onnxruntime", silent=True)
def clamp_max(self: Tensor, max: Number) -> Any:
    """By Min."""
    return clamp(self, max=max)


@decomposed("aten.fmax.default", why="no ONNX form")
def fmax(self: Tensor, other: Tensor) -> Tensor:
    """The larger; the other one where one is NaN."""
    return _but_for_nan(self, other, torch.gt)


@decomposed("aten.fmin.default", why="no ONNX form")
def fmin(self: Tensor, other: Tensor) -> Tensor:
    """The smaller; the other one where one is NaN."""
    return _but_for_nan(self, other, torch.lt)


def _but_for_nan(self: Tensor, other: Tensor, better: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Of equals, as zeros of both signs are, the one that torch's kernels take."""
    first, second, dtype = pair(self, other, wide=False)
    if dtype is torch.bfloat16:
        first, second = second, first
    return torch.where(better(second, first) | (first != first), second, first)


def _compared(compare: Callable[[Tensor, Any], Tensor], self: Tensor, other: Number) -> Any:
    """With the number as the tensor's half precision has it, as torch's kernels compare. One that only the call knows
    torch makes a tensor of, or `scalars`."""
    if not is_half(self) or isinstance(other, torch.SymFloat):
        return NotImplemented
    if isinstance(other, torch.SymInt):
        return compare(self, as_dtype(other, self.dtype, self))
    if not math.isfinite(other):
        return NotImplemented
    value = rounded(other, self.dtype)
    return NotImplemented if value == other else compare(self, value)


def _compared_tensors(compare: Callable[[Tensor, Tensor], Tensor], self: Tensor, other: Tensor) -> Any:
    """In their common dtype, where a tensor of rank 0 counts less than one of its kind that has dimensions."""
    dtype = torch.result_type(self, other)
    if self.dtype is dtype and other.dtype is dtype:
        return NotImplemented
    return compare(self.to(dtype), other.to(dtype))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposed(f"aten.{_name}.Tensor", why="compared in the wider dtype, also where that is of rank 0", silent=True)(
        functools.partial(_compared_tensors, getattr(torch, _name))
    )
    decomposed(f"aten.{_name}.Scalar", why="compares half precision with a number that is no such value", silent=True)(
        functools.partial(_compared, getattr(torch, _name))
    )
