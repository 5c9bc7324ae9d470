"""One model of the zoo in a process of its own: `python -m measure.zoo.run NAME TASK...` prints a line of JSON as each
task ends."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import rust_ort
from measure.zoo import graphnet, tools
from measure.zoo.judge import MOVED, faults, wrong
from measure.zoo.model import SEED, Call, Model, Subject
from measure.zoo.side import Side, Values, as_it_is, clipped, seeded, words
from measure.zoo.timed import timed
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.observe.verdicts import graph_breaks

PEERS = ("aot_eager", "inductor")
KEPT_FAULTS = 8


def _double(call: Call) -> Call:
    def widened(value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value.double()
        if isinstance(value, dict):
            return {name: widened(one) for name, one in value.items()}
        return type(value)(map(widened, value)) if type(value) in (list, tuple) else value

    return Call(args=widened(tuple(call.args)), kwargs=widened(dict(call.kwargs)))


class _Float64(Side):
    """Everything in float64; {} where the model does not run so."""

    def __init__(self, subject: Subject, *, train: bool) -> None:
        super().__init__(subject, as_it_is, train=train)
        self.module.double()
        self.call = _double(self.call)

    def values(self) -> Values:
        before = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            return super().values()
        except Exception:
            return {}
        finally:
            torch.set_default_dtype(before)


class _Moved(Side):
    """Eager from parameters each of which is moved by up to a rounding of its dtype: how far rounding takes a value."""

    def __init__(self, subject: Subject, *, train: bool, seed: int) -> None:
        super().__init__(subject, as_it_is, train=train)
        draws = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.is_floating_point():
                    by = torch.rand(parameter.shape, generator=draws) - 0.5
                    parameter.mul_(1 + by.to(parameter.dtype) * torch.finfo(parameter.dtype).eps * 2)


def compared(subject: Subject, *, train: bool, peers: Sequence[str], dynamic: bool = False) -> dict[str, Any]:
    """Accuracy and graphs of rust_ort and of each peer against eager, in one mode."""
    try:
        reference = Side(subject, as_it_is, train=train).values()
    except Exception as error:
        return {"status": "model_fail_to_load", "why": words(error)}
    again = Side(subject, as_it_is, train=train).values()
    if differ := wrong(reference, again, {}):
        return {"status": "eager_two_runs_differ", "why": differ[-1]}
    float64 = _Float64(subject, train=train).values()
    backend = rust_ort.backend()
    made: dict[str, Any] = {"rust_ort": backend, **{peer: peer for peer in peers}}
    result: dict[str, Any] = {"float64": bool(float64)}

    judge = Judge(subject=subject, train=train, reference=reference, float64=float64)
    for name in made:
        torch.compiler.reset()
        breaks = graph_breaks()
        side = Side(subject, functools.partial(torch.compile, backend=made[name], dynamic=dynamic or None), train=train)
        seen = result[name] = judge.judged(side)
        seen["breaks"] = sum((graph_breaks() - breaks).values())
        del side
        gc.collect()
    result["status"] = result["rust_ort"]["status"]
    result["why"] = result["rust_ort"].pop("why", "")
    result["rust_ort"] |= _graphs(backend.graphs)
    return result


@dataclass(kw_only=True)
class Judge:
    """reference, float64: what eager gives, and what it gives in float64. What else of eager tells right from wrong is
    run when it is asked for."""

    subject: Subject
    train: bool
    reference: Values
    float64: Values
    _runs: dict[frozenset[str], list[Values]] = field(default_factory=dict)

    def judged(self, side: Side) -> dict[str, Any]:
        """What the first calls of a backend gave."""
        try:
            values = side.values()
        except Exception as error:
            return {"status": "fail_to_run", "why": words(error)}
        seen: dict[str, Any] = {"status": "pass"}
        first = faults(self.reference, values, self.float64)
        if not first:
            return seen
        seen["first_look"] = len(first)
        left = faults(self.reference, values, self.float64, self._moved(frozenset(first)))
        if left:
            right = left.keys() - faults(self._by_torch, values, self.float64)
            if right:
                seen["eager_wrong"] = {name: left.pop(name) for name in sorted(right)}
        if left:
            *_, (name, why) = left.items()
            seen |= {"status": "fail_accuracy", "why": f"{len(left)} of {len(self.reference)} values: {name}: {why}"}
        return seen

    def _moved(self, names: frozenset[str]) -> list[Values]:
        if names not in self._runs:
            runs = (_Moved(self.subject, train=self.train, seed=seed).values() for seed in range(MOVED))
            self._runs[names] = [{name: one for name, one in run.items() if name in names} for run in runs]
        return self._runs[names]

    @functools.cached_property
    def _by_torch(self) -> Values:
        """What eager gives by torch's own kernels, in the place of oneDNN's."""
        with torch.backends.mkldnn.flags(enabled=False):
            return Side(self.subject, as_it_is, train=self.train).values()


def _graphs(graphs: Sequence[GraphInfo]) -> dict[str, Any]:
    """Where the nodes of a compilation ran. left: [operator, reason, how many], most first."""
    left: dict[tuple[str, str], int] = {}
    for node in (node for graph in graphs for node in graph.eager):
        key = (node.op, node.reason)
        left[key] = left.get(key, 0) + 1
    return {
        "graphs": len(graphs),
        "parts": sum(len(graph.parts) for graph in graphs),
        "nodes": sum(graph.compute_nodes for graph in graphs),
        "on_onnxruntime": sum(graph.onnxruntime_nodes for graph in graphs),
        "work": sum(graph.work for graph in graphs),
        "eager_work": sum(graph.work if graph.fallen_back else graph.eager_work for graph in graphs),
        "left": [[op, why, count] for (op, why), count in sorted(left.items(), key=lambda one: -one[1])],
    }


def generated(subject: Subject) -> dict[str, Any]:
    """Tokens of `generate()` with the model's forward compiled, against eager's."""
    call = subject.generated
    if call is None:
        return {"status": "none"}

    def tokens(compiled: bool) -> list[list[int]]:
        module: Any = copy.deepcopy(subject.module).eval()
        if compiled:
            module.forward = torch.compile(module.forward, backend="rust_ort")
        seeded(SEED)
        with torch.no_grad():
            given: Any = module.generate(*copy.deepcopy(call.args), **copy.deepcopy(dict(call.kwargs)))
        return [*(given if isinstance(given, Tensor) else given.sequences).tolist()]

    try:
        eager = tokens(False)
    except Exception as error:
        return {"status": "model_fail_to_load", "why": words(error)}
    torch.compiler.reset()
    begin = time.perf_counter()
    try:
        ours = tokens(True)
    except Exception as error:
        return {"status": "fail_to_run", "why": words(error)}
    seconds = time.perf_counter() - begin
    if ours != eager:
        return {"status": "fail_accuracy", "why": f"{ours}, not {eager}", "first": seconds}
    return {"status": "pass", "first": seconds}


def _tool(subject: Subject, precision: str, walk: Callable[[tools.Examination, nn.Module, Call, Path], Any]) -> Values:
    """What a walk through tools finds wrong."""
    begin = time.perf_counter()
    seen = tools.Examination(precision=precision)
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        walk(seen, copy.deepcopy(subject.module), subject.trained or subject.evaluated, Path(folder))
    for tool, what in seen.disagreements():
        seen.fault(tool, what)
    faults = [f"{fault.tool}: {clipped(fault.what)}" for fault in seen.faults]
    return {
        "status": "fault" if faults else "pass", "why": "; ".join(faults[:KEPT_FAULTS]), "faults": len(faults),
        "grave": sum(fault.is_grave for fault in seen.faults), "values": seen.n_values, "nodes": seen.n_nodes,
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def _half(subject: Subject, *, precision: str) -> Values:
    """What the tools find wrong under autocast, where eager runs so."""
    dtype = HALF[precision]
    try:
        with torch.autocast("cpu", dtype):
            Side(subject, as_it_is, train=subject.trained is not None).run()
    except Exception as error:
        return {"status": "model_fail_to_load", "why": f"eager under autocast: {words(error)}"}

    def walk(seen: tools.Examination, model: nn.Module, call: Call, folder: Path) -> None:
        tools.dump(seen, model, call, dtype, folder)
        tools.nodes(seen, model, call, dtype)

    return _tool(subject, precision, walk)


HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}

TASKS: dict[str, Callable[[Subject], dict[str, Any]]] = {
    "eval": lambda subject: compared(subject, train=False, peers=PEERS[:1]),
    "train": lambda subject: compared(subject, train=True, peers=PEERS[:1]),
    "generate": generated,
    "compare": lambda subject: _tool(subject, "float32", lambda seen, model, call, _: tools.compare(seen, model, call)),
    "blame": lambda subject: _tool(
        subject, "float32", lambda seen, model, call, folder: tools.blame(seen, model, call, None, folder)
    ),
    "explain": lambda subject: _tool(subject, "float32", lambda seen, model, call, _: tools.explain(seen, model, call)),
    **{precision: functools.partial(_half, precision=precision) for precision in HALF},
    "dynamic eval": lambda subject: compared(subject, train=False, peers=PEERS[:1], dynamic=True),
    "dynamic train": lambda subject: compared(subject, train=True, peers=PEERS[:1], dynamic=True),
    "inductor eval": lambda subject: compared(subject, train=False, peers=PEERS[1:]),
    "inductor train": lambda subject: compared(subject, train=True, peers=PEERS[1:]),
    "eval time": lambda subject: timed(subject, train=False, peer=PEERS[0]),
    "train time": lambda subject: timed(subject, train=True, peer=PEERS[0]),
    "inductor eval time": lambda subject: timed(subject, train=False, peer=PEERS[1]),
    "inductor train time": lambda subject: timed(subject, train=True, peer=PEERS[1]),
}  # fmt: skip
"""{task: what it does}. eval, train: accuracy and graphs beside aot_eager; their times by themselves; compare, blame,
explain, bfloat16 (autocast), float16: the tools that tests/measure/zoo/tools.py walks through, blame with every command
on its dump."""
TRAINS = frozenset(task for task in TASKS if "train" in task)


def find(name: str) -> Model:
    """Errors: KeyError for a name that nobody has."""
    if name.startswith(graphnet.PREFIX):
        return graphnet.model(name)
    from measure.zoo.models import MODELS

    return MODELS[name]


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """A stream for results; whatever else is printed goes to standard error."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    logging.getLogger("rust_ort").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    yield results


def main(arguments: Sequence[str] | None = None) -> int:
    from measure.home import spare_torchs_own_measuring

    name, *wanted = sys.argv[1:] if arguments is None else arguments
    spare_torchs_own_measuring()
    with _quiet() as results:
        # What is loaded and made once is not this model's.
        for backend in ("rust_ort", *PEERS[:1]):
            torch.compile(lambda x: (x * 2).sum(), backend=backend)(torch.ones(3, requires_grad=True)).backward()
        seeded(SEED)
        try:
            subject: Subject | str = find(name).build()
        except Exception as error:
            subject = words(error)
        for task in wanted:
            torch.compiler.reset()
            if isinstance(subject, str):
                found = {"status": "model_fail_to_load", "why": subject}
            elif task in TRAINS and subject.trained is None:
                found = {"status": "none"}
            else:
                found = TASKS[task](subject)
            results.write(json.dumps({"model": name, "task": task, **found}) + "\n")
            results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
