"""Runs steps, each as a process with a daemon and folders of its own, and ends by their ids all processes of each.

Time is shared out: each step gets the part of what is left that it needs of what all that are left need, and leaves out
its last rows where that is too little. Steps in which nothing is timed run two at a time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from rust_ort.studies.gpu import record
from rust_ort.studies.gpu.record import FAILED, LEFT_OUT, Row, short, worst

MARK = "RUST_ORT_GPU_CHECK"
"""In the environment of all that a step starts."""
LEAST_S = 8.0
"""With less time a step is not begun: it would import and end."""
PATIENCE_S = 5.0
"""From SIGTERM to SIGKILL."""
ROWS_SHARE = 0.9
"""Of a step's time: with the rest the last row that has begun comes to its end."""
AT_ONCE = 2
SHIM = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class Task:
    """command: what shows it; the path of its record and when it is to be done, by time.monotonic(), are appended.
    seconds: what it takes whole, by which time is shared out. alone: nothing runs beside it."""

    name: str
    title: str
    seconds: float
    command: Sequence[str]
    alone: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a task. why: of a verdict that no row explains."""

    name: str
    title: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether it came to its end with all of its rows."""
        return not self.why and all(row.verdict != LEFT_OUT for row in self.rows)

    def kept(self, *, retry: bool) -> Result:
        """With the rows that a later run need not try. retry: it is to try those that failed."""
        again = {LEFT_OUT, FAILED} if retry else {LEFT_OUT}
        rows = [row for row in self.rows if row.verdict not in again]
        why = self.why or ("" if len(rows) == len(self.rows) else "rows are to be tried again")
        return Result(**{**vars(self), "rows": rows, "why": why})


class Clock:
    """Shares the time until `until` among tasks that are still to be run."""

    def __init__(self, tasks: Sequence[Task], until: float) -> None:
        self._left = list(tasks)
        self._until = until
        self._lock = threading.Lock()

    def take(self, task: Task) -> float:
        """When the task, which begins now, is to be done. Those beside it take none of its time."""
        with self._lock:
            now = time.monotonic()
            ahead = sum(map(cost, groups(self._left)))
            self._left.remove(task)
            return now + max(0.0, self._until - now) * task.seconds / ahead


def groups(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks that follow each other and run alone, or do not."""
    return [list(of) for _, of in groupby(tasks, key=lambda task: task.alone)]


def at_once(group: Sequence[Task]) -> int:
    return 1 if group[0].alone else AT_ONCE


def cost(group: Sequence[Task]) -> float:
    """Seconds that pass meanwhile."""
    seconds = [task.seconds for task in group]
    return max(sum(seconds) / at_once(group), *seconds)


def run_all(
    tasks: Sequence[Task],
    environment: Mapping[str, str],
    *,
    seconds: float,
    logs: Path,
    known: Mapping[str, Result] | None = None,
) -> Iterator[Result]:
    """Each task's result, as it comes. seconds: for all together. environment: of each, beside what its home adds.
    logs: a folder; what a task prints goes into a file there. known: of an earlier run, whose rows are not tried
    again."""
    known = known or {}
    yield from (known[task.name] for task in tasks if task.name in known and known[task.name].whole)
    left = [task for task in tasks if task.name not in known or not known[task.name].whole]
    clock = Clock(left, time.monotonic() + seconds - 2 * PATIENCE_S)  # the last one's end counts, too
    logs.mkdir(parents=True, exist_ok=True)
    marks: set[str] = set()

    def run(task: Task) -> Result:
        until = clock.take(task)
        log = logs / f"{task.name}.log"
        return run_one(task, environment, until=until, log=log, known=known.get(task.name), marks=marks)

    for group in groups(left):
        with ThreadPoolExecutor(at_once(group)) as pool:
            started = [pool.submit(run, task) for task in group]
            try:
                for future in as_completed(started):
                    yield future.result()
            except BaseException:  # who is interrupted leaves nothing behind
                for future in started:
                    future.cancel()
                for mark in list(marks):
                    end(mark)
                raise


def run_one(
    task: Task, environment: Mapping[str, str], *, until: float, log: Path, known: Result | None = None,
    marks: set[str] | None = None,
) -> Result:  # fmt: skip
    """until: by time.monotonic(). marks: to be told of those of its processes, while they run. Errors: none of the
    task's."""
    begin = time.monotonic()
    limit_s = until - begin
    earlier = known.rows if known else []
    if limit_s < LEAST_S:
        why = f"left out: {max(limit_s, 0):.0f} s were its share of the time"
        verdict = worst([*(row.verdict for row in earlier), LEFT_OUT])
        return Result(name=task.name, title=task.title, verdict=verdict, why=why, rows=list(earlier))
    with home(environment) as (folder, around), log.open("a" if known else "w") as said:
        path = folder / "record.jsonl"
        record.write(path, earlier)
        command = [*task.command, str(path), repr(begin + ROWS_SHARE * limit_s)]
        mark = around[MARK]
        marks = marks if marks is not None else set()
        marks.add(mark)
        process = subprocess.Popen(
            command, env=around, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(mark)
            process.wait()
            marks.discard(mark)
        found = record.read(path)
    # What has looked at all its rows has done its work, however long its process takes to go.
    why = "" if found.ended and code is None else reason(code, found.begun, limit_s, log)
    rows = found.rows
    verdict = worst([*(row.verdict for row in rows), *([FAILED] if why else [])])
    if not rows and not why:
        why = "it tried nothing"
    return Result(
        name=task.name,
        title=task.title,
        verdict=verdict,
        why=why,
        seconds=round(time.monotonic() - begin + (known.seconds if known else 0.0), 1),
        rows=rows,
    )


def reason(code: int | None, begun: str, limit_s: float, log: Path) -> str:
    """Why a task did not come to its end, "" where it did. code: None for one that took too long."""
    at = f" at: {begun}" if begun else ""
    if code is None:
        return f"ended by its limit after {limit_s:.0f} s{at}"
    if code:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{how}{at}{': ' + short(last[0]) if last else ''}"
    return ""


@contextmanager
def home(environment: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """(a folder of a task's own, the environment with a daemon and caches in it)."""
    with tempfile.TemporaryDirectory(prefix="rust-ort-gpu.", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        yield (
            folder,
            {
                **environment,
                MARK: uuid.uuid4().hex,
                "RUST_ORT_SOCKET": str(folder / "v1.sock"),
                "RUST_ORT_STATE_DIR": str(folder / "state"),
                "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
                "TRITON_CACHE_DIR": str(folder / "triton"),
            },
        )


def environment(binary: str, library: Path, folders: Sequence[Path]) -> dict[str, str]:
    """This process's, without the user's options, with the program, the runtime, and the folders of the libraries that
    its provider needs. A daemon hands LD_LIBRARY_PATH on to its executors."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUST_ORT_")}
    paths = {"PYTHONPATH": [str(SHIM)], "LD_LIBRARY_PATH": [str(folder) for folder in folders]}
    joined = {name: os.pathsep.join([*first, *filter(None, [kept.get(name)])]) for name, first in paths.items()}
    made = {**kept, **{name: value for name, value in joined.items() if value}}
    return {**made, "RUST_ORT_BINARY": binary, "RUST_ORT_ONNXRUNTIME": str(library)}


def end(mark: str) -> None:
    """Ends every process with the mark in its environment, by its id."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + PATIENCE_S
        for pid in marked(mark):
            _send(pid, sent)
        while marked(mark) and time.monotonic() < until:
            time.sleep(0.05)


def _send(pid: int, sent: signal.Signals) -> None:
    try:
        os.kill(pid, sent)
    except ProcessLookupError:
        return


def marked(mark: str) -> list[int]:
    """Processes that a task started and that have not ended."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                inside = wanted in (entry / "environ").read_bytes().split(b"\0")
            except OSError:  # another user's, or gone
                continue
            if inside:
                found.append(int(entry.name))
    return found
