"""Element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from rust_ort.export.rules.nodes import floating, floating_result, integral_result
from rust_ort.export.rules.registry import decomposed, in_eager, op, torchs_own, translated, whole

aten = torch.ops.aten
Number = float | int | bool

torchs_own("aten.hardtanh_backward.default", why="gives hardtanh and relu6 a gradient on their bounds", silent=True)
torchs_own("aten.logaddexp.default", "aten.logaddexp2.default", why="overflows", silent=True)
torchs_own(
    "aten.isinf.default",
    "aten.isposinf.default",
    "aten.isneginf.default",
    why="rounds float64 to float32 first",
    silent=True,
)
torchs_own("aten.xlogy.Tensor", why="0 where y is NaN", silent=True)
torchs_own("aten.lerp.Tensor", why="infinity where the difference of opposite infinities is NaN", silent=True)

whole("aten.copysign.Tensor", why="decomposed to prims.signbit, whose fake dtype is wrong")

in_eager(
    "aten.div",
    why="ONNX Runtime leaves out the quotient's rounding to half precision before it is truncated",
    upstream="onnxruntime",
    when=floating_result,
)
in_eager("aten.signbit", why="torchlib's signbit of -0.0 is False", when=floating)
in_eager("aten.special_erfcx", why="torchlib's erfcx gives wrong values")
in_eager(
    "aten.pow",
    why="ONNX Runtime computes integer powers in floating point",
    upstream="onnxruntime",
    when=integral_result,
)


def _as(value: Tensor | Number, dtype: torch.dtype, like: Tensor) -> Any:
    """`value` as a tensor of `dtype`: a number as one of rank 0."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    return aten.full([], value, dtype=dtype, device=like.device)


def _pair(first: Tensor | Number, second: Tensor | Number, *, wide: bool = True) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both as tensors of their common dtype, which is the third; wide: half precision as float32."""
    dtype = torch.result_type(first, second)
    computed = torch._prims_common.get_computation_dtype(dtype) if wide else dtype
    like = first if isinstance(first, Tensor) else second
    assert isinstance(like, Tensor)
    return _as(first, computed, like), _as(second, computed, like), dtype


def _is_half(first: Tensor | Number, second: Tensor | Number = 0) -> bool:
    return torch.result_type(first, second) in (torch.float16, torch.bfloat16)


def _is_floating(first: Tensor | Number, second: Tensor | Number) -> bool:
    return torch.result_type(first, second).is_floating_point


ATTRIBUTE = "its number is an attribute, and those are float32"
DIVIDES_THEN_ROUNDS = "torchlib divides, then rounds: wrong next to an integer and for infinities"


@decomposed("aten.floor_divide.default", why=DIVIDES_THEN_ROUNDS, silent=True)
def floor_divide(self: Tensor, other: Tensor | Number) -> Any:
    """As torch's kernel: from the exact remainder. Integers are left to torchlib, of one dtype."""
    if _is_floating(self, other):
        return _floor_quotient(self, other)
    first, second, dtype = _pair(self, other, wide=False)
    if dtype is torch.bool or (isinstance(other, Tensor) and self.dtype is other.dtype):
        return NotImplemented
    return aten.floor_divide.default(first, second)


def _floor_quotient(self: Tensor, other: Tensor | Number) -> Tensor:
    dividend, divisor, dtype = _pair(self, other)
    rest = torch.fmod(dividend, divisor)
    quotient = (dividend - rest) / divisor
    quotient = torch.where((rest != 0) & ((divisor < 0) != (rest < 0)), quotient - 1, quotient)
    rounded = torch.floor(quotient)
    rounded = torch.where(quotient - rounded > 0.5, rounded + 1, rounded)
    return torch.where(divisor == 0, dividend / divisor, rounded).to(dtype)


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
    if _is_floating(self, other):
        return NotImplemented if _is_half(self, other) else torch.trunc(torch.true_divide(self, other))
    if isinstance(other, Tensor) and self.dtype is other.dtype:
        return NotImplemented
    first, second, _ = _pair(self, other, wide=False)
    return aten.div.Tensor_mode(first, second, rounding_mode=rounding_mode)


@translated("aten.div.Tensor_mode", why="integers go through float32", silent=True)
def truncated_quotient(self: Any, other: Any, rounding_mode: str | None = None) -> Any:
    """Of integers: all that `div` leaves. ONNX's Div of integers truncates."""
    return op.Div(self, other)


@decomposed(
    "aten.remainder.Tensor",
    "aten.remainder.Scalar",
    "aten.remainder.Scalar_Tensor",
    why="torchlib's remainder is wrong for infinities and large quotients",
    silent=True,
)
def remainder(self: Tensor | Number, other: Tensor | Number) -> Any:
    """As torch's kernel: the exact remainder, with the divisor's sign."""
    if not _is_floating(self, other):
        return NotImplemented
    dividend, divisor, dtype = _pair(self, other, wide=False)  # numbers are rounded to half precision, too
    wide = torch._prims_common.get_computation_dtype(dtype)
    dividend, divisor = dividend.to(wide), divisor.to(wide)
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
    """Of int64, in int64."""
    if torch.result_type(self, other) is not torch.int64:
        return NotImplemented
    dividend, divisor, _ = _pair(self, other)
    return dividend - torch.div(dividend, divisor, rounding_mode="trunc") * divisor


@decomposed("aten.atan2.default", why="torchlib's atan2 is wrong at y = 0 and for NaN and infinities", silent=True)
def atan2(self: Tensor, other: Tensor) -> Any:
    """The angle in the first quadrant, mirrored: by a factor, as ONNX Runtime's Where loses the sign of zero.

    float64 is left: ONNX Runtime has no Atan of it.
    """
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    wide = torch._prims_common.get_computation_dtype(dtype)
    if wide is not torch.float32:
        return NotImplemented
    y, x = self.to(wide), other.to(wide)
    angle = torch.atan(y.abs() / x.abs())
    angle = torch.where((y == 0) & (x == 0), 0.0, angle)
    angle = torch.where((y.abs() == math.inf) & (x.abs() == math.inf), math.pi / 4, angle)
    angle = torch.where(_is_negative(x), math.pi - angle, angle)
    return (angle * torch.where(_is_negative(y), -1.0, 1.0)).to(dtype)


def _is_negative(tensor: Tensor) -> Tensor:
    """signbit, but for NaN."""
    return (tensor < 0) | ((tensor == 0) & (1 / tensor < 0))


@decomposed("aten.angle.default", why="torchlib's angle of NaN is 0", silent=True)
def angle(self: Tensor) -> Any:
    """π for negative numbers, NaN for NaN."""
    if self.dtype.is_complex:
        return NotImplemented
    dtype = self.dtype if self.dtype.is_floating_point else torch.get_default_dtype()
    if self.dtype is torch.bool:
        return aten.full(self.shape, 0, dtype=dtype, device=self.device)
    angles = (self < 0).to(dtype) * math.pi
    return torch.where(self != self, self, angles) if self.dtype.is_floating_point else angles


@decomposed("aten.heaviside.default", why="torchlib's heaviside of NaN is 1", silent=True)
def heaviside(self: Tensor, values: Tensor) -> Tensor:
    """0 for NaN."""
    if self.dtype is torch.bool:
        return torch.logical_or(self, values)
    return torch.where(self == 0, values, (self > 0).to(self.dtype))


@decomposed("aten.copysign.Scalar", why="decomposed to prims.signbit, whose fake dtype is wrong", upstream="torch")
def copysign(self: Tensor, other: Number) -> Tensor:
    """The sign of a number is known."""
    dtype = torch.result_type(self, other)
    magnitude = torch.abs(self.to(dtype if dtype.is_floating_point else torch.get_default_dtype()))
    return -magnitude if math.copysign(1, other) < 0 else magnitude


@decomposed("aten.log1p.default", why="torchlib writes log(1 + x): wrong for small x", silent=True)
def log1p(self: Tensor) -> Any:
    """log(u) · x / (u - 1) of u = 1 + x as rounded: the errors of both cancel (Higham 2002, problem 1.5)."""
    if self.dtype.is_complex:
        return NotImplemented
    x, dtype = _wide(self)
    u = x + 1
    return torch.where((u == 1) | (u == math.inf), x, torch.log(u) * (x / (u - 1))).to(dtype)


@decomposed("aten.expm1.default", why="torchlib writes exp(x) - 1: wrong for small x", silent=True)
def expm1(self: Tensor) -> Any:
    """(u - 1) · x / log(u) of u = exp(x) as rounded: the errors of both cancel (Higham 2002, 1.14.1)."""
    if self.dtype.is_complex:
        return NotImplemented
    x, dtype = _wide(self)
    u = torch.exp(x)
    less = u - 1
    plain = torch.where((less == -1) | (u == math.inf), less, less * (x / torch.log(u)))
    return torch.where(u == 1, x, plain).to(dtype)


@decomposed("aten.logit.default", why="a number for NaN when eps is given", silent=True)
def logit(self: Tensor, eps: float | None = None) -> Any:
    """Between eps and 1 - eps as the dtype has them."""
    x, dtype = _wide(self)
    if eps is not None and eps >= 0:
        least = _rounded(eps, dtype)
        x = torch.clamp(x, least, _rounded(1 - least, dtype))
    return torch.log(x / (1 - x)).to(dtype)


@decomposed("aten.threshold_backward.default", why="compares half precision with the threshold rounded to it")
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number) -> Any:
    """Half precision as float32, where the threshold is what was given."""
    compared = self.to(torch.float32) if _is_half(self) else self
    return torch.where(compared <= threshold, 0, grad_output)


@decomposed("aten.sinc.default", why="torchlib writes π as float32")
def sinc(self: Tensor) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    x = self * math.pi
    return torch.where(x == 0, 1, torch.sin(x) / x)


@decomposed("aten.addcmul.default", why=ATTRIBUTE)
def addcmul(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Any:
    """In float64."""
    return self + tensor1 * tensor2 * value if self.dtype is torch.float64 and value != 1 else NotImplemented


def _wide(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
    """As torch's kernels compute it, and the dtype of their result."""
    dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
    return tensor.to(torch._prims_common.get_computation_dtype(dtype)), dtype


@decomposed(
    "aten.pow.Tensor_Scalar",
    why="Pow(-inf, 0.5) is inf, where torch's is the square root's NaN; integers go through floating point",
    upstream="onnxruntime",
    silent=True,
)
def power(self: Tensor, exponent: Number) -> Any:
    """Square roots; products for integers with an exponent up to 64."""
    dtype = torch.result_type(self, exponent)
    if dtype.is_floating_point and dtype is not torch.float16 and exponent in (0.5, -0.5):
        return torch.sqrt(self.to(dtype)) if exponent > 0 else torch.rsqrt(self.to(dtype))
    if dtype in (torch.int32, torch.int64) and 0 < exponent <= 64:
        return _integer_power(self.to(dtype), int(exponent))
    return NotImplemented


def _integer_power(base: Tensor, exponent: int) -> Tensor:
    if exponent == 1:
        return base.clone()
    half = _integer_power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


INT64 = "ONNX Runtime compares int64 wrongly beyond int32 in Max, Min, Clip, Relu and Sign"


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
    first, second, _ = _pair(self, other)
    return torch.where(better(first, second), first, second)


CLIP = "Clip without a bound turns infinity into the largest number, and a NaN bound is ignored; " + INT64


@decomposed("aten.clamp.default", why=CLIP, upstream="onnxruntime", silent=True)
def clamp(self: Tensor, min: Number | None = None, max: Number | None = None) -> Any:
    """By Max and Min, but between two numbers, which ONNX's Clip has right."""
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = functools.reduce(torch.promote_types, (torch.result_type(self, bound) for bound in bounds), self.dtype)
    between = len(bounds) == 2 and not any(math.isnan(bound) for bound in bounds)
    if dtype is self.dtype and between and dtype not in (torch.int64, torch.int16):
        return NotImplemented
    result = self.to(dtype)
    if min is not None:
        result = torch.maximum(result, _as(min, dtype, self))
    if max is not None:
        result = torch.minimum(result, _as(max, dtype, self))
    return result


@decomposed("aten.clamp.Tensor", why=INT64, upstream="onnxruntime", silent=True)
def clamp_tensor(self: Tensor, min: Tensor | None = None, max: Tensor | None = None) -> Any:
    """By maximum and minimum."""
    result = self if min is None else torch.maximum(self, min)
    return result if max is None else torch.minimum(result, max)


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
    return _but_for_nan(self, other, torch.maximum)


@decomposed("aten.fmin.default", why="no ONNX form")
def fmin(self: Tensor, other: Tensor) -> Tensor:
    """The smaller; the other one where one is NaN."""
    return _but_for_nan(self, other, torch.minimum)


def _but_for_nan(self: Tensor, other: Tensor, choose: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    first, second, _ = _pair(self, other, wide=False)
    chosen = choose(first, second)
    if not chosen.dtype.is_floating_point:
        return chosen
    return torch.where(first != first, second, torch.where(second != second, first, chosen))


def _compared(compare: Callable[[Tensor, Number], Tensor], self: Tensor, other: Number) -> Any:
    """With the number as the tensor's half precision has it, as torch's kernels compare."""
    if self.dtype not in (torch.float16, torch.bfloat16) or not math.isfinite(other):
        return NotImplemented
    rounded = _rounded(other, self.dtype)
    return NotImplemented if rounded == other else compare(self, rounded)


def _rounded(number: Number, dtype: torch.dtype) -> Number:
    """As `dtype` has it."""
    with _disable_current_modes():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposed(f"aten.{_name}.Scalar", why="compares half precision with a number that is no such value", silent=True)(
        functools.partial(_compared, getattr(torch, _name))
    )


@decomposed("aten.leaky_relu.default", why=ATTRIBUTE)
def leaky_relu(self: Tensor, negative_slope: Number = 0.01) -> Any:
    """In float64."""
    return torch.where(self > 0, self, self * negative_slope) if self.dtype is torch.float64 else NotImplemented


@decomposed("aten.elu.default", why=ATTRIBUTE)
def elu(self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    return torch.where(self > 0, self * scale, torch.expm1(self * input_scale) * (alpha * scale))


@decomposed("aten.celu.default", why="torchlib computes it in float32")
def celu(self: Tensor, alpha: Number = 1.0) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    return torch.where(self > 0, self, torch.expm1(self / alpha) * alpha)


@decomposed("aten.hardsigmoid.default", why=ATTRIBUTE)
def hardsigmoid(self: Tensor) -> Any:
    """In float64."""
    return torch.clamp(self + 3, 0, 6) / 6 if self.dtype is torch.float64 else NotImplemented


@decomposed("aten.hardswish.default", why=ATTRIBUTE)
def hardswish(self: Tensor) -> Any:
    """In float64."""
    return self * torch.clamp(self + 3, 0, 6) / 6 if self.dtype is torch.float64 else NotImplemented


@decomposed("aten.hardtanh.default", why=ATTRIBUTE)
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Any:
    """In float64, and of integers."""
    if self.dtype.is_floating_point and self.dtype is not torch.float64:
        return NotImplemented
    return torch.clamp(self, min_val, max_val).to(self.dtype)


@decomposed("aten.rsub.Scalar", why="a number as the first operand of sub has no type promotion", upstream="torch")
def rsub(self: Tensor, other: Number, alpha: Number = 1) -> Tensor:
    """Of integers, by negation and addition: the same to the digit."""
    if self.dtype.is_floating_point:
        own: Tensor = torch._decomp.decomposition_table[aten.rsub.Scalar](self, other, alpha)
        return own
    return torch.add(-self if alpha == 1 else self * -alpha, other)


@decomposed("aten.softplus.default", why="torchlib computes it in float32")
def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    scaled = self * beta
    return torch.where(scaled > threshold, self, torch.log1p(torch.exp(scaled)) / beta)
