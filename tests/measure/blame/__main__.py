"""`make blame`: families x precisions with nothing planted, then faults in what they hold.

Writes docs/results/blame.md and .json.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from measure.blame.run import Blamed, Clean, tried
from measure.blame.table import write
from measure.planted.run import PRECISIONS

SEED = 13
FAMILIES = (
    "llama", "mistral", "qwen2", "gemma2", "phi3", "gpt2", "gpt_neox", "opt", "bloom", "mamba", "bert", "roberta",
    "distilbert", "electra", "deberta-v2", "t5", "bart", "whisper", "vit", "convnext",
)  # fmt: skip
ENOUGH = 0.95
"""Of the faults that take a value out of tolerance: so many are named first."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.blame", description=__doc__)
    parser.add_argument("--families", default=",".join(FAMILIES), help="of tests/measure/architectures.py")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--faults", type=int, default=2, help="in each family and precision, that have an effect")
    parser.add_argument("--float64", action="store_true", help="every node in float64, too: compare_float64=all")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--workers", type=int, default=1, help="processes at a time")
    parser.add_argument("--output", type=Path, help="written after each family, with .json beside it")
    options = parser.parse_args(arguments)
    pairs = list(itertools.product(options.families.split(","), options.precisions.split(",")))
    tasks = [(*pair, options.faults, options.seed + at, options.float64) for at, pair in enumerate(pairs)]
    clean: list[Clean] = []
    rows: list[Blamed] = []
    # A process for each: torch keeps code that was compiled after a graph break, whatever is reset.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn, max_tasks_per_child=1) as pool:
        for run, found in pool.map(tried, *zip(*tasks, strict=True)):
            clean.append(run)
            rows += found
            if options.output is not None:
                write(options.output, clean, rows, seed=options.seed, float64=options.float64)
    counted = [row for row in rows if row.counts]
    named = sum(row.is_right for row in counted)
    print(f"{named} of {len(counted)} named first; {sum(bool(run.culprit) for run in clean)} clean runs blame somebody")
    enough = bool(counted or not options.faults) and named >= ENOUGH * len(counted)
    return 0 if not any(run.culprit for run in clean) and enough else 1


if __name__ == "__main__":
    sys.exit(main())
