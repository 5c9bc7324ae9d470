"""ONNX forms of our own, put in the place of torchlib's: for operators too frequent to leave to eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


def amax(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN; ONNX Runtime's ReduceMax passes NaN over."""
    from onnxscript import opset18 as op

    return _with_nan(op.ReduceMax, self, dim, keepdim)


def amin(self: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """NaN where a reduced element is NaN; ONNX Runtime's ReduceMin passes NaN over."""
    from onnxscript import opset18 as op

    return _with_nan(op.ReduceMin, self, dim, keepdim)


def _with_nan(reduce: Any, self: Any, dim: Sequence[int], keepdim: bool) -> Any:
    from onnxscript import ir
    from onnxscript import opset18 as op

    axes = op.Constant(value=ir.tensor(list(dim), dtype=ir.DataType.INT64))
    plain = reduce(self, axes, keepdims=keepdim)
    if not self.dtype.is_floating_point():
        return plain
    found = op.ReduceMax(op.Cast(op.IsNaN(self), to=ir.DataType.UINT8), axes, keepdims=keepdim)
    nan = op.Constant(value=ir.tensor(float("nan"), dtype=self.dtype))
    return op.Where(op.Cast(found, to=ir.DataType.BOOL), nan, plain)


CORRECTED: dict[Any, Callable[..., Any]] = {aten.amax.default: amax, aten.amin.default: amin}
"""{operator overload: torchlib function}."""
