"""docs/gpu.md and docs/gpu.json: what a GPU check has shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rust_ort.studies.gpu.record import EXIT_CODES, Row, shown, worst
from rust_ort.studies.gpu.runner import Result, Task
from rust_ort.studies.main_job import aligned

NOT_MEASURED = "not measured yet"
HEAD = """\
# What runs on a GPU

Made by `make gpu-check ORT_GPU_LIB=<folder of onnxruntime-gpu's libraries> BIN=<rust-ort>`, which needs no network and
no build, and takes at most ten minutes (`ARGS="--minutes 5"`: other); gpu.json has the same. Each step is a process of
its own with a daemon of its own; one that fails or hangs is ended, and the next goes on.

*verdict*: works; FAILED and why; missing and what. *rows*: how many of a step's rows work. Below it the rows of each
step, with their numbers. *error*: the largest max|Δ|/max|r| of the tensors of a row, against eager on the same device.
*nodes*: run in that row, by the executors' own count; none may run in eager. *host bytes*: between host and device in a
compiled call, by torch's profiler in this process; *executor's*: by the executors' counters. TF32 is off in what is
judged. Times are medians over alternating rounds in one process, of calls that are queued one after the other and
waited for at the end of a round.
"""
UNMEASURED = """\
No machine with a GPU has run this yet: every number is missing until one does. `make gpu-check ARGS="--device cpu"` is
a rehearsal of all steps that a CPU can run, and writes nothing here.
"""


def before(tasks: Sequence[Task]) -> str:
    """The page of a repository in which nothing was measured."""
    rows = [f"| {task.name} | {task.title} | {NOT_MEASURED} | - | - |" for task in tasks]
    return "\n".join([HEAD, UNMEASURED, *_table(), *rows]) + "\n"


def markdown(results: Sequence[Result], facts: Mapping[str, str]) -> str:
    lines = [HEAD, *(f"- {name}: {_cell(value)}" for name, value in facts.items()), "", *_table()]
    lines += [f"| {' | '.join(map(_cell, cells(result)))} |" for result in results]
    for result in results:
        if result.rows:
            lines += ["", f"## {result.name}: {result.title}", "", "| what | verdict | numbers |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_cell, row_cells(row)))} |" for row in result.rows]
    return "\n".join(lines) + "\n"


def text(results: Sequence[Result]) -> str:
    """The table of steps for a terminal."""
    return aligned([("step", "what", "verdict", "rows", "seconds"), *map(cells, results)])


def document(results: Sequence[Result], facts: Mapping[str, str]) -> str:
    return json.dumps({"facts": dict(facts), "steps": [asdict(result) for result in results]}, indent=1) + "\n"


def write(path: Path, results: Sequence[Result], facts: Mapping[str, str]) -> None:
    """The page, and the JSON beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(results, facts))
    path.with_suffix(".json").write_text(document(results, facts))


def exit_code(results: Sequence[Result]) -> int:
    return EXIT_CODES[worst([result.verdict for result in results])]


def cells(result: Result) -> tuple[str, ...]:
    works = sum(row.verdict == "works" for row in result.rows)
    verdict = f"{result.verdict}: {result.why}" if result.why else result.verdict
    return (result.name, result.title, verdict, f"{works} of {len(result.rows)}", f"{result.seconds:.0f}")


def row_cells(row: Row) -> tuple[str, ...]:
    numbers = ", ".join(f"{name} {shown(value)}" for name, value in row.numbers.items())
    return (row.what, f"{row.verdict}: {row.why}" if row.why else row.verdict, numbers or "-")


def _table() -> list[str]:
    return ["| step | what | verdict | rows | seconds |", "|---|---|---|---|---|"]


def _cell(value: Any) -> str:
    """A bar would end a cell of the table."""
    return str(value).replace("|", "\\|")
