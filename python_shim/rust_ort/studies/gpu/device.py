"""Memory and synchronization of the device that a step runs on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

import rust_ort


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def used_bytes(device: str) -> int:
    """What is in use on the GPU, by all processes. Of the CPU, for a rehearsal: what this process and the executors
    hold."""
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    known = rust_ort.status()
    return sum(map(pss, ["self", *(executor["pid"] for executor in known.get("executors", []))]))


def pss(pid: int | str) -> int:
    """Bytes that a process holds, its share of what others map, too; 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def waited(condition: Callable[[], bool], *, seconds: float) -> float | None:
    """Seconds until the condition held, None when it did not hold in time."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - begin
