"""One random function through rust_ort, and what came of it."""

from __future__ import annotations

import functools
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

import rust_ort
from measure.random_graphs import corpus
from measure.random_graphs.generate import generate
from measure.random_graphs.judge import Difference, differences
from measure.random_graphs.observe import Seen, function_of, observe
from measure.random_graphs.program import Text
from measure.random_graphs.reduce import reduced
from measure.random_graphs.zeros import of_any_sum
from rust_ort.torch_private import capturing_sizes, reset_code_caches

FINE = ("right", "zeros", "refused")
BAD = ("wrong", "error", "crashed", "hung")
REFUSED = "ConstraintViolationError"
"""What torch.compile raises where a dimension that is marked dynamic must equal a number."""
LOST = ("ExecutorLost", "DaemonLost")


@dataclass(kw_only=True)
class Outcome:
    """What came of one function.

    kind: "right", "wrong", "error" (an exception where eager has none), "crashed" (an executor, or this process),
    "hung"; "torch" (backend="aot_eager" has the same differences, or eager without oneDNN's kernels has these results);
    "zeros" (but for the sign of zeros that sums give, it is right); "refused" (ConstraintViolationError where eager,
    and aot_eager, have no exception).
    where: "translated" (every node of every graph ran on ONNX Runtime), "with eager nodes", "nothing to compute".
    differs: kinds of differences. settled: results outside the tolerance that are as near to float64 as eager's.
    again: it failed in an earlier run, before what was wrong was mended.
    """

    seed: int
    kind: str
    where: str = ""
    why: str = ""
    differs: list[str] = field(default_factory=list)
    again: bool = False
    settled: int = 0
    nodes: int = 0
    eager_nodes: int = 0
    refused: int = 0
    calls: int = 1
    eager: list[tuple[str, str]] = field(default_factory=list)
    families: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    reached: list[tuple[str, str, bool]] = field(default_factory=list)
    features: dict[str, Any] = field(default_factory=dict)
    backward: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    source: str = ""
    reduced: str = ""
    """A script that fails in the same way, of as few statements as were found."""
    reduced_why: str = ""
    inductor: str = ""
    """What torch's own compiler makes of the reduced function, as information."""
    entry: dict[str, Any] = field(default_factory=dict)
    """The same as an entry of the corpus."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def check(seed: int, *, reduce: bool = True) -> Outcome:
    """Makes the function of a seed, runs it, judges it; reduce: makes it smaller where it fails."""
    start = time.perf_counter()
    made = generate(seed)
    text = made.program.text()
    outcome = examine(text, made.expected, seed=seed)
    outcome.families = sorted({step.family for step in made.program.steps})
    outcome.reached = made.reached
    outcome.dtypes = sorted(_dtypes(made.expected))
    outcome.backward = any(name.startswith("gradient") for seen in made.expected for name in seen.values)
    outcome.features, outcome.rejected = asdict(made.features), dict(made.rejected)
    outcome.calls = len(text.calls)
    outcome.refused = sum(seen.error is not None for seen in made.expected)
    if outcome.kind != "right":
        outcome.source = text.script()
    if reduce and outcome.kind in ("wrong", "error"):
        smallest = reduced(made.program, functools.partial(_fails_alike, differs=frozenset(outcome.differs))).text()
        outcome.reduced = smallest.script()
        outcome.entry = corpus.entry(smallest)
        expected = eagerly(smallest)
        outcome.reduced_why = examine(smallest, expected, seed=seed).why
        theirs = {difference.kind for difference in compiled_differences(smallest, expected, "inductor")[0]}
        outcome.inductor = ", ".join(sorted(theirs)) or "right"
    outcome.seconds = time.perf_counter() - start
    return outcome


def eagerly(text: Text) -> list[Seen]:
    """What eager does in each call."""
    function = function_of(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [observe(text, function, call) for call in range(len(text.calls))]


def _fails_alike(text: Text, *, differs: frozenset[str]) -> bool:
    """Whether a function differs in the first of these ways, and aot_eager does not."""
    outcome = examine(text, eagerly(text), seed=-1)
    return outcome.kind in ("wrong", "error") and bool(differs & set(outcome.differs))


def examine(text: Text, expected: Sequence[Seen], *, seed: int) -> Outcome:
    """Judges what rust_ort makes of a function of which eager did `expected`."""
    backend = rust_ort.Backend()
    found, settled = compiled_differences(text, expected, backend)
    ours = _without_theirs(text, expected, found) if found else []
    kind = "right" if not found else "torch" if not ours else _kind(ours)
    found = ours or found
    if kind == "wrong" and {d.kind for d in found} <= {"values", "nan", "sign of zero"}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.backends.mkldnn.flags(enabled=False):
                other = eagerly(text)
        if not compiled_differences(text, other, rust_ort.Backend())[0]:
            kind = "torch"
    if kind == "wrong" and {d.kind for d in found} == {"sign of zero"}:
        either = of_any_sum(text, expected)
        if not compiled_differences(text, either, rust_ort.Backend())[0]:
            kind = "zeros"
    where, eager = _where(backend)
    return Outcome(
        seed=seed, kind=kind, where=where, settled=settled, eager=eager,
        why="\n".join(f"{d.kind}: {d.name}: {d.why}" for d in found), differs=sorted({d.kind for d in found}),
        nodes=sum(graph.compute_nodes for graph in backend.graphs),
        eager_nodes=sum(graph.eager_nodes for graph in backend.graphs),
    )  # fmt: skip


def _without_theirs(text: Text, expected: Sequence[Seen], found: list[Difference]) -> list[Difference]:
    """Without the differences that torch.compile itself makes: aot_eager has them in the same results. Where a call
    fails under aot_eager, nothing is known about its other results."""
    theirs = compiled_differences(text, expected, "aot_eager")[0]
    failed = {d.name.partition(":")[0] for d in theirs if d.kind == "error"}
    same = {(d.name, d.kind) for d in theirs}
    either = {d.name.partition(":")[0] for d in theirs if d.kind == "no error"}
    return [
        d for d in found
        if (d.name, d.kind) not in same
        and d.name.partition(":")[0] not in failed
        and not (d.kind == "no error" and d.name.partition(":")[0] in either)
    ]  # fmt: skip


def _kind(found: Sequence[Difference]) -> str:
    if any(d.kind == "error" and d.why.startswith(LOST) for d in found):
        return "crashed"
    if all(d.kind == "error" and d.why.startswith(REFUSED) for d in found):
        return "refused"
    return "error" if all(d.kind == "error" for d in found) else "wrong"


def compiled_differences(text: Text, expected: Sequence[Seen], backend: Any) -> tuple[list[Difference], int]:
    """What a backend of torch.compile does otherwise, all calls by one compiled function."""
    reset_code_caches()
    with capturing_sizes(text.capture), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = torch.compile(function_of(text), backend=backend, fullgraph=text.fullgraph, dynamic=text.dynamic)
        candidate = [observe(text, function, call) for call in range(len(text.calls))]

    @functools.cache
    def wide(call: int) -> Seen:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return observe(text, function_of(text, wide=True), call, wide=True)

    return differences(expected, candidate, wide, exact=text.exact)


def _where(backend: rust_ort.Backend) -> tuple[str, list[tuple[str, str]]]:
    eager = Counter((node.op, node.reason) for graph in backend.graphs for node in graph.eager)
    if eager:
        return "with eager nodes", sorted(eager)
    return "translated" if any(graph.parts for graph in backend.graphs) else "nothing to compute", []


def _dtypes(expected: Sequence[Seen]) -> set[str]:
    tensors = [value for seen in expected for value in seen.values.values() if isinstance(value, torch.Tensor)]
    return {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}
