"""Events that order a connection's calls on CUDA devices, and what becomes of them when the executor dies."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Iterable

from rust_ort._native import LaneEvents

log = logging.getLogger("rust_ort")


class DeviceEvents:
    """Those of one connection's lanes, by (lane, number of the device). None is given up: an executor may record it.

    An executor that dies with work on its stream leaves `done` unrecorded where this process's streams wait for it
    already. So a thread waits for its end and records what is left in its place, from a stream of its own: who waits
    for an event goes on when it is recorded once more.
    """

    def __init__(self) -> None:
        self._events: dict[tuple[int, int], LaneEvents] = {}
        self._lock = threading.Lock()
        self._unfinished = False

    def of(self, lane: int, ordinal: int) -> LaneEvents | None:
        return self._events.get((lane, ordinal))

    def add(self, lane: int, ordinal: int, events: LaneEvents, executor_pid: int) -> None:
        """Events that the executor has opened."""
        with self._lock:
            is_first = not self._events
            self._events[lane, ordinal] = events
        _kept.append(events)
        if is_first:
            with contextlib.suppress(OSError):  # it is gone: whoever calls finds that
                pidfd = os.pidfd_open(executor_pid)
                threading.Thread(target=self._wait, args=(pidfd,), name="rust_ort executor's end", daemon=True).start()

    def left_unfinished(self) -> bool:
        """Of a lost executor, once: whether work on a device that it had answered was not done when it ended."""
        with self._lock:
            left = bool(self._events) and (self._unfinished or not _all_done(self._events.values()))
            if left:
                _release(self._events.values())
            self._events = {}
            return left

    def forget(self) -> None:
        """In a forked child: CUDA, and the thread, are its parent's."""
        self._events, self._lock = {}, threading.Lock()

    def _wait(self, pidfd: int) -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        os.close(pidfd)
        with self._lock:
            if _all_done(self._events.values()):
                return
            self._unfinished = True
            _release(self._events.values())
        log.error("the executor died with work on a device: what its last calls gave may be wrong; do that step again")


def _all_done(events: Iterable[LaneEvents]) -> bool:
    try:
        return all(pair.is_done() for pair in events)
    except RuntimeError:
        return False


def _release(events: Iterable[LaneEvents]) -> None:
    for pair in events:
        with contextlib.suppress(RuntimeError):  # CUDA has failed here, too, or ends with this process
            pair.release()


_kept: list[LaneEvents] = []
