"""Sleeping until another process changes a word of shared memory, and waking whoever sleeps."""

from __future__ import annotations

import ctypes
import platform
import sys

from rust_ort.errors import ClientError

_futex_number = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1


class Timespec(ctypes.Structure):
    """A span of time, as the kernel takes it."""

    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


_syscall = ctypes.CDLL(None, use_errno=True).syscall
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


def wait(address: int, value: int, timeout: Timespec) -> None:
    """Sleeps while the word at address is value, without the GIL. A signal ends it too."""
    _syscall(_futex_number, address, _FUTEX_WAIT, value, ctypes.addressof(timeout), None, 0)


def wake(address: int) -> None:
    """Wakes one sleeper on the word at address, in any process."""
    _syscall(_futex_number, address, _FUTEX_WAKE, 1, None, None, 0)


def check_platform() -> None:
    """Errors: ClientError where no futex number is known, the system is not Linux, or Python runs without the GIL: the
    arena takes no lock where the GIL makes an operation atomic."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ClientError(
            "rust_ort needs Python's global interpreter lock, which this free-threaded Python runs without; set "
            "PYTHON_GIL=1 or use a standard build"
        )
    if not sys.platform.startswith("linux") or _futex_number is None:
        raise ClientError(
            f"rust_ort runs on Linux on x86-64 and aarch64; this is {sys.platform} on {platform.machine()}"
        )
