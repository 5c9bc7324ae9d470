"""Graphs of architectures under autocast on libtorch, in true half precision: `rust-ort-torch` against eager, with
float64 as the judge.

Each is compiled and run under autocast and dumped, as `measure.torch_nodes` does in float32. Two implementations in
half precision differ by what each of them rounds; so an output of libtorch is right when it is no further from eager
than eager's own distance from float64 allows, and a share of noise more.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from measure import torch_cases, torch_nodes
from measure.home import home

ARCHITECTURES = (
    "llama", "mistral", "qwen3", "gemma2", "phi3", "gpt2", "gpt_neox", "opt", "bloom", "mamba", "bert", "deberta-v2",
    "modernbert", "t5", "whisper", "vit", "swin", "convnext", "resnet", "clip",
)  # fmt: skip
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ALLOWED = 2.5
"""Times eager's distance from float64: as much again for libtorch's own, and half as much more."""


@dataclass(kw_only=True)
class Half:
    """An architecture under autocast to one dtype. share: the largest of max|libtorch - eager| in measures of
    max|eager - float64|, of outputs where eager's is more than a step of the dtype."""

    architecture: str
    dtype: str
    parts: int = 0
    operators: dict[str, int] = field(default_factory=dict)
    outputs: int = 0
    share: float = 0.0
    worst: str = ""
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    error: str = ""


def judged(name: str, dtype: str, runs: Sequence[tuple[str, Path]], binary: Path) -> Half:
    """What libtorch gives for an architecture's dumped parts."""
    made = Half(architecture=name, dtype=dtype)
    counts = Counter[str]()
    for run, path in runs:
        parts, found, error = torch_nodes.models(run, path)
        if error:
            made.error = error
            continue
        made.parts += len(parts)
        counts += found
        native, exact = (
            torch_cases.replay(binary, path, "--runtime", runtime, "--threads", "1") for runtime in torch_nodes.RUNTIMES
        )
        wrong: dict[tuple[str, str], str] = {}
        for own, judge in zip(native, exact, strict=True):
            wrong |= _judge(made, run, own, judge, torch.finfo(DTYPES[dtype]).eps)
        if wrong:
            made.wrong += _beside_onnxruntime(wrong, torch_cases.replay(binary, path, "--threads", "1"))
    made.operators = dict(counts.most_common())
    return made


def _judge(made: Half, run: str, own: dict[str, Any], judge: dict[str, Any], step: float) -> dict[tuple[str, str], str]:
    """{(data set, output): what is wrong}."""
    wrong = {}
    at = "/".join([run, *Path(own["path"]).parts[-3:-1]])
    failed = [
        verdict["verdict"]["reason"]
        for found in (own, judge)
        for verdict in found["verdicts"]
        if verdict["verdict"]["kind"] == "failed"
    ]
    if failed:
        made.missing.append(f"{at}: {failed[0]}")
        return {}
    for ours, exact in zip(own["verdicts"], judge["verdicts"], strict=True):
        made.outputs += 1
        if ours["metrics"] is None or exact["metrics"] is None:
            made.missing.append(f"{at} {ours['name']}: {ours['verdict']}, {exact['verdict']}")
            continue
        # What is infinite in half precision and not in float64 has no distance; then the two have to agree.
        unequal = ours["metrics"]["nan_disagreements"] + ours["metrics"]["inf_disagreements"]
        off, eager = (torch_nodes.finite(verdict, "max_abs") for verdict in (ours, exact))
        rounding = step * torch_nodes.finite(ours, "max_reference")
        if unequal or off > ALLOWED * eager + rounding:
            text = f"{ours['name']} of {at}: max|Δ| {off:.1e}, eager's own {eager:.1e}, unequal {unequal}"
            wrong[own["path"], ours["name"]] = text
        if eager > rounding and off / eager > made.share:
            made.share, made.worst = off / eager, f"{ours['name']} of {at}"
    return wrong


def _beside_onnxruntime(wrong: dict[tuple[str, str], str], again: Sequence[dict[str, Any]]) -> list[str]:
    """What is wrong, each with how far ONNX Runtime is from eager there: a kernel of eager's that rounds less than the
    graph does leaves both behind."""
    off = {
        (data_set["path"], verdict["name"]): torch_nodes.finite(verdict, "max_abs")
        for data_set in again
        for verdict in data_set["verdicts"]
        if verdict["metrics"] is not None
    }
    return [f"{text}; ONNX Runtime's {off.get(at, float('nan')):.1e}" for at, text in wrong.items()]


def markdown(rows: Sequence[Half], versions: str) -> str:
    """What docs/results/torch-half.md holds."""
    lines = [
        "# Half precision on libtorch",
        "",
        f"Made by `make torch-nodes` with {versions}. Architectures of the census are compiled and run under autocast, "
        "in training mode and in evaluation mode with gradients, forward and backward, and dumped; `rust-ort-torch "
        "replay --runtime torch` runs the dumped parts node by node in the half precision that they have, and "
        "`--runtime torch-f64` without any rounding. An output is wrong where it is further from eager's than "
        f"{ALLOWED} times eager's own distance from float64 and one step of the dtype, or is finite where the other is "
        "not. *Share*: the largest of those distances in measures of eager's.",
        "",
        "| architecture | autocast | parts | nodes | outputs | share | missing | wrong |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for made in rows:
        numbers = f"{made.parts} | {sum(made.operators.values()):,} | {made.outputs:,} | {made.share:.2f}"
        faults = f"{len(made.missing) or '-'} | {len(made.wrong) or '-'}"
        lines.append(f"| {made.architecture} | {made.dtype} | {numbers} | {faults} |")
    totals = Counter[str]()
    for made in rows:
        totals.update(made.operators)
    lines += [
        "",
        f"In all {sum(made.parts for made in rows):,} parts, {sum(totals.values()):,} nodes of {len(totals)} "
        f"operators, {sum(made.outputs for made in rows):,} outputs.",
        "",
        "## Exceptions",
        "",
    ]
    exceptions = [
        f"- {made.architecture}, {made.dtype}: {text}"
        for made in rows
        for text in (*made.missing, *made.wrong, *filter(None, [made.error]))
    ]
    return "\n".join([*lines, *(exceptions or ["None."])]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Dumps, runs and writes what was found. Returns the exit code: 1 where something is missing or wrong."""
    parser = argparse.ArgumentParser(prog="python -m measure.torch_half", description=__doc__)
    parser.add_argument("--only", default=",".join(ARCHITECTURES), help="architectures, separated by commas")
    parser.add_argument("--dtypes", default=",".join(DTYPES), help="separated by commas")
    parser.add_argument("--binary", type=Path, default=Path("target/release/rust-ort-torch"), help="rust-ort-torch")
    parser.add_argument("--output", type=Path, help="markdown file; the same for tests goes beside it as JSON")
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    binary = arguments.binary.absolute()
    rows = []
    with tempfile.TemporaryDirectory(prefix="rort-torch-") as temporary, home() as made_home:
        os.environ.update(made_home.environment())
        for dtype in arguments.dtypes.split(","):
            for name in arguments.only.split(","):
                folder = Path(temporary) / dtype
                folder.mkdir(exist_ok=True)
                runs = torch_nodes.dumped([name], folder, lambda _: None, DTYPES[dtype])[name]
                made = judged(name, dtype, runs, binary)
                rows.append(made)
                found = f"{len(made.missing)} missing, {len(made.wrong)} wrong {made.error}"
                print(f"{name}, {dtype}: {made.parts} parts, {made.outputs} outputs, share {made.share:.2f}, {found}")
                for text in (*made.missing, *made.wrong):
                    print(f"    {text}", flush=True)
    if arguments.output:
        arguments.output.write_text(markdown(rows, torch_nodes.versions()))
        arguments.output.with_suffix(".json").write_text(json.dumps([asdict(made) for made in rows], indent=1) + "\n")
    return int(any(made.missing or made.wrong or made.error for made in rows))


if __name__ == "__main__":
    sys.exit(main())
