"""A family compared and blamed, with a fault planted or none."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from typing import Any

import rust_ort
from measure.planted import run as planting
from measure.planted.faults import Site


@dataclass(kw_only=True)
class Clean:
    """A run with nothing planted. wrong: values outside tolerance; complaints: outputs of graphs that are, by name;
    culprit: who is blamed, "" for nobody. worse: nodes whose own kernel is worse than eager's; n_nodes: of which
    float64 says so or not."""

    family: str
    precision: str
    seconds: float
    wrong: list[str]
    culprit: str
    complete: bool
    complaints: list[str] = field(default_factory=list)
    why: str = ""
    worse: list[str] = field(default_factory=list)
    n_nodes: int = 0


@dataclass(kw_only=True)
class Blamed:
    """A run with a fault. wrong: values outside tolerance; complaints: outputs of graphs that are, and are not with
    nothing planted; culprit: who is blamed first; share: of the output's error; layer: what of it; rank: place of the
    guilty among the nodes, 0 for none."""

    family: str
    precision: str
    site: Site
    direction: str
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    culprit: str = ""
    share: float = 0.0
    layer: str = ""
    guilty: list[str] = field(default_factory=list)
    rank: int = 0
    complete: bool = True
    refused: str = ""

    @property
    def counts(self) -> bool:
        """The fault takes a value of the model, or an output of one of its graphs, out of tolerance."""
        return bool(self.wrong or self.complaints)

    @property
    def is_right(self) -> bool:
        return self.culprit in self.guilty

    @property
    def verdict(self) -> str:
        if self.refused:
            return "refused"
        if not self.counts:
            return "within tolerance" if not self.culprit else "named all the same"
        if not self.culprit:
            return "named nobody"
        return "named" if self.is_right else "named another"


class Asked:
    """Asks `rust_ort.blame`, and keeps what it said; for measure.planted, which wants a Report. float64: of every
    node."""

    def __init__(self, *, float64: bool) -> None:
        self.blame: Any = None
        self._options = {"compare_float64": "all"} if float64 else {}

    def __call__(self, *args: Any, options: Any, **kwargs: Any) -> Any:
        self.blame = None
        self.blame = rust_ort.blame(*args, options={**options, **self._options}, **kwargs)
        return self.blame.report

    @property
    def culprit(self) -> str:
        """Graph and node, or what else is blamed."""
        culprit = self.blame.culprit
        if culprit is None:
            return ""
        if culprit["kind"] == "node":
            return f"{culprit['graph']} {culprit['name']}"
        return f"{culprit['graph']} {culprit['kind']} {', '.join(culprit['names'])}"

    @property
    def complaints(self) -> list[str]:
        return [complaint["as_ran"]["name"] for answer in self.blame.answers for complaint in answer["complaints"]
                if complaint["as_ran"]["verdict"]["kind"] != "match"]  # fmt: skip


def clean(family: str, precision: str, *, float64: bool) -> tuple[Clean, Any]:
    """The run, and what `measure.planted` knows of it."""
    asked = Asked(float64=float64)
    found = planting.unplanted(family, precision, asked)
    why = "; ".join(answer["culprit"].get("why", "") for answer in asked.blame.answers if answer["complaints"])
    told = [(f"{graph} {node.name}", node.local.noise["kind"]) for graph, node in asked.blame.report.nodes
            if node.local.noise is not None]  # fmt: skip
    run = Clean(
        family=family, precision=precision, seconds=found.seconds, wrong=found.values_wrong, culprit=asked.culprit,
        complete=asked.blame.complete, complaints=asked.complaints, why=why,
        worse=[name for name, kind in told if kind == "candidate_worse"], n_nodes=len(told),
    )  # fmt: skip
    return run, found


def blamed(clean: Clean, found: Any, site: Site, *, float64: bool) -> Blamed:
    """A run with one fault. clean, found: the same without it."""
    asked = Asked(float64=float64)
    row = planting.planted(found, site, asked)
    made = Blamed(
        family=row.family, precision=row.precision, site=site, direction=found.directions[site.model],
        seconds=row.seconds, wrong=row.wrong, guilty=row.guilty, refused=row.refused,
    )  # fmt: skip
    if asked.blame is None:
        return made
    nodes = [f"{node['graph']} {value}" for node in asked.blame.nodes for value in node["values"]]
    ranks = [nodes.index(name) + 1 for name in row.guilty if name in nodes]
    made.culprit, made.complete = asked.culprit, asked.blame.complete
    made.complaints = [name for name in asked.complaints if name not in clean.complaints]
    made.rank = min(ranks, default=0)
    first = next((node for node in asked.blame.nodes if f"{node['graph']} {node['name']}" == made.culprit), None)
    if first is not None:
        made.share, made.layer = first["share"], first["layer"] or ""
    return made


def tried(family: str, precision: str, faults: int, seed: int, float64: bool) -> tuple[Clean, list[Blamed]]:
    """The run with nothing planted, and those with a fault, of which `faults` take something out of tolerance, in
    forward and backward in turn. Each is printed."""
    logging.getLogger("rust_ort").setLevel(logging.ERROR)  # each fault would be logged
    run, found = clean(family, precision, float64=float64)
    print(f"{family} {precision}: {len(run.wrong)} wrong, blamed: {run.culprit or 'nobody'}", run.why, *run.worse,
          flush=True)  # fmt: skip
    rows: list[Blamed] = []
    for site in planting.drawn(found, random.Random(seed), more=True):
        if sum(row.counts for row in rows) >= faults or len(rows) >= 4 * faults:
            break
        rows.append(blamed(run, found, site, float64=float64))
        row = rows[-1]
        print(f"{family} {precision} {site.kind} at {site.node}: {row.verdict} {row.culprit} {row.share:.2f} "
              f"{row.layer} {row.seconds:.0f} s", flush=True)  # fmt: skip
    return run, rows
