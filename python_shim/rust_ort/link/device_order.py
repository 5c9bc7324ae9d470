"""How the streams of this process and an executor are ordered in one connection's calls on CUDA devices.

By numbers in memory that both map, or where a device or its driver has no such waits, by events:
docs/design/decisions/0010-cuda.md.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from rust_ort._native import DeviceNumbers, DeviceWork, LaneEvents, StreamSlot
from rust_ort.errors import ClientError, ExecutorLost
from rust_ort.link.lanes import Lane, Peer

log = logging.getLogger("rust_ort")

Failure: TypeAlias = tuple[int, int, str, str]
"""ErrorKind, ErrorCode, text, node or ""."""

SETTLE_S = 10.0
"""An executor that lost its client or its daemon drains its streams or ends within less."""
LOOK_S = 0.01
N_SLOTS = 256
"""Of a connection's lanes; the first is none of a stream's."""
PER_THREAD = 2
"""CUDA's number for a default stream of each thread's own."""


class DeviceQueue:
    """The calls of one connection on a device, over one lane, one after the other. Whoever makes one holds the lock.

    A call is posted when the one before it has been answered, and until then no stream writes or waits for its
    numbers: so all streams of this process are told of calls in the order in which the executor puts them on its own.
    """

    def __init__(self, device: DeviceNumbers, lane: Lane, order: DeviceOrder) -> None:
        self.lock = threading.RLock()  # a finalizer that makes a call may run anywhere
        self.lane = lane
        self.graph = ""
        """Of the newest call."""
        self._device = device
        self._order = order
        self._slots: dict[object, StreamSlot] = {}

    def slot(self, stream: int, open_slot: Callable[[int, bytes], None]) -> StreamSlot:
        """The numbers of a stream. open_slot: tells the executor. Errors: its, ClientError, RuntimeError."""
        key = stream if stream != PER_THREAD else (stream, threading.get_ident())
        slot = self._slots.get(key)
        if slot is None:
            number = self._order.next_slot()
            if number is None:
                idle = next((other for other, slot in self._slots.items() if slot.idle()), None)
                if idle is None:
                    raise ClientError(f"calls of {N_SLOTS} streams at once: wait for some of them", code="LIMIT")
                slot = self._slots.pop(idle)
            else:
                slot = self._device.slot(number)
                open_slot(number, bytes(self._device.device))
                slot.opened(self._order.work)
            self._slots[key] = slot
        return slot

    def settle(self, peer: Peer) -> tuple[str, Failure] | None:
        """Waits for the answer that nobody has looked at yet: of which graph's call, and what it failed of. Errors:
        peer.check's."""
        if not self.lane.unseen:
            return None
        failure = self.lane.answer(peer)
        return None if failure is None else (self.graph, failure)

    def failed(self) -> tuple[str, Failure] | None:
        """As `settle`, where the answer is there already and nobody makes a call."""
        if not self.lane.unseen or not self.lane.is_answered() or not self.lock.acquire(blocking=False):
            return None
        try:
            return self.settle(_NOBODY) if self.lane.is_answered() else None  # another thread may have posted one
        finally:
            self.lock.release()


class DeviceOrder:
    """That of one connection."""

    def __init__(self) -> None:
        self.work = DeviceWork()
        self.queues: dict[int, DeviceQueue | None] = {}
        """By number of the device; None: events order its calls."""
        self._events: dict[tuple[int, int], LaneEvents] = {}
        self._slots = itertools.count(1)
        self._lock = threading.Lock()
        self._pid = 0
        self.told = 0
        """Calls that the executor left undone, and that said so themselves."""

    def next_slot(self) -> int | None:
        """The number of a slot that nobody has; None: there is none left."""
        return next((number for number in itertools.islice(self._slots, 1) if number < N_SLOTS), None)

    def watch(self, executor_pid: int, is_gone: Callable[[], bool]) -> None:
        """From now on the end of the executor lets go what waits for it."""
        with self._lock:
            if self._pid:
                return
            # Without a thread or a descriptor to be had a stream may wait in vain, as it would without all this.
            with contextlib.suppress(OSError):
                self.work.watch(executor_pid, _tell)
                self._pid = executor_pid
        if is_gone():  # its number may have been another's already
            raise ExecutorLost("the executor died; call again: a new one is leased by itself", code="EXECUTOR_LOST")

    def events(self, lane: int, ordinal: int) -> LaneEvents | None:
        return self._events.get((lane, ordinal))

    def add_events(self, lane: int, ordinal: int, events: LaneEvents) -> None:
        """Events that the executor has opened."""
        events.opened(self.work)
        with self._lock:
            self._events[lane, ordinal] = events

    def failed(self) -> tuple[str, Failure] | None:
        """What an earlier call failed of that was handed over, if that is known."""
        for queue in list(self.queues.values()):
            if queue is not None and (failed := queue.failed()):
                return failed
        return None

    def wait_answers(self, peer: Peer) -> None:
        """Waits until the calls that are in flight now are answered. Errors: peer.check's."""
        for queue in list(self.queues.values()):
            while queue is not None and not queue.lane.is_answered():
                time.sleep(LOOK_S / 100)
                peer.check()

    def in_flight(self) -> list[object]:
        """What calls without an answer hold."""
        queues = [queue for queue in self.queues.values() if queue is not None]
        return [queue.lane for queue in queues if not queue.lane.is_answered()]

    def left_unfinished(self) -> bool:
        """Of a lost connection, once: whether work on a device that was handed over was not done, or failed, when the
        executor ended. One that lives yet is waited for: it finishes that, or ends."""
        deadline = time.monotonic() + SETTLE_S
        while self._pid and not self._settled() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        queues, self.queues, self._events = list(self.queues.values()), {}, {}
        undone = (self.work.unfinished or self.work.undone()) if self._pid else 0
        self._pid = 0
        return undone > self.told or any(queue is not None and queue.failed() for queue in queues)

    def _settled(self) -> bool:
        return self.work.ended or not self.work.undone()

    def end(self) -> None:
        """Of a connection that is closed here: what was handed over is answered before, and told where it failed."""
        deadline = time.monotonic() + SETTLE_S
        for queue in list(self.queues.values()):
            if queue is None:
                continue
            while not queue.lane.is_answered() and time.monotonic() < deadline and not self.work.ended:
                time.sleep(LOOK_S / 10)
            if failed := queue.failed():
                graph, (_, _, text, _) = failed
                log.error("%s", late_text(graph, text))

    def forget(self) -> None:
        """In a forked child: CUDA, and the thread, are its parent's."""
        self.__init__()  # type: ignore[misc]


def late_text(graph: str, text: str) -> str:
    """What a call that was handed over failed of."""
    return (
        f"an earlier call of {graph} failed: {text}; what it gave holds NaN, and so may what was computed of that. "
        "Calls on a device are handed over without waiting; under CUDA_LAUNCH_BLOCKING=1 each waits and raises its own "
        "errors"
    )


def _tell(left: int) -> None:
    if left:
        log.error("the executor died with work on a device: what its last calls gave may be wrong")


class _Nobody:
    def check(self) -> None:
        """An answer is there: nobody is asked."""


_NOBODY = _Nobody()

BLOCKING = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
"""CUDA's own variable: every call waits for its answer."""


def events_wanted() -> bool:
    """Test-only: numbers are left out, as where a driver lacks them."""
    return os.environ.get("RUST_ORT_TEST_ORDER_BY_EVENTS", "") == "1"
