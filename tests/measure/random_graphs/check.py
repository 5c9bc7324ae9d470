"""One random function through rust_ort, and what came of it."""

from __future__ import annotations

import functools
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import rust_ort
from measure.random_graphs.generate import generate, wide_default
from measure.random_graphs.judge import differences
from measure.random_graphs.program import Program, Results
from measure.random_graphs.reduce import reduced
from rust_ort.torch_private import reset_code_caches

BAD = ("wrong", "error", "crashed", "hung")


@dataclass(kw_only=True)
class Outcome:
    """What came of one function.

    kind: "right", "wrong", "error" (an exception where eager has none), "crashed" (an executor, or this process),
    "hung"; "torch" (backend="aot_eager" is not right either, or eager without oneDNN's kernels has these results).
    where: "translated" (every node of every graph ran on ONNX Runtime), "with eager nodes", "nothing to compute".
    settled: results outside the tolerance that are as near to float64 as eager's.
    """

    seed: int
    kind: str
    where: str = ""
    why: str = ""
    settled: int = 0
    eager: list[tuple[str, str]] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    backward: bool = False
    special: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    source: str = ""
    reduced: str = ""
    """A script that fails in the same way, of as few statements as were found."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check(seed: int, *, reduce: bool = True) -> Outcome:
    """Makes the function of a seed, runs it, judges it; reduce: makes it smaller where it fails."""
    start = time.perf_counter()
    made = generate(seed)
    program = made.program
    outcome = examine(program, made.expected, seed=seed)
    outcome.operators = [step.operator for step in program.steps]
    outcome.families = sorted({step.family for step in program.steps})
    outcome.dtypes = sorted(program.dtypes(made.expected))
    outcome.backward = any(name.startswith("gradient") for name in made.expected)
    outcome.special, outcome.rejected = made.special, dict(made.rejected)
    if outcome.kind != "right":
        outcome.source = program.source()
    if reduce and outcome.kind in ("wrong", "error"):
        outcome.reduced = reduced(program, functools.partial(_fails, kind=outcome.kind, seed=seed)).script()
    outcome.seconds = time.perf_counter() - start
    return outcome


def _fails(program: Program, *, kind: str, seed: int) -> bool:
    expected = program.run(program.function())
    return _judged(program, expected, rust_ort.Backend(), seed)[0] == kind


def examine(program: Program, expected: Results, *, seed: int) -> Outcome:
    """Judges what rust_ort makes of a function whose results in eager are `expected`."""
    backend = rust_ort.Backend()
    kind, why, settled = _judged(program, expected, backend, seed)
    where, eager = _where(backend)
    if kind in ("wrong", "error") and _judged(program, expected, "aot_eager", seed)[0] != "right":
        kind = "torch"
    if kind == "wrong":
        with torch.backends.mkldnn.flags(enabled=False):
            other = program.run(program.function())
        if _judged(program, other, rust_ort.Backend(), seed)[0] == "right":
            kind = "torch"
    return Outcome(seed=seed, kind=kind, where=where, why=why, settled=settled, eager=eager)


def _judged(program: Program, expected: Results, backend: Any, seed: int) -> tuple[str, str, int]:
    """(kind, why, settled) of a backend."""
    reset_code_caches()
    function = torch.compile(program.function(name=f"seed {seed}"), backend=backend, fullgraph=True, dynamic=False)
    try:
        candidate = program.run(function)
    except (rust_ort.ExecutorLost, rust_ort.DaemonLost) as error:
        return "crashed", f"{type(error).__name__}: {error}", 0
    except Exception as error:
        return "error", f"{type(error).__name__}: {error}\n{_last_frames(error)}", 0

    def wide() -> Results:
        with wide_default():
            return program.run(program.function(wide=True), wide=True)

    wrong, settled = differences(expected, candidate, wide)
    return ("wrong" if wrong else "right"), "\n".join(f"{d.name}: {d.why}" for d in wrong), settled


def _where(backend: rust_ort.Backend) -> tuple[str, list[tuple[str, str]]]:
    eager = Counter((node.op, node.reason) for graph in backend.graphs for node in graph.eager)
    if eager:
        return "with eager nodes", sorted(eager)
    return "translated" if any(graph.parts for graph in backend.graphs) else "nothing to compute", []


def _last_frames(error: Exception) -> str:
    return "".join(traceback.format_tb(error.__traceback__)[-3:])
