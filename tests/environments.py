"""Virtual environments in which the package is installed as a user would, and what its tests say in them.

Standard library alone: matrix.py and fresh.py run with whatever Python is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "python_shim/pyproject.toml"
REQUIREMENTS = ROOT / "python_shim/requirements-dev.txt"
PARALLEL = ROOT / "tests/python/parallel.args"
"""pytest's arguments for several processes."""
SHOWN = ("torch", "onnxruntime", "onnx", "onnxscript", "onnx-ir", "numpy", "protobuf")
"""Whose versions a result names: what the package depends on."""
TEST_ONLY = ("transformers", "huggingface_hub", "tokenizers", "safetensors", "pytest", "pytest-timeout", "pytest-xdist",
             "expecttest", "hypothesis")  # fmt: skip
"""What the tests need beside it."""
PIP = ("--disable-pip-version-check", "--progress-bar", "off", "--quiet")
WATCHDOG_S = 3 * 3600


def tested() -> dict[str, str]:
    """{distribution: version} that development is pinned to."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", REQUIREMENTS.read_text(), re.MULTILINE))


def lowest() -> dict[str, str]:
    """{distribution: lowest version that the package declares}."""
    declared = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    found = (re.match(r"([\w.-]+)>=([\d.]+)", line) for line in declared)
    return {match[1]: match[2] for match in found if match is not None}


@dataclass(kw_only=True)
class Counts:
    """What a run of the tests gave. failures: {test: first line of what it said}."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


class InstallFailed(RuntimeError):
    """pip found no versions that fit, or could not install them."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A virtual environment in a folder of its own."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    def make(self) -> None:
        """Makes it where it is not there, or not whole."""
        pip = [self.python, "-m", "pip", "--version"]
        if not self.python.exists() or subprocess.run(pip, capture_output=True).returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)

    def install(self, *what: str, versions: Mapping[str, str] | None = None) -> None:
        """pip install. versions: what pip is held to, {distribution: version}. Errors: InstallFailed."""
        held = self.folder / "constraints.txt"
        held.write_text("".join(f"{name}=={version}\n" for name, version in sorted((versions or {}).items())))
        command = [self.python, "-m", "pip", "install", *PIP, *what, *(("-c", held) if versions else ())]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise InstallFailed(f"pip install {' '.join(what)}: " + done.stdout.strip()[-1500:])

    def versions(self) -> dict[str, str]:
        """{distribution: version} of everything that is installed, but for the package itself."""
        command = [self.python, "-m", "pip", "list", "--format=json", "--disable-pip-version-check"]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return {each["name"]: each["version"] for each in listed if each["name"] not in ("rust-ort", "pip")}

    def library(self) -> Path:
        """The onnxruntime library of the wheel."""
        return next(iter(sorted(self.folder.glob("lib/python*/site-packages/onnxruntime/capi/libonnxruntime.so*"))))

    def run(self, *arguments: str | Path, cwd: Path, log: Path, **variables: str) -> int:
        """Exit code of this Python with a daemon of its own; its output goes to `log`."""
        with own_daemon(self) as environ, log.open("w") as output:
            process = subprocess.Popen(
                [self.python, *arguments], cwd=cwd, env={**environ, **variables}, stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                return process.wait(WATCHDOG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()

    def tests(self, tests: Sequence[str], *, log: Path) -> Counts:
        """The Python tests in it."""
        junit = log.with_suffix(".xml")
        junit.unlink(missing_ok=True)
        examples = ROOT / "target/release/examples"
        code = self.run(
            "-m", "pytest", "-c", PROJECT, "--rootdir", ROOT, f"--junitxml={junit}", "-q", f"@{PARALLEL}", *tests,
            cwd=ROOT, log=log,
            RUST_ORT_BINARY=str(self.folder / "bin/rust-ort"),
            RUST_ORT_TEST_ONNXRUNTIME=str(self.library()),
            RUST_ORT_WRITE_DUMP=str(examples / "write_dump"),
            RUST_ORT_CUSTOM_OPS=str(examples / "libcustom_ops.so"),
        )  # fmt: skip
        return counts(junit, code, log)


@contextmanager
def own_daemon(environment: Environment) -> Iterator[dict[str, str]]:
    """Variables of a process that shares no daemon with the user's, which is stopped at the end."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RUST_ORT_", "PYTHON"))}
    if "RUST_ORT_MAKE_RUN" in os.environ:
        environ["RUST_ORT_MAKE_RUN"] = os.environ["RUST_ORT_MAKE_RUN"]
    binary = environment.folder / "bin/rust-ort"
    with tempfile.TemporaryDirectory(prefix="rort-") as folder:
        environ["RUST_ORT_SOCKET"] = f"{folder}/v1.sock"
        environ["RUST_ORT_STATE_DIR"] = f"{folder}/state"
        try:
            yield environ
        finally:
            subprocess.run([binary, "stop", "--force"], env=environ, capture_output=True)


def counts(junit: Path, code: int, log: Path) -> Counts:
    """What pytest wrote; a run that ended without a result is one failure, said as such."""
    if not junit.exists() or not junit.stat().st_size:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        return Counts(failed=1, failures={"the whole run": f"exit code {code}: {' '.join(last)}"})
    made = Counts()
    for case in ET.parse(junit).getroot().iter("testcase"):
        wrong = case.find("failure")
        wrong = case.find("error") if wrong is None else wrong
        if wrong is not None:
            made.failed += 1
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}"
            made.failures[name] = _first_line(wrong)
        elif case.find("skipped") is not None:
            made.skipped += 1
        else:
            made.passed += 1
    return made


def _first_line(wrong: ET.Element) -> str:
    text = wrong.get("message") or wrong.text or ""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:200]


def cpu() -> str:
    """The processor's name."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found is not None else os.uname().machine
