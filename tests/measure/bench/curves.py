"""Time over the length of a sequence and over the number of layers, forward and step, float32."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from measure.bench import models
from measure.bench.timing import Timing
from rust_ort.studies.llama_models import Size

SEQUENCES = (128, 256, 512, 1024, 2048, 4096)
LAYERS = (1, 2, 4, 8, 16)
SLOW_SEQUENCE = 1024
"""From here on a call takes so long that its rounds differ little, and three are enough."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A case of models at `x` of what `curve` goes over."""

    curve: str
    x: int
    case: models.Case

    @property
    def name(self) -> str:
        return name(self.curve, self.x, f"{self.case.part} {self.case.way}")


def name(curve: str, x: int, what: str) -> str:
    """Of the row in the table."""
    return f"{curve} {x}, {what}"


def parsed(name: str) -> tuple[str, int, str] | None:
    """What `name` was made of; None of a row that is no point of a curve."""
    found = re.fullmatch(r"(sequence|layers|clients) (\d+), (.+)", name)
    return (found[1], int(found[2]), found[3]) if found else None


def points(sequences: Sequence[int] = SEQUENCES, layers: Sequence[int] = LAYERS) -> list[Point]:
    """A decoder of batch 1 over sequences, forward and step; over layers the step of a model so narrow that what a node
    costs beside its kernel is seen."""
    narrow = Size(hidden=128, heads=4, intermediate=384, batch=1, sequence=64)
    found = [
        ("sequence", n, models.Case(part="decoder", way=way, precision="fp32", size=Size(batch=1, sequence=n)))
        for way in ("forward", "step")
        for n in sequences
    ]
    found += [
        (
            "layers",
            n,
            models.Case(part="model", way="step", precision="fp32", size=dataclasses.replace(narrow, layers=n)),
        )
        for n in layers
    ]
    return [Point(curve=curve, x=x, case=case) for curve, x, case in found]


def measure(point: Point, variants: Sequence[str], *, rounds: int) -> list[Timing]:
    """Each variant's time. Raises AssertionError as `models.measure`."""
    slow = point.case.size.sequence >= SLOW_SEQUENCE
    timings = models.measure(point.case, variants, rounds=min(rounds, 3) if slow else rounds)
    return [dataclasses.replace(timing, case=point.name) for timing in timings]
