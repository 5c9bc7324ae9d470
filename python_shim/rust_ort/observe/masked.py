"""Scores under a huge mask, such as -1e9: float32 has no room for a score beside it, float64 has.

Where a row is masked whole, eager's attention is that of equal scores, and its gradient of probabilities that add up to
as many as there are keys; float64 of the same operators finds the scores again. Measured by that eager is off by more
than any fault, which explained a head of zeros. So what a mask swamps in eager is swamped in float64, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

SWAMPED = 2.0**23
"""From here on float32 has no fractions."""

FORWARD = aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def swamped(scores: Tensor) -> Tensor:
    """Masked scores, or their logsumexp, float64: those that are huge as float32 has them."""
    return torch.where(scores.abs() >= SWAMPED, scores.float().double(), scores)


def lost_beside(wide: Tensor, made: Tensor, terms: Sequence[Any]) -> Tensor:
    """`wide`, the float64 of a sum of two of which eager made `made`, where that is one of the two and huge: without
    the other."""
    if made.dtype is not torch.float32 or not made.numel() or not bool((made.abs() >= SWAMPED).any()):
        return wide
    for term in terms:
        if isinstance(term, Tensor) and term.dtype is torch.float64:
            wide = torch.where((made.abs() >= SWAMPED) & (term.float() == made), term, wide)
    return wide


def attention(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the CPU's attention, or its gradient, gives of arguments in float64 under a mask that swamps scores; None of
    other operators and masks, with dropout, and of grouped heads."""
    mask = kwargs.get("attn_mask")
    if target not in (FORWARD, BACKWARD) or not isinstance(mask, Tensor) or not mask.is_floating_point():
        return None
    if not bool((mask.isfinite() & (mask.abs() >= SWAMPED)).any()):
        return None
    n_tensors = 3 if target is FORWARD else 6
    tensors, others = args[:n_tensors], args[n_tensors:]
    query, key = tensors[n_tensors // 6 :][:2]  # behind the gradient, where there is one
    if any(others) or query.shape[1] != key.shape[1] or not query.numel() or not key.numel():
        return None
    scale = query.shape[-1] ** -0.5 if kwargs.get("scale") is None else kwargs["scale"]
    of_heads = mask.expand(*query.shape[:2], *mask.shape[-2:]).flatten(0, 1)
    one = _forward if target is FORWARD else _backward
    # One head after the other: the kernel itself never has all scores.
    heads = zip(*(tensor.flatten(0, 1) for tensor in tensors), of_heads, strict=True)
    results = [one(*head, scale=scale) for head in heads]
    return tuple(torch.stack(each).unflatten(0, query.shape[:2]) for each in zip(*results, strict=True))


def _forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float) -> tuple[Tensor, Tensor]:
    scores = swamped(query @ key.mT * scale + mask)
    return scores.softmax(-1) @ value, swamped(scores.logsumexp(-1))


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, mask: Tensor, *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    probabilities = (swamped(query @ key.mT * scale + mask) - logsumexp.unsqueeze(-1)).exp()
    of_scores = probabilities * (grad @ value.mT - (grad * out).sum(-1, keepdim=True)) * scale
    return of_scores @ key, of_scores.mT @ query, probabilities.mT @ grad
