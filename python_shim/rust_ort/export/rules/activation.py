"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number, as_held, computed, is_half, widened
from rust_ort.export.rules.registry import decomposed, op, translated

aten = torch.ops.aten


PI = (3.1415926534682512, 1.2154201012607932e-10, 4.044532497591901e-21)
"""π as a sum: of the first two, products with whole and half numbers of 20 bits are exact."""
FARTHEST = 1e6
"""Multiples of π up to here have so few bits."""
ONLY_ABSOLUTE = "{} of float64 is exact to 5e-16 only absolutely: 0 at π; the gradient of sinc near 0 is 1e28"

ATTRIBUTE = "its number is an attribute, and those are float32"


@decomposed("aten.threshold_backward.default", why="compares half precision with the threshold rounded to it")
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Number) -> Any:
    """Half precision as float32, where the threshold is what was given."""
    compared = self.to(torch.float32) if is_half(self) else self
    return torch.where(compared <= threshold, 0, grad_output)


@decomposed(
    "aten.leaky_relu.default",
    why=ATTRIBUTE + "; LeakyRelu leaves 0 as it is where the slope is negative or infinite",
    upstream="onnxruntime",
    silent=True,
)
def leaky_relu(self: Tensor, negative_slope: Number = 0.01) -> Any:
    """In float64, and of such slopes, or of one that only the call knows."""
    known = isinstance(negative_slope, (int, float))
    usual = known and math.copysign(1, negative_slope) > 0 and negative_slope < math.inf
    if usual and self.dtype is not torch.float64:
        return NotImplemented
    x, dtype = computed(self)
    return torch.where(x > 0, x, x * negative_slope).to(dtype)


@decomposed("aten._prelu_kernel.default", why="PRelu leaves 0 as it is", upstream="onnxruntime", silent=True)
def prelu(self: Tensor, weight: Tensor) -> Any:
    """As torch's kernel."""
    return torch.where(self > 0, self, self * weight)


CANCELS = "exp(x) - 1 is wrong for small x"


@decomposed("aten.elu.default", why=CANCELS, upstream="onnxruntime", silent=True)
def elu(self: Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Any:
    """By expm1."""
    x, dtype = computed(self)
    return torch.where(x < 0, torch.expm1(x * input_scale) * (alpha * scale), x * scale).to(dtype)


@decomposed("aten.celu.default", why=CANCELS, silent=True)
def celu(self: Tensor, alpha: Number = 1.0) -> Any:
    """By expm1."""
    x, dtype = computed(self)
    return torch.where(x < 0, torch.expm1(x / alpha) * alpha, x).to(dtype)


@decomposed("aten.gelu.default", why="rounds √2 and the numbers of the tanh form to half precision", silent=True)
def gelu(self: Tensor, *, approximate: str = "none") -> Any:
    """Half precision in float32; there 1 + tanh(z) as 2 / (1 + exp(-2z)), which is exact far below 0, too."""
    if not is_half(self):
        return NotImplemented
    x = widened(self)
    if approximate == "none":
        return aten.gelu(x).to(self.dtype)
    z = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return (x / (1 + torch.exp(-2 * z))).to(self.dtype)


@decomposed("aten.hardsigmoid.default", why=ATTRIBUTE)
def hardsigmoid(self: Tensor) -> Any:
    """As torch's kernel."""
    x, dtype = computed(self)
    return (_ramp(x) / 6).to(dtype)


@decomposed("aten.hardswish.default", why=ATTRIBUTE + "; it does not overflow where torch does")
def hardswish(self: Tensor) -> Any:
    """As torch's kernel."""
    x, dtype = computed(self)
    return (x * _ramp(x) / 6).to(dtype)


def _ramp(x: Tensor) -> Tensor:
    """x + 3 between 0 and 6, bit by bit; clamped first, so that no bound is 0, which takes a node more."""
    return torch.clamp(x, -3, 3) + 3


@decomposed("aten.hardtanh.default", why=ATTRIBUTE)
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Any:
    """As clamp has it, between integers for integers."""
    return torch.clamp(self, as_held(min_val, self.dtype), as_held(max_val, self.dtype)).to(self.dtype)


AT_NAN = "at NaN it is as where torch's kernel is not vectorized, which is at the end of a tensor"


@decomposed(
    "aten.hardtanh_backward.default", why="gives hardtanh and relu6 a gradient on their bounds; " + AT_NAN, silent=True
)
def hardtanh_backward(grad_output: Tensor, self: Tensor, min_val: Number, max_val: Number) -> Any:
    """0 at NaN."""
    x = widened(self)
    return torch.where((x > min_val) & (x < max_val), grad_output, 0)


@decomposed("aten.hardswish_backward.default", why=AT_NAN, upstream="torch", silent=True)
def hardswish_backward(grad_output: Tensor, self: Tensor) -> Any:
    """NaN at NaN."""
    x, dtype = computed(self)
    grad = grad_output.to(x.dtype)
    return torch.where(x <= -3, 0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5))).to(dtype)


@decomposed("aten.elu_backward.default", why=AT_NAN, upstream="torch", silent=True)
def elu_backward(
    grad_output: Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, self_or_result: Tensor
) -> Any:
    """NaN at NaN; celu's and selu's, too."""
    x, dtype = computed(self_or_result)
    grad = grad_output.to(x.dtype)
    below = x + alpha * scale if is_result else alpha * scale * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * below).to(dtype)


@decomposed("aten.threshold.default", why="integers go through float32", silent=True)
def threshold(self: Tensor, threshold: Number, value: Number) -> Any:
    """Of integers, beside integers."""
    return torch.where(widened(self) <= as_held(threshold, self.dtype), as_held(value, self.dtype), self)


@decomposed("aten.softplus.default", why="torchlib computes it in float32")
def softplus(self: Tensor, beta: Number = 1, threshold: Number = 20) -> Any:
    """In float64."""
    if self.dtype is not torch.float64:
        return NotImplemented
    scaled = self * beta
    return torch.where(scaled > threshold, self, torch.log1p(torch.exp(scaled)) / beta)


@translated(
    "aten.sigmoid.default",
    why="Sigmoid of float32 is exact to 3e-8 only absolutely: 0.5 % off at -12, 0 from -18",
    upstream="onnxruntime",
    silent=True,
)
def sigmoid(self: Any) -> Any:
    """As torch's kernel, half precision in float32."""
    from onnxscript import ir

    wide = op.Cast(self, to=ir.DataType.FLOAT) if self.dtype.bitwidth == 16 else self
    one = op.Constant(value=ir.tensor(1, dtype=ir.DataType.DOUBLE if self.dtype.bitwidth == 64 else ir.DataType.FLOAT))
    made = op.Div(one, op.Add(one, op.Exp(op.Neg(wide))))
    return op.Cast(made, to=self.dtype) if self.dtype.bitwidth == 16 else made


@translated("aten.sin.default", why=ONLY_ABSOLUTE.format("Sin"), upstream="onnxruntime", silent=True)
def sin(self: Any) -> Any:
    """In float64 of what is left of a multiple of π; a small number itself."""
    from onnxscript import ir

    if self.dtype is not ir.DataType.DOUBLE:
        return op.Sin(self)
    made = _by_multiples_of_pi(self, op.Round(op.Mul(self, _float64(1 / math.pi))), op.Sin(self))
    return op.Where(op.Less(op.Abs(self), _float64(1e-8)), self, made)


@translated("aten.cos.default", why=ONLY_ABSOLUTE.format("Cos"), upstream="onnxruntime", silent=True)
def cos(self: Any) -> Any:
    """In float64 the sine of what is left of half a multiple of π."""
    from onnxscript import ir

    if self.dtype is not ir.DataType.DOUBLE:
        return op.Cos(self)
    half = _float64(0.5)
    multiple = op.Sub(op.Round(op.Add(op.Mul(self, _float64(1 / math.pi)), half)), half)
    return _by_multiples_of_pi(self, multiple, op.Cos(self))


def _by_multiples_of_pi(x: Any, multiple: Any, otherwise: Any) -> Any:
    """sin(x - multiple · π), and its negative where the multiple, rounded up, is odd: sin(x) of a whole multiple, and
    cos(x) of one and a half. From FARTHEST on `otherwise`: there ONNX Runtime asks the C library."""
    left = x
    for part in PI:
        left = op.Sub(left, op.Mul(multiple, _float64(part)))
    small = op.Where(op.Less(op.Abs(left), _float64(1e-8)), left, op.Sin(left))
    behind = op.Ceil(multiple)
    odd = op.Sub(behind, op.Mul(op.Floor(op.Mul(behind, _float64(0.5))), _float64(2.0)))
    made = op.Mul(small, op.Sub(_float64(1.0), op.Mul(odd, _float64(2.0))))
    return op.Where(op.Less(op.Abs(x), _float64(FARTHEST)), made, otherwise)


def _float64(number: float) -> Any:
    from onnxscript import ir

    return op.Constant(value=ir.tensor(number, dtype=ir.DataType.DOUBLE))


@translated(
    "aten.tanh.default", why="Tanh of float32 goes beyond 1: atanh of it is NaN", upstream="onnxruntime", silent=True
)
def tanh(self: Any) -> Any:
    """Not beyond."""
    from onnxscript import ir

    made = op.Tanh(self)
    if self.dtype is not ir.DataType.FLOAT:
        return made
    return op.Clip(made, op.Constant(value=ir.tensor(-1.0)), op.Constant(value=ir.tensor(1.0)))


@decomposed(
    "aten.silu.default", why="torchlib writes Sigmoid, which is wrong far below 0", upstream="onnxruntime", silent=True
)
def silu(self: Tensor) -> Any:
    """In one rounding."""
    x, dtype = computed(self)
    return (x / (1 + torch.exp(-x))).to(dtype)


@decomposed(
    "aten.glu.default", why="torchlib writes Sigmoid, which is wrong far below 0", upstream="onnxruntime", silent=True
)
def glu(self: Tensor, dim: int = -1) -> Any:
    """As torch's kernel."""
    first, second = torch.chunk(self, 2, dim)
    x, dtype = computed(first)
    return (x * torch.sigmoid(widened(second))).to(dtype)


@decomposed("aten._softmax_backward_data.default", why="multiplied out: -0.0 is 0, and what is small is less exact")
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Any:
    """As torch's kernel: the sum is subtracted first."""
    grad, y = widened(grad_output), widened(output)
    return ((grad - (grad * y).sum(dim, keepdim=True)) * y).to(input_dtype)


@decomposed("aten.mish.default", why="torchlib computes Softplus, which has no float64 kernel, in float32")
def mish(self: Tensor) -> Any:
    """In float64."""
    return self * torch.tanh(torch.nn.functional.softplus(self)) if self.dtype is torch.float64 else NotImplemented
