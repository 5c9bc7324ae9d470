"""Batch, group, layer and weight norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import computed, kernel_dtype
from rust_ort.export.rules.registry import decomposed, ints, op, torchs_own, translated, unread
from rust_ort.export.rules.sizes import known
from rust_ort.torch_private import may_be_recomputed, torchs_decompositions

aten = torch.ops.aten

IGNORES_TRAINING = "`training` is ignored"

torchs_own("aten.native_batch_norm.default", "aten._native_batch_norm_legit.default", why=IGNORES_TRAINING, silent=True)
STATISTICS = "the saved statistics are dropped, or float32 whatever the input is"
torchs_own("aten._native_batch_norm_legit.no_stats", why=STATISTICS)


@decomposed("aten._native_batch_norm_legit_functional.default", why=IGNORES_TRAINING, silent=True)
def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    training: bool, momentum: float, eps: float,
) -> Any:  # fmt: skip
    """(output, mean, 1 / deviation, running mean, running variance), the middle two in float32 beside parameters in
    float32, as torch's kernel has them. torch's own rounds them to half precision, which the gradient shows, and
    multiplies by a quotient of sizes, which has no ONNX form where they are symbolic. In evaluation all but the output
    is torch's own.
    """
    if not training:
        own = torchs_decompositions()[aten._native_batch_norm_legit_functional.default]
        output, *others = own(input, weight, bias, running_mean, running_var, training, momentum, eps)
        if input.device.type == "cpu":
            output = _evaluated(input, weight, bias, running_mean, running_var, eps)
        return output, *others
    # Computed once more, one node would read the running statistics, which are written meanwhile.
    if all(map(_is_float32, (input, weight, bias, running_mean, running_var))) and not may_be_recomputed():
        return NotImplemented
    number = math.prod((input.shape[0], *input.shape[2:]))
    x, dtype = computed(input)
    kept = x.dtype if running_mean.dtype != dtype else dtype
    dims = [0, *range(2, x.dim())]
    output, mean, factor, variance = _normalized(x, dims, eps)
    mean, factor, unbiased = mean.squeeze(dims), factor.squeeze(dims), variance.squeeze(dims) * number / (number - 1)
    running = [momentum * now + (1 - momentum) * before
               for now, before in ((mean, running_mean), (unbiased, running_var))]  # fmt: skip
    return _affine(output, weight, bias).to(dtype), mean.to(kept), factor.to(kept), *running


@decomposed("aten._native_batch_norm_legit_no_training.default", why=STATISTICS)
def batch_norm_in_evaluation(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """(output, nothing, nothing) on the CPU; torch's own elsewhere."""
    if input.device.type == "cpu" and all(map(_is_float32, (input, weight, bias, running_mean, running_var))):
        if not momentum:
            return NotImplemented
        # It reads no momentum. What has no elements is not this node's: ONNX Runtime would not run it.
        operator = aten._native_batch_norm_legit_no_training.default
        output, *_ = operator(input, weight, bias, running_mean, running_var, 0.0, eps)
        return output, input.new_zeros((0,)), input.new_zeros((0,))
    if input.device.type != "cpu":
        own = torchs_decompositions()[aten._native_batch_norm_legit_no_training.default]
        return own(input, weight, bias, running_mean, running_var, momentum, eps)
    output = _evaluated(input, weight, bias, running_mean, running_var, eps)
    return output, input.new_zeros((0,)), input.new_zeros((0,))


def _evaluated(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor, running_var: Tensor, eps: float
) -> Tensor:
    """As `onnx_batch_norm_in_evaluation` has it."""
    x, dtype = computed(input)
    mean, variance = running_mean.to(x.dtype), running_var.to(x.dtype)
    factor = torch.sqrt(variance + eps).reciprocal()
    factor = factor if weight is None else factor * weight.to(x.dtype)
    summand = -mean * factor if bias is None else bias.to(x.dtype) - mean * factor
    return _affine(x, factor, summand).to(dtype)


@decomposed("aten.native_batch_norm_backward.default", why="torch's own multiplies by a quotient of symbolic sizes")
def batch_norm_backward(
    grad_out: Tensor, input: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    save_mean: Tensor, save_invstd: Tensor, train: bool, eps: float, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """(grad_input, grad_weight, grad_bias): torch's own, but where the number in a channel is symbolic."""
    if train and all(map(_is_float32, (grad_out, input, weight, save_mean))):
        if running_mean is None and running_var is None:
            return NotImplemented
        # It reads no running statistics, which are written before it runs.
        return aten.native_batch_norm_backward.default(
            grad_out, input, weight, None, None, save_mean, save_invstd, train, eps, output_mask
        )
    number = math.prod((input.shape[0], *input.shape[2:]))
    if not train or isinstance(number, int):
        own = torchs_decompositions()[aten.native_batch_norm_backward.default]
        return own(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask)
    x, dtype = computed(input)
    gradient = grad_out.to(x.dtype)
    mean, factor = _of_channels(save_mean.to(x.dtype), x), _of_channels(save_invstd.to(x.dtype), x)
    dims = [0, *range(2, x.dim())]
    grad_bias, along = gradient.sum(dims), (gradient * (x - mean)).sum(dims)
    grad_input = gradient - (x - mean) * (_of_channels(along, x) / number * factor * factor)
    grad_input = (grad_input - _of_channels(grad_bias, x) / number) * factor
    grad_input = grad_input if weight is None else grad_input * _of_channels(weight.to(x.dtype), x)
    grad_weight = along * save_invstd.to(x.dtype)
    of_parameters = dtype if weight is None else weight.dtype
    made = grad_input.to(dtype), grad_weight.to(of_parameters), grad_bias.to(of_parameters)
    return tuple(one if wanted else None for one, wanted in zip(made, output_mask, strict=True))


def _is_float32(tensor: Tensor | None) -> bool:
    """With nothing else a batch norm is one node, in training both of its directions: torch traces and plans the sixty
    that they are, or ten in evaluation, for longer than all else of a convolutional network takes."""
    return tensor is None or tensor.dtype is torch.float32


@translated("aten._native_batch_norm_legit_functional.default", why=IGNORES_TRAINING, silent=True)
def onnx_batch_norm(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: float,
    eps: float,
) -> Any:  # fmt: skip
    """As `batch_norm` has it, in training and in float32."""
    if not training:
        raise ValueError("in evaluation it is decomposed")
    dims = _over(input)
    centre = _wide("ReduceMean", input, dims, keepdims=True)
    centred = _like(op.Sub(input, centre), input)
    variance = _wide("ReduceMean", _like(op.Mul(centred, centred), input), dims, keepdims=True)
    factor = op.Reciprocal(op.Sqrt(op.Add(variance, _number(eps))))
    output = op.Mul(centred, factor)
    output = output if weight is None else op.Mul(output, _each_channel(weight, input))
    output = output if bias is None else op.Add(output, _each_channel(bias, input))
    flat = [op.Squeeze(value, ints(dims)) for value in (centre, factor, variance)]
    number = _number_of(input, dims)
    unbiased = op.Div(op.Mul(flat[2], number), op.Sub(number, _number(1.0)))
    running = [
        op.Add(op.Mul(_number(momentum), now), op.Mul(_number(1 - momentum), before))
        for now, before in ((flat[0], running_mean), (unbiased, running_var))
    ]
    return output, flat[0], flat[1], *running


@translated("aten._native_batch_norm_legit_no_training.default", why=STATISTICS)
def onnx_batch_norm_in_evaluation(
    input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    """A factor and a summand a channel, as torch's CPU kernel has them: one product and one sum of the whole in the
    place of four, which a convolution before it takes in where parameters are constants."""
    factor = op.Reciprocal(op.Sqrt(op.Add(running_var, _number(eps))))
    factor = factor if weight is None else op.Mul(factor, weight)
    moved = op.Mul(running_mean, factor)
    summand = op.Neg(moved) if bias is None else op.Sub(bias, moved)
    product = _like(op.Mul(input, _each_channel(factor, input)), input)
    return op.Add(product, _each_channel(summand, input)), *unread(2)


@translated("aten.native_batch_norm_backward.default", why="no ONNX form")
def onnx_batch_norm_backward(
    grad_out: Any, input: Any, weight: Any, running_mean: Any, running_var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    """torch's own decomposition, in training and in float32."""
    if not train:
        raise ValueError("in evaluation it is decomposed")
    dims = _over(input)
    share = op.Reciprocal(_number_of(input, dims))
    centred = _like(op.Sub(input, _each_channel(save_mean, input)), input)
    total = _wide("ReduceSum", grad_out, dims, keepdims=False)
    along = _wide("ReduceSum", _like(op.Mul(grad_out, centred), input), dims, keepdims=False)
    slope = op.Mul(op.Mul(along, share), op.Mul(save_invstd, save_invstd))
    made = op.Sub(grad_out, op.Mul(centred, _each_channel(slope, input)))
    made = op.Sub(made, _each_channel(op.Mul(total, share), input))
    factor = save_invstd if weight is None else op.Mul(save_invstd, weight)
    made = op.Mul(made, _each_channel(factor, input))
    results = made, op.Mul(along, save_invstd), total
    return tuple(one if wanted else unread(1)[0] for one, wanted in zip(results, output_mask, strict=True))


def _wide(reduction: str, value: Any, dims: Sequence[int], *, keepdims: bool) -> Any:
    """In float64, as torch's kernel on the CPU adds up what is in a channel."""
    from onnxscript import ir

    wide = op.Cast(value, to=ir.DataType.DOUBLE)
    return op.Cast(getattr(op, reduction)(wide, ints(list(dims)), keepdims=keepdims), to=ir.DataType.FLOAT)


def _over(input: Any) -> list[int]:
    """All dimensions but that of the channels."""
    return [0, *range(2, len(input.shape))]


def _like(value: Any, input: Any) -> Any:
    value.shape, value.dtype = input.shape, input.dtype
    return value


def _number(number: float) -> Any:
    return op.Constant(value_float=number)


def _number_of(input: Any, dims: Sequence[int]) -> Any:
    """Elements of a channel."""
    from onnxscript import ir

    sizes = [input.shape[axis] for axis in dims]
    if known(sizes):
        return _number(float(math.prod(sizes)))
    counted = op.Gather(op.Shape(input), ints(list(dims)))
    return op.Cast(op.ReduceProd(counted, keepdims=False), to=ir.DataType.FLOAT)


def _each_channel(numbers: Any, input: Any) -> Any:
    """One a channel, [C, 1, ...]."""
    return op.Reshape(numbers, ints([-1] + [1] * (len(input.shape) - 2)))


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
    why="InstanceNormalization adds a long group one after the other; " + FLOAT64 + "; beside float32 parameters half "
    "precision has a float32 mean and deviation, which torch's fake tensors do not know",
    upstream="onnxruntime",
    silent=True,
)
def group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: float
) -> Any:
    """As torch's kernel, where there is float64, groups are large or may be, or parameters are of another dtype;
    (output, mean, 1 / deviation)."""
    in_group = C * HxW // group
    parameter = bias if weight is None else weight
    statistics = input.dtype if parameter is None else parameter.dtype
    is_small = isinstance(in_group, int) and in_group < LARGE_GROUP
    if input.dtype is not torch.float64 and statistics is input.dtype and is_small:
        return NotImplemented
    x, dtype = computed(input)
    x = x.reshape(N, group, C // group, *input.shape[2:])
    output, mean, factor, _ = _normalized(x, list(range(2, x.dim())), eps)
    output = _affine(output.reshape(input.shape), weight, bias)
    return output.to(dtype), mean.reshape(N, group).to(statistics), factor.reshape(N, group).to(statistics)


def _normalized(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(output, mean, 1 / deviation, variance), all of as many dimensions."""
    variance, mean = torch.var_mean(x, dims, correction=0, keepdim=True)
    factor = (variance + eps).rsqrt()
    return (x - mean) * factor, mean, factor, variance


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * _of_channels(weight, x)
    return x if bias is None else x + _of_channels(bias, x)


def _of_channels(numbers: Tensor, x: Tensor) -> Tensor:
    """One a channel of x, [C, 1, ...]."""
    return numbers.reshape(-1, *[1] * (x.dim() - 2))
