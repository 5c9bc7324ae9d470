"""Every tool on one model: what raises, accuses somebody, or says of a value what another does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rust_ort
from measure.zoo.model import Call
from rust_ort.export.unwritten import UNWRITTEN
from rust_ort.link.daemon import find_binary
from rust_ort.link.program import environment
from rust_ort.observe.sides import AS_GIVEN, BOTH_NONE, BY_CHANCE, ZEROS_FOR_NONE
from rust_ort.tables import VERDICT_KINDS

NO_KERNEL = "the runtime has no float64 kernel of"
"""What ONNX Runtime says of an operator without a kernel of float64, such as Erf."""
RIGHT = tuple(kind for kind, is_pass in VERDICT_KINDS.items() if is_pass)
"""Kinds of verdicts that accuse nobody."""
IN_EAGER = "ran in eager: "
"""Begins the reason of a graph that has no parts: there is nothing to compare."""
NOTHING = (BOTH_NONE, BY_CHANCE, ZEROS_FOR_NONE)
"""Reasons for which there is nothing to compare: a parameter that nothing used, what eager itself gives otherwise."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What a tool should not have done. is_grave: it does not answer, or blames somebody."""

    precision: str
    tool: str
    what: str
    is_grave: bool

    def __str__(self) -> str:
        return f"{self.precision}, {self.tool}: {self.what}"


@dataclass(kw_only=True)
class Examination:
    """One model in one precision under every tool. n_values, n_nodes: what a report judged, the fewest of all. said:
    {value: {tool: the kind of its verdict}}."""

    precision: str
    faults: list[Fault] = field(default_factory=list)
    n_values: int = sys.maxsize
    n_nodes: int = 0
    said: dict[str, dict[str, str]] = field(default_factory=dict)

    def of(self, tool: str) -> Fault:
        """The first of its faults."""
        return next(fault for fault in self.faults if fault.tool == tool)

    def fault(self, tool: str, what: str, *, is_grave: bool = False) -> None:
        self.faults.append(Fault(precision=self.precision, tool=tool, what=what, is_grave=is_grave))

    def asked(self, tool: str, call: Callable[[], Any]) -> Any:
        """What a tool gives, and can show; None where it raises. Each compiles the model itself."""
        torch.compiler.reset()
        torch.manual_seed(0)  # what is dropped is the same in every run
        try:
            given = call()
            str(given)
        except Exception as error:
            self.fault(tool, f"raises {type(error).__name__}: {error}", is_grave=True)
            return None
        return given

    def heard(self, tool: str, value: str, kind: str) -> None:
        self.said.setdefault(value, {})[tool] = kind

    def disagreements(self) -> Iterator[tuple[str, str]]:
        """(tool, what it says of a value and the first that was asked does not)."""
        for value, said in self.said.items():
            (first, kind), *others = said.items()
            for tool, other in others:
                if (other in RIGHT) is not (kind in RIGHT):
                    yield tool, f"{value} is {other}, which {first} says is {kind}"


def compare(seen: Examination, model: nn.Module, call: Call) -> None:
    report = seen.asked("compare", lambda: rust_ort.compare(model, *call.args, **call.kwargs))
    if report is not None:
        judge(seen, "compare", report)


def dump(seen: Examination, model: nn.Module, call: Call, autocast: torch.dtype, folder: Path) -> None:
    """What compares outputs alone, dumped and read."""

    def dumped() -> rust_ort.Report:
        with rust_ort.dump("outputs", folder=folder):
            return rust_ort.compare(model, *call.args, autocast=autocast, options={"compare": "outputs"}, **call.kwargs)

    report = seen.asked("compare outputs", dumped)
    if report is not None:
        judge(seen, "compare outputs", report)
        _told(seen, report, folder / "outputs", ("ls", "show", "compare", "replay"))


def nodes(seen: Examination, model: nn.Module, call: Call, autocast: torch.dtype | None) -> None:
    """What compares each node."""
    report = seen.asked(
        "compare nodes",
        lambda: rust_ort.compare(model, *call.args, autocast=autocast, options={"compare": "nodes"}, **call.kwargs),
    )
    if report is not None:
        judge(seen, "compare nodes", report)


def judge(seen: Examination, tool: str, report: rust_ort.Report) -> None:
    """A report accuses nobody, and what it leaves out it leaves out for a reason."""
    verdicts = [*report.verdicts, *report.missing]
    for verdict in verdicts:
        if verdict.is_torchs_own:  # no graph accuses itself of it, so what reads a dump says nothing
            continue
        if verdict.kind in RIGHT or verdict.kind == "mismatch":
            seen.heard(tool, verdict.name, verdict.kind)
        is_nothing = verdict.reason in NOTHING or (verdict.kind == "not_compared" and verdict.reason.endswith(AS_GIVEN))
        if verdict.kind not in RIGHT and not verdict.name.startswith("buffer ") and not is_nothing:
            seen.fault(tool, verdict.reason or f"{verdict.name}: {verdict.kind}")
    left = {node.name for graph in report.graphs for node in graph.eager}
    for graph, node in report.nodes:
        if node.local.kind not in RIGHT and node.name not in left and node.local.reason != UNWRITTEN:
            seen.fault(tool, f"{graph}: {node}", is_grave=True)
    if report.ok:
        said = [verdict for graph in report.graphs for _, verdict in graph.verdicts if verdict.kind not in RIGHT]
        for verdict in (one for one in said if not one.reason.startswith(IN_EAGER)):
            seen.fault(f"{tool}, graphs", f"is ok, and warned of {verdict.reason}")
    json.loads(report.to_json())
    report.rows()
    seen.n_values = min(seen.n_values, sum(verdict.kind in RIGHT for verdict in verdicts))
    seen.n_nodes = max(seen.n_nodes, sum(node.local.kind in RIGHT for _, node in report.nodes))


def blame(
    seen: Examination, model: nn.Module, call: Call, autocast: torch.dtype | None, folder: Path
) -> rust_ort.Blame | None:
    blamed: rust_ort.Blame | None = seen.asked(
        "blame", lambda: rust_ort.blame(model, *call.args, autocast=autocast, folder=folder, **call.kwargs)
    )
    if blamed is None:
        return None
    judge(seen, "compare nodes", blamed.report)
    if blamed.culprit is not None or not blamed.complete:
        seen.fault("blame", f"blames {blamed.culprit}" if blamed.culprit else "is not complete", is_grave=True)
    _told(seen, blamed.report, blamed.folder, ("ls", "show", "compare", "replay", "sbs", "blame"))
    return blamed


def _told(seen: Examination, report: rust_ort.Report, run: Path | None, commands: Sequence[str]) -> None:
    """Commands that read a dump say of the graphs' outputs what the call itself said."""
    for graph in report.graphs:
        for _, verdict in graph.verdicts:
            seen.heard("the call", f"{graph.name} {verdict.name}", verdict.kind)
        seen.heard("the call", f"{graph.name}", _worst(verdict.kind for _, verdict in graph.verdicts))
    for name in commands:
        for value, kind in _kinds(name, command(seen, name, str(run), "--json")):
            seen.heard(f"rust-ort {name}", value, kind)
        command(seen, name, str(run))


def command(seen: Examination, name: str, *arguments: str) -> Any:
    """What a command of the program says, read where it is JSON; {} where it fails."""
    line = [find_binary(), name, *arguments]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    is_json = "--json" in arguments
    if not is_json and (done.returncode != 0 or done.stderr):
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        is_grave = done.returncode not in (1, 3) or bool(done.stderr)  # 3: something was left out
        seen.fault(f"rust-ort {name}", f"exit code {done.returncode}: {''.join(last)}", is_grave=is_grave)
    return json.loads(done.stdout) if is_json and done.stdout else {}


def _kinds(command: str, said: Any) -> Iterator[tuple[str, str]]:
    """(value, kind) of what a command says of a graph and of its outputs."""
    if command == "ls":
        for graph in (graph for graph in said.get("graphs", ()) if graph["parts"]):  # without: it ran in eager
            counts = [step["verdicts"] or {} for part in graph["parts"] for step in part["steps"]]
            yield graph["name"], _worst(kind for of in counts for kind, count in of.items() if count)
    elif command in ("compare", "replay"):
        for data_set in said.get("data_sets", ()):
            graph = Path(data_set["path"]).parts[-3]
            for verdict in data_set["verdicts"]:
                yield f"{graph} {verdict['name']}", verdict["verdict"]["kind"]
    elif command == "sbs":
        for table in said.get("tables", ()):
            outputs = {verdict["name"] for verdict in table["plain"]}
            for node in table["nodes"]:
                if node["name"] in outputs:
                    yield f"{table['graph']} {node['name']}", node["cumulative"]["verdict"]["kind"]
                of = node["role"].removeprefix("GradAOTOutput ")
                if of != node["role"]:
                    yield f"grad of {of}", node["cumulative"]["verdict"]["kind"]
    elif command == "blame":
        for answer in said.get("answers", ()):
            for complaint in answer["complaints"]:
                verdict = complaint["as_ran"]
                yield f"{answer['graph']} {verdict['name']}", verdict["verdict"]["kind"]


def _worst(kinds: Iterable[str]) -> str:
    return next((kind for kind in kinds if kind not in RIGHT), RIGHT[0])


def explain(seen: Examination, model: nn.Module, call: Call) -> None:
    explained = seen.asked("explain", lambda: rust_ort.explain(model, *call.args, **call.kwargs))
    if explained is not None and not explained.nodes_on_onnxruntime:
        seen.fault("explain", "nothing is on ONNX Runtime", is_grave=True)


def keep(seen: Examination, model: nn.Module, call: Call, autocast: torch.dtype, folder: Path) -> None:
    kept = seen.asked(
        "keep", lambda: rust_ort.keep_in_float32(model, *call.args, autocast=autocast, folder=folder, **call.kwargs)
    )
    if kept is None:
        return
    judge(seen, "keep, before", kept.before)
    if kept.after is not None:
        judge(seen, "keep, after", kept.after)
    if not kept.verified or not kept.complete:
        seen.fault("keep", f"verified {kept.verified}, complete {kept.complete}", is_grave=True)
    for note in (note for answer in kept.answers for note in answer["notes"]):
        if "measured from float32" in note and NO_KERNEL not in note:
            seen.fault("keep", note)
    command(seen, "keep", str(kept.folder))
