"""Random small torch functions, forward and backward, through rust_ort and eager.

Exit code: 0 nothing is wrong, 1 a result is wrong, an exception, a crash or a hang.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from measure.home import home
from measure.random_graphs import run
from measure.random_graphs.check import BAD, Outcome
from measure.random_graphs.summary import Summary, markdown

PROGRESS_EVERY = 100


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m measure.random_graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=5000, help="how many functions")
    parser.add_argument("--first", type=int, default=0, help="the first seed; each function has the next one")
    parser.add_argument("--seed", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--no-reduce", action="store_true", help="leave failing functions as large as they are")
    parser.add_argument("--output", type=Path, help="markdown file for the totals")
    parser.add_argument("--json", type=Path, help="file for one JSON line a function")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, prints what fails as it comes and the totals at the end. Returns the exit code."""
    arguments = parse(argv)
    if arguments.child:
        run.child()
        return 0
    seeds = arguments.seed or range(arguments.first, arguments.first + arguments.graphs)
    summary = Summary()
    start = time.perf_counter()
    with home() as made:
        outcomes = run.run(seeds, made.environment(), workers=arguments.workers, reduce=not arguments.no_reduce)
        for outcome in outcomes:
            summary.add(outcome)
            _show(outcome, alone=arguments.seed is not None)
            if arguments.json:
                with arguments.json.open("a") as file:
                    print(json.dumps(outcome.as_json()), file=file)
            if summary.graphs % PROGRESS_EVERY == 0:
                print(f"{time.perf_counter() - start:.0f} s: {summary.line()}", file=sys.stderr, flush=True)
    summary.seconds = time.perf_counter() - start
    text = markdown(summary, seeds=(seeds[0], seeds[-1]), workers=arguments.workers)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    return 1 if summary.bad else 0


def _show(outcome: Outcome, *, alone: bool) -> None:
    if outcome.kind in BAD or outcome.kind == "torch" or alone:
        print(f"\n--- seed {outcome.seed}: {outcome.kind}, {outcome.where}\n{outcome.why}")
        if not outcome.reduced:
            print(outcome.source)
        for op, reason in outcome.eager:
            print(f"eager: {op}: {reason}")
    if outcome.reduced:
        print(f"reduced: {outcome.reduced_why}\n{outcome.reduced}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
