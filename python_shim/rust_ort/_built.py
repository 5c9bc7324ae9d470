"""Imported before all else of the package: the native module is there, or the error says how to make it."""

from __future__ import annotations

try:
    import rust_ort._native  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"rust_ort's native module does not load: {error}; run `make build` where the sources are, or "
        "`pip install ./python_shim`",
        name=error.name,
        path=error.path,
    ) from error
