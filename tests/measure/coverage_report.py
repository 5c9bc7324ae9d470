"""What the coverage study writes: docs/results/coverage.md for people, coverage.json as the floor that tests hold."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from measure.coverage_item import DYNAMIC_TOGETHER, TOGETHER, VERDICTS, Result
from measure.coverage_sample import FAULTS

Floor = dict[str, dict[str, list[str | None]]]
"""{dtype: {operator: [forward, backward]}}; backward None where OpInfo has none."""

MARKS = {
    "right": "✓",
    "eager": "e",
    "nothing": "·",
    "nondeterministic": "~",
    "untraceable": "u",
    "crashed": "!",
    "wrong": "x",
    None: " ",
}
MEANINGS = {
    "right": "as good as eager, and every node of every graph ran on ONNX Runtime",
    "eager": "as good as eager, but some of it ran in eager: nodes of a graph (those that read no element are not "
    "counted), or what a graph break left outside",
    "nothing": "as good as eager, but no graph computes anything: its outputs are its inputs or views of them",
    "nondeterministic": "eager differs from eager: where memory that nobody wrote has other content, or by how many "
    "numbers there are",
    "untraceable": "torch.compile itself cannot: `aot_eager` fails or differs from eager too, or eager fails",
    "crashed": "the backend raised, died or hung where `aot_eager` works",
    "wrong": "differs from eager where `aot_eager` does not",
}
DIRECTIONS = ("forward", "backward")


def floor(results: Iterable[Result]) -> Floor:
    """The verdicts alone, sorted."""
    found: Floor = {}
    for result in sorted(results, key=lambda result: (result.dtype, result.op)):
        found.setdefault(result.dtype, {})[result.op] = [result.forward, result.backward]
    return found


def floor_text(recorded: Floor) -> str:
    """JSON, an operator a line."""
    dtypes = [
        f" {json.dumps(dtype)}: {{\n"
        + ",\n".join(f"  {json.dumps(op)}: {json.dumps(verdicts)}" for op, verdicts in ops.items())
        + "\n }"
        for dtype, ops in recorded.items()
    ]
    return "{\n" + ",\n".join(dtypes) + "\n}\n"


def worse(recorded: Sequence[str | None], result: Result) -> list[str]:
    """In which directions, and how, a result is worse than recorded."""
    pairs = zip(DIRECTIONS, recorded, (result.forward, result.backward), strict=True)
    return [
        f"{result.op} {result.dtype} {direction}: {now}, recorded {before}; {result.notes or result.eager}"
        for direction, before, now in pairs
        if _rank(now) > _rank(before)
    ]


def _rank(verdict: str | None) -> int:
    return -1 if verdict is None else VERDICTS.index(verdict)


def markdown(results: Sequence[Result], *, command: str, samples: int, dynamic: bool = False) -> str:
    """docs/results/coverage.md."""
    lines = [
        "# Which of torch's operators run on ONNX Runtime",
        "",
        f"Made by `{command}`: {f'up to {samples}' if samples else 'all'} samples of every operator and dtype of",
        f'torch\'s own OpInfo database go through `torch.compile(backend="rust_ort", dynamic={dynamic})` and the',
        "daemon, forward and, where OpInfo has it, backward. An operator's verdict is its worst sample's. As good as",
        "eager: within torch.testing's tolerance, or",
        "no farther from the float64 value than twice eager's own distance plus one ulp.",
        f"Up to {DYNAMIC_TOGETHER if dynamic else TOGETHER} samples share a compiled function; one that is not well is",
        "halved until what is not well stands alone.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in _versions().items()),
        "",
        "| mark | word | meaning |",
        "|---|---|---|",
        *(f"| {MARKS[verdict]} | {verdict} | {meaning} |" for verdict, meaning in MEANINGS.items()),
        "",
        f"{sum(result.samples for result in results)} samples.",
        "",
        *_totals(results),
        *_faults(results),
        "## By operator",
        "",
        "Forward and backward; empty: OpInfo has no such dtype.",
        "",
        *_by_operator(results),
        "",
        "## What runs in eager, and why",
        "",
        *_reasons(results),
        "",
        "## What torch.compile itself cannot",
        "",
        *_untraceable(results),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _versions() -> dict[str, str]:
    from measure.bench.table import environment

    found = environment()
    return {name: found[name] for name in ("python", "torch", "onnxruntime")}


def _totals(results: Sequence[Result]) -> list[str]:
    lines = []
    dtypes = list(dict.fromkeys(result.dtype for result in results))
    for direction in DIRECTIONS:
        lines += [
            f"## {direction.capitalize()}",
            "",
            "Share: right of what is right, eager, wrong or crashed.",
            "",
            f"| dtype | operators | {' | '.join(MEANINGS)} | share |",
            "|---|---|" + "---|" * len(MEANINGS) + "---|",
        ]
        for dtype in dtypes:
            verdicts = [getattr(result, direction) for result in results if result.dtype == dtype]
            counts = Counter(verdict for verdict in verdicts if verdict is not None)
            if counts:
                cells = " | ".join(str(counts[verdict]) for verdict in MEANINGS)
                lines.append(f"| {dtype} | {counts.total()} | {cells} | {share(counts):.1%} |")
        lines.append("")
    return lines


def share(counts: Mapping[Any, int]) -> float:
    """Translated share: right of what torch.compile can do and that computes something."""
    of = counts["right"] + counts["eager"] + counts["wrong"] + counts["crashed"]
    return counts["right"] / of if of else 1.0


def _faults(results: Sequence[Result]) -> list[str]:
    lines = [
        f"- {result.op} {result.dtype}, sample {index} ({shapes}), {direction}: {verdict}: {detail}"
        for result in results
        for index, direction, verdict, shapes, detail in result.notes
        if verdict in FAULTS
    ]
    return ["## Wrong or crashed", "", *lines, ""] if lines else []


def _by_operator(results: Sequence[Result]) -> list[str]:
    dtypes = list(dict.fromkeys(result.dtype for result in results))
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for result in results:
        cells[result.op][result.dtype] = (MARKS[result.forward] + MARKS[result.backward]).strip()
    return [
        f"| operator | {' | '.join(dtypes)} |",
        "|---|" + "---|" * len(dtypes),
        *(f"| {op} | {' | '.join(of.get(dtype, '') for dtype in dtypes)} |" for op, of in sorted(cells.items())),
    ]


def eager_reasons(results: Iterable[Result]) -> list[tuple[str, str, list[str]]]:
    """(operator left to eager, reason, OpInfo's operators that meet it), those met most often first."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in results:
        for _, op, reason in result.eager:
            found[op, short(reason)].add(result.op)
    ordered = sorted(found.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [(op, reason, sorted(ops)) for (op, reason), ops in ordered]


def short(reason: str) -> str:
    """A reason without the names of one graph."""
    reason = re.sub(r"^(ONNX Runtime refused) \S+: .*", r"\1 it", reason, flags=re.DOTALL)
    return reason.replace("|", "\\|")


def _reasons(results: Sequence[Result]) -> list[str]:
    return [
        "| in eager | why | operators | which |",
        "|---|---|---|---|",
        *(
            f"| {op} | {reason} | {len(ops)} | {', '.join(ops[:4])}{', …' if len(ops) > 4 else ''} |"
            for op, reason, ops in eager_reasons(results)
        ),
    ]


def _untraceable(results: Sequence[Result]) -> list[str]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        for _, _, verdict, _, detail in result.notes:
            if verdict == "untraceable" and result.dtype not in found[result.op, _cause(detail)]:
                found[result.op, _cause(detail)].append(result.dtype)
    return [f"- {op} ({', '.join(dtypes)}): {cause}" for (op, cause), dtypes in sorted(found.items())]


def _cause(detail: str) -> str:
    return detail.split(" elements, worst")[0][:160]
