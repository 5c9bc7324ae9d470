"""Long work says how far it is: on the logger "rust_ort", at INFO, every few seconds and only as long as it lasts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

log = logging.getLogger("rust_ort")

EVERY_S = 5.0


@dataclass(kw_only=True)
class Progress:
    """Work under way. total: of `unit`, 0 unknown."""

    what: str
    unit: str
    total: int = 0
    done: int = 0
    started: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        of = f" of {self.total}" if self.total else ""
        return f"{self.what}: {self.done}{of} {self.unit} after {time.monotonic() - self.started:.0f} s"


_under_way = threading.local()


@contextlib.contextmanager
def progress(what: str, *, unit: str, total: int = 0) -> Iterator[None]:
    """Inside, `tick` counts. Nothing is logged of work that is done within EVERY_S."""
    before: Progress | None = getattr(_under_way, "now", None)
    now = _under_way.now = Progress(what=what, unit=unit, total=total)
    ended = threading.Event()
    # Its own thread: one session of the runtime may take longer than all else.
    teller = threading.Thread(target=_tell, args=(now, ended), name="rust_ort progress", daemon=True)
    told = log.isEnabledFor(logging.INFO)
    if told:
        teller.start()
    try:
        yield
    finally:
        _under_way.now = before
        if told:
            ended.set()
            teller.join()


def tick() -> None:
    """One more unit of the work under way in this thread is done."""
    now: Progress | None = getattr(_under_way, "now", None)
    if now is not None:
        now.done += 1


def begin(total: int) -> None:
    """The work under way in this thread begins, or begins anew."""
    now: Progress | None = getattr(_under_way, "now", None)
    if now is not None:
        now.total, now.done = total, 0


def _tell(now: Progress, ended: threading.Event) -> None:
    while not ended.wait(EVERY_S):
        log.info("%s", now)
