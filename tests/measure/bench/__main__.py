"""`make bench`: small calls and Llama's parts, against eager, inductor and ONNX Runtime in the process; what watching
a step costs.

Every variant's result is held against eager's before it is timed. Kept in docs/bench.md and bench.json where --output
says so; the table shows what was kept before beside the new.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from measure.bench import calls, models, table, watched
from measure.bench.timing import Timing


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measure.bench", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=30, help="of small calls; a model has a quarter of them, a watched one a tenth"
    )
    parser.add_argument("--variants", default=",".join(calls.VARIANTS), help="comma separated")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, comma separated")
    parser.add_argument("--spinning", action="store_true", help="let in-process ONNX Runtime's threads spin")
    parser.add_argument("--output", type=Path, help="markdown file; the JSON goes beside it")
    arguments = parser.parse_args(argv)
    variants = tuple(arguments.variants.split(","))
    unknown = set(variants) - set(calls.VARIANTS)
    if unknown or arguments.rounds < 1:
        parser.error(
            f"unknown variants {sorted(unknown)}; known: {', '.join(calls.VARIANTS)}; rounds must be at least 1"
        )
    wanted = arguments.cases.split(",")
    timings: list[Timing] = []
    begun = functools.partial(print, "...", file=sys.stderr, flush=True)
    for small in calls.cases():
        if any(name in small.name for name in wanted):
            begun(small.name)
            timings += calls.measure(small, variants, rounds=arguments.rounds, spinning=arguments.spinning)
    whole = [variant for variant in variants if variant in models.VARIANTS]
    for case in models.cases():
        if any(name in case.name for name in wanted):
            begun(case.name)
            timings += models.measure(case, whole, rounds=max(1, arguments.rounds // 4))
    for case in watched.cases() if "rust_ort" in variants else ():
        if any(name in watched.name(case) for name in wanted):
            begun(watched.name(case))
            timings += watched.measure(case, rounds=max(1, arguments.rounds // 10))
    json_file: Path | None = arguments.output.with_suffix(".json") if arguments.output else None
    chosen = ("rounds", "variants", "cases")
    given = [f"--{name} {value}" for name in chosen if (value := getattr(arguments, name)) != parser.get_default(name)]
    command = f'make bench ARGS="{" ".join(given)}"' if given else "make bench"
    text = table.markdown(timings, table.written(json_file) if json_file else {}, command=command)
    print(text)
    if json_file:
        arguments.output.write_text(text)
        json_file.write_text(table.document(timings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
