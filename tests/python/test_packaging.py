"""What is installed."""

from __future__ import annotations

import importlib.metadata

import rust_ort
from rust_ort import _native


def test_module_program_and_descriptors_are_installed_once() -> None:
    files = [path.name for path in importlib.metadata.files("rust-ort") or ()]
    assert [name for name in files if name.startswith("_native.") and name.endswith(".so")] == ["_native.abi3.so"]
    for name in ("rust-ort", "rust_ort.binpb", "_native.pyi", "py.typed"):
        assert files.count(name) == 1


def test_module_and_package_are_of_one_version() -> None:
    assert _native.VERSION == rust_ort.__version__ == importlib.metadata.version("rust-ort")
