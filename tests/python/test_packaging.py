"""What is installed, and what sources say that were not built."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import rust_ort
from rust_ort import _native

PACKAGE = Path(__file__).parents[2] / "python_shim/rust_ort"


def test_module_program_and_descriptors_are_installed_once() -> None:
    files = [path.name for path in importlib.metadata.files("rust-ort") or ()]
    assert [name for name in files if name.startswith("_native.") and name.endswith(".so")] == ["_native.abi3.so"]
    for name in ("rust-ort", "rust_ort.binpb", "_native.pyi", "py.typed"):
        assert files.count(name) == 1


def test_module_and_package_are_of_one_version() -> None:
    assert _native.VERSION == rust_ort.__version__ == importlib.metadata.version("rust-ort")


def test_sources_that_were_not_built_say_what_to_run(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "rust_ort", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", "import rust_ort"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ImportError: rust_ort's native module does not load: No module named 'rust_ort._native'" in done.stderr
    assert "run `make build` where the sources are, or `pip install ./python_shim`" in done.stderr
