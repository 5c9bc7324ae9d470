"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.registry import decomposed, torchs_own

torchs_own("aten.baddbmm.default", why="`beta=0` lets NaN of the ignored input through", silent=True)


@decomposed("aten.addmm.default", why="alpha and beta are attributes of Gemm, and those are float32")
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """In float64."""
    if self.dtype is not torch.float64 or (beta, alpha) == (1, 1):
        return NotImplemented
    return torch.mm(mat1, mat2) * alpha + (0 if beta == 0 else self * beta)
