"""Reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rust_ort.export.rules.nodes import floating
from rust_ort.export.rules.registry import in_eager, op, translated

in_eager(
    "aten.argmax",
    "aten.argmin",
    "aten.max",
    "aten.min",
    why="ONNX Runtime's ArgMax and ArgMin pass NaN over",
    upstream="onnxruntime",
    when=floating,
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


def _with_nan(reduce: Any, self: Any, dim: Sequence[int], keepdim: bool) -> Any:
    from onnxscript import ir

    axes = op.Constant(value=ir.tensor(list(dim), dtype=ir.DataType.INT64))
    plain = reduce(self, axes, keepdims=keepdim)
    if not self.dtype.is_floating_point():
        return plain
    found = op.ReduceMax(op.Cast(op.IsNaN(self), to=ir.DataType.UINT8), axes, keepdims=keepdim)
    nan = op.Constant(value=ir.tensor(float("nan"), dtype=self.dtype))
    return op.Where(op.Cast(found, to=ir.DataType.BOOL), nan, plain)
