"""What watching costs: a decoder's training step whose outputs or nodes are compared with eager, or that is dumped."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from measure.bench import models
from measure.bench.timing import Timing

VARIANTS = ("eager", "rust_ort", "outputs compared", "nodes compared", "dumped")


def cases() -> list[models.Case]:
    """In float32 and under autocast to bfloat16."""
    return [models.Case(part="decoder", way="step", precision=precision) for precision in ("fp32", "bf16")]


def name(case: models.Case) -> str:
    """Of the row: the case itself has one of its own."""
    return f"{case.name}, watched"


def measure(case: models.Case, *, rounds: int) -> list[Timing]:
    """Times of VARIANTS; every call of each is watched. Raises AssertionError as `models.measure`."""
    import rust_ort

    with tempfile.TemporaryDirectory() as folder:
        backends = {
            "outputs compared": rust_ort.backend(compare="outputs"),
            "nodes compared": rust_ort.backend(compare="nodes"),
            "dumped": rust_ort.backend(dump=str(Path(folder) / "run"), dump_calls="all"),
        }
        timings = models.measure(case, VARIANTS, rounds=rounds, backends=backends)
        rust_ort.shutdown()  # the dump is on disk before its folder goes
    return [dataclasses.replace(timing, case=name(case)) for timing in timings]
