"""Of a product of matrices, single elements in float64: where few differ, or what they add up explains the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor, fx

aten = torch.ops.aten

WITHOUT_BIAS = frozenset({aten.mm.default, aten.bmm.default})
WITH_BIAS = frozenset({aten.addmm.default, aten.baddbmm.default})

FEW = 32
"""One of so many elements, by itself, costs what it does in the whole product in float64."""

EXPLAINED = 7.0
"""Roundings of Σ|terms| that two results may be apart by: neither is then further from the exact value than rounding
explains, or both are by about as much. Less than half of `Noise::ROUNDINGS` (src/compare/noise/errors.rs)."""

SHARE = 8
"""One of so many terms is added up for a lower bound of Σ|terms|."""

WORST = 64
"""Elements that are looked at in any case: those furthest off by what they add up."""

_CHUNK = 1 << 20
"""Terms at a time."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """beta · bias + alpha · left @ right. left: [..., M, K]; right: [..., K, N]; bias broadcasts to [..., M, N]."""

    left: Tensor
    right: Tensor
    bias: Tensor | None = None
    alpha: float = 1.0
    beta: float = 1.0

    @classmethod
    def of(cls, node: fx.Node, env: Mapping[fx.Node, Any]) -> Product | None:
        """What `node` multiplies, with the values of `env`. None of another operator, and of float64: that is exact."""
        if node.target not in WITHOUT_BIAS and node.target not in WITH_BIAS:
            return None
        called: Any = fx.map_arg((node.args, node.kwargs), lambda source: env[source])
        args, kwargs = called
        factors = [kwargs.get("alpha", 1.0), kwargs.get("beta", 1.0)]
        if not all(isinstance(factor, int | float) for factor in factors) or factors[0] == 0:  # 0 · NaN is none there
            return None
        if node.target in WITHOUT_BIAS:
            product = cls(left=args[0], right=args[1])
        else:
            product = cls(bias=args[0], left=args[1], right=args[2], alpha=factors[0], beta=factors[1])
        narrow = product.left.is_floating_point() and product.left.dtype is not torch.float64
        return product if narrow else None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.left.shape[:-1], self.right.shape[-1])

    def at(self, elements: Tensor) -> tuple[Tensor, Tensor]:
        """(exact value, Σ|terms|) in float64 of elements. elements: [n], places in the flat result."""
        *batch, row, column = torch.unravel_index(elements, self.shape)
        chunk = max(1, _CHUNK // max(1, self.left.shape[-1]))
        exact, terms = torch.empty(2, len(elements), dtype=torch.float64, device=elements.device).unbind()
        for start in range(0, len(elements), chunk):
            part = slice(start, start + chunk)
            matrix = [index[part] for index in batch]
            lefts = self.left[(*matrix, row[part])].double()
            products = lefts.mul_(self.right.mT[(*matrix, column[part])].double())
            exact[part] = products.sum(-1)
            terms[part] = products.abs_().sum(-1)
        exact, terms = exact.mul_(self.alpha), terms.mul_(abs(self.alpha))
        if self.bias is not None and self.beta != 0:
            added = self.bias.expand(self.shape)[(*batch, row, column)].double() * self.beta
            exact, terms = exact + added, terms + added.abs()
        return exact, terms

    def terms_of(self, element: int) -> Tensor:
        """What one element adds up but for the bias, float64. element: its place in the flat result."""
        *batch, row, column = (int(index) for index in numpy.unravel_index(element, self.shape))
        left, right = self.left, self.right
        for matrix in batch:
            left, right = left[matrix], right[matrix]
        return left[row].double() * right[:, column].double() * self.alpha

    def least_terms(self) -> Tensor:
        """A lower bound of Σ|terms| of each element, but for its own rounding: float32, of the result's shape."""
        left, right = self.left[..., ::SHARE].float().abs(), self.right[..., ::SHARE, :].float().abs()
        return torch.matmul(left, right) * abs(self.alpha)


def to_look_at(product: Product, reference: Tensor, candidate: Tensor, tolerance: Mapping[str, Any]) -> Tensor | None:
    """Places, in the flat result, of the elements whose exact values decide: those outside the tolerance that what they
    add up does not explain, and the worst of those that it does. None: so many that the whole product is as cheap.

    tolerance: of the verdict; its share of the largest reference counts as none.
    """
    few = max(reference.numel() // FEW, WORST)
    wide, apart = reference.float(), (candidate.float() - reference.float()).abs_()
    # Float32 rounds, too: rather one element more. What is within a step of a half is no rounding yet.
    share = 0.99 if reference.dtype is torch.float32 else 0.5
    allowed = wide.abs().mul_(share * tolerance["rtol"]).add_(share * tolerance["atol"])
    # An infinity is near nothing, and would allow anything.
    inside = (apart <= allowed).logical_and_(apart.isfinite())
    outside = inside.logical_not_().flatten().nonzero().squeeze(1)
    if len(outside) == 0:
        return None
    if len(outside) > few:
        least = product.least_terms().flatten()[outside]
        excess = apart.flatten()[outside] / (EXPLAINED * torch.finfo(torch.float32).eps * least)
        excess = torch.where(least.isfinite() & ~excess.isnan(), excess, torch.inf)
        unexplained = excess > 1
        unexplained[excess.topk(min(WORST, len(excess))).indices] = True
        outside = outside[unexplained]
    return outside if len(outside) <= few else None
