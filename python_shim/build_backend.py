"""The build backend (PEP 517): maturin's, and in its wheel the program rust-ort beside the module rust_ort._native.

maturin builds a module or a program, not both (PyO3/maturin#368). So cargo builds the program first; maturin takes it
from the folder that pyproject.toml names as `data`.
"""

from __future__ import annotations

import contextlib
import importlib.util
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
TORCH_PROGRAM = "rust-ort-torch"
"""The same with libtorch in it, for the option runtimes: only with RUST_ORT_BUILD_TORCH=1, or `-C build-torch=1`. torch
must be where it is built (`pip install --no-build-isolation`), for its headers and libraries."""
# All packages, as in every other build: alone, this one's dependencies would have other features and be built again.
BUILD = ("cargo", "build", "--release", "--locked", "--workspace", "--bin", PROGRAM)
TORCH_BUILD = ("cargo", "build", "--release", "--locked", "--features", "torch", "--bin", TORCH_PROGRAM)
SCRIPTS = Path(__file__).resolve().parent / "wheel_data/scripts"
with contextlib.suppress(OSError):  # whatever is asked of maturin, it wants the folder to be there
    SCRIPTS.mkdir(parents=True, exist_ok=True)


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Writes the wheel and returns its name."""
    stage_programs(config_settings)
    return str(maturin.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Writes the wheel of the program and of a pointer to the sources, beside which maturin puts the module."""
    stage_programs(config_settings)
    return str(maturin.build_editable(wheel_directory, config_settings, metadata_directory))


def stage_programs(settings: Settings) -> None:
    """Builds the programs and puts them into SCRIPTS. Exits where that fails."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise SystemExit("error: rust-ort's module is made for Python's stable ABI, which a free-threaded Python lacks")
    stage(PROGRAM, build_program(BUILD, {}))
    if wants_torch(settings):
        stage(TORCH_PROGRAM, build_program(TORCH_BUILD, {"LIBTORCH": torch_folder()}))
    else:  # of an earlier build
        (SCRIPTS / TORCH_PROGRAM).unlink(missing_ok=True)


def stage(name: str, program: str) -> None:
    """Without its line tables, four fifths of its size: cargo's own, in the target folder, keeps them, and the names of
    functions stay. Where there is no `strip`, a link to cargo's: maturin packs what a link points to."""
    staged = SCRIPTS / f".{name}.{os.getpid()}"
    staged.unlink(missing_ok=True)
    strip = shutil.which("strip")
    if strip is None or subprocess.run([strip, "--strip-debug", "-o", staged, program], check=False).returncode:
        staged.unlink(missing_ok=True)
        staged.symlink_to(program)
    staged.replace(SCRIPTS / name)


def wants_torch(settings: Settings) -> bool:
    asked = (settings or {}).get("build-torch", os.environ.get("RUST_ORT_BUILD_TORCH", ""))
    if asked not in ("", "0", "1"):
        raise SystemExit(f"error: build-torch, RUST_ORT_BUILD_TORCH: expected 0 or 1, got {asked!r}")
    return bool(asked == "1")


def torch_folder() -> str:
    """The folder of the build environment's torch, which is not imported. Exits where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            f"error: {TORCH_PROGRAM} is built against torch, and there is none here; install torch first, then "
            "`RUST_ORT_BUILD_TORCH=1 pip install --no-build-isolation` (with maturin installed)"
        )
    return str(spec.submodule_search_locations[0])


def build_program(build: tuple[str, ...], more: Mapping[str, str]) -> str:
    """Path of the program, in the folder that cargo's settings say. more: of its environment."""
    if shutil.which("cargo") is None:
        if os.environ.get("MATURIN_NO_INSTALL_RUST"):
            raise SystemExit("error: cargo is not on PATH; install Rust: https://rustup.rs")
        from puccinialin import setup_rust  # maturin has it installed where there is no cargo

        os.environ.update(setup_rust())
    command = [*build, "--message-format", "json-render-diagnostics"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **more})
    if done.returncode:
        raise SystemExit(f"error: `{' '.join(build)}` ended with {done.returncode}; above is what cargo said")
    built = [json.loads(line) for line in done.stdout.splitlines()]
    return str(next(message["executable"] for message in built if message.get("executable")))
