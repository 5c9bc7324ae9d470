"""Every node of a Llama part against eager, forward and backward, in float32, float16 and autocast: verdicts, the head
of each table, memory of all processes, time as a multiple of eager's.

Exit code: 0 every node and output matches, 1 a mismatch, 2 a node failed, 3 a node was not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import rust_ort
from rust_ort.call.client import Client
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.options import Options
from rust_ort.studies import llama_models
from rust_ort.studies.main_job import aligned, cotangent_of

SAMPLE_EVERY_S = 0.02
ROUNDS = 3
PRECISIONS = ("float32", "float16", "autocast-float16", "bfloat16", "autocast-bfloat16")
CODES = {"failed": 2, "mismatch": 1, "not_compared": 3, "match": 0}


@dataclass(kw_only=True)
class Outcome:
    """One precision. Times in seconds, medians; memory in bytes, beyond what the processes had before."""

    precision: str
    graphs: list[GraphInfo] = field(default_factory=list)
    eager_s: float = 0.0
    compiled_s: float = 0.0
    compared_s: float = 0.0
    peak_bytes: int = 0
    dump: Path | None = None

    @property
    def nodes(self) -> list[tuple[str, NodeVerdict]]:
        return [(graph.direction, node) for graph in self.graphs for _, node in graph.nodes]

    @property
    def code(self) -> int:
        kinds = {node.local.kind for _, node in self.nodes} | {v.kind for g in self.graphs for _, v in g.verdicts}
        return next((code for kind, code in CODES.items() if kind in kinds), 3)


class PeakMemory:
    """Samples the proportional set size of this process, the daemon and the executors while it is entered."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._end = threading.Event()
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        self._before = self._sample(self._pids())
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        pids = self._pids()
        while not self._end.wait(SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self._sample(pids) - self._before)

    @staticmethod
    def _sample(pids: Sequence[int]) -> int:
        total = 0
        for pid in pids:
            with contextlib.suppress(OSError):  # it ended
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                total += int(text.split("\nPss:")[1].split()[0]) * 1024
        return total


def processes() -> list[int]:
    """This process, its daemon, the daemon's executors."""
    status = Client.get(Options.parse({})).status()
    return [os.getpid(), status["daemon"]["pid"], *(executor["pid"] for executor in status["executors"])]


@contextlib.contextmanager
def precision(study: llama_models.Study, name: str) -> Iterator[Callable[[Any], torch.Tensor]]:
    """A function that runs the study's module, or its compiled form, in that precision."""
    dtype = getattr(torch, name.removeprefix("autocast-"))
    inputs = study.inputs
    if not name.startswith("autocast"):
        study.module.to(dtype)
        inputs = tuple(
            tensor.detach().to(dtype).requires_grad_(tensor.requires_grad) if tensor.is_floating_point() else tensor
            for tensor in inputs
        )

    def call(module: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=name.startswith("autocast")):
            output: torch.Tensor = module(*inputs)
        return output

    yield call


def step(call: Callable[[Any], torch.Tensor], module: Any, parameters: Sequence[torch.Tensor]) -> float:
    """Seconds of a forward and a backward."""
    start = time.perf_counter()
    output = call(module)
    torch.autograd.grad(output, parameters, cotangent_of(output).to(output.dtype))
    return time.perf_counter() - start


def run(name: str, arguments: argparse.Namespace) -> Outcome:
    """Everything about one precision."""
    study = llama_models.build(arguments.part, llama_models.SIZES[arguments.size], attention=arguments.attention)
    outcome = Outcome(precision=name)
    with precision(study, name) as call:
        parameters = list(study.module.parameters())

        def median(module: Any) -> float:
            step(call, module, parameters)
            return statistics.median(step(call, module, parameters) for _ in range(arguments.rounds))

        outcome.eager_s = median(study.module)
        torch.compiler.reset()
        outcome.compiled_s = median(torch.compile(study.module, backend=rust_ort.Backend(), fullgraph=True))
        torch.compiler.reset()
        backend = rust_ort.Backend({"compare": "nodes", "compare_memory": arguments.memory})
        compared = torch.compile(study.module, backend=backend, fullgraph=True)
        dumped = f"nodes-{arguments.part}-{name}"
        with rust_ort.dump(dumped, folder=arguments.folder, clean=True):
            step(call, compared, parameters)
        outcome.dump = Path(arguments.folder).resolve() / dumped
        outcome.graphs = list(backend.graphs)
        for graph in outcome.graphs:
            graph.nodes.clear()
            graph.verdicts.clear()
        with PeakMemory(processes) as memory:
            outcome.compared_s = step(call, compared, parameters)
        outcome.peak_bytes = memory.peak_bytes
    return outcome


def summary(outcomes: Sequence[Outcome]) -> str:
    """One row a precision."""
    cells = [("precision", "nodes", "local", "cumulative", "first local mismatch", "eager s", "rust_ort", "compared",
              "peak MiB")]  # fmt: skip
    for outcome in outcomes:
        nodes = [node for _, node in outcome.nodes]
        first = next((f"{direction} {node.name}" for direction, node in outcome.nodes if node.is_wrong), "none")
        cells.append(
            (
                outcome.precision,
                str(len(nodes)),
                counted(node.local.kind for node in nodes),
                counted(node.cumulative.kind for node in nodes),
                first,
                f"{outcome.eager_s:.2f}",
                f"{outcome.compiled_s / outcome.eager_s:.2f}x",
                f"{outcome.compared_s / outcome.eager_s:.2f}x",
                f"{outcome.peak_bytes / 2**20:.0f}",
            )
        )
    return aligned(cells)


def counted(kinds: Iterator[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kinds).items())) or "none"


def head(outcome: Outcome, rows: int) -> str:
    """The first rows of each graph's table."""
    lines = []
    for graph in outcome.graphs:
        cells = [("node", "op", "local", "max|Δ|/max|r|", "cumulative", "max|Δ|/max|r|", "module")]
        for _, node in graph.nodes[:rows]:
            numbers = [(v.kind, f"{v.max_rel_to_max:.2e}") for v in (node.local, node.cumulative)]
            cells.append((node.name, node.op, *numbers[0], *numbers[1], node.module))
        lines.append(f"{outcome.precision} {graph.name}, the first {len(cells) - 1} of {len(graph.nodes)}:")
        lines.append(aligned(cells))
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.node_comparison", description=__doc__)
    parser.add_argument("--part", default="decoder", choices=sorted(llama_models.PARTS))
    parser.add_argument("--size", default="full", choices=sorted(llama_models.SIZES), help="of the Llama configuration")
    parser.add_argument("--attention", default="sdpa", choices=("sdpa", "eager"), help="transformers' implementation")
    parser.add_argument("--precision", nargs="+", default=["float32", "float16", "autocast-bfloat16"],
                        choices=PRECISIONS)  # fmt: skip
    parser.add_argument("--memory", type=int, default=2 << 30, help="option compare_memory, in bytes")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="timed steps of eager and of the plain backend")
    parser.add_argument("--rows", type=int, default=12, help="of each table to print")
    parser.add_argument("--folder", default="dumps", help="where the dumps go")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs every precision and prints. Returns the exit code."""
    arguments = parse(argv)
    outcomes = []
    for name in arguments.precision:
        print(f"{name}: eager, compile, every node ...", file=sys.stderr, flush=True)
        outcomes.append(run(name, arguments))
    for outcome in outcomes:
        print(f"\n{head(outcome, arguments.rows)}\n\nrust-ort sbs {outcome.dump}")
    print(f"\n{summary(outcomes)}")
    return max((outcome.code for outcome in outcomes), key=[0, 3, 1, 2].index)


if __name__ == "__main__":
    sys.exit(main())
