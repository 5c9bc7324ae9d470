"""`make zoo`: every model of the zoo through every task, each model in a process of its own.

Writes docs/results/zoo.md and zoo.json.

What zoo.json has is not run again, but for what --again names; a run that is ended goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from measure.home import home
from measure.zoo import graphnet, report
from measure.zoo.run import TASKS

PROGRAM = (sys.executable, "-W", "ignore", "-m", "measure.zoo.run")
TASK_S = 600.0
"""A task that takes longer is a timeout."""
MEMORY_MIB = 8 * 1024
"""A process that takes more is ended: out of memory."""
LOOKED_S = 1.0
THIRD = ("float16", "dynamic eval", "dynamic train")
"""Tasks of every third model; of GraphNet train, too."""
COMPARED_WITH_EAGER = ("eval", "train")
"""What is done with GraphNet's samples."""
EXTRA = tuple(task for task in TASKS if task.startswith("inductor"))
"""Tasks that only --tasks names: inductor compiles for minutes."""


@dataclass(kw_only=True)
class Results:
    """{model: {task: what was found}} in a file, written anew after each."""

    path: Path | None
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def read(cls, path: Path | None) -> Results:
        return cls(path=path, found=json.loads(path.read_text()) if path is not None and path.exists() else {})

    def add(self, model: str, task: str, found: dict[str, Any]) -> None:
        with self.lock:
            self.found.setdefault(model, {})[task] = found
            why = f": {found['why'][:200]}" if found.get("why") else ""
            print(f"{model}, {task}: {found['status']}{why}", flush=True)
            if self.path is not None:
                written = self.path.with_suffix(".begun")
                written.write_text(report.as_json(self.found))
                written.replace(self.path)


class Runner:
    """Runs tasks of one model after another in a process, and in another when that ends before it is through."""

    def __init__(
        self,
        environment: Mapping[str, str],
        results: Results,
        program: Sequence[str] = PROGRAM,
        limit_s: float = TASK_S,
    ) -> None:
        self._environment, self._results, self._program, self._limit_s = environment, results, program, limit_s

    def run(self, model: str, tasks: Sequence[str]) -> None:
        left = list(tasks)
        while left:
            ended = self._process(model, left)
            if not left:
                return
            self._results.add(model, left.pop(0), ended)

    def _process(self, model: str, left: list[str]) -> dict[str, Any]:
        """Takes from `left` what is through; how the process ended where something is left."""
        command = [*self._program, model, *left]
        with subprocess.Popen(
            command, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True, text=True, bufsize=1,
        ) as process, selectors.DefaultSelector() as waiting:  # fmt: skip
            assert process.stdout is not None
            waiting.register(process.stdout, selectors.EVENT_READ)
            since = time.monotonic()
            while True:
                if waiting.select(LOOKED_S):
                    line = process.stdout.readline()
                    if not line:
                        return {"status": "fail_to_run", "why": f"the process ended: exit code {process.wait()}"}
                    found = json.loads(line)
                    self._results.add(found.pop("model"), found.pop("task"), found)
                    left.pop(0)
                    since = time.monotonic()
                    if not left:
                        return {}
                over = _over(process.pid, time.monotonic() - since, self._limit_s)
                if over:
                    os.killpg(process.pid, signal.SIGKILL)
                    return over


def _over(pid: int, seconds: float, limit_s: float) -> dict[str, Any]:
    """What of its bounds a process is over; {} for nothing."""
    if seconds > limit_s:
        return {"status": "timeout", "why": f"no result within {limit_s:.0f} s"}
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return {}
    mib = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return {"status": "OOM", "why": f"more than {MEMORY_MIB} MiB"} if mib > MEMORY_MIB else {}


def wanted(
    names: Iterable[str], patterns: Sequence[str], tasks: Sequence[str], rare: Sequence[str]
) -> dict[str, list[str]]:
    """{model: its tasks}, in the order of the names. rare: beside THIRD."""
    return {
        name: [task for task in tasks if at % 3 == 0 or task not in (*THIRD, *rare)]
        for at, name in enumerate(names)
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def main(arguments: Sequence[str] | None = None) -> int:
    standard = [task for task in TASKS if task not in EXTRA]
    parser = argparse.ArgumentParser(prog="python -m measure.zoo", description=__doc__)
    parser.add_argument("--models", default="*", help="comma separated patterns of names")
    parser.add_argument("--tasks", help=f"comma separated, of {', '.join(TASKS)}; all but {', '.join(EXTRA)}")
    parser.add_argument("--graphnet", type=Path, help="a copy of GraphNet's repository, of which samples are taken")
    parser.add_argument("--samples", type=int, default=600, help="of GraphNet: eval of all, train of every third")
    parser.add_argument("--again", default="", help="comma separated patterns of models whose tasks are run once more")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="one thread each")
    parser.add_argument("--output", type=Path, help="markdown file, with .json beside it, which has the results")
    options = parser.parse_args(arguments)
    given = options.tasks or ",".join(COMPARED_WITH_EAGER if options.graphnet else standard)
    tasks = given.split(",")
    if unknown := set(tasks) - set(TASKS):
        parser.error(f"unknown tasks {sorted(unknown)}; known: {', '.join(TASKS)}")
    if options.graphnet is not None:
        os.environ[graphnet.FOLDER] = str(options.graphnet.resolve())
        names = graphnet.names(options.graphnet, options.samples)
        kept = report.graphnets(options.output) if options.output is not None else None
    else:
        from measure.zoo.models import MODELS

        names = [*MODELS]
        kept = options.output.with_suffix(".json") if options.output is not None else None
    results = Results.read(kept)
    again = [pattern for pattern in options.again.split(",") if pattern]
    waiting: queue.SimpleQueue[tuple[str, list[str]]] = queue.SimpleQueue()
    for name, of in wanted(names, options.models.split(","), tasks, ["train"] if options.graphnet else []).items():
        redo = any(fnmatchcase(name, pattern) for pattern in again)
        if left := [task for task in of if redo or task not in results.found.get(name, {})]:
            waiting.put((name, left))

    def work(environment: dict[str, str]) -> None:
        while True:
            try:
                Runner(environment, results).run(*waiting.get_nowait())
            except queue.Empty:
                return

    with home() as made:
        environment = {**made.environment(), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        threads = [threading.Thread(target=work, args=(environment,)) for _ in range(options.workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if options.output is not None:
        options.output.write_text(report.markdown(options.output))
    print(report.totals(results.found))
    return int(report.is_wrong(results.found))


if __name__ == "__main__":
    sys.exit(main())
