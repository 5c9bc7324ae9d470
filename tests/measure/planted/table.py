"""Rows → docs/results/planted.md and docs/results/planted.json."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from measure.planted.run import Planted, Unplanted

VERDICTS = ("named", "named another", "missed", "no effect", "refused")


def write(output: Path, clean: Sequence[Unplanted], rows: Sequence[Planted], *, seed: int) -> None:
    """The tables, and beside them every row as JSON."""
    output.write_text(text(clean, rows, seed=seed))
    runs = [{key: value for key, value in vars(run).items() if key != "models"} for run in clean]
    faults = [{**asdict(row), "verdict": row.verdict} for row in rows]
    content = json.dumps({"seed": seed, "unplanted": runs, "planted": faults}, indent=1)
    output.with_suffix(".json").write_text(content + "\n")


def text(clean: Sequence[Unplanted], rows: Sequence[Planted], *, seed: int) -> str:
    effective = [row for row in rows if row.wrong]
    right = sum(row.is_right for row in effective)
    lines = [
        "# Faults planted in tiny models",
        "",
        f"Made by `make planted` (seed {seed}). Models of transformers' configurations with random weights, forward",
        "and backward, every node compared; what is planted and how it is judged: `tests/measure/planted/`.",
        "",
        f"- Nothing planted: {len(clean)} runs, {sum(not run.ok for run in clean)} accuse a node or a value.",
        f"- Planted: {sum(not row.refused for row in rows)} faults; {len(effective)} take a value of the model out of "
        f"tolerance; of these the first wrong node is the one that holds the fault in {right}"
        + (f" ({100 * right / len(effective):.1f} %)." if effective else "."),
        "",
        "## Nothing planted",
        "",
        "| family | precision | values | nodes | not compared | accused |",
        "|---|---|---|---|---|---|",
    ]
    for run in clean:
        open_nodes = "; ".join(f"{count}: {reason}" for reason, count in run.reasons.items())
        accused = ", ".join([*run.values_wrong, *run.accused, *run.failed]) or "-"
        matched = f"{run.values.get('match', 0)} match | {run.nodes.get('match', 0)} match"
        lines.append(f"| {run.family} | {run.precision} | {matched} | {open_nodes or '-'} | {accused} |")
    lines += ["", "## Planted", "", *_counts("kind", rows, lambda row: row.site.kind)]
    lines += ["", *_counts("family", rows, lambda row: row.family)]
    lines += ["", *_counts("precision", rows, lambda row: row.precision)]
    odd = [row for row in rows if row.verdict in ("named another", "missed")]
    lines += ["", "Not named:", ""] if odd else []
    lines += [
        f"- {row.family} {row.precision}, {row.site.kind} at {row.site.node} ({row.site.op}): "
        f"{row.named or 'nobody'} is named, {', '.join(row.guilty) or 'no node'} holds it"
        for row in odd
    ]
    return "\n".join(lines) + "\n"


def _counts(what: str, rows: Sequence[Planted], of: Callable[[Planted], str]) -> list[str]:
    """Verdicts by what `of` says of a row. *no effect*: no value and no node is outside tolerance."""
    return counts(what, [(of(row), row.verdict) for row in rows], VERDICTS)


def counts(what: str, rows: Sequence[tuple[str, str]], verdicts: Sequence[str]) -> list[str]:
    """How many of the (name, verdict) have each of the verdicts, a line a name."""
    counted: dict[str, Counter[str]] = {}
    for name, verdict in rows:
        counted.setdefault(name, Counter())[verdict] += 1
    lines = [f"| {what} | {' | '.join(verdicts)} |", "|---" * (len(verdicts) + 1) + "|"]
    return lines + [
        f"| {name} | {' | '.join(str(found[verdict]) for verdict in verdicts)} |"
        for name, found in sorted(counted.items())
    ]
