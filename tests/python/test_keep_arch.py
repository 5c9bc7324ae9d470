"""One GPU architecture's code of a CUDA library, on a synthetic ELF file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from measure import keep_arch
from measure.keep_arch import CUBIN, PTX

CODE = b"the program itself"


def entry(kind: int, architecture: int, payload: bytes) -> bytes:
    header = struct.pack("<HHIQ", kind, 0x101, 64, len(payload)) + bytes(12) + struct.pack("<I", architecture)
    return header.ljust(64, b"\1") + payload


def fat(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", keep_arch.MAGIC, 1, 16, len(body)) + body


def elf(fatbin: bytes | None) -> bytearray:
    """A header, code, the fat binaries, the sections' names and their table."""
    names = b"\0.text\0.nv_fatbin\0.shstrtab\0"
    wanted = [(".text", CODE), *([(".nv_fatbin", fatbin)] if fatbin is not None else []), (".shstrtab", names)]
    body, headers = b"", [bytes(64)]
    for name, content in wanted:
        at = names.index(name.encode() + b"\0")
        headers.append(struct.pack("<IIQQQQ", at, 1, 0, 0, 64 + len(body), len(content)).ljust(64, b"\0"))
        body += content + bytes(-len(content) % 8)
    start = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", 64 + len(body))
    start = start.ljust(58, b"\0") + struct.pack("<HHH", 64, len(headers), len(headers) - 1)
    return bytearray(start + body + b"".join(headers))


def payload(letter: bytes, n: int = 24) -> bytes:
    return letter * n


@pytest.mark.parametrize(
    ("entries", "left"),
    [
        ({"a": (CUBIN, 80), "b": (CUBIN, 90), "c": (PTX, 90), "d": (CUBIN, 120)}, "b"),
        ({"a": (CUBIN, 90), "b": (CUBIN, 90), "c": (CUBIN, 100)}, "ab"),  # sm_90 and sm_90a have one number
        ({"a": (CUBIN, 86), "b": (CUBIN, 75), "c": (PTX, 90)}, "c"),  # another major number's code does not run
        ({"a": (CUBIN, 75), "b": (CUBIN, 120)}, "ab"),  # nothing is known to run: nothing goes
    ],
)
def test_a_fat_binary_keeps_what_the_architecture_runs(entries: dict[str, tuple[int, int]], left: str) -> None:
    made = [entry(*of, payload(letter.encode())) for letter, of in entries.items()]
    data = elf(bytes(8) + fat(*made) + bytes(16))
    before = bytes(data)
    kept, dropped = keep_arch.keep(data, 90)
    assert (kept, dropped) == (24 * len(left), 24 * (len(entries) - len(left)))
    expected = before
    for letter in set(entries) - set(left):
        expected = expected.replace(payload(letter.encode()), bytes(24))
    assert bytes(data) == expected, "headers, places and the program are as they were"


def test_the_nearest_lower_architecture_of_a_major_number_stands_in() -> None:
    made = fat(entry(CUBIN, 80, payload(b"a")), entry(CUBIN, 86, payload(b"b")), entry(PTX, 86, payload(b"c")))
    data = elf(made + fat(entry(CUBIN, 89, payload(b"d")), entry(CUBIN, 80, payload(b"e"))))
    keep_arch.keep(data, 89)
    assert [letter for letter in b"abcde" if payload(bytes([letter])) in data] == [*b"bd"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (bytearray(b"#!/bin/sh"), "no 64-bit little-endian ELF file"),
        (elf(None), "no section .nv_fatbin"),
        (elf(bytes(64)), "no fat binary in .nv_fatbin"),
        (elf(fat(entry(CUBIN, 90, payload(b"a")))[:-8]), "ends behind the section"),
        (elf(fat(entry(CUBIN, 90, payload(b"a"))[:-8])), "ends behind its fat binary"),
    ],
)
def test_what_is_no_cuda_library_is_refused(data: bytearray, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        keep_arch.keep(data, 90)


def test_a_copy_is_written_beside_and_is_as_executable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library, copy = tmp_path / "lib.so", tmp_path / "copy.so"
    library.write_bytes(elf(fat(entry(CUBIN, 90, payload(b"a")), entry(CUBIN, 80, payload(b"b")))))
    library.chmod(0o755)
    assert keep_arch.main([str(library), str(copy), "90"]) == 0
    assert copy.stat().st_mode & 0o777 == 0o755
    assert payload(b"b") in library.read_bytes()
    assert payload(b"b") not in copy.read_bytes()
    assert "kept 0 MB of device code, dropped 0 MB" in capsys.readouterr().out
    library.write_bytes(b"nothing")
    assert keep_arch.main([str(library), str(copy), "90"]) == 1
    assert "no 64-bit little-endian ELF file" in capsys.readouterr().err
