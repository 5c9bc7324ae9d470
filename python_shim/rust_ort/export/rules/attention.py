"""Scaled dot-product attention as torch's CPU kernel computes it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import kernel_dtype
from rust_ort.export.rules.registry import decomposed


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


@decomposed(
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    why="logsumexp of a wrong shape",
)
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
    wide = kernel_dtype(query.dtype)
    q = query.to(wide)
    k, v = (_heads(tensor.to(wide), query.shape[1]) for tensor in (key, value))
    scores, probabilities = _probabilities(q, k, attn_mask, is_causal, _scale(query, scale))
    output = torch.matmul(probabilities, v).to(query.dtype)
    if query.shape[-1] == value.shape[-1] and not query.is_contiguous() and query.transpose(1, 2).is_contiguous():
        output = output.transpose(1, 2).contiguous().transpose(1, 2)
    return output, torch.logsumexp(scores, -1).transpose(1, 2).contiguous().transpose(1, 2)


@decomposed(
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
    why="no ONNX form",
)
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
    wide = kernel_dtype(query.dtype)
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
