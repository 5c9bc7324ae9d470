"""Sizes of tensors and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence


def known(sizes: Sequence[int]) -> bool:
    """Whether none is symbolic."""
    return all(isinstance(size, int) for size in sizes)


def each(sizes: Sequence[int], spatial: int) -> list[int]:
    """One a dimension: ATen takes one for all."""
    return list(sizes) * (spatial if len(sizes) == 1 else 1)


def steps(sizes: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor of these sizes."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
