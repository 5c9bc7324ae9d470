"""Batch, group, layer and weight norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import computed, kernel_dtype
from rust_ort.export.rules.registry import decomposed, torchs_own
from rust_ort.torch_private import torchs_decompositions

aten = torch.ops.aten

torchs_own(
    "aten.native_batch_norm.default",
    "aten._native_batch_norm_legit.default",
    "aten._native_batch_norm_legit_functional.default",
    why="`training` is ignored",
    silent=True,
)
torchs_own(
    "aten._native_batch_norm_legit.no_stats",
    "aten._native_batch_norm_legit_no_training.default",
    why="the saved statistics are dropped, or float32 whatever the input is",
)


LARGE_GROUP = 2**16
FLOAT64 = "float64: eps is an attribute, and those are float32"


@decomposed(
    "aten.native_layer_norm.default",
    why="half precision: mean and 1 / deviation come out as float32; without a bias, 0.0 is -0.0; " + FLOAT64,
)
def layer_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """(output, mean, 1 / deviation) in float32, rounded once, as torch's CPU kernel makes them of half precision.

    ONNX's LayerNormalization gives the latter two as float32, whatever it is given. float64: torch's own.
    """
    if weight is not None and bias is None:  # torch's kernel adds 0
        return aten.native_layer_norm.default(input, normalized_shape, weight, torch.zeros_like(weight), eps)
    if input.dtype is torch.float64:
        return torchs_decompositions()[aten.native_layer_norm.default](input, normalized_shape, weight, bias, eps)
    if input.dtype not in (torch.float16, torch.bfloat16) or input.device.type != "cpu":
        return NotImplemented
    wide = [None if tensor is None else tensor.to(torch.float32) for tensor in (input, weight, bias)]
    results = aten.native_layer_norm.default(wide[0], normalized_shape, wide[1], wide[2], eps)
    return tuple(result.to(input.dtype) for result in results)


@decomposed("aten._weight_norm_interface_backward.default", why="no ONNX form")
def weight_norm_backward(grad: Tensor, direction: Tensor, length: Tensor, norms: Tensor, dim: int) -> Any:
    """Gradients of direction and length; the weight is length · direction / norms, norms over all but `dim`."""
    wide = kernel_dtype(direction.dtype)
    g, v, scale, norm = (tensor.to(wide) for tensor in (grad, direction, length, norms))
    others = [d for d in range(v.dim()) if d != dim]
    along = ((g * v).sum(others, keepdim=True) if others else g * v) / norm
    grad_direction = scale / norm * (g - v * (along / norm))
    return grad_direction.to(direction.dtype), along.to(length.dtype)


@decomposed(
    "aten.native_group_norm.default",
    why="InstanceNormalization adds a long group one after the other; " + FLOAT64,
    upstream="onnxruntime",
    silent=True,
)
def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """As torch's kernel, where there is float64 or groups are large or may be; (output, mean, 1 / deviation)."""
    in_group = C * HxW // group
    if input.dtype is not torch.float64 and isinstance(in_group, int) and in_group < LARGE_GROUP:
        return NotImplemented
    x, dtype = computed(input)
    x = x.reshape(N, group, C // group, *input.shape[2:])
    variance, mean = torch.var_mean(x, list(range(2, x.dim())), correction=0, keepdim=True)
    factor = (variance + eps).rsqrt()
    output = ((x - mean) * factor).reshape(input.shape)
    of_channel = [C, *[1] * (input.dim() - 2)]
    output = output if weight is None else output * weight.reshape(of_channel)
    output = output if bias is None else output + bias.reshape(of_channel)
    return output.to(dtype), mean.reshape(N, group).to(dtype), factor.reshape(N, group).to(dtype)
