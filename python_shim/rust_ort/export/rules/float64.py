"""Numbers beside float64 tensors, which torchlib writes as float32 constants and attributes.

What still has such a number after these rules is found by `export.rounding` and runs in eager: never silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rust_ort.export.rules.registry import decomposed, op, translated

WHY = "float64: numbers are written as float32"


@translated("aten.scalar_tensor.default", why=WHY)
def scalar_tensor(s: Any, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
    """A constant of the result's own dtype."""
    from onnxscript import ir

    wanted = ir.DataType.FLOAT if dtype == -1 else ir.DataType(dtype)
    if isinstance(s, ir.Value):
        return op.Cast(s, to=wanted)
    return op.Constant(value=ir.tensor(s, dtype=wanted))


@translated("aten.full.default", why=WHY)
def full(
    size: Any, fill_value: Any, dtype: int = -1, layout: str = "", device: str = "", pin_memory: bool = False
) -> Any:
    """A constant of the result's own dtype, expanded."""
    from onnxscript import ir

    if dtype == -1 and not isinstance(fill_value, float):
        dtype = ir.DataType.BOOL if isinstance(fill_value, bool) else ir.DataType.INT64
    number = scalar_tensor(fill_value, dtype)
    if isinstance(size, Sequence) and not size:
        return op.Identity(number)
    return op.Expand(number, _shape(size))


def _shape(size: Any) -> Any:
    from onnxscript import ir

    if isinstance(size, ir.Value):
        return op.Cast(size, to=ir.DataType.INT64)
    if all(isinstance(length, int) for length in size):
        return op.Constant(value=ir.tensor(list(size), dtype=ir.DataType.INT64))
    one = op.Constant(value=ir.tensor([-1], dtype=ir.DataType.INT64))
    lengths = [
        op.Reshape(op.Cast(length, to=ir.DataType.INT64), one)
        if isinstance(length, ir.Value)
        else op.Constant(value=ir.tensor([length], dtype=ir.DataType.INT64))
        for length in size
    ]
    return op.Concat(*lengths, axis=0)


def _in_float64(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if not any(tensor.dtype is torch.float64 for tensor in tensors):
            return NotImplemented
        return decomposition(*args, **kwargs)

    return function


def _torchs_own(*operators: str) -> None:
    for operator in operators:
        packet, overload = operator.split(".")
        target = getattr(getattr(torch.ops.aten, packet), overload)
        own = torch._decomp.decomposition_table.get(target)
        if own is not None:
            decomposed(f"aten.{operator}", why=WHY)(_in_float64(own))


_torchs_own(
    "addcmul.default", "celu.default", "deg2rad.default", "elu.default", "hardsigmoid.default", "hardswish.default",
    "hardtanh.default", "leaky_relu.default", "masked_fill.Scalar", "rad2deg.default", "sinc.default",
    "softplus.default",
)  # fmt: skip


@decomposed("aten.log2.default", why=WHY)
@_in_float64
def log2(tensor: Tensor) -> Tensor:
    return torch.log(tensor) * (1 / math.log(2))


@decomposed("aten.log10.default", why=WHY)
@_in_float64
def log10(tensor: Tensor) -> Tensor:
    return torch.log(tensor) * (1 / math.log(10))


@decomposed("aten.addmm.default", why=WHY)
def addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Gemm's alpha and beta are float32 attributes."""
    if bias.dtype is not torch.float64 or (beta, alpha) == (1, 1):
        return NotImplemented
    return torch.mm(left, right) * alpha + (0 if beta == 0 else bias * beta)
