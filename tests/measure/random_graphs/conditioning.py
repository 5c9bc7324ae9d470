"""Whether rounding decides a result: eager's values are shaken by a few units in their last place.

Every floating value that is not exact is moved. A statement whose shaken results differ by more than a small multiple
of that, or in a single integer or bool, makes differences of rounding visible, in whatever implementation: another one
is drawn in its place. This looks at eager alone, so no error of the candidate is avoided by it.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterator, Sequence

import torch

SHAKE_ULPS = 2
ALLOWED_ULPS = 64
"""Of the largest value of a tensor: what shaking may move in it."""
ACCUMULATING = (
    "reduction", "matmul", "convolution", "norm", "cumulative", "loss", "softmax", "pooling", "pad and resize",
    "autocast", "sample",
)  # fmt: skip
"""Families whose error is of the size of what they add up, however small the sum."""


_ADDING = re.compile(r"sum|mean|prod|var|std|norm|dot|@ |vander")


class Rejected(Exception):
    """A statement or function that is drawn again; the text is why."""


@contextlib.contextmanager
def wide_default() -> Iterator[None]:
    """Python floats and integer divisions make float64, too."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def shaking(
    value: torch.Tensor, wide: torch.Tensor, added: Sequence[torch.Tensor], rng: random.Random
) -> torch.Tensor | None:
    """What to add to a value: some ulps where it is not exact, as float64 says; None where it is everywhere. added:
    what it is a sum of, if it is one."""
    if not value.is_floating_point() or not value.numel() or wide.shape != value.shape:
        return None
    inexact = value.isfinite() & ~_exact(value, wide)
    if not bool(inexact.any()):
        return None
    scale = value.abs()
    if added:
        largest_of_all = max(largest(tensor) for tensor in [value, *added])
        scale = torch.full_like(value, min(largest_of_all, torch.finfo(value.dtype).max))
    signs = torch.tensor([rng.choice((-1, 1)) for _ in range(value.numel())], dtype=value.dtype).reshape(value.shape)
    delta = SHAKE_ULPS * torch.finfo(value.dtype).eps * scale * signs
    return torch.where(inexact & delta.isfinite(), delta, torch.zeros_like(value))


def accumulates(family: str, text: str) -> bool:
    """Whether a statement adds up elements."""
    return family in ACCUMULATING or _ADDING.search(text) is not None


def may_overflow(source: torch.Tensor) -> bool:
    """Whether a sum or product over a tensor may overflow on its way, in some order of its terms and not in another.
    Sums of float16 are made in float32."""
    if not source.is_floating_point() or source.dtype == torch.float16:
        return False
    return largest(source) > math.sqrt(torch.finfo(source.dtype).max) / 64


def _exact(value: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """Nothing is wider than float64: there, a value of few bits is taken for exact."""
    return value.float().double() == value if value.dtype == torch.float64 else value.double() == wide


def largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 where there is none."""
    finite = tensor[tensor.isfinite()] if tensor.is_floating_point() else tensor
    return float(finite.double().abs().max()) if finite.numel() else 0.0


def compare(real: torch.Tensor, shaken: torch.Tensor) -> None:
    """Raises Rejected where shaking changed more than rounding does."""
    if real.shape != shaken.shape:
        raise Rejected("rounding decides a size")
    if not real.is_floating_point():
        if not torch.equal(real, shaken):
            raise Rejected("rounding decides an integer or bool")
        return
    finite = real.isfinite()
    allowed = ALLOWED_ULPS * torch.finfo(real.dtype).eps * max(largest(real), 2.0**-6)
    same = (real == shaken) | (real.isnan() & shaken.isnan())
    if bool((~same & ~(finite & ((real - shaken).abs() <= allowed))).any()):
        raise Rejected("ill-conditioned")
