"""Scaled dot-product attention as torch's kernels compute it, and its gradient: one call of a function each.

One kernel of the CPU, three of CUDA, which torch chooses from. They differ in what they give beside the output: layouts
of logsumexp, and the random generator's state, which nobody reads where nothing is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from rust_ort.export import attention
from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, ints, op, translated, unread

aten = torch.ops.aten

LSE_ALIGNMENT = 32
"""The memory-efficient kernel makes rows of logsumexp of a multiple of so many, infinite behind the last query."""

NO_FORM = "no ONNX form"


@translated("aten._scaled_dot_product_flash_attention_for_cpu.default", why="logsumexp of a wrong shape")
def attention_forward(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """(output, logsumexp). query: [batch, heads, length, size]. With dropout it is left to eager."""
    return _call([query, key, value], is_causal, attn_mask, scale)


@translated("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", why=NO_FORM)
def attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    dropout_p: float,
    is_causal: bool,
    attn_mask: Any = None,
    scale: float | None = None,
) -> Any:
    """(grad_query, grad_key, grad_value) of `attention_forward`."""
    _drops_nothing(dropout_p)
    return _call([grad_out, query, key, value, out, logsumexp], is_causal, attn_mask, scale)


@translated("aten._scaled_dot_product_flash_attention.default", why="logsumexp is zeros", silent=True)
def flash_attention(
    query: Any,
    key: Any,
    value: Any,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> Any:
    """(output, logsumexp, two of nothing, both lengths, the generator's state and an unused tensor, an empty mask)."""
    from onnxscript import ir

    _sees_the_same(query, key, is_causal)
    made = _call([query, key, value], is_causal, None, scale, kernel="flash")
    states = _zeros([2], ir.DataType.UINT64), _zeros([], ir.DataType.UINT64)
    return *made, *unread(4), *states, _zeros([0], query.dtype)


@translated("aten._scaled_dot_product_flash_attention_backward.default", why=NO_FORM)
def flash_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    scale: float | None = None,
) -> Any:
    """(grad_query, grad_key, grad_value) of `flash_attention`."""
    _drops_nothing(dropout_p)
    _sees_the_same(query, key, is_causal)
    return _call([grad_out, query, key, value, out, logsumexp], is_causal, None, scale, kernel="flash")


@translated("aten._scaled_dot_product_cudnn_attention.default", why=NO_FORM)
def cudnn_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> Any:
    """As `flash_attention`; logsumexp has a dimension of 1 at its end."""
    from onnxscript import ir

    _sees_the_same(query, key, is_causal)
    output, logsumexp = _call([query, key, value], is_causal, attn_bias, scale, kernel="cudnn")
    states = _zeros([], ir.DataType.INT64), _zeros([], ir.DataType.INT64)
    return output, op.Unsqueeze(logsumexp, ints([3])), *unread(4), *states, *unread(1)


@translated("aten._scaled_dot_product_cudnn_attention_backward.default", why=NO_FORM)
def cudnn_attention_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    attn_bias: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None = None,
) -> Any:
    """(grad_query, grad_key, grad_value) of `cudnn_attention`."""
    _drops_nothing(dropout_p)
    _sees_the_same(query, key, is_causal)
    rows = op.Squeeze(logsumexp, ints([3]))
    return _call([grad_out, query, key, value, out, rows], is_causal, attn_bias, scale, kernel="cudnn")


@translated("aten._scaled_dot_product_efficient_attention.default", why="logsumexp is zeros", silent=True)
def efficient_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """(output, logsumexp, the generator's seed and offset). Rows of logsumexp are padded; none has anything where it is
    not asked for."""
    from onnxscript import ir

    output, logsumexp = _call([query, key, value], is_causal, attn_bias, scale, kernel="efficient")
    states = _zeros([], ir.DataType.INT64), _zeros([], ir.DataType.INT64)
    if not compute_log_sumexp:
        return output, op.Slice(logsumexp, ints([0]), ints([0]), ints([2])), *states
    length = query.shape[2]
    if isinstance(length, int):
        missing = ints([-length % LSE_ALIGNMENT])
    else:
        missing = op.Mod(op.Neg(op.Shape(query, start=2, end=3)), ints([LSE_ALIGNMENT]))
    pads = op.Concat(ints([0, 0, 0, 0, 0]), missing, axis=0)
    return output, op.Pad(logsumexp, pads, op.Constant(value=ir.tensor(math.inf, dtype=logsumexp.dtype))), *states


@decomposed("aten._scaled_dot_product_efficient_attention_backward.default", why=NO_FORM)
def efficient_attention_bias(
    grad_out_: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    logsumexp: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """The bias's gradient, where it is wanted, is that of the scores, which the function does not give."""
    if attn_bias is None or not grad_input_mask[3] or dropout_p != 0.0:
        return NotImplemented
    *gradients, _ = aten._scaled_dot_product_efficient_attention_backward.default(
        grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p,
        [True, True, True, False], is_causal, scale=scale,
    )  # fmt: skip
    grad, q, k, v, bias, output = map(widened, (grad_out_, query, key, value, attn_bias, out))
    length, keys = query.shape[2], key.shape[2]
    scores = q * (1 / math.sqrt(query.shape[3]) if scale is None else scale) @ k.mT + bias
    if is_causal:
        rows, columns = (torch.arange(n, device=query.device) for n in (length, keys))
        scores = scores.masked_fill(columns > rows[:, None], -math.inf)
    probabilities = (scores - logsumexp[..., :length, None]).exp()
    grad_scores = probabilities * (grad @ v.mT - (grad * output).sum(-1, keepdim=True))
    return *gradients, grad_scores.to(attn_bias.dtype)


@translated("aten._scaled_dot_product_efficient_attention_backward.default", why=NO_FORM)
def efficient_attention_backward(
    grad_out_: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    out: Any,
    logsumexp: Any,
    philox_seed: Any,
    philox_offset: Any,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """(grad_query, grad_key, grad_value, nothing) of `efficient_attention`."""
    _drops_nothing(dropout_p)
    length = query.shape[2]
    if length != logsumexp.shape[2]:
        end = ints([length]) if isinstance(length, int) else op.Shape(query, start=2, end=3)
        logsumexp = op.Slice(logsumexp, ints([0]), end, ints([2]))
    inputs = [grad_out_, query, key, value, out, logsumexp]
    gradients = _call(inputs, is_causal, attn_bias, scale, kernel="efficient")
    return *gradients, *unread(1)


def _drops_nothing(dropout_p: float) -> None:
    if dropout_p != 0.0:
        raise ValueError("with dropout, the gradient needs what was drawn")


def _sees_the_same(query: Any, key: Any, is_causal: bool) -> None:
    """Raises ValueError where the kernel has the last query see all keys, and the function the first query the first
    key alone."""
    if is_causal and query.shape[2] != key.shape[2]:
        raise ValueError(f"causal attention of {query.shape[2]} queries to {key.shape[2]} keys sees others here")


def _zeros(shape: list[int], dtype: Any) -> Any:
    from onnxscript import ir

    return op.Constant(value=ir.tensor(numpy.zeros(shape, dtype.numpy())))


def _call(inputs: list[Any], is_causal: bool, attn_mask: Any, scale: float | None, *, kernel: str = "") -> Any:
    """The function of these inputs. kernel: its attribute. Raises ValueError for heads that key heads cannot serve
    alike, and values of another size than keys."""
    from onnxscript import ir, values

    is_gradient = len(inputs) > 3
    query, key, value = inputs[1:4] if is_gradient else inputs
    heads, key_heads, size = query.shape[1], key.shape[1], query.shape[3]
    if isinstance(heads, int) and isinstance(key_heads, int) and heads % key_heads != 0:
        raise ValueError(f"{heads} heads are no multiple of {key_heads} key heads")
    if value.shape[3] != size:
        raise ValueError(f"heads of values have size {value.shape[3]}, those of queries {size}")
    name = attention.name_of(is_causal=is_causal, is_masked=attn_mask is not None, is_gradient=is_gradient)
    wide = ir.DataType.DOUBLE if query.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    inputs = [*inputs, _scale(query, scale, wide)]
    if attn_mask is not None:
        inputs.append(attn_mask if attn_mask.dtype == wide else op.Cast(attn_mask, to=wide))
    opset = values.Opset(attention.DOMAIN, attention.VERSION)
    attributes = {"stash_type": int(wide)} | ({"kernel": kernel} if kernel else {})
    return values.Op(opset, name, attention.schema(name))(*inputs, **attributes)


def _scale(query: Any, scale: float | None, wide: Any) -> Any:
    """As a number of rank 0."""
    from onnxscript import ir

    size = query.shape[3]
    if scale is None and not isinstance(size, int):
        known_later = op.Squeeze(op.Shape(query, start=3, end=4))
        return op.Cast(op.Reciprocal(op.Sqrt(op.Cast(known_later, to=ir.DataType.DOUBLE))), to=wide)
    return op.Constant(value=ir.tensor(1.0 / math.sqrt(size) if scale is None else scale, dtype=wide))
