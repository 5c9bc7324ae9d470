"""The decomposition table given to AOTAutograd, made so that what remains is right when torchlib translates it.

Read it from `table()`: torch's ONNX-friendly table is the base; below are the entries that differ and why.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

KEPT_WHOLE = (
    # AOTAutograd's functionalization needs to see these: with alias decomposed, `y[:, 0] = 0` fails when traced.
    "lift_fresh.default",
    "lift.default",
    "alias.default",
    "detach.default",
    # Decomposed to prims.signbit, whose fake dtype is wrong, and to prims.copy_to, which is not functional.
    "copysign.Scalar",
    "copysign.Tensor",
    "diagonal_scatter.default",
    # Where indices repeat, which element is written last is chance: left to torch's own kernel.
    "max_unpool2d.default",
    "max_unpool3d.default",
)

TORCHS_OWN = (
    # torchlib's functions for these are registered but wrong: batch norm ignores `training`, nll_loss_forward returns
    # a total_weight that scales gradients silently, batch norm in inference drops the saved statistics.
    "native_batch_norm.default",
    "native_batch_norm_backward.default",
    "batch_norm_backward.default",
    "_native_batch_norm_legit.default",
    "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit_no_training.default",
    "_batch_norm_with_update.default",
    "_batch_norm_with_update_functional.default",
    "_batch_norm_no_update.default",
    "cudnn_batch_norm.default",
    "cudnn_batch_norm_backward.default",
    "miopen_batch_norm_backward.default",
    "nll_loss_forward.default",
    "nll_loss_backward.default",
    "nll_loss2d_forward.default",
    "nll_loss2d_backward.default",
    "hardtanh_backward.default",  # torchlib gives hardtanh and relu6 a gradient on their bounds
    "logaddexp.default",  # torchlib's overflows
    "logaddexp2.default",
    "baddbmm.default",  # torchlib's lets NaN through that beta = 0 must ignore
    "isinf.default",  # torchlib's rounds float64 to float32
    "isposinf.default",
    "isneginf.default",
    "xlogy.Tensor",  # torchlib's is 0 where y is NaN
)


@functools.cache
def table(whole: frozenset[str] | None = None) -> dict[Any, Callable[..., Any]]:
    """{operator overload: decomposition}, made once a process.

    whole: `translate.whole_operators()`. None asks for them, which loads the exporter and onnxscript.
    """
    from rust_ort.export import translate

    table = _onnx_friendly(translate.whole_operators() if whole is None else whole)
    for name in KEPT_WHOLE:
        table.pop(_overload(name), None)
    for name in TORCHS_OWN:
        overload = _overload(name)
        if overload in torch._decomp.decomposition_table:
            table[overload] = torch._decomp.decomposition_table[overload]
    table[aten._scaled_dot_product_flash_attention_for_cpu.default] = attention_forward
    table[aten._scaled_dot_product_flash_attention_for_cpu_backward.default] = attention_backward
    table[aten.native_layer_norm.default] = layer_norm
    table[aten.convolution_backward.default] = convolution_backward
    table[aten.mv.default] = mv
    table[aten.sign.default] = sign
    table[aten.full_like.default] = full_like
    table[aten.zeros_like.default] = functools.partial(full_like, fill_value=0)
    table[aten.ones_like.default] = functools.partial(full_like, fill_value=1)
    return table


def _onnx_friendly(whole: frozenset[str]) -> dict[Any, Callable[..., Any]]:
    """torch.onnx's create_onnx_friendly_decomposition_table, less the composite operators, which it lists slowly and
    which come apart without it."""
    return {
        operator: decomposition
        for operator, decomposition in torch._decomp.decomposition_table.items()
        if str(operator) not in whole
    }


def _overload(name: str) -> object:
    packet, overload = name.split(".")
    return getattr(getattr(aten, packet, None), overload, None)


def _probabilities(
    query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Scores (masked) and softmax of them. A row without any allowed key is zero, as in torch's kernel."""
    scores = torch.matmul(query * scale, key.transpose(-2, -1))
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(columns <= rows, scores, -math.inf)
    if attn_mask is None:
        return scores, torch.softmax(scores, -1)
    scores = scores + attn_mask.to(scores.dtype)
    empty = attn_mask.amax(-1, keepdim=True) == -math.inf  # of the mask: smaller than the scores
    return scores, torch.where(empty, 0.0, torch.softmax(scores, -1))


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _heads(tensor: Tensor, n_heads: int) -> Tensor:
    """Keys or values of grouped-query attention, repeated for every query head."""
    groups = n_heads // tensor.shape[1]
    return tensor if groups == 1 else tensor.repeat_interleave(groups, dim=1)


def attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """(output, logsumexp) of torch's CPU attention kernel, in the ops ONNX Runtime fuses or runs fast.

    query: [batch, heads, length, size]; half precision computes in float32 as the kernel does. The output keeps
    query's memory order, which later views of the traced graph rely on.
    """
    if dropout_p != 0.0 or query.shape[1] % key.shape[1] != 0:
        return NotImplemented
    wide = torch._prims_common.get_computation_dtype(query.dtype)
    q = query.to(wide)
    k, v = (_heads(tensor.to(wide), query.shape[1]) for tensor in (key, value))
    scores, probabilities = _probabilities(q, k, attn_mask, is_causal, _scale(query, scale))
    output = torch.matmul(probabilities, v).to(query.dtype)
    if query.shape[-1] == value.shape[-1] and not query.is_contiguous() and query.transpose(1, 2).is_contiguous():
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
    return output, torch.logsumexp(scores, -1).transpose(1, 2).contiguous().transpose(1, 2)


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """(grad_query, grad_key, grad_value) of `attention_forward`.

    The probabilities are written down again exactly as in the forward, so the joint graph's common-subexpression
    elimination makes them one value and the min-cut partitioner decides whether to save or recompute it; the
    logsumexp is then dead.
    """
    if dropout_p != 0.0 or query.shape[1] % key.shape[1] != 0:
        return NotImplemented
    wide = torch._prims_common.get_computation_dtype(query.dtype)
    factor = _scale(query, scale)
    q, grad = query.to(wide), grad_out.to(wide)
    k, v = (_heads(tensor.to(wide), query.shape[1]) for tensor in (key, value))
    _, probabilities = _probabilities(q, k, attn_mask, is_causal, factor)
    grad_value = torch.matmul(probabilities.transpose(-2, -1), grad)
    grad_probabilities = torch.matmul(grad, v.transpose(-2, -1))
    inner = (grad * out.to(wide)).sum(-1, keepdim=True)
    grad_scores = probabilities * (grad_probabilities - inner)
    grad_query = torch.matmul(grad_scores, k) * factor
    grad_key = torch.matmul(grad_scores.transpose(-2, -1), q * factor)
    grads = (
        grad_query.to(query.dtype),
        _fold_heads(grad_key, key.shape[1]).to(key.dtype),
        _fold_heads(grad_value, key.shape[1]).to(value.dtype),
    )
    return tuple(grad.transpose(1, 2).contiguous().transpose(1, 2) for grad in grads)


def _fold_heads(grad: Tensor, n_heads: int) -> Tensor:
    batch, repeated, length, size = grad.shape
    if repeated == n_heads:
        return grad
    return grad.reshape(batch, n_heads, repeated // n_heads, length, size).sum(2)


def layer_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """(output, mean, 1 / deviation) in float32, rounded once, as torch's CPU kernel makes them of half precision.

    ONNX's LayerNormalization gives the latter two as float32, whatever it is given.
    """
    if input.dtype not in (torch.float16, torch.bfloat16) or input.device.type != "cpu":
        return NotImplemented
    wide = [None if tensor is None else tensor.to(torch.float32) for tensor in (input, weight, bias)]
    results = aten.native_layer_norm.default(wide[0], normalized_shape, wide[1], wide[2], eps)
    return tuple(result.to(input.dtype) for result in results)


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


def full_like(
    tensor: Tensor,
    fill_value: float | bool,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Any:
    """A constant of a static, contiguous tensor's shape: else the tensor would be sent for its shape alone."""
    static = all(isinstance(size, int) for size in tensor.shape)
    if not static or not tensor.is_contiguous() or memory_format not in (None, torch.preserve_format):
        return NotImplemented
    return aten.full(tensor.shape, fill_value, dtype=dtype or tensor.dtype, device=device or tensor.device)


def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    """A matrix-vector product as a matrix product.

    onnxruntime 1.31.1 on CPU fuses Transpose → MatMul(·, 1-D) into a FusedMatMul that gives wrong values.
    """
    return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)


def sign(tensor: Tensor) -> Any:
    """0 for NaN, where ONNX's Sign says NaN."""
    if not tensor.dtype.is_floating_point:
        return NotImplemented
    return (tensor > 0).to(tensor.dtype) - (tensor < 0).to(tensor.dtype)
