"""Blocks of shared memory for tensors, lent for the length of a call, reused when their tensors are gone."""

from __future__ import annotations

import bisect
import contextlib
import os
import threading
from collections.abc import Callable

import torch

from rust_ort._native import LARGE_BLOCK_BYTES, Block, Blocks, tensor
from rust_ort.errors import OutOfMemory
from rust_ort.memory.layout import Layout
from rust_ort.memory.segment import LOCATION_BITS, OFFSET_MASK, Segment

FIRST_SEGMENT_BYTES = 64 << 20
LARGEST_STEP_BYTES = 4 << 30
TRIM_SLACK_BYTES = 64 << 20


class Arena:
    """Blocks in shared segments. A block returns when the storage over it dies, from any thread, without IPC.

    Lending is native (`blocks`); here blocks are cut from segments.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.blocks = Blocks()
        self.segments: dict[int, Segment] = {}
        self.listeners: list[Callable[[Segment], None]] = []
        self._ranges: list[tuple[int, int]] = []  # (bytes, location), sorted: memory that is no block
        self._next_segment_bytes = FIRST_SEGMENT_BYTES
        self._stale_ranges = False

    # --- allocation ---

    def block(self, size: int) -> Block:
        """A block of exactly size bytes, a value of block_bytes."""
        return self.blocks.lent(self, size)

    def empty(self, layout: Layout) -> tuple[torch.Tensor, int]:
        """A tensor over a block of its own, and its location. Not a view in autograd's eyes, and row-major where the
        layout's strides leave gaps or overlap."""
        if layout.count == 0:
            return layout.without_elements(), 0
        block = self.block(layout.block)
        return tensor(block, layout.code, layout.shape, layout.in_block), block.location

    def locate(self, address: int) -> int:
        """Location of an address inside a segment, 0 for any other."""
        return self.blocks.locate(address)

    def carve(self, size: int) -> int:
        """Location of size bytes that are no block's, of a new segment where none has them."""
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
        pieces, self._ranges = self._ranges, []
        pieces += self.blocks.drained()
        pieces.sort(key=lambda piece: piece[1])
        merged: list[tuple[int, int]] = []
        for size, location in pieces:
            if merged and merged[-1][1] + merged[-1][0] == location:
                merged[-1] = (merged[-1][0] + size, merged[-1][1])
            else:
                merged.append((size, location))
        self._ranges = sorted([*merged, *self._ranges])
        self._stale_ranges = True

    def _grow(self, size: int) -> None:
        huge_page = 2 << 20
        len_bytes = max(self._next_segment_bytes, -(-size // huge_page) * huge_page)
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > there:  # the system might promise it, and end whoever fills it
            raise OutOfMemory(
                f"a tensor of {size:,} bytes was asked for in shared memory, and this machine has {there:,}; make the "
                "tensors of this call smaller",
                code="OUT_OF_MEMORY",
            )
        segment = Segment("rust_ort-arena", len_bytes)
        for listener in list(self.listeners):
            listener(segment)
        self._next_segment_bytes = min(self._next_segment_bytes * 2, LARGEST_STEP_BYTES)
        self.segments[segment.id] = segment
        self.blocks.add(segment)
        bisect.insort(self._ranges, (segment.len_bytes, segment.id << LOCATION_BITS))

    def trim(self) -> int:
        """Gives memory back that no call used since the last trim. Bytes given back."""
        if not self.lock.acquire(blocking=False):
            return 0
        try:
            released = 0
            for size, location in self.blocks.idle(TRIM_SLACK_BYTES):
                self._punch(size, location)  # before anybody can have it
                bisect.insort(self._ranges, (size, location))
                released += size
            if self._stale_ranges:
                self._stale_ranges = False
                ranges, self._ranges = self._ranges, []  # whoever comes here again meanwhile cuts from none of them
                for size, location in ranges:
                    if size >= LARGE_BLOCK_BYTES:
                        self._punch(size, location)
                self._ranges = sorted([*ranges, *self._ranges])
            return released
        finally:
            self.lock.release()

    def _punch(self, size: int, location: int) -> None:
        with contextlib.suppress(OSError):  # where the system cannot, the memory stays
            self.segments[location >> LOCATION_BITS].punch(location & OFFSET_MASK, size)

    def holder(self, location: int) -> Block | None:
        """What keeps the block that a location is in and owns no storage over it; None where no block has it."""
        return self.blocks.holder(location)

    # --- facts ---

    def live(self) -> list[tuple[int, int]]:
        """(location, bytes) of every block that a tensor, a call or a plan has, in order."""
        return self.blocks.live()

    def resident_bytes(self) -> int:
        """Bytes of memory behind all segments."""
        return sum(segment.resident_bytes() for segment in list(self.segments.values()))

    # --- fork ---

    def privatize(self) -> None:
        """In a forked child: puts private copies of the live blocks at their addresses, in place of the segments."""
        self.blocks.leave()
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for location, size in self.blocks.live():
            ranges = by_segment.setdefault(location >> LOCATION_BITS, [])
            offset = location & OFFSET_MASK
            if ranges and ranges[-1][0] + ranges[-1][1] == offset:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((offset, size))
        for segment_id, ranges in by_segment.items():
            self.segments[segment_id].make_private(ranges)
