"""Rows → docs/results/blame.md and docs/results/blame.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from measure.blame.run import Blamed, Clean
from measure.planted.table import counts

VERDICTS = ("named", "named another", "named nobody", "within tolerance", "named all the same", "refused")


def write(output: Path, clean: Sequence[Clean], rows: Sequence[Blamed], *, seed: int, float64: bool) -> None:
    """The tables, and beside them every row as JSON."""
    output.write_text(text(clean, rows, seed=seed, float64=float64))
    content = {
        "seed": seed,
        "unplanted": [asdict(run) for run in clean],
        "planted": [{**asdict(row), "verdict": row.verdict} for row in rows],
    }
    output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def text(clean: Sequence[Clean], rows: Sequence[Blamed], *, seed: int, float64: bool) -> str:
    counted = [row for row in rows if row.counts]
    right = sum(row.is_right for row in counted)
    share = f" ({100 * right / len(counted):.1f} %)" if counted else ""
    graphs = len({(row.family, row.precision, row.direction) for row in counted})
    planted = (
        f"- Planted: {len(rows)} faults, {len(counted)} of which take a value out of tolerance, in {graphs} graphs; "
        f"the right node is named first in {right}{share}."
    )
    lines = [
        "# Who is blamed",
        "",
        f"Made by `make blame` (seed {seed}): `rust_ort.blame` of models of transformers' configurations with random",
        "weights, forward and backward. What is planted: `tests/measure/planted/faults.py`; how it is judged:",
        "`tests/measure/blame/`. *Named*: the first one blamed is the node that holds the changed ONNX node.",
        *(['Every node is computed in float64, too (`compare_float64="all"`).'] if float64 else []),
        "",
        f"- Nothing planted: {len(clean)} runs, {sum(bool(run.culprit) for run in clean)} blame somebody.",
        *([planted] if rows else []),
        "",
        "## Nothing planted",
        "",
        "| family | precision | values outside tolerance | blamed | seconds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {run.family} | {run.precision} | {', '.join(run.wrong) or '-'} | {run.culprit or 'nobody'}"
        f"{f' ({run.why})' if run.why else ''} | {run.seconds:.0f} |"
        for run in clean
    ]
    if float64:
        n = sum(run.n_nodes for run in clean)
        worse = [f"{run.family} {run.precision} {name}" for run in clean for name in run.worse]
        lines += ["", f"Of {n} nodes {len(worse)} are worse than eager's alone: {', '.join(worse) or 'none'}."]
    if not rows:
        return "\n".join(lines) + "\n"
    lines += ["", "## Planted", "", *_counts("kind", rows, lambda row: row.site.kind)]
    lines += ["", *_counts("precision", rows, lambda row: row.precision)]
    lines += ["", *_counts("direction", rows, lambda row: row.direction)]
    lines += ["", *_counts("what of it", [row for row in counted if row.layer], lambda row: row.layer)]
    # A fault within tolerance that is rightly named is no miss.
    accusing = ("named another", "named nobody", "named all the same")
    odd = [row for row in rows if row.verdict in accusing and not row.is_right]
    lines += ["", "Not named:", ""] if odd else []
    lines += [
        f"- {row.family} {row.precision} {row.direction}, {row.site.kind} at {row.site.node} ({row.site.op}): "
        f"{row.culprit or 'nobody'} is named, {', '.join(row.guilty) or 'no node'} holds it, rank {row.rank or 'none'}"
        for row in odd
    ]
    return "\n".join(lines) + "\n"


def _counts(what: str, rows: Sequence[Blamed], of: Callable[[Blamed], str]) -> list[str]:
    return counts(what, [(of(row), row.verdict) for row in rows], VERDICTS)
