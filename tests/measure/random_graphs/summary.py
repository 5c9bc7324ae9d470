"""Totals of a run, and the page they are written to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from measure.random_graphs.check import BAD, Outcome
from measure.random_graphs.reach import Reach


@dataclass(kw_only=True)
class Summary:
    """Counts over outcomes. families, dtypes, operators, eager: {what: functions with it}."""

    graphs: int = 0
    seconds: float = 0.0
    core_seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    where: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    translated: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    differs: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    reach: Reach = field(default_factory=Reach)
    calls: int = 0
    refused: int = 0
    nodes: int = 0
    eager_nodes: int = 0
    eager: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    backward: int = 0
    settled: int = 0
    bad: list[Outcome] = field(default_factory=list)
    torch: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.graphs += 1
        self.core_seconds += outcome.seconds
        self.kinds[outcome.kind] += 1
        self.where[outcome.where or "lost"] += 1
        self.families.update(outcome.families)
        if outcome.where == "translated":
            self.translated.update(outcome.families)
        self.dtypes.update(outcome.dtypes)
        self.reach.add(outcome)
        self.calls += outcome.calls
        self.refused += outcome.refused
        self.nodes += outcome.nodes
        self.eager_nodes += outcome.eager_nodes
        self.features.update(_features(outcome))
        if outcome.kind in BAD:
            self.differs.update(outcome.differs)
        self.eager.update({f"`{op}`: {reason}" for op, reason in outcome.eager})
        self.rejected.update(outcome.rejected)
        self.backward += outcome.backward
        self.settled += outcome.settled
        if outcome.kind in BAD:
            self.bad.append(outcome)
        if outcome.kind == "torch":
            self.torch.append(outcome.seed)

    def line(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        share = 1 - self.eager_nodes / max(1, self.nodes)
        return f"{self.graphs} functions, {self.calls} calls: {kinds}; {share:.1%} of nodes on ONNX Runtime"


def markdown(summary: Summary, *, seeds: tuple[int, int], workers: int) -> str:
    """docs/random-graphs.md."""
    from measure.bench import environment

    count = max(1, summary.graphs)
    drawn = max(1, summary.rejected["drawn"])
    lines = [
        "# Random functions",
        "",
        f"Made by `make random-graphs`: seeds {seeds[0]} to {seeds[1]}, {workers} worker(s), {summary.seconds:.0f} s,",
        f"{summary.core_seconds / count:.2f} s a function. `--seed N` prints what a seed makes, reduced if it fails.",
        "What is compared and how: `tests/measure/random_graphs/`.",
        "",
        *(f"- {name}: {value}" for name, value in environment().items()),
        "",
        f"**{summary.line()}.**",
        "",
        *_table(("what came of it", "functions"), [(kind, summary.kinds[kind]) for kind in ("right", "torch", *BAD)]),
        "",
        '"torch": `backend="aot_eager"` is not right either, or eager has our results with its oneDNN kernels off',
        f"(seeds {_listed(summary.torch)}). {summary.settled} results were outside",
        "the tolerance of torch.testing and no further from float64 than twice eager's own distance and an ulp.",
        "",
        *_table(("where it ran", "functions"), summary.where.most_common()),
        "",
        f"With a backward pass: {summary.backward}. Calls that eager refuses, where an error is expected:",
        f"{summary.refused} of {summary.calls}.",
        f"Of {drawn} operators drawn, {_share(summary, drawn)} were drawn again.",
        "",
        *_table(
            ("family", "functions", "of them wholly translated"),
            [(name, n, summary.translated[name]) for name, n in sorted(summary.families.items())],
        ),
        "",
        *_table(("dtype among inputs and results", "functions"), summary.dtypes.most_common()),
        "",
        *_table(("the function has", "functions"), sorted(summary.features.items())),
        "",
        *summary.reach.markdown(),
        "",
        "Left to eager, functions with it:",
        "",
        *_table(("what", "functions"), summary.eager.most_common(40)),
    ]
    return "\n".join(lines) + "\n"


def _features(outcome: Outcome) -> list[str]:
    found = [name for name, value in outcome.features.items() if value is True]
    values = outcome.features.get("values", "plain")
    return found if values == "plain" else [*found, f"values: {values}"]


def _share(summary: Summary, drawn: int) -> str:
    parts = [
        f"{count / drawn:.1%} ({why})"
        for why, count in summary.rejected.most_common()
        if why != "drawn" and not why.startswith("functions")
    ]
    return ", ".join(parts) or "none"


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "none"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
