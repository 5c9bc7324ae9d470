"""Graphs of the census's architectures, and ONNX's node tests, on libtorch: `rust-ort-torch` against ONNX Runtime.

Each architecture is compiled, run forward and backward as in the census, and dumped; then `rust-ort-torch replay` runs
the dumped parts with libtorch on the same inputs, and its outputs are compared with those that ONNX Runtime gave.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import rust_ort
from measure import op_census, torch_cases
from measure.architectures import TABLE
from measure.home import home

TOLERANCE = 1e-4
"""Of an output's deviation."""
FLOOR = 1e-3
"""Of the largest value of a graph's outputs: outputs that are smaller deviate in its measure. Of one that is zero in
exact arithmetic, such as the gradient of a key's bias, nothing but rounding is left."""
RUNTIMES = ("torch", "torch-f64")


@dataclass(kw_only=True)
class Side:
    """One runtime on the parts of an architecture. worst: the output that `deviation` is of."""

    outputs: int = 0
    deviation: float = 0.0
    worst: str = ""
    missing: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Row:
    """An architecture. operators: {operator: nodes of it}, bodies of functions and of nodes among them."""

    architecture: str
    runs: list[str] = field(default_factory=list)
    graphs: int = 0
    parts: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    sides: dict[str, Side] = field(default_factory=dict)
    error: str = ""


# --- Dumps -----------------------------------------------------------------------------------------------------------


def dump(name: str, attention: str, mode: str, folder: Path, half: torch.dtype | None) -> None:
    """Compiles and runs an architecture in this process, under autocast where `half` is given; what it prints goes to a
    file beside the folder."""
    with folder.with_suffix(".log").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    backend = rust_ort.Backend({"dump": str(folder), "compare": "outputs"})
    case = TABLE[name].build(attention)
    with torch.autocast("cpu", dtype=half, enabled=half is not None):
        op_census.values(case, mode, lambda module: torch.compile(module, backend=backend))


def dumped(
    names: Sequence[str], folder: Path, finished: Callable[[str], None], half: torch.dtype | None = None
) -> dict[str, list[tuple[str, Path]]]:
    """{architecture: [(run, its folder)]}, each dumped in a process of its own. Errors: none; a run that died has no
    folder."""
    op_census.prepare()
    context = multiprocessing.get_context("fork")
    made: dict[str, list[tuple[str, Path]]] = {}
    for name in names:
        made[name] = []
        for attention, mode in op_census.wanted(name):
            path = folder / f"{name}.{mode}"
            process = context.Process(target=dump, args=(name, attention, mode, path, half))
            process.start()
            process.join(op_census.WATCHDOG_S)
            if process.is_alive():
                process.kill()
            made[name].append((f"{attention}/{mode}", path))
        finished(name)
    return made


# --- Judging ---------------------------------------------------------------------------------------------------------


def row(name: str, runs: Sequence[tuple[str, Path]], binary: Path) -> Row:
    """An architecture on every runtime."""
    made = Row(architecture=name, runs=[run for run, _ in runs])
    counts = Counter[str]()
    for run, path in runs:
        parts, found, error = models(run, path)
        if error:
            made.error = error
            continue
        made.graphs += len({part.parents[1] for part in parts})
        made.parts += len(parts)
        counts += found
        for runtime in RUNTIMES:
            side = made.sides.setdefault(runtime, Side())
            for data_set in torch_cases.replay(binary, path, "--runtime", runtime, "--threads", "1"):
                judge(side, run, data_set, reference="actuals")
    made.operators = dict(counts.most_common())
    return made


def models(run: str, path: Path) -> tuple[list[Path], Counter[str], str]:
    """The models of a run that was to be dumped, their nodes by operator, and why there are none, or an empty text."""
    if not (path / "run.json").is_file():
        log = path.with_suffix(".log")
        end = log.read_text()[-300:] if log.exists() else "it printed nothing"
        return [], Counter(), f"{run} was not dumped: {end}"
    parts = sorted(path.glob("*/part_*/model.onnx"))
    return parts, sum(map(operators, parts), Counter[str]()), ""


def operators(path: Path) -> Counter[str]:
    """Nodes of a model by operator, those of its functions once each."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    counts = Counter[str]()
    called = {(function.domain, function.name) for function in model.functions}
    left = [model.graph.node, *(function.node for function in model.functions)]
    while left:
        for node in left.pop():
            if (node.domain, node.op_type) not in called:
                counts[":".join(filter(None, (node.domain, node.op_type)))] += 1
            left.extend(attribute.g.node for attribute in node.attribute if attribute.HasField("g"))
    return counts


def judge(side: Side, run: str, data_set: dict[str, Any], *, reference: str) -> None:
    """Adds the outputs of a data set, against ONNX Runtime's ("actuals") or eager's ("verdicts")."""
    at = "/".join([run, *Path(data_set["path"]).parts[-3:-1]])
    verdicts = [found["verdict"] for found in data_set["actuals"]] if reference == "actuals" else data_set["verdicts"]
    for verdict in data_set["verdicts"]:
        if verdict["verdict"]["kind"] == "failed":
            reason = verdict["verdict"]["reason"]
            without = re.search(r"no libtorch kernel for operator (\w+)", reason)
            (side.missing.append(without[1]) if without else side.failed.append(f"{at}: {reason}"))
            return
    largest = max((finite(verdict, "max_reference") for verdict in verdicts), default=0.0)
    for verdict in verdicts:
        metrics = verdict["metrics"]
        side.outputs += 1
        if metrics is None:
            side.failed.append(f"{at} {verdict['name']}: {verdict['verdict']}")
            continue
        off = finite(verdict, "max_abs")
        unequal = metrics["nan_disagreements"] + metrics["inf_disagreements"]
        measure = max(finite(verdict, "max_reference"), FLOOR * largest)
        deviation = math.inf if unequal else off / measure if off else 0.0
        if deviation > side.deviation:
            side.deviation, side.worst = deviation, f"{verdict['name']} of {at}"
        if deviation > TOLERANCE:
            side.wrong.append(f"{verdict['name']} of {at}: max|Δ| {off:.1e}, deviation {deviation:.1e}")


def finite(verdict: dict[str, Any], name: str) -> float:
    """A number of a verdict's metrics; 0 where there is none or it is not finite."""
    value = (verdict["metrics"] or {}).get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else 0.0


# --- Report ----------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row], counts: dict[str, torch_cases.Counts], versions: str) -> str:
    """What docs/results/torch-runtime.md holds."""
    lines = [
        "# Models on libtorch",
        "",
        f"Made by `make torch-nodes` with {versions}. Each architecture of the census "
        "(`tests/measure/architectures.py`) is compiled, run in training mode and in evaluation mode with gradients, "
        "forward and backward, and dumped; `rust-ort-torch replay --runtime torch` runs the dumped parts node by node "
        "with libtorch, and `--runtime torch-f64` does with every float in float64. Both are compared with what ONNX "
        "Runtime gave, optimized. An output deviates by max|Δ|/max|r|, or, where it is smaller than "
        f"{FLOOR:.0e} of the largest output of its graph, by max|Δ| in that measure; wrong is more than "
        f"{TOLERANCE:.0e}. Operators are counted as nodes of the models, bodies among them, functions once each.",
        "",
        "| architecture | graphs | parts | nodes | operators | missing | deviation, torch | torch-f64 | wrong |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for made in rows:
        sides = [made.sides.get(runtime, Side()) for runtime in RUNTIMES]
        missing = sorted({operator for side in sides for operator in side.missing})
        wrong = [text for side in sides for text in (*side.wrong, *side.failed)]
        n_nodes = sum(made.operators.values())
        deviations = " | ".join(f"{side.deviation:.1e}" for side in sides)
        lines.append(
            f"| {made.architecture} | {made.graphs} | {made.parts} | {n_nodes:,} | {len(made.operators)} | "
            f"{', '.join(missing) or '-'} | {deviations} | {len(wrong) or '-'} |"
        )
    totals = Counter[str]()
    for made in rows:
        totals.update(made.operators)
    outputs = sum(side.outputs for made in rows for side in made.sides.values())
    lines += [
        "",
        f"In all {len(rows)} architectures, {sum(made.parts for made in rows)} parts, {sum(totals.values()):,} nodes "
        f"of {len(totals)} operators, {outputs:,} outputs compared. Operators by how often they occur: "
        + ", ".join(f"{operator} {n:,}" for operator, n in totals.most_common())
        + ".",
    ]
    exceptions = [
        f"- {made.architecture}, {runtime}: {text}"
        for made in rows
        for runtime, side in made.sides.items()
        for text in (*side.wrong, *side.failed)
    ] + [f"- {made.architecture}: {made.error}" for made in rows if made.error]
    lines += ["", "## Exceptions", "", *(exceptions or ["None."]), "", "## ONNX's node tests", ""]
    lines += [
        "| runtime | passed | in half precision's steps | no kernel | explained | wrong | no tensors, or random |",
        "|---|---|---|---|---|---|---|",
    ]
    for runtime, found in counts.items():
        numbers = (found.passed, found.rounded, found.unsupported, found.explained, found.wrong, found.skipped)
        lines.append(f"| {runtime} | " + " | ".join(f"{len(group):,}" for group in numbers) + " |")
    for runtime, found in counts.items():
        for kind, group in (("explained", found.explained), ("wrong", found.wrong)):
            if group:
                lines += ["", f"{runtime}, {kind}:", "", *(f"- {name}: {text}" for name, text in group.items())]
    first = next(iter(counts.values()), None)
    if first is not None:
        lacking = ", ".join(f"{operator} {n}" for operator, n in first.operators().most_common())
        lines += ["", f"Operators without a kernel, and the cases that need them: {lacking or 'none'}."]
    return "\n".join(lines) + "\n"


def versions() -> str:
    """Of what a page was made with."""
    import onnx
    import onnxruntime

    return f"torch {torch.__version__}, onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}"


def main(argv: Sequence[str] | None = None) -> int:
    """Dumps, runs and writes what was found. Returns the exit code: 1 where something is missing, failed or wrong."""
    parser = argparse.ArgumentParser(prog="python -m measure.torch_nodes", description=__doc__)
    parser.add_argument("--only", default="", help="architectures, separated by commas; a name stands for its variants")
    parser.add_argument("--binary", type=Path, default=Path("target/release/rust-ort-torch"), help="rust-ort-torch")
    parser.add_argument("--dumps", type=Path, help="folder to keep the dumps in, or that has them")
    parser.add_argument("--output", type=Path, help="markdown file; the same for tests goes beside it as JSON")
    arguments = parser.parse_args(argv)
    binary = arguments.binary.absolute()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = op_census.chosen(arguments.only)
    with tempfile.TemporaryDirectory(prefix="rort-torch-") as temporary:
        folder = arguments.dumps or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        runs = {name: [(f"{a}/{m}", folder / f"{name}.{m}") for a, m in op_census.wanted(name)] for name in names}
        absent = [name for name in names if not all(path.exists() for _, path in runs[name])]
        if absent:
            with home() as made_home:
                os.environ.update(made_home.environment())
                dumped(absent, folder, lambda name: print(f"dumped {name}", flush=True))
        rows = [row(name, runs[name], binary) for name in names]
        counts: dict[str, torch_cases.Counts] = {}
        if not arguments.only:
            skipped = torch_cases.write(Path(temporary) / "cases")
            for runtime in RUNTIMES:
                found = torch_cases.replay(binary, Path(temporary) / "cases", "--runtime", runtime, "--threads", "1")
                counts[runtime] = torch_cases.count(found, dict(skipped))
    for made in rows:
        sides = ", ".join(f"{name} {side.deviation:.1e} ({side.worst})" for name, side in made.sides.items())
        print(f"{made.architecture}: {made.parts} parts, {sum(made.operators.values())} nodes; {sides}{made.error}")
    for runtime, found_counts in counts.items():
        numbers = {kind: len(group) for kind, group in vars(found_counts).items()}
        print(f"node tests on {runtime}: {numbers}; wrong: {found_counts.wrong}")
    if arguments.output:
        arguments.output.write_text(markdown(rows, counts, versions()))
        record = {
            "architectures": {
                made.architecture: {k: v for k, v in asdict(made).items() if k != "operators"} for made in rows
            },
            "node_tests": {
                runtime: {**asdict(found), "passed": len(found.passed)} for runtime, found in counts.items()
            },
        }
        arguments.output.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    every = [side for made in rows for side in made.sides.values()]
    bad = any(side.missing or side.failed or side.wrong for side in every) or any(made.error for made in rows)
    return int(bad or any(found.wrong for found in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
