"""The build backend (PEP 517): maturin's, and in its wheel the program rust-ort beside the module rust_ort._native.

maturin builds a module or a program, not both (PyO3/maturin#368). So cargo builds the program first; maturin takes it
from the folder that pyproject.toml names as `data`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import maturin
from maturin import *  # noqa: F403  every hook that it has

Settings = Mapping[str, Any] | None

PROGRAM = "rust-ort"
# All packages, as in every other build: alone, this one's dependencies would have other features and be built again.
BUILD = ("cargo", "build", "--release", "--locked", "--workspace", "--bin", PROGRAM)
SCRIPTS = Path(__file__).resolve().parent / "wheel_data/scripts"
with contextlib.suppress(OSError):  # whatever is asked of maturin, it wants the folder to be there
    SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel and returns its name."""
    stage_program()
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Writes the wheel of the program and of a pointer to the sources, beside which maturin puts the module."""
    stage_program()
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def stage_program() -> None:
    """Builds the program and links to it from SCRIPTS: maturin packs what a link points to. Exits where that fails."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit("error: rust-ort's module is made for Python's stable ABI, which a free-threaded Python lacks")
    program = build_program()
    link = SCRIPTS / f".{PROGRAM}.{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    link.replace(SCRIPTS / PROGRAM)


def build_program() -> str:
    """Path of the program, in the folder that cargo's settings say."""
    if shutil.which("cargo") is None:
        if os.environ.get("MATURIN_NO_INSTALL_RUST"):
            raise SystemExit("error: cargo is not on PATH; install Rust: https://rustup.rs")
        from puccinialin import setup_rust  # maturin has it installed where there is no cargo

        os.environ.update(setup_rust())
    command = [*BUILD, "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: `{' '.join(BUILD)}` ended with {done.returncode}; above is what cargo said")
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return str(next(message["executable"] for message in built if message.get("executable")))
