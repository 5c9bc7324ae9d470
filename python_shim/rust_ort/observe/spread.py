"""How far rounding moves a value: float64 again and again, each operation off by up to one step of eager's type."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from rust_ort.link.specs import Spread, Verdict
from rust_ort.observe.wide import in_wide

RUNS = 5
"""How often. Of these the second largest counts: in one an operator may have taken another branch."""
LEAST_RUNS = 3
"""So many tell enough where time ends."""


def spreads(
    wrong: Mapping[str, Verdict], run: Callable[[], Mapping[str, Any]], float64: Mapping[str, Tensor | None], *,
    expected: Mapping[str, Any], seconds: float,
) -> dict[str, Spread]:  # fmt: skip
    """{name: how far rounding moves it} of values that differ, whose float64 is known. wrong: their verdicts; run,
    expected: as of `in_wide`; seconds: for all."""
    sizes = {
        name: float(verdict.metrics["max_reference"])
        for name, verdict in wrong.items()
        if verdict.metrics is not None and float64.get(name) is not None
    }
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    until = time.monotonic() + seconds
    for seed in range(RUNS if sizes else 0):
        left = until - time.monotonic()
        rounded = in_wide(run, expected=expected, seconds=left, rounding=seed) if left > 0 else {}
        for name, size in sizes.items():
            value, exact = rounded.get(name), float64[name]
            if value is not None and exact is not None:
                errors[name].append(_errors(value, exact, size))
    known = {name: zip(*found, strict=True) for name, found in errors.items() if len(found) >= LEAST_RUNS}
    both = {name: [sorted(sizes)[-2] for sizes in found] for name, found in known.items()}
    return {name: Spread(largest=a, rms=b) for name, (a, b) in both.items() if math.isfinite(a) and math.isfinite(b)}


def _errors(rounded: Tensor, exact: Tensor, size: float) -> tuple[float, float]:
    """(largest error, root mean square). size: of the largest element; what is far beyond it is a fill value."""
    apart = (rounded - exact)[exact.abs() <= 2 * size]
    if not apart.numel():
        return 0.0, 0.0
    return float(apart.abs().max()), math.sqrt(float(apart.square().sum()) / exact.numel())
