"""The numbers that tensors hold: plain ones, and the edges of each dtype."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32)
SMALL_INTS = (torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTS, *SMALL_INTS, torch.bool)
CLASSES = ("plain", "special", "zeros", "tiny", "large", "whole", "halfway", "full")
"""plain: small multiples of a power of two, exact in every dtype and different from each other. special: some NaN and
infinities. zeros: many of both signs. tiny: subnormals. large: the largest, near overflow; integers near wrap. whole:
2^24 ± 1, 2^31 ± 1, 2^53 ± 1. halfway: between two integers, or a step beside. full: every bit of the mantissa."""
LISTED = 64
"""Tensors of more elements are written as an expression."""
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0)


def numbers(rng: random.Random, shape: Sequence[int], dtype: torch.dtype, kind: str) -> str:
    """The expression of a contiguous tensor whose values are of this class."""
    count = math.prod(shape)
    if count > LISTED:
        return f"{_many(rng, count, dtype)}.reshape({tuple(shape)})"
    data = _plain(rng, count, dtype)
    edges = _edges(dtype, kind)
    if kind == "full" and dtype.is_floating_point:
        data = [float(torch.tensor(rng.uniform(-2, 2), dtype=dtype)) for _ in data]
    for position in range(count):
        if edges and rng.random() < (0.3 if kind == "special" else 0.7):
            data[position] = rng.choice(edges)
    return f"torch.tensor({data}, dtype={dtype}).reshape({tuple(shape)})"


def _plain(rng: random.Random, count: int, dtype: torch.dtype) -> list[float]:
    if dtype == torch.bool:
        return [rng.random() < 0.5 for _ in range(count)]
    if not dtype.is_floating_point:
        return [rng.randint(0 if dtype == torch.uint8 else -6, 6) for _ in range(count)]
    half = max(16, (count + 1) // 2 + 1)
    step = 8 if half <= 32 else 32
    return [value / step for value in rng.sample(range(-half, half), count)]


def _many(rng: random.Random, count: int, dtype: torch.dtype) -> str:
    """Different from each other up to 10007 elements, where the dtype holds as many."""
    factor, shift = rng.choice((7919, 6007, 4001)), rng.randint(0, 10006)
    scrambled = f"(torch.arange({count}) * {factor} + {shift}) % 10007"
    if dtype.is_floating_point:
        return f"((({scrambled}) - 5000) / 512).to({dtype})"
    return f"({scrambled} % 13{'' if dtype == torch.uint8 else ' - 6'}).to({dtype})"


def _edges(dtype: torch.dtype, kind: str) -> list[float]:
    """Those of a class that the dtype holds."""
    if dtype == torch.bool or kind in ("plain", "full"):
        return []
    whole = [sign * (2**bits + off) for bits in (8, 11, 24, 31, 53) for off in (-1, 0, 1) for sign in (1, -1)]
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        edges = {
            "large": [info.min, info.min + 1, info.max, info.max - 1, info.max // 2 + 1, -1],
            "whole": whole,
            "zeros": [0],
            "halfway": [-3, -2, -1, 1, 2, 3],
        }.get(kind, [])
        return [value for value in edges if info.min <= value <= info.max]
    finfo = torch.finfo(dtype)
    least = finfo.tiny * finfo.eps
    listed: dict[str, list[float]] = {
        "special": list(SPECIAL),
        "zeros": [0.0, -0.0],
        "tiny": [least, -least, 3 * least, finfo.tiny, -finfo.tiny, finfo.tiny - least, finfo.tiny / 2, 0.0, -0.0],
        "large": [finfo.max, -finfo.max, finfo.max / 2, finfo.max * (1 - finfo.eps), math.sqrt(finfo.max), math.inf],
        "whole": [float(value) for value in whole],
        "halfway": [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.5 - finfo.eps / 4, 1.5 + finfo.eps, 1 - finfo.eps / 2, -0.25],
    }
    held = torch.tensor(listed[kind], dtype=torch.float64).to(dtype).tolist()
    return [value for value in held if kind == "large" or kind == "special" or math.isfinite(value)]
