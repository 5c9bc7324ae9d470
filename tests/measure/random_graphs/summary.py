"""Totals of a run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from measure.random_graphs.check import BAD, Outcome
from measure.random_graphs.reach import Reach


@dataclass(kw_only=True)
class Summary:
    """Counts over outcomes. families, dtypes, features, eager: {what: functions with it}; differs: kinds of differences
    of functions that are wrong. calls, refused: all calls, and those of which eager's error is the expected result."""

    graphs: int = 0
    core_seconds: float = 0.0
    calls: int = 0
    refused: int = 0
    nodes: int = 0
    eager_nodes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    where: Counter[str] = field(default_factory=Counter)
    differs: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    translated: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    eager: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    reach: Reach = field(default_factory=Reach)
    backward: int = 0
    again: int = 0
    settled: int = 0
    bad: list[Outcome] = field(default_factory=list)
    torch: list[Outcome] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.graphs += 1
        self.core_seconds += outcome.seconds
        self.calls += outcome.calls
        self.refused += outcome.refused
        self.nodes += outcome.nodes
        self.eager_nodes += outcome.eager_nodes
        self.kinds[outcome.kind] += 1
        self.where[outcome.where or "lost"] += 1
        self.families.update(outcome.families)
        if outcome.where == "translated":
            self.translated.update(outcome.families)
        self.dtypes.update(outcome.dtypes)
        self.features.update(_features(outcome))
        self.eager.update({f"`{op}`: {reason}" for op, reason in outcome.eager})
        self.rejected.update(outcome.rejected)
        self.reach.add(outcome)
        self.backward += outcome.backward
        self.again += outcome.again
        self.settled += outcome.settled
        self.seeds.append(outcome.seed)
        if outcome.kind in BAD:
            self.bad.append(outcome)
            self.differs.update(outcome.differs)
        if outcome.kind == "torch":
            self.torch.append(outcome)

    def line(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return f"{self.graphs} functions, {self.calls} calls: {kinds}; {self.share:.1%} of nodes on ONNX Runtime"

    @property
    def share(self) -> float:
        """Of compute nodes that ran on ONNX Runtime."""
        return 1 - self.eager_nodes / max(1, self.nodes)


def recorded(files: Iterable[Path]) -> Iterator[Outcome]:
    """The outcomes that earlier runs wrote, a line each."""
    for file in files:
        with file.open() as lines:
            for line in lines:
                yield Outcome(**json.loads(line))


def _features(outcome: Outcome) -> list[str]:
    found = [name for name, value in outcome.features.items() if value is True]
    values = outcome.features.get("values", "plain")
    return found if values == "plain" else [*found, f"values: {values}"]
