"""Runs steps, each as a process with a daemon and folders of its own, and ends by their ids all processes of each."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rust_ort.studies.gpu.record import FAILED, MISSING, Row, read, short, worst

MARK = "RUST_ORT_GPU_CHECK"
"""In the environment of all that a step starts."""
LEAST_S = 10.0
"""With less time left a step is not begun."""
PATIENCE_S = 5.0
"""From SIGTERM to SIGKILL."""
SHIM = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True)
class Task:
    """command: what shows it; the path of its record and how many seconds it has are appended."""

    name: str
    title: str
    limit_s: float
    command: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of a task. why: of a verdict that no row explains."""

    name: str
    title: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)


def run_all(tasks: Sequence[Task], environment: Mapping[str, str], *, seconds: float, logs: Path) -> Iterator[Result]:
    """Each task's result, in order. seconds: for all together; what has no time left is missing, and says so.
    environment: of each, beside what its home adds. logs: a folder; what a task prints goes into a file there."""
    deadline = time.monotonic() + seconds - 2 * PATIENCE_S  # the last one's end counts, too
    logs.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        left = deadline - time.monotonic()
        if left < LEAST_S:
            why = f"left out: {max(left, 0):.0f} s were left of {seconds / 60:.3g} minutes"
            yield Result(name=task.name, title=task.title, verdict=MISSING, why=why)
        else:
            yield run_one(task, environment, limit_s=min(task.limit_s, left), log=logs / f"{task.name}.log")


def run_one(task: Task, environment: Mapping[str, str], *, limit_s: float, log: Path) -> Result:
    """Errors: none of the task's."""
    begin = time.monotonic()
    with home(environment) as (folder, around), log.open("w") as said:
        record = folder / "record.jsonl"
        command = [*task.command, str(record), f"{limit_s:.0f}"]
        process = subprocess.Popen(
            command, env=around, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(around[MARK])
            process.wait()
        rows, begun = read(record)
    why = reason(code, begun, limit_s, log)
    verdict = worst([*(row.verdict for row in rows), *([FAILED] if why else [])])
    if not rows and not why:
        why = "it tried nothing"
    return Result(
        name=task.name,
        title=task.title,
        verdict=verdict,
        why=why,
        seconds=round(time.monotonic() - begin, 1),
        rows=rows,
    )


def reason(code: int | None, begun: str, limit_s: float, log: Path) -> str:
    """Why a task did not come to its end, "" where it did. code: None for one that took too long."""
    at = f" at: {begun}" if begun else ""
    if code is None:
        return f"ended after {limit_s:.0f} s{at}"
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
