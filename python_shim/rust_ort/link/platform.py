"""Where rust_ort runs."""

from __future__ import annotations

import platform
import sys

from rust_ort.errors import ClientError


def check_platform() -> None:
    """Errors: ClientError where the system is not Linux on x86-64 or aarch64, or Python runs without the GIL: torch's
    tensors are read and the arena is used as if no other thread could change them meanwhile."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ClientError(
            "rust_ort needs Python's global interpreter lock, which this free-threaded Python runs without; set "
            "PYTHON_GIL=1 or use a standard build"
        )
    if not sys.platform.startswith("linux") or platform.machine() not in ("x86_64", "aarch64"):
        raise ClientError(
            f"rust_ort runs on Linux on x86-64 and aarch64; this is {sys.platform} on {platform.machine()}"
        )
