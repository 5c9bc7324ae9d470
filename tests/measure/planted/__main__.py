"""`make planted`: families x precisions with nothing planted, then faults in what they hold; docs/planted.md, .json."""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from measure.planted.run import FAMILIES, PRECISIONS, Planted, Unplanted, drawn, planted, unplanted
from measure.planted.table import write

SEED = 11
ENOUGH = 0.95
"""Of the faults that take a value of the model out of tolerance: so many name their node first."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.planted", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="of tests/measure/architectures.py")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--faults", type=int, default=200, help="planted in all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, help="written after each fault, with .json beside it")
    options = parser.parse_args(arguments)
    logging.getLogger("rust_ort").setLevel(logging.ERROR)  # each fault would be logged
    clean: list[Unplanted] = []
    for family in options.families.split(","):
        for precision in options.precisions.split(","):
            clean.append(unplanted(family, precision))
            print(_line(clean[-1]), flush=True)
    rows: list[Planted] = []
    left = [(run, drawn(run, random.Random(options.seed + at))) for at, run in enumerate(clean)]
    while left and sum(not row.refused for row in rows) < options.faults:
        run, sites = left.pop(0)
        site = next(sites, None)
        if site is not None:
            left.append((run, sites))
            rows.append(planted(run, site))
            last = rows[-1]
            print(f"{last.family} {last.precision} {site.kind} at {site.node}: {last.verdict} {last.named}", flush=True)
        if options.output is not None:
            write(options.output, clean, rows, seed=options.seed)
    effective = [row for row in rows if row.wrong]
    named = sum(row.is_right for row in effective)
    return 0 if all(run.ok for run in clean) and named >= ENOUGH * len(effective) else 1


def _line(run: Unplanted) -> str:
    return f"{run.family} {run.precision}: {run.values} {run.nodes} {run.values_wrong} {run.accused} {run.failed}"


if __name__ == "__main__":
    sys.exit(main())
