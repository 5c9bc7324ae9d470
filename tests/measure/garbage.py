"""How long Python's full searches for garbage take: they go over all objects of the process, and in whose turn one
falls is chance."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass

OLDEST = 2
"""The generation whose collection is a full one."""


@dataclass
class Collecting:
    """seconds: so far, by the clock."""

    seconds: float = 0.0


@contextlib.contextmanager
def full_collections() -> Iterator[Collecting]:
    """Counts those inside."""
    found, since = Collecting(), 0.0

    def counted(phase: str, of: dict[str, int]) -> None:
        nonlocal since
        if of["generation"] != OLDEST:
            return
        if phase == "start":
            since = time.perf_counter()
        else:
            found.seconds += time.perf_counter() - since

    gc.callbacks.append(counted)
    try:
        yield found
    finally:
        gc.callbacks.remove(counted)
