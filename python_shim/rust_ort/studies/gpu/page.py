"""docs/results/gpu.md and docs/results/gpu.json: what a GPU check has shown."""

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
SAME = ("GPU", "torch", "onnxruntime")
"""Facts that the results of one page share."""
HEAD = """\
# What runs on a GPU

Made by `make gpu-check ORT_GPU_LIB=<folder of onnxruntime-gpu's libraries> BIN=<rust-ort>`, which needs no network and
no build, and takes at most eight minutes (`ARGS="--minutes 5"`: other); gpu.json has the same. Each step is a process
of its own with a daemon of its own; one that fails or hangs is ended, and the next goes on. Each has its share of the
time, and leaves out its last rows where that is too little. Steps in which nothing is timed run two at a time.
`ARGS="--only calls,nodes --output docs/results/gpu.md"`: those alone; `--resume`: go on where the last run with that
output ended, with `--retry` also with rows that FAILED. `make gpu-pack` packs what a machine without a network needs.

*verdict*: works; FAILED and why; missing and what; left out for want of time. *rows*: how many of a step's rows work.
Below it the rows of each step, with their numbers. *error*: the largest max|Δ|/max|r| of the tensors of a row, against
eager on the same device. *nodes*: run in that row, by the executors' own count; none may run in eager, and those that
do are named. *host bytes*: between host and device in a compiled call, by torch's profiler in this process;
*executor's*: by the executors' counters. TF32 is off. MLPs and convolutions have GELU: where rounding takes a unit of
ReLU to the other side of 0, a whole row of a weight's gradient differs, and no kernel is wrong.

Times of the bench are medians over alternating rounds, each variant a process of its own. *host*: until a call returns;
*queued*: calls one after the other, waited for at the end; *synced*: each call waited for. Causal LMs are transformers'
LlamaForCausalLM in default configuration; a step is one of AdamW under autocast. *device memory*: what is in use more
than before a variant's processes came there, the most over three steps, with their contexts and caches; ours are client
and executor. *goal*: what is wanted; a row works without.
"""
UNMEASURED = """\
No machine with a GPU has run this yet: every number is missing until one does. `make gpu-check ARGS="--device cpu"` is
a rehearsal of all steps that a CPU can run, in small sizes and four minutes, and writes nothing here.
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
    """The page, and the JSON beside it; of a path that ends in .json that alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".json":
        path.write_text(markdown(results, facts))
    path.with_suffix(".json").write_text(document(results, facts))


def known(path: Path, facts: Mapping[str, str]) -> list[Result]:
    """The results that an earlier run left in that JSON; none where there is no such file. Errors: ValueError where
    they are of another machine or of other libraries."""
    if not path.exists():
        return []
    told = json.loads(path.read_text())
    for name in SAME:
        if told["facts"].get(name) != facts.get(name):
            raise ValueError(f"{path} is of {name} {told['facts'].get(name)!r}, and here is {facts.get(name)!r}")
    return results_in(told)


def results_in(told: Mapping[str, Any]) -> list[Result]:
    """Of what `document` wrote."""
    return [Result(**{**step, "rows": [Row(**row) for row in step["rows"]]}) for step in told["steps"]]


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
