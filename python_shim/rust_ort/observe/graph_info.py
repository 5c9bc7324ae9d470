"""What is known of every AOT graph that this process compiled."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rust_ort.errors import RustOrtError
from rust_ort.export.partition import EagerNode
from rust_ort.link.specs import Verdict
from rust_ort.observe.placement import Placement
from rust_ort.observe.rules import Division
from rust_ort.observe.turned import Turned
from rust_ort.options import Options

log = logging.getLogger("rust_ort")

KEPT_VERDICTS = 10_000
"""Of each graph; older ones are dropped."""

RAN = "run failed: "
"""How the runtime's own error begins when a model was loaded and ran."""

KEPT_GRAPHS = 1000
KEPT_NODES = 100_000
"""Of graphs whose compiled code is gone."""

KEPT_NAMES = 65_536
"""Names given that are not given again."""


def _gone() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class NodeVerdict:
    """One FX node against eager. local: its own kernel on eager's inputs; cumulative: its value as it drifted.
    no_float64: why its noise is not known, where that was asked for. births: NaN and infinities that are in its value,
    eager's ("reference") or the drifted one ("candidate"), and in nothing that it was made of.
    choice: "tie" or "open order" where the node alone chose as right as eager does, but otherwise: see choices.py.
    part: None where it was left to eager. source: line of the user's code; module: path of the module; "" unknown."""

    part: int | None
    name: str
    op: str
    module: str
    source: str
    local: Verdict
    cumulative: Verdict
    no_float64: str = ""
    choice: str = ""
    births: tuple[dict[str, Any], ...] = ()

    @property
    def is_wrong(self) -> bool:
        """The node's own kernel differs: by its numbers, or on eager's values it fails, as where it gives another
        shape."""
        return self.local.kind == "mismatch" or (self.local.kind == "failed" and self.local.reason.startswith(RAN))

    @property
    def is_failed(self) -> bool:
        """It could not be cut out, loaded or judged: that accuses nobody."""
        return self.local.kind == "failed" and not self.is_wrong

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.module, self.source)))
        return f"{self.name} ({self.op}{', ' + where if where else ''}): {self.local.reason or self.local.kind}"


@dataclass(kw_only=True, eq=False)
class GraphInfo:
    """What is known about one compiled AOT graph. `verdicts`: (step, verdict) of observed calls, newest last; `nodes`:
    the same of single nodes under compare="nodes", in graph order. `seconds`: time by phase of the compilation.
    `operators`: {compute node: its operator}; `modules`: {compute node: path of its module}, under compare="nodes".
    `unreachable`: why its parts could not be prepared, where on_daemon_error="eager" let the compilation go on.
    `daemon_fallbacks`: calls that ran in eager for a daemon's fault; `fault`: the last of these.
    `breaks`: {reason: count} of the graph breaks that `rust_ort.explain` met when this was the first graph compiled.
    `work`, `eager_work`: of all its compute nodes and of those in eager, an estimate: see observe/work.py.
    `right`: {part: calls in which every node of it alone was looked at and is as right as eager's}.
    Of calls that `called` watches, under compare="nodes": `turned`: values of which rounding turned branches, and
    `branches`: nodes that took another one;
    `results`: outputs that are as right as eager's of the graph's own inputs; `unwritten`: outputs that are memory
    nobody wrote into, each with a copy. `division`: what rules of the option runtimes made of its nodes. `placement`:
    which execution providers have them. `told`: (what, name) of what was warned of.
    `compile_id`: torch's, which its structured trace goes by.
    `code`: gives the compiled code as long as it lives. `options`: what it was compiled with; None of a copy in another
    process."""

    name: str
    direction: str
    graph_id: str
    compute_nodes: int
    parts: list[list[str]]
    eager: list[EagerNode]
    seconds: dict[str, float]
    operators: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    lowest_precision: torch.dtype | None = None
    verdicts: list[tuple[int, Verdict]] = field(default_factory=list)
    nodes: list[tuple[int, NodeVerdict]] = field(default_factory=list)
    calls: int = 0
    daemon_fallbacks: int = 0
    fault: str = ""
    unreachable: RustOrtError | None = None
    breaks: dict[str, int] = field(default_factory=dict)
    work: float = 0.0
    eager_work: float = 0.0
    division: Division = field(default_factory=Division)
    placement: Placement = field(default_factory=Placement)
    right: dict[int, int] = field(default_factory=dict)
    turned: list[Turned] = field(default_factory=list, repr=False)
    branches: set[str] = field(default_factory=set, repr=False)
    results: list[torch.Tensor] = field(default_factory=list, repr=False)
    unwritten: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list, repr=False)
    told: set[tuple[str, str]] = field(default_factory=set, repr=False)
    compile_id: object | None = field(default=None, repr=False)
    code: Callable[[], object] = field(default=_gone, repr=False)
    options: Options | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """A copy or another process has no code and no trace of its compilation, and options hold functions that may
        not travel."""
        return {
            **self.__dict__,
            "code": _gone,
            "compile_id": None,
            "options": None,
            "turned": [],
            "branches": set(),
            "results": [],
            "unwritten": [],
        }

    @property
    def eager_nodes(self) -> int:
        """Compute nodes that ran in eager; of a graph with a call that fell back for a fault, all."""
        return self.compute_nodes if self.fallen_back else len(self.eager)

    @property
    def onnxruntime_nodes(self) -> int:
        """Compute nodes that ran on ONNX Runtime."""
        return self.compute_nodes - self.eager_nodes

    @property
    def fallen_back(self) -> str:
        """How many calls ran in eager for a daemon's fault, and which fault; "" for none."""
        if not self.daemon_fallbacks and self.unreachable is None:
            return ""
        why = self.fault or str(self.unreachable).partition("\n")[0]
        return f"{self.daemon_fallbacks} of {self.calls} calls ran in eager: {why}"

    def note_fallback(self, fault: Exception) -> None:
        """A call runs in eager for a daemon's fault."""
        for info in self._with_run():
            info.daemon_fallbacks += 1
            info.fault = str(fault).partition("\n")[0]

    def _with_run(self) -> list[GraphInfo]:
        """This, and what `called` keeps of it for a run that goes on in this thread."""
        entry = (getattr(_watching, "seen", None) or {}).get(id(self))
        return [self] if entry is None else [self, entry[1]]

    @property
    def of_this_run(self) -> GraphInfo:
        """What `called` keeps of it for a run that goes on in this thread; where none does, this."""
        return self._with_run()[-1]

    def add_verdicts(self, step: int, verdicts: Sequence[Verdict]) -> None:
        for info in self._with_run():
            info.verdicts.extend((step, verdict) for verdict in verdicts)
            del info.verdicts[:-KEPT_VERDICTS]
        self._tell(step, "outputs that differ from eager", _mismatches(verdicts))

    def add_right(self, part: int, *, right: bool) -> None:
        for info in self._with_run():
            info.right[part] = info.right.get(part, 0) + right

    @property
    def is_right(self) -> bool:
        """Every node of every part alone was looked at in each call, and is as right as eager's."""
        return not self.fallen_back and all(self.right.get(part, 0) == self.calls for part in range(len(self.parts)))

    def add_turned(self, values: Sequence[Turned], branches: Iterable[str]) -> None:
        """branches: nodes that took another branch than eager's, as they ran observed."""
        for info in self._with_run():
            if info is not self:
                info.turned.extend(values)
                info.branches.update(branches)

    @property
    def is_followed(self) -> bool:
        """Whether every branch that it took otherwise than eager is one that eager can take as well."""
        return self.branches <= {value.node for value in self.turned}

    def add_results(self, results: Sequence[torch.Tensor]) -> None:
        for info in self._with_run():
            if info is not self:  # kept as long as somebody watches
                info.results.extend(results)

    def add_unwritten(self, outputs: Sequence[torch.Tensor]) -> None:
        for info in self._with_run():
            if info is not self:
                info.unwritten.extend((output, output.detach().clone()) for output in outputs)

    def add_nodes(self, step: int, nodes: Sequence[NodeVerdict], changed: Sequence[Verdict]) -> None:
        """changed: outputs of the plain session against those of the instrumented one."""
        for info in self._with_run():
            info.nodes.extend((step, node) for node in nodes)
            del info.nodes[:-KEPT_VERDICTS]
        self._tell(step, "nodes whose own kernel differs from eager", {n.name: str(n) for n in nodes if n.is_wrong})
        self._tell(step, "nodes that could not be compared", {n.name: str(n) for n in nodes if n.is_failed})
        self._tell(step, "outputs that optimizing the model changed", _mismatches(changed))

    def _tell(self, step: int, what: str, found: Mapping[str, str]) -> None:
        """One warning of all that a call found, with the first of it, where some was not told before; else one line for
        whoever listens to debug. found: {name: what is said of it}."""
        if not found:
            return
        new = {(what, name) for name in found} - self.told
        self.told |= new
        first = next(iter(found.values()))
        level = logging.WARNING if new else logging.DEBUG
        log.log(level, "%s, call %d: %s: %d, the first: %s", self.name, step, what, len(found), first)

    def first_wrong_node(self) -> NodeVerdict | None:
        """The first node, over all calls, whose own kernel differs from eager."""
        return next((node for _, node in self.nodes if node.is_wrong), None)


def _mismatches(verdicts: Iterable[Verdict]) -> dict[str, str]:
    """{name: what is said of it}."""
    return {
        verdict.name: verdict.reason or f"{verdict.name}: max |candidate - reference| = {verdict.max_abs}"
        for verdict in verdicts
        if verdict.kind == "mismatch"
    }


class GraphLog:
    """Graphs in the order of their compilation: all whose compiled code lives, and of the others the newest, as many as
    KEPT_GRAPHS and KEPT_NODES allow. Thread-safe."""

    def __init__(self) -> None:
        self._graphs: list[GraphInfo] = []
        self._lock = threading.Lock()

    def add(self, info: GraphInfo) -> None:
        with self._lock:
            self._graphs.append(info)
            dead = [graph for graph in self._graphs if graph.code() is None]
            nodes = sum(graph.compute_nodes for graph in dead)
            # By twice the bound, so that not every graph has to look.
            if len(dead) <= 2 * KEPT_GRAPHS and nodes <= 2 * KEPT_NODES:
                return
            dropped = set()
            for count, graph in zip(range(len(dead), 0, -1), dead, strict=True):
                if count <= KEPT_GRAPHS and nodes <= KEPT_NODES:
                    break
                dropped.add(id(graph))
                nodes -= graph.compute_nodes
            self._graphs = [graph for graph in self._graphs if id(graph) not in dropped]

    def list(self) -> list[GraphInfo]:
        with self._lock:
            return self._graphs[:]


_graphs = GraphLog()
_names: dict[str, int] = {}  # each name given, and the number last put behind it
_lock = threading.Lock()


def graphs() -> list[GraphInfo]:
    """The AOT graphs this process compiled, oldest first: all whose compiled code lives, and of those whose code is
    gone (`torch._dynamo.reset()`, a deleted model) the newest thousand or so."""
    return _graphs.list()


def in_order(infos: Iterable[GraphInfo]) -> list[GraphInfo]:
    """By compilation, oldest first; of one compilation the backward after the forward, whichever came first."""
    infos = list(infos)
    names = list(dict.fromkeys(info.name.removesuffix(f"-{info.direction}") for info in infos))
    position = {name: index for index, name in enumerate(names)}
    return sorted(infos, key=lambda i: (position[i.name.removesuffix(f"-{i.direction}")], i.direction == "backward"))


def record(info: GraphInfo) -> None:
    """Adds a graph to graphs()."""
    _graphs.add(info)


_watching = threading.local()


@contextlib.contextmanager
def called() -> Iterator[Callable[[], list[GraphInfo]]]:
    """Inside, this thread's calls of compiled graphs are watched; what is yielded gives those graphs in the order of
    their first call, each a copy with what the calls inside added, and those of no other thread. A graph compiled long
    before counts like a new one. Autograd runs the backward of a GPU's tensors in this thread meanwhile, not in one of
    its own, or nothing of it would be seen."""
    seen: dict[int, tuple[GraphInfo, GraphInfo]] = {}
    outer: dict[int, tuple[GraphInfo, GraphInfo]] | None = getattr(_watching, "seen", None)
    _watching.seen = seen
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield lambda: [run for _, run in seen.values()]
    finally:
        _watching.seen = outer


def note_call(info: GraphInfo) -> None:
    """A call of the graph begins in this thread."""
    info.calls += 1
    seen = getattr(_watching, "seen", None)
    if seen is None:
        return
    if id(info) not in seen:
        empty: Any = {"verdicts": [], "nodes": [], "calls": 0, "daemon_fallbacks": 0, "fault": "", "unreachable": None,
                      "results": [], "unwritten": [], "right": {}}  # fmt: skip
        seen[id(info)] = info, dataclasses.replace(info, **empty)
    seen[id(info)][1].calls += 1


def unique_name(wanted: str) -> str:
    """The name, with a number behind it where this process gave it away before."""
    with _lock:
        name, count = wanted, _names.get(wanted, 0)
        while name in _names:
            count += 1
            name = f"{wanted}_{count}"
        _names[wanted] = count
        _names.setdefault(name, 0)
        while len(_names) > KEPT_NAMES:
            del _names[next(iter(_names))]
    return name
