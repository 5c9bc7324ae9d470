"""Calls handed to the executor through shared memory: docs/design/protocol.md gives the lanes' layout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from rust_ort._native import LANES, Lane
from rust_ort._native import Lanes as LaneMemory
from rust_ort.link.pool import cores

__all__ = ("Lane", "LaneMemory", "Lanes", "Peer")

LANE_BYTES = 1 << 20


class Peer(Protocol):
    """Whoever knows, between turns of waiting, that nobody will answer any more."""

    def check(self) -> None:
        """Raises when the peer is gone."""


class Lanes:
    """The lanes of one connection. take() and give() are safe from any thread."""

    def __init__(self, *, threads: int) -> None:
        """threads: of the executor."""
        spare_core = cores() > threads
        self.memory = LaneMemory(LANES, LANE_BYTES, spare_core)
        self.lanes = [self.memory.lane(index) for index in range(LANES)]
        self._free = self.lanes[::-1]
        self._abandoned: list[tuple[Lane, object, Callable[[], None] | None]] = []
        self._unsettled: list[object] = []
        # `with` on a lock is never interrupted halfway; on a Condition, which is Python, it may be.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiters = 0

    def take(self, peer: Peer) -> Lane:
        """A lane without a call, the last one given back first; waits while all are taken. Errors: peer.check's."""
        if self._abandoned:
            self.sweep()
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._lock:
            self._waiters += 1
            try:
                while True:
                    self.sweep()
                    try:
                        return self._free.pop()
                    except IndexError:
                        self._changed.wait(0.1)
                        peer.check()
            finally:
                self._waiters -= 1

    def give(self, lane: Lane) -> None:
        """Returns a lane whose call was answered or never published."""
        self._free.append(lane)
        if self._waiters:
            with self._lock:
                self._changed.notify()

    def abandon(self, lane: Lane, holds: object, settle: Callable[[], None] | None = None) -> None:
        """Keeps what the call in flight on this lane reads and writes until it is answered. settle: is called before it
        is let go of; what it raises keeps it."""
        self._abandoned.append((lane, holds, settle))

    def sweep(self) -> None:
        """Takes back abandoned lanes whose calls were answered since."""
        for _ in range(len(self._abandoned)):
            try:
                lane, holds, settle = self._abandoned.pop(0)
            except IndexError:
                return
            if not lane.answered():
                self._abandoned.append((lane, holds, settle))
                continue
            if settle is not None:
                try:
                    settle()
                except RuntimeError:
                    self._unsettled.append(holds)
            self._free.append(lane)

    def in_flight(self) -> list[object]:
        """What abandoned calls still hold."""
        self.sweep()
        return [holds for _, holds, _ in self._abandoned]
