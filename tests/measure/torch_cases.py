"""ONNX's own node tests on libtorch: a dump of them, which `rust-ort-torch replay` runs in one process, and counts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

DRAWS = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
TYPES = frozenset(range(1, 21)) - {8}
"""Element types of ONNX that torch has too."""

EXACT = frozenset({"Bool", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64"})
HALF = {"BF16": 2**-8, "F16": 2**-11}
"""Half a step of half precision, of a number's size."""

STEPS = 8
"""How many half steps half precision may be off where a case's own tolerance is finer: libtorch rounds in other places
than the reference implementation that wrote the case."""


BOUNDARY = "a quotient on the boundary of two integers is on the other side of it in float64"
REASONS = {
    "test_dft_inverse": "imaginary parts that are zero: expected is the reference's own rounding in float32",
    "test_dft_inverse_opset19": "imaginary parts that are zero: expected is the reference's own rounding in float32",
    "test_dynamicquantizelinear": BOUNDARY,
    "test_dynamicquantizelinear_expanded": BOUNDARY,
}
"""Cases whose values may differ, and why."""


@dataclass
class Counts:
    """Cases by what came of them. unsupported: {case: operator}; explained: values differ, see `REASONS`."""

    passed: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)
    explained: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def operators(self) -> Counter[str]:
        """Operators without a kernel, with the number of cases that need them."""
        return Counter(self.unsupported.values())


def write(folder: Path) -> dict[str, str]:
    """Every case as a graph of the run `folder`. Returns {case: why it is not there} of those that no tensors carry."""
    import onnx
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"schema": "rust_ort/run/1", "versions": {"onnx": onnx.__version__}}))
    skipped = {}
    for case in cases:
        reason = _refusal(case)
        if reason:
            skipped[case.name] = reason
        else:
            _write_case(case, folder / case.name)
    return skipped


def _refusal(case: Any) -> str:
    from onnx import TensorProto

    for value in (*case.model.graph.input, *case.model.graph.output):
        kind = str(value.type.WhichOneof("value"))
        if kind != "tensor_type":
            return f"{kind.removesuffix('_type')} types"
        code = value.type.tensor_type.elem_type
        if code not in TYPES:
            return f"{TensorProto.DataType.Name(code).lower()} tensors"
    if any(node.op_type in DRAWS - {"Dropout"} for node in case.model.graph.node):
        return "it draws random numbers"
    return ""


def _write_case(case: Any, folder: Path) -> None:
    import onnx

    data_set = folder / "part_0" / "test_data_set_0"
    data_set.mkdir(parents=True)
    tolerance = {"atol": case.atol, "rtol": case.rtol, "scale": 0.0, "equal_nan": True}
    (folder / "parts.json").write_text(json.dumps({"name": case.name, "options": {"tolerance": tolerance}}))
    onnx.save(case.model, folder / "part_0" / "model.onnx")
    graph = case.model.graph
    initialized = {initializer.name for initializer in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in initialized]
    ((given, expected),) = case.data_sets
    named = (("input", inputs, given), ("output", [value.name for value in graph.output], expected))
    for role, names, values in named:
        for at, (name, value) in enumerate(zip(names, values, strict=True)):
            tensor = value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(np.asarray(value))
            tensor.name = name
            (data_set / f"{role}_{at}.pb").write_bytes(tensor.SerializeToString())


def torch_environment() -> dict[str, str]:
    """This process's, in which rust-ort-torch finds the libtorch of its torch."""
    import torch

    path = [str(Path(torch.__file__).parent / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(path)}


def replay(binary: Path, path: Path, *arguments: str) -> list[dict[str, Any]]:
    """What `rust-ort-torch replay` says of each data set below a path. Errors: as `said`."""
    sets: list[dict[str, Any]] = said(binary, "replay", path, *arguments)["data_sets"]
    return sets


def said(binary: Path, command: str, path: Path, *arguments: str) -> dict[str, Any]:
    """What a command of `rust-ort-torch` says in JSON of what is below a path. Errors: RuntimeError with what it
    printed, where that is no JSON."""
    done = subprocess.run(
        [binary, command, "--json", *arguments, path],
        env=torch_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"{binary} ended with {done.returncode}: {done.stderr[-2000:]}") from error
    return answer


def count(data_sets: Sequence[dict[str, Any]], skipped: dict[str, str]) -> Counts:
    """Judges what `replay` said of cases that `write` wrote."""
    counts = Counts(skipped=skipped)
    for data_set in data_sets:
        name = Path(data_set["path"]).parts[-3]
        problems = [problem for verdict in data_set["verdicts"] if (problem := _problem(verdict))]
        without = re.search(r"no libtorch kernel for operator (\w+)(?: of domain \"([\w.]+)\")?", " ".join(problems))
        if without:
            counts.unsupported[name] = ":".join(filter(None, (without[2], without[1])))
        elif "computed in float64" in " ".join(problems):
            counts.unsupported[name] = "BitCast of floats in float64"
        elif "draws random numbers" in " ".join(problems):
            counts.skipped[name] = "it draws random numbers"
        elif not problems:
            counts.passed.append(name)
        elif all(problem == "rounded" for problem in problems):
            counts.rounded.append(name)
        elif name in REASONS and all("mismatch" in problem for problem in problems):
            counts.explained[name] = REASONS[name]
        else:
            counts.wrong[name] = "; ".join(problem for problem in problems if problem != "rounded")
    return counts


def _problem(verdict: dict[str, Any]) -> str:
    """What is wrong with an output; "rounded" where it is half precision within `STEPS`, "" for nothing."""
    kind, metrics = verdict["verdict"]["kind"], verdict.get("metrics") or {}
    if kind == "match":
        exact = metrics.get("dtype") in EXACT and metrics.get("max_abs")
        return f"{verdict['name']}: mismatch of integers, by {metrics['max_abs']}" if exact else ""
    half = HALF.get(metrics.get("dtype", ""))
    if kind == "mismatch" and half and not metrics["nan_disagreements"] and not metrics["inf_disagreements"]:
        worst, reference = metrics["max_abs"], metrics["max_reference"]
        if worst <= STEPS * half * max(reference, 1e-3):
            return "rounded"
    said = {key: value for key, value in verdict["verdict"].items() if key != "kind"}
    return f"{verdict['name']}: {kind} {said or ''} max|Δ| {metrics.get('max_abs')} in {metrics.get('shape')}"
