"""What is done to an AOT graph before it is hashed and cut, in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from rust_ort.export import complex_pairs, no_elements, redrawn, scalars


def rewrite(gm: fx.GraphModule, table: Callable[[], Mapping[Any, Callable[..., Any]]]) -> None:
    """Runs every pass on a graph. table: decompositions, asked for where one needs them."""
    redrawn.give_values(gm)
    scalars.decompose(gm, table)
    no_elements.leave_out(gm)
    complex_pairs.as_pairs(gm, table)
