"""Element by element: what no other family has."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.activation import ATTRIBUTE
from rust_ort.export.rules.nodes import floating, integral_result
from rust_ort.export.rules.promotion import (
    Number,
    as_dtype,
    as_half,
    as_held,
    computed,
    is_half,
    kernel_dtype,
    pair,
    rounded,
    widened,
)
from rust_ort.export.rules.registry import decomposed, in_eager, torchs_own, whole
from rust_ort.export.shapes import row_major

aten = torch.ops.aten

torchs_own("aten.logaddexp.default", "aten.logaddexp2.default", why="overflows", silent=True)


@decomposed("aten.isnan.default", why="ONNX's IsNaN takes floats alone")
def isnan(self: Tensor) -> Any:
    """Of integers: none."""
    return NotImplemented if self.dtype.is_floating_point or self.dtype.is_complex else self != self


torchs_own(
    "aten.isinf.default",
    "aten.isposinf.default",
    "aten.isneginf.default",
    why="rounds float64 to float32 first",
    silent=True,
)


def _times_logarithm(log: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def product(self: Tensor | Number, other: Tensor | Number) -> Any:
        """As torch's kernel, which rounds half precision after each step."""
        like, promoted = (self if isinstance(self, Tensor) else other), torch.result_type(self, other)
        assert isinstance(like, Tensor)
        if promoted.is_complex:
            return NotImplemented
        dtype = promoted if promoted.is_floating_point else torch.get_default_dtype()
        first, second = as_dtype(self, dtype, like), as_dtype(other, dtype, like)
        return torch.where(second != second, second, torch.where(first == 0, 0, first * log(second)))

    return product


decomposed(
    *(f"aten.xlogy.{name}" for name in ("Tensor", "Scalar_Self", "Scalar_Other")),
    why="0 where y is NaN; half precision is rounded at other steps",
    silent=True,
)(_times_logarithm(torch.log))
decomposed(
    *(f"aten.special_xlog1py.{name}" for name in ("default", "self_scalar", "other_scalar")),
    why="a number that overflows is refused; half precision is rounded at other steps",
    upstream="torch",
)(_times_logarithm(torch.log1p))

whole(
    "aten.ldexp.Tensor", why="its decomposition is in float32, whatever the exponents are: another dtype", silent=True
)
whole("aten.copysign.Tensor", why="decomposed to prims.signbit, whose fake dtype is wrong")

in_eager("aten.signbit", why="torchlib's signbit of -0.0 is False", when=floating)


@decomposed("aten.signbit.default", why="torchlib gives a scalar a dimension")
def signbit(self: Tensor) -> Any:
    """Of integers."""
    return NotImplemented if self.dtype.is_floating_point else self < 0


in_eager("aten.special_erfcx", why="torchlib's erfcx gives wrong values")
in_eager(
    "aten.pow",
    why="ONNX Runtime computes integer powers in floating point",
    upstream="onnxruntime",
    when=integral_result,
)


@decomposed("aten.atan2.default", why="torchlib's atan2 is wrong at y = 0 and for NaN and infinities", silent=True)
def atan2(self: Tensor, other: Tensor) -> Any:
    """The angle in the first quadrant, mirrored: by a factor, as ONNX Runtime's Where loses the sign of zero."""
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    wide = kernel_dtype(dtype)
    y, x = self.to(dtype).to(wide), other.to(dtype).to(wide)
    ratio = y.abs() / x.abs()
    angle = _atan(ratio) if wide is torch.float64 else torch.atan(ratio)
    angle = torch.where((y == 0) & (x == 0), 0.0, angle)
    angle = torch.where((y.abs() == math.inf) & (x.abs() == math.inf), math.pi / 4, angle)
    angle = torch.where(_is_negative(x), math.pi - angle, angle)
    return (angle * torch.where(_is_negative(y), -1.0, 1.0)).to(dtype)


def _atan(ratio: Tensor) -> Tensor:
    """Of what is not negative, in float64: float32's angle, and the tangent of what it is off by, which is the angle of
    it to 1e-21."""
    near = torch.atan(ratio.to(torch.float32)).to(torch.float64)
    sine, cosine = torch.sin(near), torch.cos(near)
    angle = near + (ratio * cosine - sine) / (cosine + ratio * sine)
    return torch.where(ratio == math.inf, math.pi / 2, angle)


@decomposed("aten.atan.default", why="Atan has no float64 kernel", upstream="onnxruntime")
def atan(self: Tensor) -> Any:
    """Of float64, mirrored by a factor."""
    if self.dtype is not torch.float64:
        return NotImplemented
    return _atan(self.abs()) * torch.where(_is_negative(self), -1.0, 1.0)


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


@decomposed("aten.copysign.Scalar", why="decomposed to prims.signbit, whose fake dtype is wrong", upstream="torch")
def copysign(self: Tensor, other: Number) -> Tensor:
    """The sign of a number is known, but of one that only the call knows."""
    dtype = torch.result_type(self, other)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    magnitude = torch.abs(self.to(dtype))
    if not isinstance(other, (int, float)):
        number = as_dtype(other, dtype, self)
        return torch.where((number < 0) | (1 / number < 0), -magnitude, magnitude)
    return -magnitude if math.copysign(1, other) < 0 else magnitude


@decomposed("aten.log1p.default", why="torchlib writes log(1 + x): wrong for small x", silent=True)
def log1p(self: Tensor) -> Any:
    """log(u) · x / (u - 1) of u = 1 + x as rounded: the errors of both cancel (Higham 2002, problem 1.5)."""
    if self.dtype.is_complex:
        return NotImplemented
    x, dtype = computed(self)
    u = x + 1
    return torch.where((u == 1) | (u == math.inf), x, torch.log(u) * (x / (u - 1))).to(dtype)


@decomposed("aten.expm1.default", why="torchlib writes exp(x) - 1: wrong for small x", silent=True)
def expm1(self: Tensor) -> Any:
    """(u - 1) · x / log(u) of u = exp(x) as rounded: the errors of both cancel (Higham 2002, 1.14.1)."""
    if self.dtype.is_complex:
        return NotImplemented
    x, dtype = computed(self)
    u = torch.exp(x)
    less = u - 1
    plain = torch.where((less == -1) | (u == math.inf), less, less * (x / torch.log(u)))
    return torch.where(u == 1, x, plain).to(dtype)


@decomposed("aten.trunc.default", why="0.0 for what is -0.0", silent=True)
def trunc(self: Tensor) -> Any:
    """Towards zero."""
    if not self.dtype.is_floating_point:
        return NotImplemented
    return torch.where(self < 0, torch.ceil(self), torch.floor(self))


@decomposed("aten.frac.default", why="-0.0 for what is 0.0", silent=True)
def frac(self: Tensor) -> Any:
    """What trunc leaves."""
    return self - torch.trunc(self)


ERFC = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223,
        0.17087277)  # fmt: skip
CANCELS = "torchlib writes 1 - erf(x), which is 0 from 4 on"


@decomposed("aten.erfc.default", why=CANCELS, silent=True)
def erfc(self: Tensor) -> Any:
    """To 1.2e-7 of itself, by the Chebyshev fit of Press et al., Numerical Recipes in C, 6.2; of float64 ONNX Runtime
    has no Erf, and it stays in eager."""
    if self.dtype is torch.float64:
        return NotImplemented
    x, result = self.to(torch.float64), computed(self)[1]
    t = 1 / (1 + x.abs() / 2)
    fit = functools.reduce(lambda sum, factor: sum * t + factor, reversed(ERFC), torch.zeros_like(t))
    tail = t * torch.exp(fit - x * x)
    return torch.where(x < 0, 2 - tail, tail).to(result)


@decomposed("aten.logit.default", why="a number for NaN when eps is given", silent=True)
def logit(self: Tensor, eps: float | None = None) -> Any:
    """Between eps and 1 - eps as the dtype has them."""
    dtype = computed(self)[1]
    x = self.to(dtype)  # half precision is rounded after each step, as by torch's kernel
    if eps is not None and (least := rounded(eps, dtype)) >= 0:
        most = rounded(1 - least, dtype)
        x = torch.where(x < least, least, torch.where(x > most, most, x))
    return torch.log(x / (1 - x))


@decomposed("aten.logit_backward.default", why="minus infinity at -0.0", upstream="torch", silent=True)
def logit_backward(grad_output: Tensor, self: Tensor, eps: float | None = None) -> Any:
    """Infinite at both ends, NaN beyond; 0 where eps cut, which is as the dtype has it."""
    x, dtype = computed(self)
    grad = grad_output.to(x.dtype)
    given = rounded(eps, dtype) if isinstance(eps, float) else eps
    least, beyond = (0.0, math.nan) if given is None or given < 0 else (given, 0.0)
    most = 1 - least
    if isinstance(least, float):
        most = rounded(most, dtype)
    inside = torch.where((x == 0) | (x == 1), grad * math.inf, grad / (x * (1 - x)))
    return torch.where((x < least) | (x > most), beyond, inside).to(dtype)


@decomposed("aten.sinc.default", why="torchlib writes π as float32")
def sinc(self: Tensor) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    x = self * math.pi
    return torch.where(x == 0, 1, torch.sin(x) / x)


def _with_factor(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Any:
        """As torch's kernel."""
        if not all(tensor.dtype is self.dtype for tensor in (tensor1, tensor2)) or self.dtype.is_complex:
            return NotImplemented
        value = as_held(value, self.dtype)
        first = widened(tensor1) if value == 1 else widened(tensor1) * value
        return (widened(self) + combine(first, widened(tensor2))).to(self.dtype)

    return function


LAST = "the number is multiplied last, torch multiplies by it first"

decomposed("aten.addcmul.default", why=ATTRIBUTE + "; " + LAST)(_with_factor(torch.mul))
decomposed("aten.addcdiv.default", why=LAST + "; half precision is rounded on the way", silent=True)(
    _with_factor(torch.true_divide)
)


@decomposed("prims.fma.default", why="no ONNX form: Dynamo writes `addcmul_` of optimizers with it")
def fma(a: Tensor, b: Tensor | Number, c: Tensor) -> Any:
    """The product and the sum; half precision is rounded once."""
    factor = widened(b) if isinstance(b, Tensor) else b
    return (widened(a) * factor + widened(c)).to(c.dtype)


def lerp(self: Tensor, end: Tensor, weight: Tensor | Number) -> Any:
    """As torch's kernel, from the nearer end, half precision in float32. A floating weight of rank 0 makes integers
    floats."""
    dtype = torch.result_type(self, weight)
    start, end = widened(self.to(dtype)), widened(end.to(dtype))
    difference = end - start
    if isinstance(weight, (int, float)):
        weight = rounded(weight, start.dtype)
        near = abs(weight) < 0.5
        return (start + weight * difference if near else end - difference * (1 - weight)).to(dtype)
    weight = widened(weight.to(dtype)) if isinstance(weight, Tensor) else as_dtype(weight, start.dtype, self)
    far = end - difference * (1 - weight)
    return torch.where(torch.abs(weight) < 0.5, start + weight * difference, far).to(dtype)


for _overload, _why in (
    ("Tensor", "infinity where the difference of opposite infinities is NaN"),
    ("Scalar", "half precision is rounded on the way, torch computes in float32"),
):
    decomposed(f"aten.lerp.{_overload}", why=_why, silent=True)(lerp)


@decomposed(
    "aten.pow.Tensor_Scalar",
    why="Pow(-inf, 0.5) is inf, where torch's is the square root's NaN; integers go through floating point; "
    "the exponent of float32 is a float64 in torch",
    upstream="onnxruntime",
    silent=True,
)
def power(self: Tensor, exponent: Number) -> Any:
    """Square roots; products for integers with an exponent up to 64; float32 in float64 where the exponent is none of
    its numbers; a copy of floats to the first power, which the gradient of a square has. To ask a number of sizes would
    fix the sizes: `scalars.power`."""
    dtype = torch.result_type(self, exponent)
    if isinstance(exponent, torch.SymFloat):
        return NotImplemented
    if dtype.is_floating_point and isinstance(exponent, torch.SymInt):
        return aten.pow.Tensor_Tensor(self.to(dtype), as_dtype(exponent, dtype, self))
    if dtype.is_floating_point and exponent == 1:
        return self.to(dtype)
    if dtype.is_floating_point and dtype is not torch.float16 and exponent in (0.5, -0.5):
        return torch.sqrt(self.to(dtype)) if exponent > 0 else torch.rsqrt(self.to(dtype))
    if dtype is torch.float32 and rounded(exponent, dtype) != exponent and math.isfinite(exponent):
        return torch.pow(self.to(dtype).to(torch.float64), exponent).to(dtype)
    if dtype in (torch.int32, torch.int64) and 0 < exponent <= 64:
        return _integer_power(self.to(dtype), int(exponent))
    return NotImplemented


def _integer_power(base: Tensor, exponent: int) -> Tensor:
    if exponent == 1:
        return base.clone()
    half = _integer_power(base, exponent // 2)
    return half * half * base if exponent % 2 else half * half


@decomposed("aten.pow.Tensor_Tensor", why="torchlib gives it the base's dtype, and no other operand becomes it")
def power_of_tensors(self: Tensor, exponent: Tensor) -> Any:
    """Both first become what the result is, where that is a float."""
    dtype = torch.result_type(self, exponent)
    if not dtype.is_floating_point or self.dtype is exponent.dtype is dtype:
        return NotImplemented
    return aten.pow.Tensor_Tensor(self.to(dtype), exponent.to(dtype))


@decomposed("aten.pow.Scalar", why="torch rounds the base to half precision, and its result is row-major", silent=True)
def power_of_number(self: Number, exponent: Tensor) -> Any:
    """Of the base as the exponent's dtype has it, of a row-major exponent."""
    dtype = torch.result_type(self, exponent)
    halved = dtype in (torch.float16, torch.bfloat16) and isinstance(self, (int, float)) and math.isfinite(self)
    base = rounded(self, dtype) if halved else self
    if (base is self or base == self) and row_major(exponent, range(exponent.dim())):
        return NotImplemented
    return aten.pow.Scalar(base, exponent.clone(memory_format=torch.contiguous_format))


FIRST = "; no type promotion of a number that is the first, nor of two"


def _summed(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor | Number, other: Tensor | Number, *, alpha: Number = 1) -> Any:
        """With the factor as half precision has it; a number that is the first as a tensor."""
        half_beside_a_number = is_half(self, other) and not isinstance(other, Tensor) and alpha != 1
        if not isinstance(self, Tensor) or half_beside_a_number or isinstance(other, torch.SymInt):
            return operator(*pair(self, other, wide=False)[:2], alpha=as_half(alpha, torch.result_type(self, other)))
        if not isinstance(other, Tensor) or not is_half(self, other):
            return NotImplemented
        factor = as_half(alpha, torch.result_type(self, other))
        return NotImplemented if factor is alpha else operator(self, other, alpha=factor)

    return function


for _name in ("add", "sub"):
    decomposed(f"aten.{_name}.Tensor", why="torch rounds alpha to half precision" + FIRST, silent=True)(
        _summed(getattr(aten, _name).Tensor)
    )


def _beside_one(operator: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(self: Tensor | Number, other: Tensor | Number) -> Any:
        """In float32, rounded once, where the second is of one element, or a size, which half precision may not hold;
        the first torch rounds, a number, too."""
        if isinstance(self, Tensor) and isinstance(other, torch.SymInt) and is_half(self, other):
            return operator(self.to(torch.float32), other).to(self.dtype)
        if not isinstance(self, Tensor):
            return operator(*pair(self, other, wide=False)[:2])
        if not isinstance(other, Tensor) or not is_half(self, other):
            return NotImplemented
        if any(not isinstance(size, int) or size != 1 for size in other.shape) or other.dtype in (
            self.dtype,
            torch.bool,
        ):
            return NotImplemented
        if self.dtype is not torch.result_type(self, other):
            return NotImplemented
        return operator(self.to(torch.float32), other.to(torch.float32)).to(self.dtype)

    return function


for _name in ("mul", "div"):
    decomposed(
        f"aten.{_name}.Tensor",
        why="half precision beside a tensor of rank 0: that is rounded; a number that is the first is not" + FIRST,
        silent=True,
    )(_beside_one(getattr(aten, _name).Tensor))


def _of_sizes(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor | Number, other: Tensor | Number) -> Any:
        """Of a size as a tensor."""
        if not isinstance(self, torch.SymInt) and not isinstance(other, torch.SymInt):
            return NotImplemented
        return operator(*pair(self, other)[:2])

    return function


for _name in ("and", "or", "xor", "left_shift", "right_shift"):
    _packet = getattr(aten, f"bitwise_{_name}")
    _second = "Tensor_Scalar" if "shift" in _name else "Scalar"
    decomposed(
        f"aten.bitwise_{_name}.{_second}",
        f"aten.bitwise_{_name}.Scalar_Tensor",
        why="torchlib takes no size in the place of a number",
    )(_of_sizes(_packet.Tensor))


THROUGH_FLOAT32 = "a float is converted to integers through float32"


@decomposed("aten.masked_fill.Scalar", why=THROUGH_FLOAT32, silent=True)
def masked_fill(self: Tensor, mask: Tensor, value: Number) -> Any:
    """Of integers, with an integer."""
    held = as_held(value, self.dtype)
    return NotImplemented if held is value else aten.masked_fill.Scalar(self, mask, held)


@decomposed("aten.fill.Scalar", why=THROUGH_FLOAT32, silent=True)
def fill(self: Tensor, value: Number) -> Any:
    """Of integers, with an integer."""
    held = as_held(value, self.dtype)
    return NotImplemented if held is value else aten.fill.Scalar(self, held)
