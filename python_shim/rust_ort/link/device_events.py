"""Events that order a connection's calls on CUDA devices, and what becomes of them when the executor dies."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Iterable

from rust_ort._native import LaneEvents
from rust_ort.memory import process

log = logging.getLogger("rust_ort")

SETTLE_S = 10.0
"""An executor that lost its client or its daemon drains its streams or ends within less."""
LOOK_S = 0.01


class DeviceEvents:
    """Those of one connection's lanes, by (lane, number of the device).

    An executor that dies with work on its stream leaves `done` unrecorded where this process's streams wait for it
    already. So a thread waits for the end of executors and records then what is left in their place, from a stream of
    its own. The manual does not say that this lets go who waits already (docs/decisions/0010-cuda.md).
    """

    def __init__(self) -> None:
        self._events: dict[tuple[int, int], LaneEvents] = {}
        self._lock = threading.Lock()
        self._unfinished = False
        self._pid = 0

    def of(self, lane: int, ordinal: int) -> LaneEvents | None:
        return self._events.get((lane, ordinal))

    def add(self, lane: int, ordinal: int, events: LaneEvents, executor: tuple[int, int]) -> None:
        """Events that the executor has opened. executor: its pid and pidfd."""
        with self._lock:
            self._events[lane, ordinal] = events
        if not self._pid:
            self._pid = executor[0]
            _watcher.add(self, *executor)

    def left_unfinished(self) -> bool:
        """Of a lost connection, once: whether work on a device that the executor had answered was not done when it
        ended. An executor that lives yet is waited for: it finishes that, or ends."""
        deadline = time.monotonic() + SETTLE_S
        while self._events and not self._settled() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        with self._lock:
            events, self._events = self._events, {}
            unfinished, self._unfinished = self._unfinished, False
        return unfinished or not _all_done(events.values())

    def _settled(self) -> bool:
        return self._unfinished or _all_done(self._events.values()) or not _watcher.has(self)

    def ended(self) -> None:
        """The executor has: nobody else records them."""
        with self._lock:
            events = list(self._events.values())
            left = not _all_done(events)
            self._unfinished = self._unfinished or left
        if left:
            log.error("the executor died with work on a device: what its last calls gave may be wrong")
            _release(events)

    def forget(self) -> None:
        """In a forked child: CUDA, and the thread, are its parent's."""
        self._events, self._lock, self._pid = {}, threading.Lock(), 0


class _Watcher:
    """Waits for the ends of executors, in one thread for all of them. It keeps their events until then: whoever made an
    event keeps it for as long as another process may record it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epoll: select.epoll | None = None
        self._watched: dict[int, tuple[int, list[DeviceEvents]]] = {}  # pidfd -> pid, who waits

    def add(self, events: DeviceEvents, pid: int, pidfd: int) -> None:
        with self._lock:
            for watched, waiting in self._watched.values():
                if watched == pid:
                    waiting.append(events)
                    return
            # Without a thread or a descriptor to be had a stream may wait in vain, as it would without all this.
            with contextlib.suppress(OSError, RuntimeError):
                own = os.dup(pidfd)
                self._watched[own] = (pid, [events])
                if self._epoll is None:
                    self._epoll = select.epoll()
                    threading.Thread(
                        target=self._wait, args=(self._epoll,), name="rust_ort executors' ends", daemon=True
                    ).start()
                self._epoll.register(own, select.EPOLLIN)

    def has(self, events: DeviceEvents) -> bool:
        """Whether the executor lives, or its end is being told."""
        with self._lock:
            return any(events in waiting for _, waiting in self._watched.values())

    def _wait(self, epoll: select.epoll) -> None:
        while True:
            for pidfd, _ in epoll.poll():
                with self._lock:
                    _, waiting = self._watched[pidfd]
                for events in waiting:
                    events.ended()
                epoll.unregister(pidfd)
                with self._lock:
                    del self._watched[pidfd]
                os.close(pidfd)  # last: from now on the number may be another's

    def forget(self) -> None:
        """In a forked child, which has no such thread; the descriptors are the parent's, too."""
        for pidfd in self._watched:
            with contextlib.suppress(OSError):
                os.close(pidfd)
        if self._epoll is not None:
            self._epoll.close()
        self.__init__()  # type: ignore[misc]


def _all_done(events: Iterable[LaneEvents]) -> bool:
    try:
        return all(pair.is_done() for pair in events)
    except RuntimeError:
        return False


def _release(events: Iterable[LaneEvents]) -> None:
    for pair in events:
        with contextlib.suppress(RuntimeError):  # CUDA has failed here, too, or ends with this process
            pair.release()


_watcher = _Watcher()
process.after_fork_in_child.append(_watcher.forget)
