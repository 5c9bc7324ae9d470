"""Shared memory that this process owns: a memfd, and how a location names a place in one."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import mmap
import os

from rust_ort.errors import ClientError

LOCATION_BITS = 40
OFFSET_MASK = (1 << LOCATION_BITS) - 1
SEGMENT_LIMIT = 1 << 24

_segment_ids = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = _libc.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_mremap = _libc.mremap
_mremap.restype = ctypes.c_void_p
_mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]


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

    def make_private(self, ranges: list[tuple[int, int]]) -> None:
        """In a forked child: puts memory of its own at these addresses, with copies of the (offset, bytes) ranges."""
        copy = _anonymous(self.len_bytes)
        for offset, size in ranges:
            _read_exactly(self.fd, copy + offset, offset, size)
        _move_over(copy, self.len_bytes, self.base)


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
