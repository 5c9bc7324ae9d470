"""`make same-size`: faults no larger than rounding, and rounding as large as they are.

Writes docs/results/same-size.md and .json.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from measure.same_size.faults import KINDS, Fault
from measure.same_size.run import Measured, measured
from measure.same_size.sites import PLACES
from measure.same_size.table import matched, write

SEED = 17
"""What decides was settled before, and tried on another seed."""
SIZES = (0.5, 1.0, 2.0, 4.0)
"""Of what the functions are called with, where nothing is planted."""
ENOUGH = 20
"""Faults to be accused. Where eager's own kernel rounds in the middle, a smaller one hides behind it. No noise is."""
PARTS = (0.2, 0.5)
"""A fault is between these parts of the largest error that rounding makes of the value."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.same_size", description=__doc__)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--output", type=Path, help="written at the end, with .json beside it")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    logging.getLogger("rust_ort").setLevel(logging.ERROR)  # each fault would be logged
    draw = random.Random(options.seed)
    clean: list[Measured] = []
    faults: list[Measured] = []
    for at, place in enumerate(PLACES):
        runs = [measured(place, dtype, seed=options.seed + 100 * at + n, size=size) for n, size in enumerate(SIZES)]
        clean += runs
        of = runs[1]
        for kind in KINDS:
            fault = Fault(kind=kind, part=draw.uniform(*PARTS), error=of.error, seed=draw.randrange(1000))
            faults.append(measured(place, dtype, seed=of.seed, size=of.size, fault=fault, node=of.node))
        told = ", ".join(f"{run.fault.kind}: {run.kind}" for run in faults[-len(KINDS) :] if run.fault)
        print(f"{place.name} {of.direction} {of.node}: {[run.kind for run in runs]}; {told}", flush=True)
    # One of each place, kinds in turn.
    chosen = [faults[at * len(KINDS) + at % len(KINDS)] for at in range(len(PLACES))]
    pairs = matched(chosen, clean)
    accused = sum(fault.node in fault.worse for fault, _ in pairs)
    acquitted = sum(noise.kind != "candidate_worse" for _, noise in pairs)
    print(f"{accused} of {len(pairs)} faults accused, {acquitted} of {len(pairs)} noises acquitted")
    if options.output is not None:
        write(options.output, options.dtype, pairs, clean, faults, seed=options.seed)
    return 0 if accused >= ENOUGH and acquitted == len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main())
