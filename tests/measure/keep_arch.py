"""`python -m measure.keep_arch <library> <copy> <architecture>`: a CUDA library with the code of one GPU architecture.

So that it packs small enough to travel: of each fat binary in the section .nv_fatbin the entries of other architectures
become zeros. Nothing moves, and headers stay, so that the driver finds the entry it looks for. A fat binary without
that architecture keeps its nearest lower one, which runs there too where the major number is the same, and one without
either keeps its PTX, which the driver compiles. Of onnxruntime-gpu 1.31.1's provider 77 of 218 MB of device code are
sm_90's."""

from __future__ import annotations

import argparse
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SECTION = ".nv_fatbin"
MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2
"""Kinds of entries."""
FAT_HEADER = struct.Struct("<IHHQ")
"""Magic, version, bytes of the header, bytes of all entries."""
ENTRY_HEADER = struct.Struct("<HHIQ")
"""Kind, version, bytes of the header, bytes of the payload."""
ARCHITECTURE = 28
"""Where in an entry's header the number is."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Code of one architecture. begin: of its payload in the file."""

    kind: int
    architecture: int
    begin: int
    len_bytes: int


def section(data: bytearray, name: str) -> range:
    """Bytes of a section in a 64-bit little-endian ELF file. Errors: ValueError."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    # name, type, flags, address, offset, size
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    for header in headers:
        begin = headers[names][4] + header[0]
        if data[begin : data.index(b"\0", begin)] == name.encode():
            return range(header[4], header[4] + header[5])
    raise ValueError(f"no section {name}: no library with code for a GPU")


def fat_binaries(data: bytearray, within: range) -> Iterator[list[Entry]]:
    """Entries of each fat binary. Errors: ValueError where one does not end within the section."""
    at = within.start
    while at + FAT_HEADER.size <= within.stop:
        magic, _, header, length = FAT_HEADER.unpack_from(data, at)
        if magic != MAGIC:
            at += 8  # they are aligned, and zeros are between them
            continue
        end = at + header + length
        if end > within.stop:
            raise ValueError(f"the fat binary at byte {at} ends behind the section")
        yield list(_entries(data, at + header, end))
        at = end


def _entries(data: bytearray, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, length = ENTRY_HEADER.unpack_from(data, at)
        (architecture,) = struct.unpack_from("<I", data, at + ARCHITECTURE)
        begin = at + header
        if not header or begin + length > end:
            raise ValueError(f"the entry at byte {at} ends behind its fat binary")
        yield Entry(kind=kind, architecture=architecture, begin=begin, len_bytes=length)
        at = begin + length


def kept(entries: Sequence[Entry], architecture: int) -> list[Entry]:
    """Those that a GPU of this architecture runs best; all where none is known to."""
    same_major = [
        entry.architecture
        for entry in entries
        if entry.kind == CUBIN and entry.architecture <= architecture
        if entry.architecture // 10 == architecture // 10
    ]
    if same_major:
        nearest = max(same_major)
        return [entry for entry in entries if entry.kind == CUBIN and entry.architecture == nearest]
    return [entry for entry in entries if entry.kind == PTX] or list(entries)


def keep(data: bytearray, architecture: int) -> tuple[int, int]:
    """Zeros all other payloads; bytes of those kept and of those dropped. Errors: ValueError."""
    n_kept = n_dropped = 0
    for entries in fat_binaries(data, section(data, SECTION)):
        wanted = kept(entries, architecture)
        for entry in entries:
            if entry in wanted:
                n_kept += entry.len_bytes
            else:
                data[entry.begin : entry.begin + entry.len_bytes] = bytes(entry.len_bytes)
                n_dropped += entry.len_bytes
    if not n_kept:
        raise ValueError(f"no fat binary in {SECTION}")
    return n_kept, n_dropped


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.keep_arch", description=__doc__)
    parser.add_argument("library", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("architecture", type=int, help="as 90 of sm_90")
    arguments = parser.parse_args(argv)
    data = bytearray(arguments.library.read_bytes())
    try:
        n_kept, n_dropped = keep(data, arguments.architecture)
    except (ValueError, struct.error) as error:
        print(f"{arguments.library}: {error}", file=sys.stderr)
        return 1
    arguments.copy.write_bytes(data)
    shutil.copymode(arguments.library, arguments.copy)
    print(f"sm_{arguments.architecture}: kept {n_kept / 1e6:.0f} MB of device code, dropped {n_dropped / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
