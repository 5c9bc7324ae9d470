"""Quotients and remainders."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number, is_floating, is_half, pair, widened
from rust_ort.export.rules.registry import decomposed, op, translated

aten = torch.ops.aten

DIVIDES_THEN_ROUNDS = "torchlib divides, then rounds: wrong next to an integer and for infinities"


@decomposed("aten.floor_divide.default", why=DIVIDES_THEN_ROUNDS, silent=True)
def floor_divide(self: Tensor | Number, other: Tensor | Number) -> Any:
    """As torch's kernel: from the exact remainder. Integers are left to torchlib, of one dtype."""
    if is_floating(self, other):
        return _floor_quotient(self, other)
    first, second, dtype = pair(self, other, wide=False)
    if dtype is torch.bool or _of_one_dtype(self, other):
        return NotImplemented
    return aten.floor_divide.default(first, second)


LEAST_BY_MINUS_ONE = "the least integer divided by -1 ends the process (SIGFPE)"


@translated("aten.floor_divide.default", why=LEAST_BY_MINUS_ONE, upstream="onnxruntime")
def integer_quotient(self: Any, other: Any) -> Any:
    """Of integers of one dtype, rounded down: all that `floor_divide` leaves."""
    from onnxscript import ir

    if not self.dtype.is_signed():
        return op.Div(self, other)
    other, sign = _without_minus_one(other)
    zero = op.Constant(value=ir.tensor(0, dtype=self.dtype))
    is_negative = op.Xor(op.Less(self, zero), op.Less(other, zero))
    is_rounded_up = op.And(is_negative, op.Cast(op.Mod(self, other), to=ir.DataType.BOOL))
    quotient = op.Sub(op.Div(self, other), op.Cast(is_rounded_up, to=self.dtype))
    return quotient if sign is None else op.Mul(quotient, sign)


@translated("aten.remainder.Tensor", why=LEAST_BY_MINUS_ONE, upstream="onnxruntime")
def integer_remainder(self: Any, other: Any) -> Any:
    """Of integers: all that `remainder` leaves. ONNX's Mod has the divisor's sign, as torch's."""
    return op.Mod(self, _without_minus_one(other)[0])


@translated("aten.remainder.Scalar_Tensor", why=LEAST_BY_MINUS_ONE, upstream="onnxruntime")
def integer_remainder_of_a_number(self: Any, other: Any) -> Any:
    """As `integer_remainder`."""
    from onnxscript import ir

    return integer_remainder(op.Constant(value=ir.tensor(self, dtype=other.dtype)), other)


@translated("aten.remainder.Scalar", why=LEAST_BY_MINUS_ONE, upstream="onnxruntime")
def integer_remainder_by_a_number(self: Any, other: Any) -> Any:
    """As `integer_remainder`."""
    from onnxscript import ir

    return op.Mod(self, op.Constant(value=ir.tensor(1 if other == -1 else other, dtype=self.dtype)))


def _without_minus_one(divisor: Any) -> tuple[Any, Any]:
    """1 in the place of -1, and what a quotient is then multiplied by; None: nothing. Smaller integers are computed as
    int32."""
    from onnxscript import ir

    if divisor.dtype not in (ir.DataType.INT32, ir.DataType.INT64):
        return divisor, None
    one, minus = (op.Constant(value=ir.tensor(number, dtype=divisor.dtype)) for number in (1, -1))
    is_minus = op.Equal(divisor, minus)
    return op.Where(is_minus, one, divisor), op.Where(is_minus, minus, one)


def _of_one_dtype(self: Tensor | Number, other: Tensor | Number) -> bool:
    return isinstance(self, Tensor) and isinstance(other, Tensor) and self.dtype is other.dtype


@translated("operator.floordiv", why="torchlib truncates the quotient of sizes: `-n // 2`", silent=True)
def size_quotient(self: Any, other: Any) -> Any:
    """Of int64, rounded down as Python does: ONNX's Mod has the divisor's sign, as Python's."""
    return op.Div(op.Sub(self, op.Mod(self, other)), other)


def _floor_quotient(self: Tensor | Number, other: Tensor | Number) -> Tensor:
    dividend, divisor, dtype = _steps(self, other)
    rest = torch.fmod(dividend, divisor)
    quotient = (dividend - rest) / divisor
    quotient = torch.where((rest != 0) & ((divisor < 0) != (rest < 0)), quotient - 1, quotient)
    rounded = torch.floor(quotient)
    rounded = torch.where(quotient - rounded > 0.5, rounded + 1, rounded)
    exact = dividend / divisor
    return torch.where(divisor == 0, exact, torch.where(rounded == 0, exact * 0, rounded)).to(dtype)


@decomposed(
    "aten.div.Tensor_mode",
    why=DIVIDES_THEN_ROUNDS + "; integers go through float32",
    silent=True,
)
def div(self: Tensor, other: Tensor | Number, *, rounding_mode: str | None) -> Any:
    """By `floor_divide`, or the quotient in the result's dtype, truncated. Integers: in integers."""
    if rounding_mode is None:
        return torch.true_divide(self, other)
    if rounding_mode == "floor":
        return torch.floor_divide(self, other)
    if is_floating(self, other):
        dividend, divisor, dtype = _steps(self, other)
        return torch.trunc(dividend / divisor).to(dtype)
    if _of_one_dtype(self, other):
        return NotImplemented
    first, second, _ = pair(self, other, wide=False)
    return aten.div.Tensor_mode(first, second, rounding_mode=rounding_mode)


@translated("aten.div.Tensor_mode", why="integers go through float32", silent=True)
def truncated_quotient(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """Of integers, truncated: all that `div` leaves. ONNX's Div of integers truncates."""
    divisor, sign = _without_minus_one(other)
    quotient = op.Div(self, divisor)
    return quotient if sign is None else op.Mul(quotient, sign)


def _steps(self: Tensor | Number, other: Tensor | Number) -> tuple[Tensor, Tensor, torch.dtype]:
    """As `pair`: torch rounds to half precision after each step between tensors, but only at the end where it divides
    by a number or by a tensor of rank 0, which are not rounded."""
    dividend, divisor, dtype = pair(self, other, wide=False)
    if isinstance(other, Tensor) and other.dim():
        return dividend, divisor, dtype
    return widened(dividend), pair(self, other)[1], dtype


def _rounded_pair(self: Tensor | Number, other: Tensor | Number) -> tuple[Tensor, Tensor, torch.dtype]:
    """As `pair`, of numbers that torch rounds to half precision, too, before it computes in float32."""
    dividend, divisor, dtype = pair(self, other, wide=False)
    return widened(dividend), widened(divisor), dtype


@decomposed(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    "aten.remainder.Scalar_Tensor",
    why="torchlib's remainder is wrong for infinities and large quotients",
    silent=True,
)
def remainder(self: Tensor | Number, other: Tensor | Number) -> Any:
    """As torch's kernel: the exact remainder, with the divisor's sign."""
    if not is_floating(self, other):
        beside_a_size = isinstance(self, torch.SymInt) or isinstance(other, torch.SymInt)
        return aten.remainder.Tensor(*pair(self, other)[:2]) if beside_a_size else NotImplemented
    dividend, divisor, dtype = _rounded_pair(self, other)
    rest = torch.fmod(dividend, divisor)
    return torch.where((rest != 0) & ((divisor < 0) != (rest < 0)), rest + divisor, rest).to(dtype)


@decomposed(
    "aten.fmod.Tensor",
    "aten.fmod.Scalar",
    why="ONNX Runtime's Mod takes large integers through float64",
    upstream="onnxruntime",
    silent=True,
)
def fmod(self: Tensor, other: Tensor | Number) -> Any:
    """Of int64, in int64. Of half precision, a number is rounded to it, too."""
    if is_half(self, other) and not isinstance(other, Tensor):
        dividend, divisor, dtype = _rounded_pair(self, other)
        return torch.fmod(dividend, divisor).to(dtype)
    if torch.result_type(self, other) is not torch.int64:
        return NotImplemented
    dividend, divisor, _ = pair(self, other)
    return dividend - torch.div(dividend, divisor, rounding_mode="trunc") * divisor
