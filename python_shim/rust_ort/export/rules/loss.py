"""Losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, in_eager, torchs_own, whole
from rust_ort.export.rules.summation import LONG_ROWS
from rust_ort.export.shapes import expression, has_no_elements

aten = torch.ops.aten
MEAN = 1
"""ATen's number of the reduction."""

torchs_own(
    "aten.nll_loss_forward.default",
    why="a wrong `total_weight`, by which gradients are scaled",
    silent=True,
)

torchs_own("aten.mse_loss.default", why=LONG_ROWS.format("ReduceMean"), upstream="onnxruntime", silent=True)


def nll_loss_backward(
    grad_output: Tensor,
    self: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Any:
    """What each target's class gets, at its place among zeros."""
    axis = 0 if self.dim() < 2 else 1
    if self.dim() == 1 and target.dim() > 0:
        return NotImplemented
    target = target.unsqueeze(axis)
    ignored = target == ignore_index
    target = torch.where(ignored, 0, target)
    given = -(grad_output / total_weight if reduction == MEAN else grad_output)
    given = given.unsqueeze(axis) if given.dim() > 0 and self.dim() > given.dim() else given
    if weight is not None:
        given = given * aten.index_select(weight, 0, target.reshape(-1)).reshape(target.shape)
    given = torch.where(ignored, 0, given)
    return aten.scatter.src(torch.zeros_like(self), axis, target, given.to(self.dtype))


for _name in ("nll_loss_backward", "nll_loss2d_backward"):
    decomposed(
        f"aten.{_name}.default",
        why="the gradient is multiplied into zeros: -0.0, and NaN where it is infinite",
        upstream="torch",
        silent=True,
    )(nll_loss_backward)


RANGE = "its decomposition does not ask whether probabilities are between 0 and 1"
whole("aten.binary_cross_entropy.default", why=RANGE, upstream="torch", silent=True)
in_eager("aten.binary_cross_entropy.default", why=RANGE, upstream="torch")


@decomposed("aten.smooth_l1_loss_backward.default", why="0 where the difference is NaN", upstream="torch", silent=True)
def smooth_l1_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, beta: float) -> Any:
    """As torch's kernel."""
    x = widened(self) - widened(target)
    norm = 1 / self.numel() if reduction == MEAN else 1.0
    scaled = widened(grad_output) * norm
    inside = x * norm * widened(grad_output) / beta
    return torch.where(x <= -beta, -scaled, torch.where(x >= beta, scaled, inside)).to(self.dtype)


@decomposed(
    "aten.soft_margin_loss.default",
    why="finite where torch's kernel overflows in half precision",
    upstream="torch",
    silent=True,
)
def soft_margin_loss(self: Tensor, target: Tensor, reduction: int = MEAN) -> Any:
    """As torch's kernel, each step rounded."""
    if not _alike(self, target):
        return NotImplemented
    losses = torch.log1p(torch.exp(-target * self))
    if reduction == MEAN:
        return losses.mean()
    return losses.sum() if reduction else losses


@decomposed(
    "aten.soft_margin_loss_backward.default", why="finite where torch's kernel overflows", upstream="torch", silent=True
)
def soft_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int) -> Any:
    """As torch's kernel."""
    if not _alike(self, target) or has_no_elements(self):
        return NotImplemented
    z = torch.exp(-target * self)
    weighted = -target * z / self.numel() if reduction == MEAN else -target * z
    return weighted / (z + 1) * grad_output


def _alike(self: Tensor, target: Tensor) -> bool:
    """Whether torch's kernel, which has the result's dtype and shape, need not convert, and need not refuse."""
    return self.dtype is target.dtype and [*map(expression, self.shape)] == [*map(expression, target.shape)]
