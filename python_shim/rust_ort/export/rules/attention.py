"""Scaled dot-product attention as torch's CPU kernel computes it, and its gradient: one call of a function each."""

from __future__ import annotations

import math
from typing import Any

from rust_ort.export import attention
from rust_ort.export.rules.registry import op, translated


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
    return _call([query, key, value], query, key, is_causal, attn_mask, scale)


@translated("aten._scaled_dot_product_flash_attention_for_cpu_backward.default", why="no ONNX form")
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
    if dropout_p != 0.0:
        raise ValueError("with dropout, the gradient needs what was drawn")
    return _call([grad_out, query, key, value, out, logsumexp], query, key, is_causal, attn_mask, scale)


def _call(inputs: list[Any], query: Any, key: Any, is_causal: bool, attn_mask: Any, scale: float | None) -> Any:
    """The function of these inputs. Raises ValueError for heads that key heads cannot serve alike."""
    from onnxscript import ir, values

    heads, key_heads = query.shape[1], key.shape[1]
    if isinstance(heads, int) and isinstance(key_heads, int) and heads % key_heads != 0:
        raise ValueError(f"{heads} heads are no multiple of {key_heads} key heads")
    name = attention.name_of(is_causal=is_causal, is_masked=attn_mask is not None, is_gradient=len(inputs) > 3)
    wide = ir.DataType.DOUBLE if query.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    inputs = [*inputs, _scale(query, scale, wide)]
    if attn_mask is not None:
        inputs.append(attn_mask if attn_mask.dtype == wide else op.Cast(attn_mask, to=wide))
    opset = values.Opset(attention.DOMAIN, attention.VERSION)
    return values.Op(opset, name, attention.schema(name))(*inputs, stash_type=int(wide))


def _scale(query: Any, scale: float | None, wide: Any) -> Any:
    """As a number of rank 0."""
    from onnxscript import ir

    size = query.shape[3]
    if scale is None and not isinstance(size, int):
        known_later = op.Squeeze(op.Shape(query, start=3, end=4))
        return op.Cast(op.Reciprocal(op.Sqrt(op.Cast(known_later, to=ir.DataType.DOUBLE))), to=wide)
    return op.Constant(value=ir.tensor(1.0 / math.sqrt(size) if scale is None else scale, dtype=wide))
