"""What watching costs: a decoder's training step whose outputs or nodes are compared with eager, or that is dumped."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Callable
from typing import Any

from torch import Tensor

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
    from rust_ort.observe import session

    backends: dict[str, Any] = {
        "outputs compared": rust_ort.backend(compare="outputs"),
        "nodes compared": rust_ort.backend(compare="nodes"),
        "dumped": rust_ort.backend(),
    }
    with tempfile.TemporaryDirectory() as folder, rust_ort.dump("run", folder=folder, calls="all"):
        opened = session.set_current(None)
        around = {"dumped": functools.partial(_inside, opened)}
        timings = models.measure(case, VARIANTS, rounds=rounds, backends=backends, around=around)
    return [dataclasses.replace(timing, case=name(case)) for timing in timings]


def _inside(opened: Any, call: Callable[[], list[Tensor]]) -> list[Tensor]:
    """A dump is the process's: left open, it would take the calls of the other variants too."""
    from rust_ort.observe import session

    before = session.set_current(opened)
    try:
        return call()
    finally:
        session.set_current(before)
