"""Asks ONNX Runtime's CUDA provider for its kernels, without a GPU; docs/results/cuda-kernels.md, .json.

    PYTHONPATH=tests python -m measure.cuda_kernels --wheel FOLDER --output docs/results/cuda-kernels.md

FOLDER: onnxruntime-gpu's wheel, unpacked. With --models: which nodes of these models, as sessions get them, lack a
kernel, and 1 if any does.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from measure.cuda_kernels import cases, stand_in, table

CHILD = Path(__file__).with_name("sessions.py")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.cuda_kernels", description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True, help="unpacked: the folder that onnxruntime/ is in")
    parser.add_argument("--python", default=sys.executable, help="an interpreter for the wheel, with NumPy")
    parser.add_argument("--output", type=Path, help="written, with .json beside it")
    parser.add_argument("--models", type=Path, nargs="+", help="ONNX files to ask about instead")
    options = parser.parse_args(arguments)
    if options.models:
        return asked_of(
            options.models, told([path.read_bytes() for path in options.models], options.wheel, options.python)
        )
    asked = [*cases.cases()]
    answers = told([cases.model(case).SerializeToString() for case in asked], options.wheel, options.python)
    versions = table.Versions(onnxruntime=version(options.wheel), onnx=onnx.__version__, opset=last_opset(answers))
    states = {case: state(case, answer) for case, answer in zip(asked, answers, strict=True)}
    # What ONNX's own inference refuses, as two types that do not go together, tells nothing.
    found = {case: told for case, told in states.items() if told}
    made = table.operators(found, versions.opset)
    for opset in (table.LOWEST, versions.opset):
        print(f"opset {opset}, {len(made)} operators:")
        for element in cases.FLOATS:
            print(f"  {element}: {dict(table.counts(made, opset, element))}")
    unclear = {case for case, told in states.items() if not told and case.since <= versions.opset}
    print(f"{len(found)} cases, {len(unclear)} that are no models: {dict(Counter(case.operator for case in unclear))}")
    if options.output:
        table.write(options.output, made, versions)
    return 0


def told(models: Sequence[bytes], wheel: Path, python: str) -> list[dict[str, Any]]:
    """What sessions.py says of each model. What kills its process is an answer, too."""
    answers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stand_in.build(wheel / "onnxruntime/capi/libonnxruntime_providers_cuda.so", folder)
        file = folder / "models"
        file.write_bytes(b"".join(len(model).to_bytes(8, "little") + model for model in models))
        environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(wheel)}
        while len(answers) < len(models):
            command = [python, str(CHILD), str(file), str(len(answers))]
            child = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            answers += [json.loads(line) for line in child.stdout.splitlines()]
            if child.returncode == 1:
                raise SystemExit(child.stderr)
            if len(answers) < len(models):
                answers.append({"asked": True, "missing": [], "on_cpu": [], "error": f"exit {child.returncode}"})
    return answers


def state(case: cases.Case, answer: dict[str, Any]) -> str:
    """As table.STATES says; "": it is no model. An error of a kernel that was found is no matter: of a node without
    shapes and constants it may be any."""
    if not answer["asked"]:
        return ""
    if case.operator not in answer["missing"]:
        return "cpu" if answer["on_cpu"] else "kernel"
    if answer["error"]:
        return "none"
    return "cpu" if lacking(answer) else "body"


def lacking(answer: dict[str, Any]) -> list[str]:
    """Operators on the CPU for want of a kernel: what is there for its shapes is not among them."""
    on_cpu = set(answer["on_cpu"])
    return sorted(on_cpu if on_cpu == {"all"} else on_cpu & set(answer["missing"]))


def asked_of(paths: Sequence[Path], answers: Sequence[dict[str, Any]]) -> int:
    has_all = True
    for path, answer in zip(paths, answers, strict=True):
        refusal = re.sub(r"\s+", " ", str(answer["error"]))
        missing = Counter(answer["missing"] if refusal else [op for op in answer["missing"] if op in lacking(answer)])
        has_all &= not refusal and not missing
        print(f"{path}: without a kernel: {dict(missing) or 'none'}{', refused: ' + refusal if refusal else ''}")
    return 0 if has_all else 1


def last_opset(answers: Sequence[dict[str, Any]]) -> int:
    """That the library guarantees, as it says when it refuses a later one."""
    told = (re.search(r"ai\.onnx is till opset (\d+)", str(answer["error"])) for answer in answers)
    return next((int(match[1]) for match in told if match), onnx.defs.onnx_opset_version())


def version(wheel: Path) -> str:
    metadata = next(wheel.glob("onnxruntime_gpu-*.dist-info"))
    return metadata.name.removeprefix("onnxruntime_gpu-").removesuffix(".dist-info")


if __name__ == "__main__":
    sys.exit(main())
