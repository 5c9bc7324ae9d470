"""`make bench`: small calls, Llama's parts, decoding, curves over sizes and clients and the first call, against eager,
inductor and ONNX Runtime in the process; what watching a step costs; memory of a training step, and of a GPU where
there is one.

Every variant's result is held against eager's before it is timed, but for the first call's. --output writes
docs/results/bench.md, bench.json and plots of the curves; the table shows what docs/results/bench.json holds beside the
new.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from measure.bench import (
    calls,
    clients,
    curves,
    decode,
    first_call,
    memory,
    models,
    on_device,
    plots,
    table,
    watched,
)
from measure.bench.memory import Peak
from measure.bench.timing import Timing

KEPT = Path(__file__).resolve().parents[3] / "docs/results/bench.json"
"""Of the last run that was kept, whatever this one writes."""
Job = tuple[str, Callable[[], Sequence[Timing | Peak]]]
"""(name that --cases chooses by, its measuring)."""


def jobs(variants: Sequence[str], *, rounds: int, spinning: bool) -> list[Job]:
    """All of them in the order of the table. What takes long has few rounds: a median of them tells no less."""
    whole = [variant for variant in variants if variant in models.VARIANTS]
    part = functools.partial
    some, fewer, few = (max(1, rounds // n) for n in (4, 6, 10))
    small = [
        (case.name, part(calls.measure, case, variants, rounds=rounds, spinning=spinning)) for case in calls.cases()
    ]
    parts = [(case.name, part(models.measure, case, whole, rounds=some)) for case in models.cases()]
    decoded = [*whole, table.FROZEN] if table.OURS in whole else whole
    decoding = [(case.name, part(decode.measure, case, decoded, rounds=some)) for case in decode.cases()]
    sizes = [(point.name, part(curves.measure, point, whole, rounds=fewer)) for point in curves.points()]
    if "rust_ort" not in variants:
        return [*small, *parts, *decoding, *sizes]
    watching = [(watched.name(case), part(watched.measure, case, rounds=few)) for case in watched.cases()]
    at_once = (clients.NAME, part(clients.measure, rounds=few))
    first = (first_call.NAME, part(first_call.measure, rounds=max(1, rounds // 30)))
    held = (memory.NAME, part(memory.measure, whole, rounds=max(1, rounds // 30)))
    of_gpu = [(table.DEVICE_MEMORY, on_device.peaks)] if torch.cuda.is_available() else []
    return [*small, *parts, *watching, *decoding, *sizes, at_once, first, held, *of_gpu]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measure.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of small calls; what takes longer has a part of them")
    parser.add_argument("--variants", default=",".join(calls.VARIANTS), help="comma separated")
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, comma separated")
    parser.add_argument("--spinning", action="store_true", help="let in-process ONNX Runtime's threads spin")
    parser.add_argument("--output", type=Path, help="markdown file; JSON and plots go beside it")
    arguments = parser.parse_args(argv)
    variants = tuple(arguments.variants.split(","))
    unknown = set(variants) - set(calls.VARIANTS)
    if unknown or arguments.rounds < 1:
        parser.error(
            f"unknown variants {sorted(unknown)}; known: {', '.join(calls.VARIANTS)}; rounds must be at least 1"
        )
    if arguments.output and importlib.util.find_spec("matplotlib") is None:
        parser.error("--output plots the curves, and matplotlib is not here; run make setup")
    wanted = arguments.cases.split(",")
    timings: list[Timing] = []
    peaks: list[Peak] = []
    for name, measure in jobs(variants, rounds=arguments.rounds, spinning=arguments.spinning):
        if any(part in name for part in wanted):
            print("...", name, file=sys.stderr, flush=True)
            for made in measure():
                if isinstance(made, Peak):
                    peaks.append(made)
                else:
                    timings.append(made)
    chosen = ("rounds", "variants", "cases")
    given = [f"--{name} {value}" for name in chosen if (value := getattr(arguments, name)) != parser.get_default(name)]
    command = f'make bench ARGS="{" ".join(given)}"' if given else "make bench"
    output: Path | None = arguments.output
    before = table.written(KEPT)
    if output:
        output.with_suffix(".json").write_text(table.document(timings, peaks))
    drawn = plots.draw(timings, output.parent) if output else []
    text = table.markdown(timings, before, command=command, peaks=peaks, plots=drawn)
    print(text)
    if output:
        output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
