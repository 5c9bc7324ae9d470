"""Which libraries ONNX Runtime's CUDA provider needs, and where torch's wheels have them."""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import struct
from collections.abc import Sequence
from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NULL, DT_NEEDED, DT_STRTAB = 0, 1, 5


def needed(library: Path) -> list[str]:
    """DT_NEEDED of a 64-bit little-endian ELF file, in its order. Errors: ValueError for another file."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"{library} is no 64-bit little-endian ELF file")
        try:
            return _needed(data)
        except (struct.error, StopIteration) as error:
            raise ValueError(f"{library} is cut short or has no dynamic section") from error


def _needed(data: mmap.mmap) -> list[str]:
    table, size, count = *struct.unpack_from("<Q", data, 32), *struct.unpack_from("<HH", data, 54)
    # type, flags, offset, virtual address, physical address, size in the file
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    _, _, offset, _, _, length = next(header for header in headers if header[0] == PT_DYNAMIC)
    entries = [struct.unpack_from("<qQ", data, at) for at in range(offset, offset + length, 16)]
    entries = entries[: next((i for i, (tag, _) in enumerate(entries) if tag == DT_NULL), len(entries))]
    strings = next(value for tag, value in entries if tag == DT_STRTAB)
    segment = next(h for h in headers if h[0] == PT_LOAD and h[3] <= strings < h[3] + h[5])
    begin = strings - segment[3] + segment[2]
    return [
        data[begin + value : data.find(b"\0", begin + value)].decode() for tag, value in entries if tag == DT_NEEDED
    ]


def cuda_major(names: Sequence[str]) -> int | None:
    """The CUDA version that libraries of these names belong to, by the runtime's, else by cuBLAS's."""
    for stem in ("cudart", "cublas", "cublasLt"):
        for name in names:
            if match := re.fullmatch(rf"lib{stem}\.so\.(\d+)(\.\d+)*", name):
                return int(match.group(1))
    return None


def wheel_folders() -> list[Path]:
    """The folders of libraries in nvidia's wheels, which torch's depend on, and torch's own."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec is not None else []
    found = sorted({path.parent for root in roots for path in root.glob("*/lib/*.so*")})
    torch = importlib.util.find_spec("torch")
    own = [Path(root) / "lib" for root in (torch.submodule_search_locations or [])] if torch is not None else []
    return [*found, *own]


def where(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Path | None]:
    """{name: its folder}; None for what the loader finds by itself. What is nowhere is left out."""
    found: dict[str, Path | None] = {}
    for name in names:
        folder = next((folder for folder in folders if (folder / name).exists()), None)
        if folder is not None or _loads(name):
            found[name] = folder
    return found


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
