"""What draws random numbers: it stays in eager, where manual_seed gives eager's numbers, so it must stay whole."""

from __future__ import annotations

from rust_ort.export.rules.registry import whole

whole(
    "aten.cauchy.default",
    "aten.exponential.default",
    "aten.geometric.default",
    "aten.log_normal.default",
    why="decomposed to rand_like or randn_like, which draws other numbers for the same seed",
)
