"""Calls handed to the executor through shared memory: docs/protocol.md gives the lanes' layout."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import threading
import time
from collections.abc import Sequence
from typing import Protocol

from rust_ort.errors import ClientError
from rust_ort.link import futex
from rust_ort.memory.segment import Segment

LANES_MAGIC = b"RORTLANE"
LANES_VERSION = 1
LANES_HEADER_BYTES = 4096
N_LANES = 64
LANE_BYTES = 1 << 20
ERROR_AREA_BYTES = 4096
RECORD_OFFSET = 256
LOCATIONS_OFFSET = 288

# u32 words of a lane.
REQUEST, EXECUTOR_WAITING, REPLY, CLIENT_WAITING, RUNNING, STATUS, ERROR_KIND, ERROR_LEN = 0, 1, 16, 17, 32, 33, 34, 35
NODE_LEN = 38

_record = struct.Struct("<Q6I")

_POLLS = 100
_POLL_NS = 50_000
# Longer than it takes to wake a sleeping executor: with a shorter poll both sides would sleep in each further call,
# since each falls asleep while the other wakes up.
_POLL_WITHOUT_GIL_NS = 250_000
_usable_cores = len(os.sched_getaffinity(0))
# x86 keeps the order of stores; elsewhere a system call stands in for the fence that Python lacks.
_needs_fence = platform.machine() != "x86_64"

_yield_without_gil = ctypes.CDLL(None).sched_yield
_TURN = futex.Timespec(0, 100_000_000)
_FIRST_TURN = futex.Timespec(0, 1_000_000)


def descriptor(code: int, shape: Sequence[int]) -> bytes:
    """dtype and dims of one tensor, as a lane's record carries them."""
    return struct.pack(f"<BBHI{len(shape)}q", code, len(shape), 0, 0, *shape)


class Peer(Protocol):
    """Whoever knows, between turns of waiting, that nobody will answer any more."""

    def check(self) -> None:
        """Raises when the peer is gone."""


class Lane:
    """Carries one call at a time."""

    __slots__ = ("index", "map", "offset", "open", "plan", "reply_address", "request_address", "sequence", "words")

    def __init__(self, segment: Segment, index: int) -> None:
        self.index = index
        self.map = segment.map
        self.offset = LANES_HEADER_BYTES + index * LANE_BYTES
        self.words = memoryview(segment.map)[self.offset : self.offset + RECORD_OFFSET].cast("I")
        self.request_address = segment.base + self.offset
        self.reply_address = self.request_address + 4 * REPLY
        self.sequence = 0
        self.open = False
        self.plan: object = None  # whose descriptors the record holds

    def write(
        self, plan: object, descriptors: bytes, pack: struct.Struct, locations: Sequence[int], record: tuple[int, ...]
    ) -> None:
        """Writes a call's record. record: call_id, handle, n_inputs, n_outputs, eager_nodes, descriptors_len, 0.

        plan: identity of descriptors; they are written only when the record holds another's.
        Errors: ClientError when the record does not fit.
        """
        offset = self.offset
        if self.plan is not plan:
            end = LOCATIONS_OFFSET + pack.size + len(descriptors)
            if end > LANE_BYTES - ERROR_AREA_BYTES:
                raise ClientError(
                    f"the call's record has {end} bytes, a lane holds {LANE_BYTES - ERROR_AREA_BYTES}; "
                    "split the graph into parts with fewer inputs and outputs"
                )
            start = offset + LOCATIONS_OFFSET + pack.size
            self.map[start : start + len(descriptors)] = descriptors
            self.plan = plan
        pack.pack_into(self.map, offset + LOCATIONS_OFFSET, *locations)
        _record.pack_into(self.map, offset + RECORD_OFFSET, *record)

    def publish(self) -> None:
        """Hands the record to the executor."""
        words = self.words
        if _needs_fence:
            futex.wake(self.request_address)
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        words[REQUEST] = self.sequence
        if words[EXECUTOR_WAITING]:
            futex.wake(self.request_address)

    def wait(self, peer: Peer) -> None:
        """Until the executor answered: polls for at most 50 µs, polls on without the GIL, then sleeps.

        Errors: what peer.check raises, KeyboardInterrupt. The call is in flight then: call answered() later.
        """
        words = self.words
        sequence = self.sequence
        if _usable_cores > 1:
            for _ in range(_POLLS):
                if words[REPLY] == sequence:
                    break
            else:
                start_ns = time.perf_counter_ns()
                while words[REPLY] != sequence and time.perf_counter_ns() < start_ns + _POLL_NS:
                    os.sched_yield()
                while words[REPLY] != sequence and time.perf_counter_ns() < start_ns + _POLL_WITHOUT_GIL_NS:
                    _yield_without_gil()
        if words[REPLY] != sequence:
            self._sleep(peer)
        if _needs_fence:
            futex.wake(self.request_address)

    def _sleep(self, peer: Peer) -> None:
        words = self.words
        sequence = self.sequence
        words[CLIENT_WAITING] = 1
        try:
            before = words[REPLY]
            if before == sequence:
                return
            futex.wait(self.reply_address, before, _FIRST_TURN)
            while words[REPLY] != sequence:
                peer.check()
                futex.wait(self.reply_address, before, _TURN)
        finally:
            words[CLIENT_WAITING] = 0

    def answered(self) -> bool:
        """Whether no call is in flight."""
        return self.words[REPLY] == self.sequence

    def status(self) -> int:
        """0 when the newest call was done, else its ErrorCode."""
        return self.words[STATUS]

    def error(self) -> tuple[int, int, str, str]:
        """(ErrorKind, ErrorCode, text, node or "") of the newest call."""
        words = self.words
        end = self.offset + LANE_BYTES
        middle = min(end - ERROR_AREA_BYTES + words[ERROR_LEN], end)
        text = self.map[end - ERROR_AREA_BYTES : middle].decode("utf-8", "replace")
        node = self.map[middle : min(middle + words[NODE_LEN], end)].decode("utf-8", "replace")
        return words[ERROR_KIND], words[STATUS], text, node


class Lanes:
    """The lanes segment of one connection. take() and give() are safe from any thread."""

    def __init__(self) -> None:
        self.segment = Segment("rust_ort-lanes", LANES_HEADER_BYTES + N_LANES * LANE_BYTES)
        header = LANES_MAGIC + struct.pack("<4I", LANES_VERSION, N_LANES, LANE_BYTES, 0)
        self.segment.map[: len(header)] = header
        self.lanes = [Lane(self.segment, index) for index in range(N_LANES)]
        self._free = self.lanes[::-1]
        self._abandoned: list[tuple[Lane, object]] = []
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

    def abandon(self, lane: Lane, holds: object) -> None:
        """Keeps what the call in flight on this lane reads and writes until it is answered."""
        self._abandoned.append((lane, holds))

    def sweep(self) -> None:
        """Takes back abandoned lanes whose calls were answered since."""
        for _ in range(len(self._abandoned)):
            try:
                lane, holds = self._abandoned.pop(0)
            except IndexError:
                return
            if lane.answered():
                self._free.append(lane)
            else:
                self._abandoned.append((lane, holds))

    def in_flight(self) -> list[object]:
        """What abandoned calls still hold."""
        self.sweep()
        return [holds for _, holds in self._abandoned]
