"""Convolutions and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed

aten = torch.ops.aten


@decomposed("aten.convolution_backward.default", why="no ONNX form")
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> Any:
    """Gradients of a plain convolution as convolutions. Grouped, transposed or of symbolic spatial size: left whole.

    grad_input is the transposed convolution of grad_output; grad_weight the convolution of input with grad_output,
    batch and channel swapped, stride and dilation swapped, cut to the kernel's size.
    """
    spatial = len(stride)
    sizes = [*input.shape[2:], *grad_output.shape[2:], *weight.shape[2:]]
    if transposed or groups != 1 or input.dim() != spatial + 2 or not all(isinstance(size, int) for size in sizes):
        return NotImplemented
    if any(isinstance(size, int) and size == 0 for size in (*input.shape, *grad_output.shape)):
        return NotImplemented
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        missing = [
            input.shape[2 + d]
            - (
                (grad_output.shape[2 + d] - 1) * stride[d]
                - 2 * padding[d]
                + dilation[d] * (weight.shape[2 + d] - 1)
                + 1
            )
            for d in range(spatial)
        ]
        grad_input = aten.convolution(grad_output, weight, None, stride, padding, dilation, True, missing, 1)
    if output_mask[1]:
        zeros = [0] * spatial
        swapped = aten.convolution(
            input.transpose(0, 1), grad_output.transpose(0, 1), None, dilation, padding, stride, False, zeros, 1
        )
        for d in range(spatial):
            swapped = swapped.narrow(2 + d, 0, weight.shape[2 + d])
        grad_weight = swapped.transpose(0, 1)
    if output_mask[2]:
        grad_bias = grad_output.sum([0, *range(2, 2 + spatial)])
    return grad_input, grad_weight, grad_bias
