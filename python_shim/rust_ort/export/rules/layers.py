"""Layers that torch.nn runs as one fused operator where nothing needs a gradient, as the sequence that they compute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import is_half, widened
from rust_ort.export.rules.registry import decomposed, ints, op, translated

aten = torch.ops.aten

FUSED = "a whole layer is one operator, which torchlib has no form for"

PER_KEY = 1
"""Type of a mask of [batch, length]; others, of [length, length] and of the scores' shape, broadcast as they are."""

LSTM = 2
"""The mode of a recurrent layer that is one, the only one of the CPU's fused kernel."""


@decomposed("aten._transform_bias_rescale_qkv.default", why="no ONNX form")
def transform_bias_rescale_qkv(qkv: Tensor, qkv_bias: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, which are scaled, keys and values, each [batch, heads, length, size]. The scaling is of the sum before
    it is rounded to half precision."""
    size = qkv.shape[-1] // 3 // num_heads
    summed = widened(qkv) + widened(qkv_bias)
    query, key, value = (
        part.unflatten(-1, (num_heads, size)).transpose(1, 2).contiguous() for part in summed.chunk(3, -1)
    )
    return (query * (1 / math.sqrt(size))).to(qkv.dtype), key.to(qkv.dtype), value.to(qkv.dtype)


@decomposed("aten._masked_softmax.default", why="no ONNX form")
def masked_softmax(self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None) -> Any:
    """Softmax of what is not masked; NaN where all is. In half precision the CPU's kernel rounds after each step."""
    axis = self.dim() - 1 if dim is None else dim
    if mask_type == PER_KEY:
        mask = mask[:, None, None, :]
    scores = self.masked_fill(mask, -math.inf)
    if not is_half(self) or self.is_cuda:
        return aten._softmax(scores, axis, False)
    weights = (scores - scores.amax(axis, keepdim=True)).exp()
    return weights * widened(weights).sum(axis, keepdim=True).reciprocal().to(self.dtype)


@decomposed("aten._native_multi_head_attention.default", why=FUSED)
def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """(output, weights), the latter None where nobody needs them. query, key, value: [batch, length, embed_dim]."""
    if any(tensor.is_nested for tensor in (query, key, value)):
        return NotImplemented
    if query is key and key is value:
        projected = query @ qkv_weight.mT
    else:
        weights = qkv_weight.chunk(3)
        projected = torch.cat([x @ w.mT for x, w in zip((query, key, value), weights, strict=True)], -1)
    q, k, v = aten._transform_bias_rescale_qkv(projected, qkv_bias, num_head)
    scores = q @ k.mT
    if mask is None:
        probabilities = aten._softmax(scores, -1, False)
    else:
        probabilities = aten._masked_softmax(scores, mask.bool(), 3, mask_type)
    output = aten.linear((probabilities @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if not need_weights:
        return output, None
    return output, probabilities.sum(1) / num_head if average_attn_weights else probabilities


@decomposed("aten._transformer_encoder_layer_fwd.default", why=FUSED)
def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Attention and two linear layers, each with a sum and a layer norm behind it, or the norm before it."""
    if src.is_nested:
        return NotImplemented

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return aten.layer_norm(x, [embed_dim], weight, bias, eps)

    def attention(x: Tensor) -> Any:
        return aten._native_multi_head_attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def feed_forward(x: Tensor) -> Any:
        hidden = aten._addmm_activation(ffn_bias_1, x.flatten(0, 1), ffn_weight_1.mT, use_gelu=use_gelu)
        return aten.addmm(ffn_bias_2, hidden, ffn_weight_2.mT).view_as(x)

    if norm_first:
        x = src + attention(norm(src, norm_weight_1, norm_bias_1))
        return x + feed_forward(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attention(src), norm_weight_1, norm_bias_1)
    return norm(x + feed_forward(x), norm_weight_2, norm_bias_2)


@translated("aten.mkldnn_rnn_layer.default", why="no ONNX form")
def lstm_layer(
    input: Any,
    weight0: Any,
    weight1: Any,
    weight2: Any,
    weight3: Any,
    hx_: Any,
    cx_: Any,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """(output, last hidden state, last cell, a workspace that nobody reads). input: [length, batch, features]. Raises
    ValueError where it is not one LSTM in one direction, as torch calls it."""
    if mode != LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes or train:
        raise ValueError("a fused recurrent layer that is not one LSTM in one direction")
    biases = op.Concat(_gates(weight2), _gates(weight3), axis=0) if has_biases else None
    output, hidden, cell = op.LSTM(
        input,
        *(op.Unsqueeze(_gates(weight), ints([0])) for weight in (weight0, weight1)),
        None if biases is None else op.Unsqueeze(biases, ints([0])),
        None,
        hx_,
        cx_,
        direction="reverse" if reverse else "forward",
        hidden_size=hidden_size,
    )
    return op.Squeeze(output, ints([1])), hidden, cell, op.Constant(value_int=0)


def _gates(weight: Any) -> Any:
    """Input, forget, cell, output as ONNX orders them: input, output, forget, cell."""
    entry, forget, cell, output = op.Split(weight, num_outputs=4)
    return op.Concat(entry, output, forget, cell, axis=0)
