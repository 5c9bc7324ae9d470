"""Convolutions and their gradients, of 1 to 3 spatial dimensions, grouped or not, transposed or not."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import kernel_dtype
from rust_ort.export.rules.registry import decomposed, ints, op, translated, unread
from rust_ort.export.rules.sizes import each, known

aten = torch.ops.aten

MOST_PRODUCTS = 64
"""Kernels of up to so many elements: their gradient is one matrix product, which is faster than a convolution."""

OF_WEIGHT = [False, True, False]
"""Results that are wanted of a backward, where only the weight's gradient is."""


@decomposed(
    "aten.convolution.default",
    why="no float64 kernel, no empty batch; ConvTranspose refuses an output_padding >= stride, or one for all",
    upstream="onnxruntime",
)
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """In float64, and what else ONNX Runtime refuses, as a matrix product; zeros where there is nothing to add up."""
    spatial = weight.dim() - 2
    given = [*stride, *padding, *dilation, *output_padding, groups]
    stride, padding, dilation, outer = (
        _numbers(sizes, spatial) for sizes in (stride, padding, dilation, output_padding)
    )
    groups = int(groups)
    if _is_empty(input):
        return input.new_zeros(_output_shape(input, weight, stride, padding, dilation, transposed, outer, groups))
    wide = input.dtype is torch.float64
    refused = transposed and any(size >= step for size, step in zip(outer, stride, strict=True))
    if not wide and not refused:
        if known(given) and (not transposed or len(output_padding) == spatial):
            return NotImplemented
        return aten.convolution(input, weight, bias, stride, padding, dilation, transposed, outer, groups)
    dtype = kernel_dtype(input.dtype)
    if transposed:
        whole = _transposed_product(input.to(dtype), weight.to(dtype), stride, dilation, groups)
        output = _padded(whole, [(-p, o - p) for p, o in zip(padding, outer, strict=True)])
    else:
        output = _product(_padded(input, [(p, p) for p in padding]), weight, stride, dilation, groups)
    output = output if bias is None else output + bias.to(dtype).reshape(-1, *[1] * spatial)
    return output.to(input.dtype)


@decomposed("aten.convolution_backward.default", why="no ONNX form")
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """(grad_input, grad_weight, grad_bias) as convolutions; None where output_mask is False.

    grad_input is the other convolution, plain or transposed, of grad_output. For grad_weight the transposed
    convolution changes places: what it spreads its input over is what a plain one reads.
    """
    spatial = weight.dim() - 2
    read, produced = (grad_output, input) if transposed else (input, grad_output)
    weight_stays = _stays_whole(read, produced, weight)
    if weight_stays and list(output_mask) == OF_WEIGHT:
        return NotImplemented
    grad_bias = _grad_bias(grad_output) if output_mask[2] else None
    if _is_empty(input) or _is_empty(grad_output):
        zeros = [input.new_zeros(tensor.shape) if wanted else None
                 for tensor, wanted in zip((input, weight), output_mask, strict=False)]  # fmt: skip
        return *zeros, grad_bias
    stride, padding, dilation, outer = (
        _numbers(sizes, spatial) for sizes in (stride, padding, dilation, output_padding)
    )
    groups = int(groups)
    grad_input = grad_weight = None
    if output_mask[0] and transposed:
        grad_input = aten.convolution(
            grad_output, weight, None, stride, padding, dilation, False, [0] * spatial, groups
        )
        grad_input = _cut(grad_input, input.shape[2:])
    elif output_mask[0]:
        grad_input = _grad_input(grad_output, input, weight, stride, padding, dilation, groups)
    if output_mask[1] and weight_stays:
        grad_weight = aten.convolution_backward(
            grad_output, input, weight, None, stride, padding, dilation, transposed, outer, groups, OF_WEIGHT
        )[1]
    elif output_mask[1]:
        grad_weight = _grad_weight(read, produced, weight, stride, padding, dilation, groups)
    return grad_input, grad_weight, grad_bias


def _stays_whole(read: Tensor, produced: Tensor, weight: Tensor) -> bool:
    """Whether the weight's gradient is one node, which torch traces and plans faster than the twenty that it is, above
    all with sizes that are symbols."""
    is_known = known(weight.shape) and not _is_empty(read) and not _is_empty(produced)
    return is_known and math.prod(weight.shape[2:]) <= MOST_PRODUCTS


@translated("aten.convolution_backward.default", why="no ONNX form")
def convolution_backward_weight(
    grad_output: Any,
    input: Any,
    weight: Any,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """(nothing, grad_weight, nothing), as `_grad_weight` has it, by sizes that may be known at run time alone."""
    from onnxscript import ir

    if list(output_mask) != OF_WEIGHT:
        raise ValueError(f"of its results {list(output_mask)}, and only the weight's gradient has an ONNX form")
    read, produced = (grad_output, input) if transposed else (input, grad_output)
    sizes = list(produced.shape)
    is_half = weight.dtype.bitwidth == 16
    if is_half:
        read, produced = (op.Cast(value, to=ir.DataType.FLOAT) for value in (read, produced))
    kernel = list(weight.shape[2:])
    spatial = len(kernel)
    swapped = [1, 0, *range(2, 2 + spatial)]
    # Of float64 ONNX Runtime has products alone.
    is_float = weight.dtype != ir.DataType.DOUBLE
    if is_float and groups > 1 and weight.shape[0] == groups and weight.shape[1] == 1 and spatial < 3:
        made = _of_channels(read, produced, weight, stride, padding, dilation, swapped)
        return *unread(1), op.Cast(made, to=weight.dtype) if is_half else made, *unread(1)
    patches = op.Transpose(read, perm=swapped)
    if any(padding):
        patches = op.Pad(patches, ints([0, 0, *padding] * 2))
    patches = op.Unsqueeze(patches, ints([1]))
    for axis in reversed(range(spatial)):
        d, s = dilation[axis], stride[axis]
        if kernel[axis] == 1 and s == 1:
            continue
        size = sizes[2 + axis]
        if isinstance(size, int):
            ends = [ints([(size - 1) * s + 1 + k * d]) for k in range(kernel[axis])]
        else:
            counted = op.Shape(produced, start=2 + axis, end=3 + axis)
            reach = op.Add(op.Mul(op.Sub(counted, ints([1])), ints([s])), ints([1]))
            ends = [op.Add(reach, ints([k * d])) for k in range(kernel[axis])]
        places = [op.Slice(patches, ints([k * d]), end, ints([3 + axis]), ints([s])) for k, end in enumerate(ends)]
        patches = op.Concat(*places, axis=1) if len(places) > 1 else places[0]
    outer, inner = weight.shape[0] // groups, math.prod(weight.shape[1:])
    patches = op.Reshape(patches, ints([groups, inner, -1]))
    gradient = op.Reshape(op.Transpose(produced, perm=swapped), ints([groups, outer, -1]))
    product = op.MatMul(patches, op.Transpose(gradient, perm=[0, 2, 1]))
    made = op.Reshape(op.Transpose(product, perm=[0, 2, 1]), ints(list(weight.shape)))
    made = op.Cast(made, to=weight.dtype) if is_half else made
    return *unread(1), made, *unread(1)


def _of_channels(
    read: Any, produced: Any, weight: Any, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    swapped: Sequence[int],
) -> Any:  # fmt: skip
    """The gradient of kernels of one channel each, as the convolution of each channel that it is: by a kernel that is
    the gradient of what it produced, the batch as its channels, stride and dilation swapped."""
    groups, _, *kernel = weight.shape
    spatial = len(kernel)
    channels = op.Reshape(op.Transpose(read, perm=swapped), ints([1, -1, *[0] * spatial]))
    of_produced = op.Transpose(produced, perm=swapped)
    whole = op.Conv(channels, of_produced, group=groups, strides=[*dilation], dilations=[*stride], pads=[*padding] * 2)
    # Of what the last window left of the input there may be more.
    axes = [*range(2, 2 + spatial)]
    return op.Reshape(op.Slice(whole, ints([0] * spatial), ints(kernel), ints(axes)), ints([*weight.shape]))


def _numbers(sizes: Sequence[int], spatial: int) -> list[int]:
    """One a dimension. What is a symbol is guarded to be the number it is, which ONNX's attribute has to be, and as
    inductor does: what is computed with symbols of windows takes torch minutes to reason about."""
    return [int(size) for size in each(sizes, spatial)]


def _grad_bias(grad_output: Tensor) -> Tensor:
    """One axis after the other: ONNX Runtime adds up in a row, and few numbers at a time lose less."""
    wide = grad_output.to(kernel_dtype(grad_output.dtype))
    for axis in reversed(range(2, grad_output.dim())):
        wide = wide.sum(axis)
    return wide.sum(0).to(grad_output.dtype)


def _grad_input(
    grad_output: Tensor, input: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> Tensor:  # fmt: skip
    """Of a plain convolution. What the last window left of the input is padded, by zeros where its size is symbolic."""
    spatial = len(stride)
    sizes = zip(input.shape[2:], grad_output.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    missing = [n + 2 * p - d * (k - 1) - 1 - (m - 1) * s for n, m, k, s, p, d in sizes]
    none = [0] * spatial
    if all(isinstance(size, int) for size in missing):
        exact: Tensor = aten.convolution(grad_output, weight, None, stride, padding, dilation, True, missing, groups)
        return exact
    whole: Tensor = aten.convolution(grad_output, weight, None, stride, none, dilation, True, none, groups)
    return _padded(whole, [(-p, size - p) for p, size in zip(padding, missing, strict=True)])


def _grad_weight(
    read: Tensor, produced: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int],
    groups: int,
) -> Tensor:  # fmt: skip
    """Of the convolution that reads `read` and produces `produced`, from the one's value and the other's gradient."""
    kernel, n_batch = weight.shape[2:], read.shape[0]
    if math.prod(kernel) > MOST_PRODUCTS and read.dtype is not torch.float64:
        # A convolution of one group's channels as a batch, the batch as its channels, stride and dilation swapped.
        folded = read.reshape(n_batch, groups, -1, *read.shape[2:]).permute(2, 1, 0, *range(3, 3 + len(kernel)))
        folded = folded.reshape(-1, groups * n_batch, *read.shape[2:])
        swapped = aten.convolution(
            folded, produced.transpose(0, 1), None, dilation, padding, stride, False, [0] * len(kernel), groups
        )
        return _cut(swapped, kernel).transpose(0, 1)
    dtype = kernel_dtype(weight.dtype)
    margins = [(p, p) for p in padding]
    read = _padded(read.to(dtype).transpose(0, 1), margins)
    patches = _patches(read, kernel, stride, dilation, produced.shape[2:], dim=1)
    number = n_batch * math.prod(produced.shape[2:])
    # With sizes that are named where they are numbers: torch reasons long about one that it has to find.
    patches = patches.reshape(groups, math.prod(weight.shape[1:]), number)
    gradient = produced.to(dtype).transpose(0, 1).reshape(groups, weight.shape[0] // groups, number)
    product = torch.bmm(patches, gradient.transpose(1, 2))  # this way round the patches, the larger, stay as they are
    return product.transpose(1, 2).reshape(weight.shape).to(weight.dtype)


def _product(input: Tensor, weight: Tensor, stride: list[int], dilation: list[int], groups: int) -> Tensor:
    """A plain convolution without padding as a matrix product."""
    kernel, n_batch = weight.shape[2:], input.shape[0]
    sizes = zip(input.shape[2:], kernel, stride, dilation, strict=True)
    shape = [(n - d * (k - 1) - 1) // s + 1 for n, k, s, d in sizes]
    patches = _patches(input, kernel, stride, dilation, shape, dim=2)
    patches = patches.reshape(n_batch, groups, math.prod(weight.shape[1:]), math.prod(shape))
    output = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, -1), patches)
    return output.reshape(n_batch, weight.shape[0], *shape)


def _patches(
    input: Tensor, kernel: Sequence[int], stride: list[int], dilation: list[int], shape: Sequence[int], *, dim: int
) -> Tensor:
    """What each element of the kernel meets, [*shape] each; the kernel's elements, in a row, come to stand at `dim`."""
    input = input.unsqueeze(dim)
    for axis in reversed(range(len(kernel))):
        d, s, at = dilation[axis], stride[axis], input.dim() - len(kernel) + axis
        if kernel[axis] == 1 and s == 1:
            continue
        reach = (shape[axis] - 1) * s + 1
        slices = [aten.slice(input, at, k * d, k * d + reach, s) for k in range(kernel[axis])]
        input = torch.cat(slices, dim) if len(slices) > 1 else slices[0]
    return input


def _transposed_product(input: Tensor, weight: Tensor, stride: list[int], dilation: list[int], groups: int) -> Tensor:
    """A transposed convolution without padding: each element's product with the kernel, added up where they overlap.

    A plain convolution of the input with zeros between its elements would be the same but where the kernel is
    infinite: nothing times infinity is NaN, also where no element of the input reaches.
    """
    kernel, sizes, n_batch = weight.shape[2:], input.shape[2:], input.shape[0]
    elements = input.reshape(n_batch, groups, -1, math.prod(sizes))
    products = torch.matmul(weight.reshape(groups, weight.shape[0] // groups, -1).transpose(1, 2), elements)
    products = products.reshape(n_batch, -1, *kernel, *sizes)
    spatial = len(kernel)
    for n_kernel, step, d in zip(kernel, stride, dilation, strict=True):
        after = [0, 0] * (products.dim() - 3 - spatial)
        shifted = (
            torch.constant_pad_nd(
                _spread(products.select(2, k), 1 + spatial, step), [*after, k * d, (n_kernel - 1 - k) * d]
            )
            for k in range(n_kernel)
        )
        products = functools.reduce(torch.add, shifted)
    return products


def _spread(tensor: Tensor, axis: int, step: int) -> Tensor:
    """With step - 1 zeros between the elements along the axis."""
    if step == 1:
        return tensor
    size = tensor.shape[axis]
    between = aten.constant_pad_nd(tensor.unsqueeze(axis + 1), [0, 0] * (tensor.dim() - axis - 1) + [0, step - 1])
    spread: Tensor = between.reshape(*tensor.shape[:axis], size * step, *tensor.shape[axis + 1 :])
    return spread.narrow(axis, 0, (size - 1) * step + 1)


def _padded(tensor: Tensor, margins: Sequence[tuple[int, int]]) -> Tensor:
    if not any(isinstance(size, torch.SymInt) or size for margin in margins for size in margin):
        return tensor
    return torch.constant_pad_nd(tensor, [size for margin in reversed(margins) for size in margin])


def _cut(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The first elements along each spatial dimension."""
    for axis, size in enumerate(shape, 2):
        tensor = tensor.narrow(axis, 0, size)
    return tensor


def _output_shape(
    input: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], transposed: bool,
    output_padding: list[int], groups: int,
) -> list[int]:  # fmt: skip
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if isinstance(input.shape[1], int) and input.shape[1] == 0:
        channels = 0  # as torch has it
    sizes = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding, strict=True)
    if transposed:
        return [input.shape[0], channels, *((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in sizes)]
    return [input.shape[0], channels, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes)]


def _is_empty(tensor: Tensor) -> bool:
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)
