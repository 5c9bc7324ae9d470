"""`make planted`: families x precisions with nothing planted, then faults in what they hold.

Writes docs/results/planted.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from measure.planted.run import DEFAULT_PRECISIONS, FAMILIES, Planted, Unplanted, tried
from measure.planted.table import write

SEED = 11
ENOUGH = 0.95
"""Of the faults that take a value of the model out of tolerance: so many name their node first."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.planted", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="of tests/measure/architectures.py")
    parser.add_argument("--precisions", default=",".join(DEFAULT_PRECISIONS))
    parser.add_argument("--faults", type=int, default=200, help="planted in all, evenly over families and precisions")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--output", type=Path, help="written after each family, with .json beside it")
    options = parser.parse_args(arguments)
    pairs = list(itertools.product(options.families.split(","), options.precisions.split(",")))
    each, more = divmod(options.faults, len(pairs))
    tasks = [(*pair, each + (at < more), options.seed + at) for at, pair in enumerate(pairs)]
    clean: list[Unplanted] = []
    rows: list[Planted] = []
    # A process for each: torch keeps code that was compiled after a graph break, whatever is reset.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn, max_tasks_per_child=1) as pool:
        for run, found in pool.map(tried, *zip(*tasks, strict=True)):
            clean.append(run)
            rows += found
            if options.output is not None:
                write(options.output, clean, rows, seed=options.seed)
    effective = [row for row in rows if row.wrong]
    named = sum(row.is_right for row in effective)
    enough = bool(effective or not options.faults) and named >= ENOUGH * len(effective)
    return 0 if all(run.ok for run in clean) and enough else 1


if __name__ == "__main__":
    sys.exit(main())
