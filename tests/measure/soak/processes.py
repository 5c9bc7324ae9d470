"""Processes of one soak, found by a mark in their environment: a namespace has pids of its own, and a pid that somebody
tells may be a stranger's here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """role: "daemon", "executor", "client" or "" for others."""

    pid: int
    role: str
    command: str


def marked(mark: str) -> Iterator[Process]:
    """Those that have `mark`, NAME=value, in their environment; this one is not among them."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{mark}\0".encode() not in (folder / "environ").read_bytes() or int(folder.name) == os.getpid():
                continue
            arguments = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        yield Process(pid=int(folder.name), role=_role(arguments), command=" ".join(arguments).strip())


def _role(arguments: list[str]) -> str:
    program, first = os.path.basename(arguments[0]), arguments[1] if len(arguments) > 1 else ""
    if program.startswith("rust-ort"):
        return {"serve": "daemon", "executor": "executor"}.get(first, "")
    return "client" if "measure.soak.client" in arguments and not program.startswith("unshare") else ""


def signalled(pid: int, number: signal.Signals) -> int:
    """Sends a signal. Returns the pid; 0 where there is none, or none any more."""
    try:
        if pid:
            os.kill(pid, number)
    except ProcessLookupError:
        return 0
    return pid
