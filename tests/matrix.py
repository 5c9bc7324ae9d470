"""Every declared version, tested: `make matrix`.

Each cell is the package installed by pip with the cell's versions, the main job, and the Python tests. Environments are
kept in RUST_ORT_MATRIX_HOME (build/matrix): one for each torch, in which pip exchanges the rest. A cell's result is
written into docs/results/versions.json and docs/results/versions.md as soon as it is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from environments import ROOT, SHOWN, TEST_ONLY, Counts, Environment, InstallFailed, cpu, lowest, tested

TORCH = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
HOME = Path(os.environ.get("RUST_ORT_MATRIX_HOME") or ROOT / "build/matrix")
STORE = ROOT / "docs/results/versions.json"
REPORT = ROOT / "docs/results/versions.md"
SLICE = (
    "aliases", "backend_interface", "backend_modules", "custom_translations", "entry", "equal_backends", "export_parts",
    "fork", "memory_formats", "mistakes", "nodes", "opset", "planted", "readme", "reference", "release",
    "structures_autograd", "structures_counts", "structures_tensors", "tensor_kinds", "threads", "torch_private",
    "training",
)  # fmt: skip
"""The files whose tests reach torch's tracing, the exporter, or a kernel of ONNX Runtime: with --slice these alone."""
EXIT_WORDS = {0: "matches", 1: "mismatch", 2: "error", 3: "nothing compared"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One set of versions. environment: name of its folder; versions: what pip is held to."""

    environment: str
    versions: dict[str, str]

    @property
    def name(self) -> str:
        first = "lowest, " if self.environment == "lowest" else ""
        return f"{first}torch {self.versions['torch']}, onnxruntime {self.versions['onnxruntime']}"


@dataclass(kw_only=True)
class Result:
    """What a cell gave. main_job: exit code in words; extent: which tests ran; error: why there is no more."""

    versions: dict[str, str] = field(default_factory=dict)
    main_job: str = "not run"
    extent: str = "all"
    tests: Counts | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def green(self) -> bool:
        tests = self.tests
        return (
            not self.error and self.main_job == EXIT_WORDS[0] and tests is not None and tests.passed > tests.failed == 0
        )


def cells() -> list[Cell]:
    """Every torch with the lowest declared and the tested onnxruntime, and everything at its lowest together."""
    pinned = {name: version for name, version in tested().items() if name in SHOWN}
    floor = lowest()
    made = [
        Cell(environment=f"torch-{torch}", versions={**pinned, "torch": torch, "onnxruntime": runtime})
        for torch in TORCH
        for runtime in dict.fromkeys((pinned["onnxruntime"], floor["onnxruntime"]))
    ]
    together = {**floor, "torch": next(torch for torch in TORCH if torch.startswith(floor["torch"]))}
    return [*made, Cell(environment="lowest", versions=together)]


def run(cell: Cell, tests: Sequence[str]) -> Result:
    """Installs and runs a cell."""
    begin = time.monotonic()
    made = Result()
    environment = Environment(folder=HOME / cell.environment)
    logs = HOME / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{cell.environment}-onnxruntime-{cell.versions['onnxruntime']}.log"
    try:
        environment.make()
        environment.install("./python_shim", versions=cell.versions)
        pins = tested()
        environment.install(*(f"{name}=={pins[name]}" for name in TEST_ONLY), versions=cell.versions)
    except InstallFailed as error:
        made.error = str(error)
        return made
    installed = environment.versions()
    made.versions = {name: installed[name] for name in SHOWN}
    job = ("-m", "rust_ort.studies.main_job", "--size", "small", "--folder", str(HOME / "dumps"))
    code = environment.run(*job, cwd=HOME, log=log.with_suffix(".main_job.log"))
    made.main_job = EXIT_WORDS.get(code, f"exit code {code}")
    made.tests = environment.tests(tests, log=log)
    made.seconds = time.monotonic() - begin
    return made


def load() -> dict[str, Any]:
    """What is known of the cells that there are."""
    return in_order(json.loads(STORE.read_text())) if STORE.exists() else {}


def in_order(known: dict[str, Any]) -> dict[str, Any]:
    """Without results of cells that are no longer wanted."""
    return {cell.name: known[cell.name] for cell in cells() if cell.name in known}


def save(cell: Cell, result: Result) -> None:
    """Adds a cell's result to the store, and writes the report anew."""
    result_of_cell = {**asdict(result), "green": result.green, "cpu": cpu(), "python": platform.python_version()}
    known = in_order({**load(), cell.name: result_of_cell})
    STORE.write_text(json.dumps(known, indent=1) + "\n")
    REPORT.write_text(report(known))


def report(known: dict[str, Any]) -> str:
    """docs/results/versions.md."""
    lines = [
        "# Versions",
        "",
        "Each row: the package installed by pip with these versions, the main job (small), and the Python tests. Made",
        "by `make matrix`; one cell again: `make matrix ARGS=\"--torch 2.15.0 --onnxruntime 1.31.1\"`. Tests: all, or,",
        f"with `--slice`, the {len(SLICE)} files that reach torch's tracing, the exporter or a kernel of ONNX Runtime",
        f"(`SLICE` in `tests/matrix.py`). {standing(known)}",
        "",
        f"| {' | '.join(SHOWN)} | main job | tests | passed | failed | skipped |",
        f"|{'---|' * (len(SHOWN) + 5)}",
    ]  # fmt: skip
    for cell in cells():
        result = known.get(cell.name)
        versions = (result or {}).get("versions") or cell.versions
        row = [versions.get(name, "") for name in SHOWN]
        tests = (result or {}).get("tests") or {}
        row += [result["main_job"], result["extent"]] if result else ["not run yet", ""]
        row += [str(tests.get(key, "")) for key in ("passed", "failed", "skipped")]
        lines.append(f"| {' | '.join(row)} |")
    lines += ["", *machines(known), "", "## Failures", "", *failures(known)]
    return "\n".join(lines) + "\n"


def standing(known: dict[str, Any]) -> str:
    """What the table says of the declared ranges."""
    green = sum(result["green"] for result in known.values())
    if green == len(cells()):
        return "The ranges in `python_shim/pyproject.toml` are what is green here."
    return f"Of {len(cells())} rows {len(known)} ran, {green} without a failure."


def machines(known: dict[str, Any]) -> list[str]:
    ran = sorted({f"{result['cpu']}, Python {result['python']}" for result in known.values()})
    return [f"Run on: {'; '.join(ran) or 'nothing yet'}."]


def failures(known: dict[str, Any]) -> list[str]:
    """Each failed test of each cell, with what it said."""
    lines: list[str] = []
    for name, result in known.items():
        wrong = (result["tests"] or {}).get("failures", {})
        told = [f"`{test}`: {said}".replace("|", "\\|") for test, said in wrong.items()]
        if result["error"]:
            told.append("not installed: " + " ".join(result["error"].split()))
        lines += [f"- {name}: {each}" for each in told]
    return lines or [f"None in the {len(known)} cells that ran."]


def wanted(arguments: argparse.Namespace) -> list[Cell]:
    """The cells that the arguments name."""

    def is_wanted(cell: Cell) -> bool:
        torch, runtime = cell.versions["torch"], cell.versions["onnxruntime"]
        if arguments.lowest and cell.environment != "lowest":
            return False
        return torch in (arguments.torch or [torch]) and runtime in (arguments.onnxruntime or [runtime])

    named = [cell for cell in cells() if is_wanted(cell)]
    pinned = {name: version for name, version in tested().items() if name in SHOWN}
    more = [
        Cell(environment=f"torch-{torch}", versions={**pinned, "torch": torch, "onnxruntime": runtime})
        for torch in arguments.torch or [] for runtime in arguments.onnxruntime or []
        if all((torch, runtime) != (cell.versions["torch"], cell.versions["onnxruntime"]) for cell in named)
    ]  # fmt: skip
    return [*named, *more]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", nargs="*", help="only these versions of torch")
    parser.add_argument("--onnxruntime", nargs="*", help="only these versions of onnxruntime, declared or not")
    parser.add_argument("--lowest", action="store_true", help="only the cell with everything at its lowest")
    parser.add_argument("--slice", action="store_true", help="only the test files that versions matter to")
    parser.add_argument("--tests", default="", help="only these test files or pytest arguments; prints, saves nothing")
    parser.add_argument(
        "--report", action="store_true", help="write the table from docs/results/versions.json; run nothing"
    )
    arguments = parser.parse_args()
    if arguments.report:
        REPORT.write_text(report(load()))
        return 0
    folder = ROOT / "tests/python"
    parts = shlex.split(arguments.tests)
    tests = [str(folder / part) if part.startswith("test_") else part for part in parts] or [str(folder)]
    if arguments.slice:
        tests = [str(folder / f"test_{name}.py") for name in SLICE]
    chosen = wanted(arguments)
    if not chosen:
        parser.error(f"no such cell; there are: {'; '.join(cell.name for cell in cells())}")
    green = True
    for cell in chosen:
        print(f"{cell.name} …", flush=True)
        result = run(cell, tests)
        result.extent = "slice" if arguments.slice else "all"
        green = green and result.green
        if not parts and cell in cells():
            save(cell, result)
        print(f"  {result.error or f'main job {result.main_job}; tests {result.tests}; {result.seconds:.0f} s'}")
        for test, said in (result.tests.failures if result.tests else {}).items():
            print(f"  {test}: {said}", flush=True)
    return 0 if green else 1


if __name__ == "__main__":
    sys.exit(main())
