"""Distances between points."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed
from rust_ort.export.rules.sizes import known
from rust_ort.export.rules.taps import constant

NO_FORM = "no ONNX form"
MOST_DIFFERENCES = 2**24
"""Of all coordinates: ONNX Runtime would hold them all."""


@decomposed("aten._cdist_forward.default", why=NO_FORM)
def cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Any:
    """From the differences of every point of the one set and every point of the other."""
    if not _has_form(p, x1.numel() * x2.shape[-2], x1, x2):
        return NotImplemented
    return _norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


@decomposed("aten._cdist_backward.default", why=NO_FORM)
def cdist_backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Any:
    """0 where points are the same."""
    if not _has_form(p, x1.numel() * x2.shape[-2], x1, x2):
        return NotImplemented
    return _shares(grad, x1.unsqueeze(-2) - x2.unsqueeze(-3), p, cdist).sum(-2)


@decomposed("aten._pdist_forward.default", why=NO_FORM)
def pdist(self: Tensor, p: float = 2) -> Any:
    """From the differences of every row and those behind it."""
    if self.shape[0] == 1 or not _has_form(p, self.numel() * self.shape[0], self):
        return NotImplemented
    first, second = _pairs(self)
    return _norm(self.index_select(0, first) - self.index_select(0, second), p)


@decomposed("aten._pdist_backward.default", why=NO_FORM)
def pdist_backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Any:
    """0 where rows are the same."""
    if self.shape[0] == 1 or not _has_form(p, self.numel() * self.shape[0], self):
        return NotImplemented
    first, second = _pairs(self)
    shares = _shares(grad, self.index_select(0, first) - self.index_select(0, second), p, pdist)
    return torch.zeros_like(self).index_add(0, first, shares).index_add(0, second, -shares)


def _has_form(p: float, n_differences: int, *points: Tensor) -> bool:
    """Whether the norm is one of three, and the differences are known to be neither none nor too many."""
    sizes = [size for tensor in points for size in tensor.shape]
    return p in (1, 2, math.inf) and known(sizes) and 0 < n_differences <= MOST_DIFFERENCES


def _pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    n = rows.shape[0]
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    first, second = (constant(list(side), torch.int64, rows.device) for side in zip(*pairs, strict=True))
    return first, second


def _norm(differences: Tensor, p: float) -> Tensor:
    if p == 2:
        return torch.sqrt((differences * differences).sum(-1))
    return differences.abs().sum(-1) if p == 1 else differences.abs().amax(-1)


def _shares(grad: Tensor, differences: Tensor, p: float, distance: Tensor) -> Tensor:
    """Gradients of the differences."""
    grad, distance = grad.unsqueeze(-1), distance.unsqueeze(-1)
    if p == 2:
        slope = torch.where(distance == 0, 0, differences / torch.where(distance == 0, 1, distance))
    elif p == 1:
        slope = torch.sign(differences)
    else:
        slope = torch.where(differences.abs() == distance, torch.sign(differences), 0)
        # As torch's kernel, which subtracts an infinite distance from the difference that it is.
        slope = torch.where(differences.abs() == math.inf, math.nan, slope)
    return grad * slope
