"""Sizes of tensors and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rust_ort.torch_private import bounds


def known(sizes: Sequence[int]) -> bool:
    """Whether none is symbolic."""
    return all(isinstance(size, int) for size in sizes)


def least(size: int | torch.SymInt) -> int:
    """What a size is at least, in every call that meets the guards."""
    return int(bounds(size)[0]) if isinstance(size, torch.SymInt) else size


def each(sizes: Sequence[int], spatial: int) -> list[int]:
    """One a dimension: ATen takes one for all."""
    return list(sizes) * (spatial if len(sizes) == 1 else 1)


def steps(sizes: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor of these sizes."""
    return [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
