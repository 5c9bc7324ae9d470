"""Random numbers: drawn in eager, by the kernels that torch.manual_seed controls."""

from __future__ import annotations

from rust_ort.export.rules.registry import whole

whole(
    "aten.cauchy.default", "aten.exponential.default", "aten.geometric.default", "aten.log_normal.default",
    why="torch's decomposition draws other numbers than torch's kernel", silent=True,
)  # fmt: skip
