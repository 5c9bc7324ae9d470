"""The first training step of a fresh process, compilation included: measure.warm_start's, as timings."""

from __future__ import annotations

from collections.abc import Sequence

from measure import warm_start
from measure.bench.timing import Timing, of_rounds

NAME = "first call, causal_lm step"
VARIANTS = ("aot_eager", "inductor cold", "rust_ort cold", "rust_ort warm")


def measure(variants: Sequence[str] = VARIANTS, *, rounds: int, size: str = "full") -> list[Timing]:
    """Each variant in `rounds` fresh processes. Errors: CalledProcessError."""
    calls = warm_start.measure(variants, size=size, rounds=rounds)
    return [
        of_rounds(NAME, variant, [call.seconds * 1e6 for call in calls if call.variant == variant], 1)
        for variant in variants
    ]
