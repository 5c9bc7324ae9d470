"""Losses."""

from __future__ import annotations

from rust_ort.export.rules.registry import torchs_own

torchs_own(
    "aten.nll_loss_forward.default",
    why="a wrong `total_weight`, by which gradients are scaled",
    silent=True,
)
