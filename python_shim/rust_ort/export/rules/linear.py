"""Matrix products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import as_held
from rust_ort.export.rules.registry import decomposed, torchs_own
from rust_ort.export.shapes import row_major

ALPHA = "`alpha=0` lets NaN of the product through"
BETA = "`beta=0` lets NaN of the ignored input through"

torchs_own("aten.baddbmm.default", why=BETA, silent=True)


@decomposed("aten.addmm.default", why="Gemm has float32 alpha and beta, and no kernel of integers; " + ALPHA)
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """In float64, of integers, and without a product that nothing is made of."""
    if _is_nothing(alpha, mat1):
        return _scaled(self, beta).expand(mat1.shape[0], mat2.shape[1]).clone()
    if self.dtype.is_floating_point and (self.dtype is not torch.float64 or (beta, alpha) == (1, 1)):
        return NotImplemented
    return _sum(self, torch.mm(mat1, mat2), beta, alpha)


@decomposed(
    "aten.mv.default",
    why="MatMul takes a vector on the right row by row, up to 100 times slower",
    upstream="onnxruntime",
)
def mv(self: Tensor, vec: Tensor) -> Tensor:
    """Of a column; of a row where the matrix is another's transpose, which is what lies in memory in rows."""
    if row_major(self, (1, 0)) and not row_major(self, (0, 1)):
        return torch.mm(vec.unsqueeze(0), self.t()).squeeze(0)
    return torch.mm(self, vec.unsqueeze(1)).squeeze(1)


@decomposed("aten.addmv.default", why=f"{ALPHA}, {BETA}; integers have float32 factors", silent=True)
def addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """By `mv`, and without a product that nothing is made of, or what is added none of."""
    if _is_nothing(alpha, mat):
        return _scaled(self, beta).expand(mat.shape[:1]).clone()
    return _sum(self, torch.mv(mat, vec), beta, alpha)


@decomposed("aten.addbmm.default", why=f"{ALPHA}, {BETA}; integers have float32 factors", silent=True)
def addbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """As `addmv`."""
    if _is_nothing(alpha, batch1):
        return _scaled(self, beta).expand(batch1.shape[1], batch2.shape[2]).clone()
    if self.dtype.is_floating_point and not _is_zero(beta):
        return NotImplemented
    return _sum(self, torch.bmm(batch1, batch2).sum(0, dtype=self.dtype), beta, alpha)


def _sum(self: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    scaled = product if _is_one(alpha) else product * as_held(alpha, product.dtype)
    if _is_zero(beta):
        return scaled
    return scaled + (self if _is_one(beta) else self * as_held(beta, product.dtype))


def _is_zero(factor: float) -> bool:
    """Whether it is known to be: not a size."""
    return isinstance(factor, (int, float)) and factor == 0


def _is_one(factor: float) -> bool:
    """As `_is_zero`."""
    return isinstance(factor, (int, float)) and factor == 1


def _is_nothing(alpha: float, factor: Tensor) -> bool:
    """Whether torch's kernel leaves the product out; in half precision it does not."""
    return _is_zero(alpha) and factor.dtype in (torch.float32, torch.float64)


def _scaled(self: Tensor, beta: float) -> Tensor:
    """A factor of 0 lets nothing through, NaN neither."""
    return torch.zeros_like(self) if beta == 0 else self * beta
