"""Blocks of shared memory for tensors, lent for the length of a call, reused when their tensors are gone."""

from __future__ import annotations

import bisect
import ctypes
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from rust_ort.memory.layout import Layout, contiguous_strides
from rust_ort.memory.segment import LOCATION_BITS, OFFSET_MASK, Segment
from rust_ort.torch_private import reinterpret

FIRST_SEGMENT_BYTES = 64 << 20
LARGEST_STEP_BYTES = 4 << 30
LARGE_BLOCK_BYTES = 1 << 20
TRIM_EVERY_S = 5.0
TRIM_SLACK_BYTES = 64 << 20


class _BlockRef(weakref.ref[Any]):
    """Watches a block's storage; dies after it."""

    __slots__ = ("location", "size")

    location: int
    size: int


class Arena:
    """Blocks in shared segments. A block returns when the storage over it dies: from any thread, without IPC or lock.

    Freed blocks are handed out again newest first, so that their pages and cache lines are warm. The common path takes
    no lock: it relies on list.pop, list.append, dict and deque operations being atomic under the GIL.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.segments: dict[int, Segment] = {}
        self.listeners: list[Callable[[Segment], None]] = []
        # (lowest address, end, bases, ends, location - address), replaced as a whole.
        self.index: tuple[int, int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] = (0, 0, (), (), ())
        self._free: dict[int, list[int]] = {}
        self._low: dict[int, int] = {}  # per large size: fewest free blocks since the last trim
        self._ranges: list[tuple[int, int]] = []  # (bytes, location), sorted: memory in no list of _free
        self._live: dict[int, _BlockRef] = {}
        self._dead: deque[_BlockRef] = deque()
        self._types: dict[int, Any] = {}
        self._next_segment_bytes = FIRST_SEGMENT_BYTES
        self._trimmed_at = time.monotonic()
        self._stale_ranges = False

    # --- allocation ---

    def block(self, size: int) -> tuple[Any, int]:
        """A block of exactly size bytes (a value of block_bytes) as a ctypes array, and its location."""
        if self._dead:
            self._reclaim()
        try:
            free = self._free[size]
            location = free.pop()
        except (KeyError, IndexError):
            location = self._carve(size)
        else:
            if size >= LARGE_BLOCK_BYTES and len(free) < self._low.get(size, 0):
                self._low[size] = len(free)
        try:
            kind = self._types[size]
        except KeyError:
            kind = self._types[size] = ctypes.c_char * size
        array = kind.from_buffer(self.segments[location >> LOCATION_BITS].map, location & OFFSET_MASK)
        ref = _BlockRef(array, self._dead.append)
        ref.location = location
        ref.size = size
        self._live[location] = ref
        return array, location

    def empty(self, layout: Layout) -> tuple[torch.Tensor, int]:
        """A row-major tensor over a block of its own, and its location. Not a view in autograd's eyes."""
        if layout.count == 0:
            return torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype, device="cpu"), 0
        array, location = self.block(layout.block)
        tensor = torch.frombuffer(array, dtype=layout.dtype, count=layout.count)
        if layout.flat:
            return tensor, location
        stride = layout.stride if layout.dense else contiguous_strides(layout.shape)
        return reinterpret(tensor, layout.shape, stride), location

    def locate(self, address: int) -> int:
        """Location of an address inside a segment, 0 for any other."""
        low, high, bases, ends, shifts = self.index
        if low <= address < high:
            i = bisect.bisect_right(bases, address) - 1
            if address < ends[i]:
                return address + shifts[i]
        return 0

    def _reclaim(self) -> None:
        large = False
        while True:
            try:
                ref = self._dead.popleft()
            except IndexError:
                break
            del self._live[ref.location]
            self._free.setdefault(ref.size, []).append(ref.location)
            large |= ref.size >= LARGE_BLOCK_BYTES
        if large and time.monotonic() - self._trimmed_at > TRIM_EVERY_S:
            self.trim()

    def _carve(self, size: int) -> int:
        with self.lock:
            location = self._cut(size)
            if location == 0:
                self._gather()
                location = self._cut(size)
            if location == 0:
                self._grow(size)
                location = self._cut(size)
            return location

    def _cut(self, size: int) -> int:
        """Takes size bytes out of the smallest range that has them; 0 when none has."""
        i = bisect.bisect_left(self._ranges, (size, 0))
        if i == len(self._ranges):
            return 0
        range_bytes, location = self._ranges.pop(i)
        if range_bytes > size:
            bisect.insort(self._ranges, (range_bytes - size, location + size))
        return location

    def _gather(self) -> None:
        """Moves every free block into the ranges and merges neighbours."""
        pieces = self._ranges
        self._ranges = []
        for size in list(self._free):
            free = self._free[size]
            while True:
                try:
                    pieces.append((size, free.pop()))
                except IndexError:
                    break
        self._low.clear()
        pieces.sort(key=lambda piece: piece[1])
        merged: list[tuple[int, int]] = []
        for size, location in pieces:
            if merged and merged[-1][1] + merged[-1][0] == location:
                merged[-1] = (merged[-1][0] + size, merged[-1][1])
            else:
                merged.append((size, location))
        self._ranges = sorted(merged)
        self._stale_ranges = True

    def _grow(self, size: int) -> None:
        huge_page = 2 << 20
        len_bytes = max(self._next_segment_bytes, -(-size // huge_page) * huge_page)
        segment = Segment("rust_ort-arena", len_bytes)
        for listener in list(self.listeners):
            listener(segment)
        self._next_segment_bytes = min(self._next_segment_bytes * 2, LARGEST_STEP_BYTES)
        self.segments[segment.id] = segment
        known = sorted(self.segments.values(), key=lambda entry: entry.base)
        self.index = (
            known[0].base,
            known[-1].base + known[-1].len_bytes,
            tuple(entry.base for entry in known),
            tuple(entry.base + entry.len_bytes for entry in known),
            tuple((entry.id << LOCATION_BITS) - entry.base for entry in known),
        )
        bisect.insort(self._ranges, (segment.len_bytes, segment.id << LOCATION_BITS))

    def trim(self) -> int:
        """Gives memory back that no call used since the last trim. Bytes given back."""
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            self._trimmed_at = time.monotonic()
            large = {size: free for size, free in self._free.items() if size >= LARGE_BLOCK_BYTES}
            idle = sum(size * min(self._low.get(size, 0), len(free)) for size, free in large.items())
            released = 0
            if idle > TRIM_SLACK_BYTES:
                for size, free in large.items():
                    for _ in range(min(self._low.get(size, 0), len(free))):
                        try:
                            location = free.pop(0)
                        except IndexError:
                            break
                        self._punch(size, location)
                        bisect.insort(self._ranges, (size, location))
                        released += size
            if self._stale_ranges:
                self._stale_ranges = False
                for size, location in self._ranges:
                    if size >= LARGE_BLOCK_BYTES:
                        self._punch(size, location)
            for size, free in large.items():
                self._low[size] = len(free)
            return released
        finally:
            self.lock.release()

    def _punch(self, size: int, location: int) -> None:
        self.segments[location >> LOCATION_BITS].punch(location & OFFSET_MASK, size)

    def holder(self, location: int) -> object:
        """What keeps the block that begins at a location and owns no storage over it; None where no block does."""
        ref = self._live.get(location)
        return ref() if ref is not None else None

    # --- facts ---

    def live(self) -> list[tuple[int, int]]:
        """(location, bytes) of every block whose storage lives, in order."""
        if self._dead:
            self._reclaim()
        return sorted((ref.location, ref.size) for ref in list(self._live.values()))

    def resident_bytes(self) -> int:
        """Bytes of memory behind all segments."""
        return sum(segment.resident_bytes() for segment in list(self.segments.values()))

    # --- fork ---

    def privatize(self) -> None:
        """In a forked child: puts private copies of the live blocks at their addresses, in place of the segments."""
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for location, size in sorted((ref.location, ref.size) for ref in self._live.values()):
            ranges = by_segment.setdefault(location >> LOCATION_BITS, [])
            offset = location & OFFSET_MASK
            if ranges and ranges[-1][0] + ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((offset, size))
        for segment_id, ranges in by_segment.items():
            self.segments[segment_id].make_private(ranges)
