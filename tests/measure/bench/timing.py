"""Alternating rounds: a machine that gets slower is slower for all variants."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

ROUND_SECONDS = 0.03


@dataclass(frozen=True, kw_only=True)
class Timing:
    """us: microseconds of a call, median over rounds of a round's mean; p10_us, p90_us: percentiles of the rounds."""

    case: str
    variant: str
    us: float
    p10_us: float
    p90_us: float
    rounds: int
    calls_per_round: int


def alternating(
    case: str, calls: Mapping[str, Callable[[], object]], *, rounds: int, device: str = "cpu"
) -> list[Timing]:
    """Each variant's time. calls: {variant: one call}, warm. device: where they compute; of "cuda" a round ends when
    the GPU has done what its calls queued."""
    finish = torch.cuda.synchronize if device == "cuda" else _at_once
    counts = {variant: _calls_a_round(call, finish) for variant, call in calls.items()}
    means: dict[str, list[float]] = {variant: [] for variant in calls}
    for round_ in range(rounds):
        for variant in calls if round_ % 2 == 0 else reversed(list(calls)):
            means[variant].append(_round_us(calls[variant], counts[variant], finish))
    return [of_rounds(case, variant, values, counts[variant]) for variant, values in means.items()]


def of_rounds(case: str, variant: str, means_us: Sequence[float], calls_per_round: int) -> Timing:
    """means_us: of each round."""
    values = sorted(means_us)
    tenth = len(values) // 10
    return Timing(
        case=case,
        variant=variant,
        us=statistics.median(values),
        p10_us=values[tenth],
        p90_us=values[-1 - tenth],
        rounds=len(values),
        calls_per_round=calls_per_round,
    )


def _at_once() -> None:
    """What is called on the CPU has been done when the call returns."""


def _calls_a_round(call: Callable[[], object], finish: Callable[[], None]) -> int:
    """So many that a round is long enough to be timed; one of what is long itself."""
    finish()
    begin = time.perf_counter()
    call()
    finish()
    once = time.perf_counter() - begin
    if once > ROUND_SECONDS:
        return 1
    begin = time.perf_counter()
    for _ in range(20):
        call()
    finish()
    return max(10, int(ROUND_SECONDS / ((time.perf_counter() - begin) / 20)))


def _round_us(call: Callable[[], object], n: int, finish: Callable[[], None]) -> float:
    # The first calls after another variant's round pay for its caches.
    for _ in range(max(3, n // 20) if n > 1 else 0):
        call()
    finish()
    begin = time.perf_counter()
    for _ in range(n):
        call()
    finish()
    return (time.perf_counter() - begin) / n * 1e6
