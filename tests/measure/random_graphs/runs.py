"""Runs of other days: a line each, kept beside the page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from measure.random_graphs.check import BAD, FINE
from measure.random_graphs.summary import Summary

KINDS = (*FINE, "torch", *BAD)


@dataclass(frozen=True, kw_only=True)
class Run:
    """seeds: as ranges. share: of compute nodes that ran on ONNX Runtime. where: versions and machine."""

    seeds: str
    functions: int
    calls: int
    kinds: dict[str, int]
    share: float
    where: str


def of(summary: Summary, *, seeds: str, where: str) -> Run:
    kinds = {kind: summary.kinds[kind] for kind in KINDS}
    share = round(summary.share, 4)
    return Run(seeds=seeds, functions=summary.graphs, calls=summary.calls, kinds=kinds, share=share, where=where)


def added(file: Path, run: Run) -> list[Run]:
    """The runs of the file with this one, which takes the place of one of the same seeds; and so is the file then."""
    earlier = [Run(**each) for each in json.loads(file.read_text())] if file.exists() else []
    runs = [*(each for each in earlier if each.seeds != run.seeds), run]
    file.write_text(json.dumps([asdict(each) for each in runs], indent=1) + "\n")
    return runs


def table(runs: Sequence[Run]) -> Iterator[str]:
    """A row a run, and all of them."""
    total = sum(run.functions for run in runs)
    yield from ["## Runs", "", f"{total} functions in all; what follows is of the last run.", ""]
    yield f"| seeds | functions | {' | '.join(KINDS)} | on ONNX Runtime | where |"
    yield "|" + "---|" * (len(KINDS) + 4)
    for run in runs:
        counts = " | ".join(str(run.kinds.get(kind, 0)) for kind in KINDS)
        yield f"| {run.seeds} | {run.functions} | {counts} | {run.share:.1%} | {run.where} |"
    yield ""
