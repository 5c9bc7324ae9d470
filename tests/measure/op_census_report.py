"""What the census writes: docs/results/op-census.md for people, docs/results/op-census.json for tests."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from measure.coverage_report import short
from measure.op_census_core import MISSING, Verdict, core_operators, judge
from measure.op_census_exceptions import CATEGORIES, category
from measure.op_census_runs import Run

ON_ORT = "onnxruntime"
SHOWN = 6


@dataclass(kw_only=True)
class Reached:
    """One operator of the AOT graphs. eager: {(category, reason): architectures}."""

    models: set[str] = field(default_factory=set)
    directions: set[str] = field(default_factory=set)
    on_ort: bool = False
    eager: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    @property
    def where(self) -> list[str]:
        """ "onnxruntime", and "eager (category): reason" of each reason."""
        left = [f"eager ({name}): {reason}" for name, reason in sorted(self.eager)]
        return [ON_ORT] * self.on_ort + left


def reached(runs: Iterable[Run]) -> dict[str, Reached]:
    """{operator: where it was met}, sorted. A graph for inference counts as forward."""
    found: dict[str, Reached] = defaultdict(Reached)
    for made in runs:
        for graph in made.graphs:
            direction = "backward" if graph.direction == "backward" else "forward"
            for operator in (*graph.on_ort, *graph.eager):
                found[operator].models.add(made.architecture)
                found[operator].directions.add(direction)
                found[operator].on_ort |= operator in graph.on_ort
            for operator, reasons in graph.eager.items():
                for reason in reasons:
                    found[operator].eager[category(operator, reason), short(reason)].add(made.architecture)
    return dict(sorted(found.items()))


def record(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """What docs/results/op-census.json holds."""
    architectures: dict[str, Any] = defaultdict(dict)
    for made in runs:
        architectures[made.architecture][f"{made.attention}/{made.mode}"] = {
            "onnxruntime": made.nodes_on_ort,
            "eager": made.nodes_in_eager,
            "graphs": len(made.graphs),
            "breaks": sum(made.breaks.values()),
            "max_rel": float(f"{made.max_rel:.1e}"),
            "right": not (made.mismatches or made.error),
        }
    operators = {
        operator: {
            "models": sorted(met.models),
            "forward": "forward" in met.directions,
            "backward": "backward" in met.directions,
            "where": met.where,
        }
        for operator, met in reached(runs).items()
    }
    return {"operators": operators, "architectures": dict(architectures), "core": core()}


def core() -> dict[str, str]:
    """{operator of Core ATen: what becomes of it}."""
    return {str(operator): judge(operator).how for operator in core_operators()}


def json_text(runs: Sequence[Run]) -> str:
    """JSON, an operator or an architecture a line."""
    sections = [
        f" {json.dumps(section)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
        + "\n }"
        for section, entries in record(runs).items()
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def markdown(runs: Sequence[Run]) -> str:
    """docs/results/op-census.md."""
    operators = reached(runs)
    lines = [
        "# Which operators real models reach, and where they run",
        "",
        f"Made by `make op-census`: {len({made.architecture for made in runs})} architectures of transformers, as tiny",
        "random models with dropout and what else they can do switched on, go through",
        '`torch.compile(backend="rust_ort")` and the daemon, forward and backward. `train`: training mode; `frozen`:',
        "evaluation mode with gradients; `eager` and `sdpa` are the implementations of attention. Every output,",
        "gradient and buffer is compared with eager's from the same seed.",
        "",
        "\n".join(f"- {name}: {version}" for name, version in _versions().items()),
        "",
        *_totals(runs, operators),
        *_faults(runs),
        "## In eager",
        "",
        *_in_eager(operators),
        "",
        "## By architecture",
        "",
        "Relative error: max|Δ| / max|reference| of the worst value; a gradient that is zero in exact arithmetic, and",
        "so nothing but rounding, is left out.",
        "",
        *_by_architecture(runs),
        "",
        "## Graph breaks",
        "",
        "All are Dynamo's, of the models' own code.",
        "",
        *_breaks(runs),
        "",
        "## On ONNX Runtime",
        "",
        *_on_ort(operators),
        "",
        *_core(),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _versions() -> dict[str, str]:
    import transformers

    from measure.bench.table import environment

    found = environment()
    return {name: found[name] for name in ("python", "torch", "onnxruntime")} | {
        "transformers": transformers.__version__
    }


def _totals(runs: Sequence[Run], operators: Mapping[str, Reached]) -> list[str]:
    on_ort, in_eager = sum(made.nodes_on_ort for made in runs), sum(made.nodes_in_eager for made in runs)
    kinds = Counter(name for met in operators.values() for name in {kind for kind, _ in met.eager})
    rows = [f"| {name} | {count} |" for name, count in sorted(kinds.items())]
    return [
        f"{len(operators)} operators, {sum(met.on_ort for met in operators.values())} of them on ONNX Runtime. Of",
        f"{on_ort + in_eager} nodes, {on_ort} ran on ONNX Runtime and {in_eager} in eager.",
        "",
        "| in eager | operators |",
        "|---|---|",
        *rows,
        "",
    ]


def _faults(runs: Sequence[Run]) -> list[str]:
    wrong = [f"- {made.title}: {name}: {how}" for made in runs for name, how in made.mismatches.items()]
    failed = [f"- {made.title}: {made.error.splitlines()[0]}" for made in runs if made.error]
    return ["## Wrong or failed", "", *wrong, *failed, ""] if wrong or failed else []


def _in_eager(operators: Mapping[str, Reached]) -> list[str]:
    rows = [
        f"| `{operator}` | {kind} | {reason} | {_directions(met)} | {_some(models)} |"
        for operator, met in operators.items()
        for (kind, reason), models in sorted(met.eager.items())
    ]
    named = [f"| {name} | {why} |" for name, why in CATEGORIES.items()]
    return [
        "What may run there for good; whatever is none of these is missing:",
        "",
        "| exception | why |",
        "|---|---|",
        *named,
        "",
        "| operator | exception | why | direction | architectures |",
        "|---|---|---|---|---|",
        *rows,
    ]


def _by_architecture(runs: Sequence[Run]) -> list[str]:
    return [
        "| architecture | run | nodes on ONNX Runtime | in eager | missing | graphs | breaks | relative error |",
        "|---|---|---|---|---|---|---|---|",
        *(
            f"| {made.architecture} | {made.attention}, {made.mode} | {made.nodes_on_ort} | {made.nodes_in_eager} "
            f"| {_missing(made) or ''} | {len(made.graphs)} | {sum(made.breaks.values()) or ''} | {made.max_rel:.1e} |"
            for made in runs
        ),
    ]


def _missing(made: Run) -> int:
    return sum(
        count
        for graph in made.graphs
        for operator, reasons in graph.eager.items()
        for reason, count in reasons.items()
        if category(operator, reason) == MISSING
    )


def _breaks(runs: Sequence[Run]) -> list[str]:
    found: dict[str, set[str]] = defaultdict(set)
    for made in runs:
        for reason in made.breaks:
            found[reason.splitlines()[0]].add(made.architecture)
    return [
        "| reason | architectures |",
        "|---|---|",
        *(f"| {reason} | {_some(models)} |" for reason, models in sorted(found.items())),
    ]


def _on_ort(operators: Mapping[str, Reached]) -> list[str]:
    return [
        "| operator | direction | architectures |",
        "|---|---|---|",
        *(
            f"| `{operator}` | {_directions(met)} | {_some(met.models)} |"
            for operator, met in operators.items()
            if met.on_ort
        ),
    ]


def _core() -> list[str]:
    verdicts = {str(operator): judge(operator) for operator in core_operators()}
    totals = Counter(_kind(verdict) for verdict in verdicts.values())
    return [
        "## Core ATen",
        "",
        f"What becomes of each of the {len(verdicts)} overloads that torch {torch.__version__} counts as Core ATen and",
        "that write to no argument, by the rules, the decomposition table and torchlib's registry alone.",
        "",
        "| what | operators |",
        "|---|---|",
        *(f"| {kind} | {count} |" for kind, count in sorted(totals.items())),
        "",
        "| operator | what | why, when |",
        "|---|---|---|",
        *(f"| `{operator}` | {_kind(verdict)} | {verdict.why} |" for operator, verdict in verdicts.items()),
    ]


def _kind(verdict: Verdict) -> str:
    return verdict.how if verdict.runs else f"in eager: {verdict.how}"


def _directions(met: Reached) -> str:
    return " and ".join(sorted(met.directions, reverse=True))


def _some(models: Iterable[str]) -> str:
    names = sorted(models)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
