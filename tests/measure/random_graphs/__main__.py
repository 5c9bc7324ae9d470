"""Random small torch functions, all that one compiled function can do, through rust_ort and eager.

Exit code: 0 nothing is wrong, 1 a result is wrong, an exception, a crash or a hang.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from measure.bench.table import environment
from measure.home import home
from measure.random_graphs import corpus, run
from measure.random_graphs import runs as kept_runs
from measure.random_graphs.check import BAD, FINE, Outcome, eagerly, examine
from measure.random_graphs.page import markdown, ranges
from measure.random_graphs.summary import Summary, recorded

PROGRESS_EVERY = 100


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m measure.random_graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=5000, help="how many functions")
    parser.add_argument("--first", type=int, default=0, help="the first seed; each function has the next one")
    parser.add_argument("--seed", type=int, nargs="*", help="these seeds alone")
    parser.add_argument("--workers", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--no-reduce", action="store_true", help="leave failing functions as large as they are")
    parser.add_argument("--output", type=Path, help="markdown file for the totals")
    parser.add_argument("--runs", type=Path, help="JSON file that this run is added to, for the page's table of runs")
    parser.add_argument("--json", type=Path, help="file for one JSON line a function")
    parser.add_argument("--from", dest="recorded", type=Path, nargs="*", help="make the page of these --json files")
    parser.add_argument("--again", action="store_true", help="with --from: run what failed there again, and count that")
    parser.add_argument(
        "--corpus", type=Path, help="judge the programs of this file again, and say in it which are open"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs, prints what fails as it comes and the totals at the end. Returns the exit code."""
    arguments = parse(argv)
    if arguments.child:
        run.child()
        return 0
    if arguments.corpus:
        return _judge_again(arguments.corpus)
    summary = Summary()
    for outcome in _outcomes(arguments):
        summary.add(outcome)
    runs: list[str] = []
    if arguments.runs:
        versions = ", ".join(f"{name} {value}" for name, value in environment().items())
        run_of_today = kept_runs.of(summary, seeds=ranges(summary.seeds), where=versions)
        runs = list(kept_runs.table(kept_runs.added(arguments.runs, run_of_today)))
    text = markdown(summary, command="make random-graphs", runs=runs)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    return 1 if summary.bad else 0


def _outcomes(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Those of earlier runs, or of the wanted seeds as they come."""
    if not arguments.recorded:
        seeds = arguments.seed or range(arguments.first, arguments.first + arguments.graphs)
        yield from _run(arguments, seeds)
        return
    failed = []
    for outcome in recorded(arguments.recorded):
        if arguments.again and outcome.kind in BAD:
            failed.append(outcome.seed)
        else:
            yield outcome
    for outcome in _run(arguments, failed) if failed else ():
        yield replace(outcome, again=True)


def _run(arguments: argparse.Namespace, seeds: Sequence[int]) -> Iterator[Outcome]:
    start, kinds = time.perf_counter(), Counter[str]()
    with home() as made:
        for outcome in run.run(seeds, made.environment(), workers=arguments.workers, reduce=not arguments.no_reduce):
            _show(outcome, alone=arguments.seed is not None)
            if arguments.json:
                with arguments.json.open("a") as file:
                    print(json.dumps(outcome.as_json()), file=file)
            kinds[outcome.kind] += 1
            if kinds.total() % PROGRESS_EVERY == 0:
                print(f"{time.perf_counter() - start:.0f} s: {dict(kinds)}", file=sys.stderr, flush=True)
            yield outcome


def _judge_again(file: Path) -> int:
    cases = []
    with home() as made:
        os.environ.update(made.environment())
        for case in corpus.read(file):
            outcome = examine(case.text, eagerly(case.text), seed=-1)
            still_open = "" if outcome.kind in FINE else outcome.why.partition("\n")[0][:200]
            if bool(still_open) != bool(case.still_open):
                print(f"{case.name}: {still_open or 'right'}")
            cases.append(replace(case, still_open=still_open))
    corpus.write(file, cases)
    print(f"{len(cases)} programs, {sum(bool(case.still_open) for case in cases)} open")
    return 0


def _show(outcome: Outcome, *, alone: bool) -> None:
    if outcome.kind in BAD or outcome.kind == "torch" or alone:
        print(f"\n--- seed {outcome.seed}: {outcome.kind}, {outcome.where}\n{outcome.why}")
        if not outcome.reduced:
            print(outcome.source)
        for op, reason in outcome.eager:
            print(f"eager: {op}: {reason}")
    if outcome.reduced:
        print(f"inductor: {outcome.inductor}\nreduced: {outcome.reduced_why}\n{outcome.reduced}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
