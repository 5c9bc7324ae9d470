"""What an operator of the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from measure.random_graphs.draw import Draw

Made = str | list[str]
EXACT = ("view", "join", "index", "sort", "creation", "comparison", "in place")
"""Families that compute nothing: their results are as exact as their operands."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """make: an expression, or statements in which `@` is the target."""

    name: str
    family: str
    make: Callable[[Draw], Made]
    weight: float = 1.0
