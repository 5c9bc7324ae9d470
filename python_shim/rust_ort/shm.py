"""Memory that this process owns and lends for the length of a call: the arena of tensors and the lanes of calls.

docs/decisions/0001-ownership.md says who frees what; docs/protocol.md gives the lanes' layout.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import platform
import struct
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from .errors import ClientError

_libc = ctypes.CDLL(None, use_errno=True)
_libc_holding_gil = ctypes.PyDLL(None, use_errno=True)

LOCATION_BITS = 40
OFFSET_MASK = (1 << LOCATION_BITS) - 1
SEGMENT_LIMIT = 1 << 24
ALIGNMENT = 64
FIRST_SEGMENT_BYTES = 64 << 20
LARGEST_STEP_BYTES = 4 << 30
LARGE_BLOCK_BYTES = 1 << 20
TRIM_EVERY_S = 5.0
TRIM_SLACK_BYTES = 64 << 20
FORK_TIMEOUT_MS = 10_000

# torch dtype -> ONNX TensorProto.DataType. uint16 to uint64 and float8 exist in every torch this runs with.
ONNX_CODE: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.uint16: 4,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
    torch.uint32: 12,
    torch.uint64: 13,
    torch.complex64: 14,
    torch.complex128: 15,
    torch.bfloat16: 16,
    torch.float8_e4m3fn: 17,
    torch.float8_e4m3fnuz: 18,
    torch.float8_e5m2: 19,
    torch.float8_e5m2fnuz: 20,
}


def _set_over(tensor: torch.Tensor, shape: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(tensor.untyped_storage(), tensor.storage_offset(), tuple(shape), tuple(stride))


# A tensor over the same storage that autograd does not take for a view: a view made in no-grad mode may not be written
# in place by the user. The private function is what torch's own generated code uses, four times as fast as set_.
_reinterpret: Callable[[torch.Tensor, Sequence[int], Sequence[int]], torch.Tensor] = getattr(
    torch._C._dynamo.guards, "_reinterpret_tensor", _set_over
)

_segment_ids = itertools.count(1)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch gives them: a dimension of size 0 counts as 1."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def block_bytes(len_bytes: int) -> int:
    """Size of the block that serves len_bytes: a multiple of 64, at most 12.5 % larger above 512 bytes."""
    if len_bytes <= 512:
        return max(ALIGNMENT, -(-len_bytes // ALIGNMENT) * ALIGNMENT)
    step = 1 << ((len_bytes - 1).bit_length() - 4)
    return -(-len_bytes // step) * step


class Segment:
    """A memfd mapped here, sealed against a change of its size before anyone else can see it."""

    def __init__(self, name: str, len_bytes: int) -> None:
        self.id = next(_segment_ids)
        if self.id >= SEGMENT_LIMIT:
            raise ClientError(f"this process made {SEGMENT_LIMIT} shared segments, the most a location can name")
        self.len_bytes = len_bytes
        self.fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, len_bytes)
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
            self.map = mmap.mmap(self.fd, len_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def __del__(self) -> None:
        # The mapping goes with the last block over it; here goes only the name by which a peer could be given it.
        if hasattr(self, "map"):
            os.close(self.fd)

    def resident_bytes(self) -> int:
        """Bytes of memory behind the segment."""
        return os.fstat(self.fd).st_blocks * 512

    def punch(self, offset: int, len_bytes: int) -> None:
        """Gives whole pages in the range back to the system; they read as zeros then."""
        page = mmap.PAGESIZE
        start = -(-offset // page) * page
        end = (offset + len_bytes) // page * page
        if end > start:
            keep_size_punch_hole = 3
            _fallocate(self.fd, keep_size_punch_hole, start, end - start)


_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class Layout:
    """An output to be: how much memory it needs and which tensor it becomes.

    stride: None for row-major, else the strides that the tensor handed to the user must have.
    """

    __slots__ = ("block", "code", "count", "dense", "dtype", "flat", "shape", "stride")

    def __init__(self, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int] | None) -> None:
        if dtype not in ONNX_CODE:
            raise ClientError(f"dtype {dtype} does not exist in ONNX; leave the node to eager")
        self.dtype = dtype
        self.code = ONNX_CODE[dtype]
        self.shape = tuple(map(int, shape))
        self.count = 1
        for size in self.shape:
            self.count *= size
        own = contiguous_strides(self.shape)
        self.stride = own if stride is None else tuple(map(int, stride))
        self.dense = self.count == 0 or all(
            size == 1 or wanted == given for size, wanted, given in zip(self.shape, own, self.stride, strict=True)
        )
        self.flat = self.stride == (1,)
        self.block = block_bytes(self.count * dtype.itemsize)


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
        return _reinterpret(tensor, layout.shape, stride), location

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
            segment = self.segments[segment_id]
            copy = _anonymous(segment.len_bytes)
            for offset, size in ranges:
                _read_exactly(segment.fd, copy + offset, offset, size)
            _move_over(copy, segment.len_bytes, segment.base)


def _anonymous(len_bytes: int) -> int:
    read_write, private_anonymous_noreserve = 3, 0x2 | 0x20 | 0x4000
    address = _mmap(None, len_bytes, read_write, private_anonymous_noreserve, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"mmap of {len_bytes} bytes for the copy that a forked child needs")
    return int(address)


def _read_exactly(fd: int, address: int, offset: int, size: int) -> None:
    done = 0
    while done < size:
        buffer = (ctypes.c_char * (size - done)).from_address(address + done)
        n = os.preadv(fd, [buffer], offset + done)
        if n == 0:
            raise OSError(f"shared segment ends at {offset + done}, expected {offset + size}")
        done += n


def _move_over(source: int, len_bytes: int, target: int) -> None:
    may_move_fixed = 3
    moved = _mremap(source, len_bytes, len_bytes, may_move_fixed, target)
    if moved != target:
        raise OSError(ctypes.get_errno(), "mremap of the copy that a forked child needs")


_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_mremap = _libc.mremap
_mremap.restype = ctypes.c_void_p
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

_arena: Arena | None = None


def arena() -> Arena:
    """This process's arena."""
    global _arena
    if _arena is None:
        _arena = Arena()
    return _arena


# --- lanes -----------------------------------------------------------------------------------------------------------

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

_record = struct.Struct("<Q6I")

_POLLS = 100
_POLL_NS = 50_000
# Longer than it takes to wake a sleeping executor: with a shorter poll both sides would sleep in each further call,
# since each falls asleep while the other wakes up.
_POLL_WITHOUT_GIL_NS = 250_000
_usable_cores = len(os.sched_getaffinity(0))
_futex_number = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
# x86 keeps the order of stores; elsewhere a system call stands in for the fence that Python lacks.
_needs_fence = platform.machine() != "x86_64"
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_TURN = _Timespec(0, 100_000_000)
_FIRST_TURN = _Timespec(0, 1_000_000)

_yield_without_gil = _libc.sched_yield
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = [
    ctypes.c_long,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_uint32,
]


def _futex_wait(address: int, value: int, timeout: _Timespec) -> None:
    """Sleeps while the word at address is value, without the GIL. A signal ends it too."""
    _syscall(_futex_number, address, _FUTEX_WAIT, value, ctypes.addressof(timeout), None, 0)


def _futex_wake(address: int) -> None:
    _syscall(_futex_number, address, _FUTEX_WAKE, 1, None, None, 0)


def check_platform() -> None:
    """Errors: ClientError where no futex number is known or the system is not Linux."""
    if not sys.platform.startswith("linux") or _futex_number is None:
        raise ClientError(
            f"rust_ort runs on Linux on x86-64 and aarch64; this is {sys.platform} on {platform.machine()}"
        )


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
            _futex_wake(self.request_address)
        self.sequence = (self.sequence + 1) & 0xFFFFFFFF
        words[REQUEST] = self.sequence
        if words[EXECUTOR_WAITING]:
            _futex_wake(self.request_address)

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
            _futex_wake(self.request_address)

    def _sleep(self, peer: Peer) -> None:
        words = self.words
        sequence = self.sequence
        words[CLIENT_WAITING] = 1
        try:
            before = words[REPLY]
            if before == sequence:
                return
            _futex_wait(self.reply_address, before, _FIRST_TURN)
            while words[REPLY] != sequence:
                peer.check()
                _futex_wait(self.reply_address, before, _TURN)
        finally:
            words[CLIENT_WAITING] = 0

    def answered(self) -> bool:
        """Whether no call is in flight."""
        return self.words[REPLY] == self.sequence

    def status(self) -> int:
        """0 when the newest call was done, else its ErrorCode."""
        return self.words[STATUS]

    def error(self) -> tuple[int, int, str]:
        """(ErrorKind, ErrorCode, text) of the newest call."""
        words = self.words
        start = self.offset + LANE_BYTES - ERROR_AREA_BYTES
        text = self.map[start : start + min(words[ERROR_LEN], ERROR_AREA_BYTES)]
        return words[ERROR_KIND], words[STATUS], text.decode("utf-8", "replace")


class Lanes:
    """The lanes segment of one connection. take() and give() are safe from any thread."""

    def __init__(self) -> None:
        self.segment = Segment("rust_ort-lanes", LANES_HEADER_BYTES + N_LANES * LANE_BYTES)
        header = LANES_MAGIC + struct.pack("<4I", LANES_VERSION, N_LANES, LANE_BYTES, 0)
        self.segment.map[: len(header)] = header
        self.lanes = [Lane(self.segment, index) for index in range(N_LANES)]
        self._free = self.lanes[::-1]
        self._abandoned: list[tuple[Lane, object]] = []
        self._changed = threading.Condition()
        self._waiters = 0

    def take(self, peer: Peer) -> Lane:
        """A lane without a call, the last one given back first; waits while all are taken. Errors: peer.check's."""
        if self._abandoned:
            self.sweep()
        try:
            return self._free.pop()
        except IndexError:
            pass
        with self._changed:
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
            with self._changed:
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


# --- fork ------------------------------------------------------------------------------------------------------------

after_fork_in_child: list[Callable[[], None]] = []  # run in order, after the blocks are private
_handshakes: dict[int, tuple[int, int]] = {}


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_poll = _libc_holding_gil.poll
_poll.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int]


def _before_fork() -> None:
    if _arena is not None and _arena.live():
        _handshakes[threading.get_ident()] = os.pipe()


def _after_fork_in_parent() -> None:
    pipe = _handshakes.pop(threading.get_ident(), None)
    if pipe is None:
        return
    reader, writer = pipe
    os.close(writer)
    try:
        # Until the child has its copies no Python code may run here: it could free a block and write into it anew.
        # The end of the pipe comes when the child is done, or dead, or was never born.
        entry = _PollFd(reader, 1, 0)
        end = time.monotonic() + FORK_TIMEOUT_MS / 1000
        while _poll(ctypes.addressof(entry), 1, max(0, int((end - time.monotonic()) * 1000))) < 0:
            if ctypes.get_errno() != errno.EINTR:
                break
    finally:
        os.close(reader)


def _after_fork_in_child() -> None:
    global _arena
    inherited, _arena = _arena, None
    pipe = _handshakes.pop(threading.get_ident(), None)
    try:
        if inherited is not None:
            inherited.privatize()
    except BaseException as error:
        # Going on would let this process and its parent write into each other's tensors.
        os.write(2, f"rust_ort: forked child {os.getpid()} ends: {error}\n".encode())
        os._exit(70)
    for callback in after_fork_in_child:
        callback()
    if pipe is not None:
        os.write(pipe[1], b"1")
    for reader, writer in [*_handshakes.values(), *([pipe] if pipe is not None else [])]:
        os.close(reader)
        os.close(writer)
    _handshakes.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
