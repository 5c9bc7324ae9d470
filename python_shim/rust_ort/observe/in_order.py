"""What sums lose that are taken in order, in float32: terms that are alike round the same way, one after the other.

Of n terms that differ, roundings partly cancel: some √n of them are left. Of equal ones a sum in order may lose n/2, as
products by the weights of a softmax over equal scores do, and a kernel that adds in blocks loses much less: both are
right.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch
from torch import Tensor

from rust_ort.tables import ROUNDINGS

log = logging.getLogger("rust_ort")
aten = torch.ops.aten

SUMMED: dict[Any, int] = {
    aten.mm.default: 0, aten.bmm.default: 0, aten.mv.default: 0, aten.dot.default: 0, aten.addmm.default: 1,
    aten.baddbmm.default: 1, aten.addmv.default: 1, aten.convolution.default: 0, aten.convolution_backward.default: 0,
    aten.sum.default: 0, aten.sum.dim_IntList: 0, aten.mean.default: 0, aten.mean.dim: 0, aten.cumsum.default: 0,
    aten.index_put.default: 2, aten.index_add.default: 3, aten.scatter_add.default: 3,
    aten.embedding_dense_backward.default: 0,
}  # fmt: skip
"""{operator that is linear in an argument, each element of which is in one term of a result: the argument's place}."""

OTHER_ORDERS = 2.0
"""Times what a sum in order loses, another order may lose."""

WORST = 4
"""Elements that are added up once more: those furthest off by what they add up."""

MOST_TERMS = 1 << 24


def furthest(reference: Tensor, candidate: Tensor, exact: Tensor, terms: Tensor) -> Tensor | None:
    """Places, in the flat tensors, of elements whose rounding Σ|terms| does not explain, and eager's error does not
    either: the worst, few. None: there are none, or a value is not finite."""
    epsilon = torch.finfo(torch.float32).eps
    allowed = ROUNDINGS * epsilon * terms + torch.finfo(reference.dtype).eps * exact.abs()
    allowed = allowed.flatten() + torch.finfo(torch.float32).tiny
    off = (candidate.double() - exact).abs().flatten() / allowed
    by_eager = float(((reference.double() - exact).abs().flatten() / allowed).max())
    if not off.isfinite().all() or float(off.max()) <= max(1.0, 2.0 * by_eager):
        return None
    return off.topk(min(WORST, len(off))).indices


def lost(terms: Tensor, total: float) -> float:
    """Roundings of `total`, Σ|terms|, by which the sum in order is off, wherever on the way it is off most.

    terms: float64, one-dimensional.
    """
    epsilon = torch.finfo(torch.float32).eps
    narrow = numpy.add.accumulate(terms.float().cpu().numpy(), dtype=numpy.float32)
    apart = torch.from_numpy(narrow).double() - terms.cpu().cumsum(0)
    off = float(apart.abs().max()) if len(apart) else 0.0
    return off / (epsilon * total) if total > 0 else 0.0


def granted(most: float) -> float:
    """Times Σ|terms| that explains what a sum is off by that loses so many roundings in order."""
    return max(1.0, OTHER_ORDERS * most / ROUNDINGS)


def terms_of(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: int | None, place: int
) -> Tensor | None:
    """The terms of an element of a result, in float64; None of operators that are not known to add up, and where torch
    has no derivative. args, kwargs: float64. result: which of several; place: in the flat result."""
    at = SUMMED.get(target)
    if at is None or at >= len(args) or not isinstance(args[at], Tensor) or args[at].numel() > MOST_TERMS:
        return None
    try:
        with torch.inference_mode(False), torch.enable_grad():
            varied = args[at].detach().clone().requires_grad_()
            made = target(*args[:at], varied, *args[at + 1 :], **kwargs)
            one = (made if result is None else made[result]).flatten()[place]
            (factors,) = torch.autograd.grad(one, varied)
    except RuntimeError as error:
        log.debug("%s: its terms are not known: %s", target, error)
        return None
    products: Tensor = (factors * varied.detach()).flatten()
    return products[products != 0]
