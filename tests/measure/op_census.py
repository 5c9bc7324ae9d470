"""Which operators real models reach in their AOT graphs, which of them ONNX Runtime runs, and what keeps the others.

Each architecture of architectures.py is compiled and run in a process of its own, forked from one that has imported
what all need: in training, and with the training switched off but gradients wanted (no dropout, so attention is one
kernel); with --all also without gradients. Results and gradients are compared with eager's.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rust_ort
from measure import op_census_report as report
from measure.architectures import SEED, TABLE, Case
from measure.home import home
from measure.op_census_runs import Graph, Run, read
from rust_ort.export import decompositions, exporter
from rust_ort.observe.sides import scalar_loss
from rust_ort.observe.values import named_tensors
from rust_ort.torch_private import compile_counters, load_compiler

TOLERANCE = 1e-4
"""Of max|Δ|/max|r| of every output, gradient and buffer."""
ROUNDING = torch.finfo(torch.float32).eps
"""Times the largest gradient of the model: what a gradient may differ by. One that is zero in exact arithmetic, such as
that of a key's bias, is nothing but rounding."""

WATCHDOG_S = 900.0
MODES = ("train", "frozen", "eval")
"""Training mode with gradients; evaluation mode with gradients; evaluation mode without."""


def run(name: str, attention: str, mode: str) -> Run:
    """Compiles and runs one architecture, compared with a second one, built alike, in eager from the same random
    state. What it raises is in `error`."""
    made = Run(architecture=name, attention=attention, mode=mode)
    torch.compiler.reset()
    compile_counters().clear()
    begin = time.perf_counter()
    backend = rust_ort.Backend()
    try:
        reference = values(TABLE[name].build(attention), mode, lambda module: module)
        candidate = values(TABLE[name].build(attention), mode, lambda module: torch.compile(module, backend=backend))
        judge(made, reference, candidate)
    except Exception as error:  # a census goes on
        made.error = f"{type(error).__name__}: {error}"
    made.seconds = time.perf_counter() - begin
    made.breaks = dict(compile_counters()["graph_break"])
    made.graphs = [_graph(info) for info in backend.graphs]
    return made


def values(case: Case, mode: str, compiled: Callable[[nn.Module], Callable[..., Any]]) -> dict[str, Tensor]:
    """{name: value} of outputs, gradients and buffers after one call, and one backward where the mode has one."""
    module = case.module.train(mode == "train")
    call = compiled(module)
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(mode != "eval"):
        outputs = call(**case.inputs)
        loss = scalar_loss(outputs, None)
    if loss is not None and mode != "eval":
        loss.backward()
    found = {f"output{path}": tensor for path, tensor in named_tensors(outputs)}
    found |= {f"grad of {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    return found | {f"buffer {name}": buffer for name, buffer in module.named_buffers()}


def judge(made: Run, reference: dict[str, Tensor], candidate: dict[str, Tensor]) -> None:
    """Writes what differs into `made`."""
    largest = max((float(value.abs().max()) for name, value in reference.items() if name.startswith("grad")), default=0)
    for name in sorted(reference.keys() ^ candidate.keys()):
        made.mismatches[name] = f"only {'eager' if name in reference else 'the backend'} has a value"
    for name, exact in reference.items():
        got = candidate.get(name)
        if got is None:
            continue
        if (got.shape, got.dtype) != (exact.shape, exact.dtype):
            made.mismatches[name] = f"expected {exact.dtype} {list(exact.shape)}, got {got.dtype} {list(got.shape)}"
            continue
        made.compared += 1
        if name.startswith("grad") and float((got - exact).abs().max()) <= ROUNDING * largest:
            made.rounding += float(exact.abs().max()) <= ROUNDING * largest
            continue
        error = relative_error(exact, got)
        if error > TOLERANCE:
            made.mismatches[name] = f"max|Δ|/max|r| = {error:.1e}"
        if not error <= made.max_rel:
            made.max_rel, made.worst = error, name


def relative_error(reference: Tensor, candidate: Tensor) -> float:
    """max|c - r| / max|r| in float64, of the finite elements; infinite where they differ in what is not finite."""
    r, c = reference.detach().double(), candidate.detach().double()
    finite = r.isfinite()
    if not torch.equal(r[~finite].nan_to_num(), c[~finite].nan_to_num()) or not bool(c[finite].isfinite().all()):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    return float((c[finite] - r[finite]).abs().max() / (r[finite].abs().max().item() or 1.0))


def _graph(info: Any) -> Graph:
    eager: dict[str, Counter[str]] = defaultdict(Counter)
    for node in info.eager:
        eager[node.op][node.reason] += 1
    names = {name for part in info.parts for name in part}
    on_ort = Counter(operator for name, operator in info.operators.items() if name in names)
    return Graph(
        name=info.name,
        direction=info.direction,
        parts=len(info.parts),
        on_ort=dict(sorted(on_ort.items())),
        eager={operator: dict(reasons) for operator, reasons in sorted(eager.items())},
    )


# --- Processes -------------------------------------------------------------------------------------------------------

Wanted = list[tuple[str, str]]
"""(attention, mode) of each run of an architecture."""


def wanted(name: str, *, everything: bool = False) -> Wanted:
    """Training with one attention implementation and evaluation with gradients with the other, in turn from
    architecture to architecture; or every mode with every one."""
    attentions = TABLE[name].attentions
    if everything:
        return [(attention, mode) for attention in attentions for mode in MODES]
    first = list(TABLE).index(name)
    return [(attentions[(first + i) % len(attentions)], mode) for i, mode in enumerate(("train", "frozen"))]


def prepare() -> None:
    """Imports and makes what every run needs and no run changes. Starts no thread: processes are forked from here."""
    import transformers.modeling_utils

    load_compiler()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    exporter.registry()
    decompositions.table()


def work(name: str, runs: Wanted, folder: Path) -> None:
    """Runs one architecture, a line of runs.jsonl each; what is printed goes to a file beside it."""
    with (folder / "output").open("w") as output, (folder / "runs.jsonl").open("w") as lines:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        for attention, mode in runs:
            print(json.dumps(asdict(run(name, attention, mode))), file=lines, flush=True)


@dataclass
class Worker:
    """A process that runs one architecture."""

    name: str
    runs: Wanted
    folder: tempfile.TemporaryDirectory[str] = field(default_factory=tempfile.TemporaryDirectory)

    def __post_init__(self) -> None:
        arguments = (self.name, self.runs, Path(self.folder.name))
        self.process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
        self.process.start()
        self.begin = time.monotonic()

    def ended(self) -> bool:
        """Whether it is at its end, by itself or by the watchdog."""
        if self.process.is_alive() and time.monotonic() - self.begin > WATCHDOG_S:
            self.process.kill()
            self.process.join()
        return not self.process.is_alive()

    def results(self) -> list[Run]:
        """Of a process that has ended. Its death is the error of the run it was in."""
        folder = Path(self.folder.name)
        made = read(folder / "runs.jsonl")
        if self.process.exitcode:
            attention, mode = self.runs[min(len(made), len(self.runs) - 1)]
            error = f"exit code {self.process.exitcode}: {(folder / 'output').read_text()[-2000:]}"
            made.append(Run(architecture=self.name, attention=attention, mode=mode, error=error))
        self.folder.cleanup()
        return made


def census(
    names: Sequence[str], *, everything: bool, workers: int, finished: Callable[[Run], None] = lambda _: None
) -> list[Run]:
    """All runs of these architectures, by architecture. finished: called with each as it is known."""
    prepare()
    waiting, working, found = list(names), list[Worker](), dict[str, list[Run]]()
    while waiting or working:
        while waiting and len(working) < workers:
            working.append(Worker(waiting[0], wanted(waiting.pop(0), everything=everything)))
        wait([worker.process.sentinel for worker in working], timeout=1.0)
        for worker in [worker for worker in working if worker.ended()]:
            working.remove(worker)
            found[worker.name] = worker.results()
            for made in found[worker.name]:
                finished(made)
    return [made for name in names for made in found[name]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the architectures and writes what was found. Returns the exit code: 1 where a run failed or differs."""
    parser = argparse.ArgumentParser(prog="python -m measure.op_census", description=__doc__)
    parser.add_argument("--only", default="", help="architectures, separated by commas; a name stands for its variants")
    parser.add_argument("--all", action="store_true", help="every mode with every attention implementation")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--raw", type=Path, help="file for every run as a line of JSON, added as it comes")
    parser.add_argument("--from-raw", action="store_true", help="run nothing: report what --raw holds")
    parser.add_argument("--output", type=Path, help="markdown file; the same for tests goes beside it as JSON")
    arguments = parser.parse_args(argv)

    def finished(made: Run) -> None:
        print(summary(made), flush=True)
        if arguments.raw:
            with arguments.raw.open("a") as raw:
                print(json.dumps(asdict(made)), file=raw)

    if arguments.from_raw:
        runs = read(arguments.raw)
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        with home() as made_home:
            os.environ.update(made_home.environment())
            runs = census(
                chosen(arguments.only), everything=arguments.all, workers=arguments.workers, finished=finished
            )
    if arguments.output:
        arguments.output.write_text(report.markdown(runs))
        arguments.output.with_suffix(".json").write_text(report.json_text(runs))
    return int(any(made.error or made.mismatches for made in runs))


def chosen(only: str) -> list[str]:
    """Names of the table. Errors: SystemExit on an unknown name."""
    wanted = [name for name in only.split(",") if name]
    names = [name for name in TABLE if not wanted or any(name == w or name.startswith(f"{w}_") for w in wanted)]
    unknown = [w for w in wanted if not any(name == w or name.startswith(f"{w}_") for name in names)]
    if unknown:
        raise SystemExit(f"unknown architecture {', '.join(unknown)}; known: {', '.join(TABLE)}")
    return names


def summary(made: Run) -> str:
    """One line of a run."""
    eager = Counter[str]()
    for graph in made.graphs:
        for operator, reasons in graph.eager.items():
            eager[operator] += sum(reasons.values())
    left = ", ".join(f"{operator} x{n}" for operator, n in eager.items())
    text = f"{made.title}: {len(made.graphs)} graphs, {sum(made.breaks.values())} breaks, "
    text += f"{made.nodes_on_ort} nodes on ONNX Runtime, {made.nodes_in_eager} in eager ({left}), "
    text += f"{made.compared} compared, max_rel {made.max_rel:.1e} ({made.worst}), {made.seconds:.1f} s"
    if made.mismatches:
        text += f"\n    MISMATCH of {len(made.mismatches)}, such as {list(made.mismatches.items())[:3]}"
    return text + (f"\n    ERROR {made.error}" if made.error else "")


if __name__ == "__main__":
    sys.exit(main())
