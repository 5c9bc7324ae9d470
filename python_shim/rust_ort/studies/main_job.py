"""The main job: Llama's attention, decoder layer and model, forward and backward, through the daemon.

Every graph and its first call are dumped and every output is compared with eager; outputs and gradients are also held
against a float64 eager run. Exit code: 0 every row matches, 1 a mismatch or another broken promise, 2 an error,
3 nothing was compared.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.call.client import Client
from rust_ort.observe.graph_info import GraphInfo, in_order
from rust_ort.options import Options
from rust_ort.studies import llama_models
from rust_ort.studies.llama_models import Study

PARTS = ("attention", "decoder", "model")
MAX_REL_TO_MAX = 1e-4
MAX_RATIO_TO_EAGER = 3.0
MIN_SHARE = 0.99
TIMED_ROUNDS = 5

MATCH, MISMATCH, ERROR, NOTHING = 0, 1, 2, 3

PAGE = """# The demo

Made by `make demo ARGS="--page docs/results/demo.md"`. Llama's attention, decoder layer and model run forward and
backward on ONNX Runtime; every graph is dumped and every output is compared with eager. Times are of {cores} CPU
cores; the load average was {load:.1f}, and one above the number of cores makes them longer.

```text
{told}
```

The exit code is 0 if every row matches with max|Δ|/max|r| ≤ {limit}, the error against a float64 eager run is at
most {ratio} times eager's own, and ONNX Runtime ran at least {share} of the compute nodes by the executor's own count.

The dump holds:

```text
dumps/main_job-attention/
├── run.json
├── 0_0-forward/
│   ├── dynamo.txt  joint.txt  fx.txt  parts.json
│   └── part_0/
│       ├── model.onnx  model.ort.onnx  provenance.json  comparison_0.json
│       └── test_data_set_0/   input_0.pb …  output_0.pb …  actual_0.pb …
└── 0_0-backward/
    └── …
```

[Dumps](../guide/dumps.md) says what each file is.
"""
"""Text around the tables of docs/results/demo.md."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One graph of one part."""

    part: str
    graph: str
    on_ort: int
    in_eager: int
    n_compared: int
    max_abs: float
    max_rel_to_max: float
    verdicts: tuple[str, ...]

    @property
    def direction(self) -> str:
        return self.graph.rsplit("-", 1)[-1]

    @property
    def verdict(self) -> str:
        """The worst of its tensors; Match only when there is one and every one matches."""
        for kind, word in (("failed", "Failed"), ("mismatch", "Mismatch"), ("not_compared", "NotCompared")):
            n = self.verdicts.count(kind)
            if n:
                return f"{word} ({n} of {len(self.verdicts)})"
        if not self.verdicts:
            return "NotCompared (no tensor)"
        return "Match" if self.max_rel_to_max <= MAX_REL_TO_MAX else f"Mismatch (> {MAX_REL_TO_MAX:g})"

    @property
    def code(self) -> int:
        word = self.verdict.split(" ")[0]
        return {"Match": MATCH, "Mismatch": MISMATCH, "Failed": ERROR}.get(word, NOTHING)


@dataclass(kw_only=True)
class Outcome:
    """What became of one part."""

    rows: list[Row] = field(default_factory=list)
    times_ms: dict[str, float] = field(default_factory=dict)
    errors: list[tuple[str, str, float, float]] = field(default_factory=list)
    """(part, "forward" | "backward", error of the backend, error of eager), both against float64."""
    dump: Path | None = None


def rows_of(part: str, graphs: Sequence[GraphInfo]) -> list[Row]:
    """One row a compiled graph, forward before backward: all its parts and compared calls together."""
    rows = []
    for graph in in_order(graphs):
        verdicts = [verdict for _, verdict in graph.verdicts]
        compared = [verdict for verdict in verdicts if verdict.kind in ("match", "mismatch")]
        rows.append(
            Row(
                part=part,
                graph=graph.name,
                on_ort=sum(map(len, graph.parts)),
                in_eager=len(graph.eager),
                n_compared=len(compared),
                max_abs=worst_of([verdict.max_abs for verdict in compared]),
                max_rel_to_max=worst_of([verdict.max_rel_to_max for verdict in compared]),
                verdicts=tuple(verdict.kind for verdict in verdicts),
            )
        )
    return rows


def missing_in_dump(run: Path, rows: Sequence[Row]) -> list[str]:
    """What the dump of these graphs lacks: graph, model, the first call's inputs, references and results."""
    wanted = [
        "fx.txt",
        "parts.json",
        "part_0/model.onnx",
        "part_0/model.ort.onnx",
        "part_0/test_data_set_0/input_0.pb",
        "part_0/test_data_set_0/output_0.pb",
        "part_0/test_data_set_0/actual_0.pb",
        "part_0/comparison_0.json",
    ]
    paths = [run / row.graph / name for row in rows for name in wanted]
    return [f"not in the dump: {path}" for path in paths if not path.is_file()]


def worst_of(values: Sequence[float]) -> float:
    """The largest; NaN when one is NaN or there is none, so that no limit passes it."""
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values, default=math.nan)


def error_to(reference: Sequence[Tensor], candidate: Sequence[Tensor]) -> float:
    """Largest max|c - r| / max|r| over the tensors. Both: same length and shapes; computed in float64."""
    worst = 0.0
    for exact, got in zip(reference, candidate, strict=True):
        scale = exact.abs().max().item() or 1.0
        error = (got.detach().double() - exact.double()).abs().max().item() / scale
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def gradients(module: nn.Module, inputs: Sequence[Tensor], output: Tensor, cotangent: Tensor) -> list[Tensor]:
    """Gradients of sum(output * cotangent): parameters by name, then inputs. Left in no `.grad`."""
    wanted: list[Tensor] = [parameter for _, parameter in sorted(module.named_parameters())]
    wanted += [tensor for tensor in inputs if tensor.requires_grad]
    return list(torch.autograd.grad(output, wanted, cotangent.to(output)))


def run_once(module: nn.Module, call: Callable[..., Any], study: Study) -> tuple[list[Tensor], list[Tensor]]:
    """(outputs, gradients) of `call`, which runs `module`, eager or compiled."""
    output = call(*study.inputs)
    return [output.detach().clone()], gradients(module, study.inputs, output, cotangent_of(output))


def cotangent_of(output: Tensor) -> Tensor:
    """Standard normal and the same at each call, so that gradients are of the size of the weights' own scale."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn(output.shape, generator=generator).to(output.device)


def run_float64(study: Study) -> tuple[list[Tensor], list[Tensor]]:
    """The same part in float64 throughout: the third opinion."""
    module = copy.deepcopy(study.module).double()
    inputs = tuple(
        tensor.detach().double().requires_grad_(tensor.requires_grad) if tensor.is_floating_point() else tensor
        for tensor in study.inputs
    )
    wide = Study(name=study.name, module=module, inputs=inputs)
    with llama_models.float64():
        return run_once(module, module, wide)


def time_rounds(call: Callable[..., Any], study: Study) -> dict[str, float]:
    """Medians in ms of forward and backward after one round to warm up."""
    times: dict[str, list[float]] = {"forward": [], "backward": []}
    for round_ in range(TIMED_ROUNDS + 1):
        begin = _now(study)
        output = call(*study.inputs)
        middle = _now(study)
        gradients(study.module, study.inputs, output, cotangent_of(output))
        end = _now(study)
        if round_:
            times["forward"].append((middle - begin) * 1e3)
            times["backward"].append((end - middle) * 1e3)
    return {direction: statistics.median(values) for direction, values in times.items()}


def _now(study: Study) -> float:
    if study.inputs[0].is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def run_part(name: str, arguments: argparse.Namespace) -> Outcome:
    """Run, dump, compare and time one part."""
    outcome = Outcome()
    size = llama_models.SIZES[arguments.size]
    study = llama_models.build(name, size, attention=arguments.attention, device=arguments.device)
    exact = run_float64(study)
    eager = run_once(study.module, study.module, study)
    torch.compiler.reset()
    run = f"main_job-{name}"
    backend = rust_ort.Backend({"compare": "outputs"})
    with rust_ort.dump(run, folder=arguments.folder, clean=True):
        candidate = run_once(study.module, torch.compile(study.module, backend=backend, fullgraph=True), study)
    outcome.dump = Path(arguments.folder).resolve() / run
    outcome.rows = rows_of(name, backend.graphs)
    for direction, index in (("forward", 0), ("backward", 1)):
        outcome.errors.append(
            (name, direction, error_to(exact[index], candidate[index]), error_to(exact[index], eager[index]))
        )
    torch.compiler.reset()
    plain = torch.compile(study.module, backend=rust_ort.Backend(), fullgraph=True)
    outcome.times_ms = time_rounds(plain, study)
    return outcome


def counted_nodes() -> tuple[int, int]:
    """(nodes on ONNX Runtime, nodes in eager) that the executors counted, all runs together."""
    counters = Client.get(Options.parse({})).status()["counters"]
    return int(counters["nodes_on_ort"]), int(counters["nodes_in_eager"])


HEADER = ("part", "graph", "nodes on ORT", "in eager", "time ms", "max_abs", "max|Δ|/max|r|", "verdict")


def table(outcomes: Sequence[Outcome]) -> str:
    """Every row, aligned."""
    cells = [HEADER]
    for outcome in outcomes:
        for row in outcome.rows:
            ms = outcome.times_ms.get(row.direction)
            cells.append(
                (
                    row.part,
                    row.graph,
                    str(row.on_ort),
                    str(row.in_eager),
                    "-" if ms is None else f"{ms:.1f}",
                    f"{row.max_abs:.2e}",
                    f"{row.max_rel_to_max:.2e}",
                    row.verdict,
                )
            )
    return aligned(cells)


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first row is the header."""
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def judge(outcomes: Sequence[Outcome], nodes: tuple[int, int]) -> tuple[int, list[str]]:
    """(exit code, what is wrong). Nodes: on ONNX Runtime, in eager, by the executor's count."""
    wrong: list[str] = []
    codes: list[int] = []
    rows = [row for outcome in outcomes for row in outcome.rows]
    for row in rows:
        codes.append(row.code)
        if row.code != MATCH:
            wrong.append(f"{row.part} {row.graph}: {row.verdict}")
    for part in PARTS:
        for direction in ("forward", "backward"):
            if not any(row.part == part and row.direction == direction and row.n_compared for row in rows):
                codes.append(NOTHING)
                wrong.append(f"{part}: no {direction} graph was compared")
    for part, direction, ours, eagers in (error for outcome in outcomes for error in outcome.errors):
        if not ours <= MAX_RATIO_TO_EAGER * eagers:
            codes.append(MISMATCH)
            wrong.append(f"{part} {direction}: error against float64 {ours:.2e} > 3 x eager's {eagers:.2e}")
    for outcome in outcomes:
        if outcome.dump is not None:
            lacking = missing_in_dump(outcome.dump, outcome.rows)
            codes += [ERROR] * len(lacking)
            wrong += lacking
    on_ort, in_eager = nodes
    if on_ort == 0 or on_ort / (on_ort + in_eager) < MIN_SHARE:
        codes.append(MISMATCH)
        wrong.append(f"ONNX Runtime ran {on_ort} of {on_ort + in_eager} nodes; at least {MIN_SHARE:.0%} are asked")
    for code in (ERROR, MISMATCH, NOTHING):
        if code in codes:
            return code, wrong
    return MATCH, wrong


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.main_job", description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--size", default="full", choices=sorted(llama_models.SIZES), help="of the Llama configuration")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"), help="transformers' implementation")
    parser.add_argument("--folder", default="dumps", help="where the dumps go")
    parser.add_argument("--page", type=Path, help="write the tables to this page, too, if every row matches")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every part and print. Returns the exit code."""
    arguments = parse(argv)
    outcomes: list[Outcome] = []
    try:
        before = counted_nodes()
        for name in PARTS:
            print(f"{name}: eager, float64, compile, compare, time ...", file=sys.stderr, flush=True)
            outcomes.append(run_part(name, arguments))
        after = counted_nodes()
    except Exception:  # whatever it was, the trace and the parts that ran are printed
        traceback.print_exc()
        if outcomes:
            print(table(outcomes))
        return ERROR
    nodes = (after[0] - before[0], after[1] - before[1])
    code, wrong = judge(outcomes, nodes)
    print(f"\n{told(outcomes, nodes)}")
    for outcome in outcomes:
        print(f"Dump: {outcome.dump}")
    if arguments.page is not None and code == MATCH:
        arguments.page.write_text(page(outcomes, nodes))
    for line in wrong:
        print(f"WRONG: {line}")
    print("every row matches" if code == MATCH else f"exit {code}")
    return code


def told(outcomes: Sequence[Outcome], nodes: tuple[int, int]) -> str:
    """Table, errors against float64, the executor's count."""
    cells = [("part", "direction", "rust_ort", "eager", "ratio")]
    for part, direction, ours, eagers in (error for outcome in outcomes for error in outcome.errors):
        ratio = f"{ours / eagers:.2f}" if eagers else "-"
        cells.append((part, direction, f"{ours:.2e}", f"{eagers:.2e}", ratio))
    total = sum(nodes)
    share = f"{nodes[0] / total:.2%}" if total else "none"
    return "\n".join(
        [
            table(outcomes),
            "",
            "Error against a float64 eager run, largest max|Δ|/max|r| of outputs (forward) and gradients (backward):",
            aligned(cells),
            "",
            f"Nodes run, by the executor's count: {nodes[0]} on ONNX Runtime, {nodes[1]} in eager ({share})",
        ]
    )


def page(outcomes: Sequence[Outcome], nodes: tuple[int, int]) -> str:
    """docs/results/demo.md."""
    return PAGE.format(
        cores=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        told=told(outcomes, nodes),
        limit=f"{MAX_REL_TO_MAX:.0e}".replace("e-0", "e-"),
        ratio=f"{MAX_RATIO_TO_EAGER:g}",
        share=f"{MIN_SHARE:.0%}",
    )


if __name__ == "__main__":
    sys.exit(main())
