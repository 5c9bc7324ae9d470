"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number, computed, is_half, widened
from rust_ort.export.rules.registry import decomposed, op, torchs_own, translated

aten = torch.ops.aten

torchs_own("aten.hardtanh_backward.default", why="gives hardtanh and relu6 a gradient on their bounds", silent=True)

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
    """In float64, and of such slopes."""
    if self.dtype is not torch.float64 and math.copysign(1, negative_slope) > 0 and negative_slope < math.inf:
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


@decomposed("aten.hardsigmoid.default", why=ATTRIBUTE)
def hardsigmoid(self: Tensor) -> Any:
    """As torch's kernel."""
    x, dtype = computed(self)
    return (torch.clamp(x + 3, 0, 6) / 6).to(dtype)


@decomposed("aten.hardswish.default", why=ATTRIBUTE + "; it does not overflow where torch does")
def hardswish(self: Tensor) -> Any:
    """As torch's kernel."""
    x, dtype = computed(self)
    return (x * torch.clamp(x + 3, 0, 6) / 6).to(dtype)


@decomposed("aten.hardtanh.default", why=ATTRIBUTE)
def hardtanh(self: Tensor, min_val: Number = -1, max_val: Number = 1) -> Any:
    """As clamp has it."""
    return torch.clamp(self, min_val, max_val).to(self.dtype)


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


@translated(
    "aten.sin.default",
    why="Sin of a small float64 is not always it: the gradient of sinc near 0 is 1e28",
    upstream="onnxruntime",
    silent=True,
)
def sin(self: Any) -> Any:
    """A small float64 itself."""
    from onnxscript import ir

    made = op.Sin(self)
    if self.dtype is not ir.DataType.DOUBLE:
        return made
    bound = op.Constant(value=ir.tensor(1e-8, dtype=ir.DataType.DOUBLE))
    return op.Where(op.Less(op.Abs(self), bound), self, made)


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
