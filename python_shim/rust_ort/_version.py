"""The version of this package: Cargo.toml's, as the installed distribution tells it."""

from __future__ import annotations

import importlib.metadata


def _installed() -> str:
    try:
        return importlib.metadata.version("rust-ort")
    except importlib.metadata.PackageNotFoundError:
        return "0"


__version__ = _installed()
"""The version, "0" where the sources run without having been installed."""
