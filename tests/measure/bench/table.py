"""Timings → docs/bench.md and docs/bench.json."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from measure.bench.timing import Timing

OURS = "rust_ort"
BEST = "ours / best"
WATCHED = {
    "outputs / both": ("outputs compared", ("eager", OURS)),
    "nodes / eager": ("nodes compared", ("eager",)),
    "dumped / ours": ("dumped", (OURS,)),
}
"""{name: (a variant's time, by these variants' times together)}."""
Ratios = dict[tuple[str, str], float]
"""{(case, name of the ratio): ratio}."""


def ratios(row: Mapping[str, Timing]) -> dict[str, float]:
    """Those of WATCHED that the variants have; BEST of others: our time by the best peer's."""
    found = {
        name: row[variant].us / sum(row[other].us for other in others)
        for name, (variant, others) in WATCHED.items()
        if {variant, *others} <= row.keys()
    }
    peers = [timing.us for variant, timing in row.items() if variant != OURS]
    return found or ({BEST: row[OURS].us / min(peers)} if OURS in row and peers else {})


def by_case(timings: Sequence[Timing]) -> dict[str, dict[str, Timing]]:
    rows: dict[str, dict[str, Timing]] = {}
    for timing in timings:
        rows.setdefault(timing.case, {})[timing.variant] = timing
    return rows


def written(path: Path) -> Ratios:
    """Of the document that an earlier run left; {} where there is none."""
    if not path.exists():
        return {}
    timings = [Timing(**{"p90_us": entry["p10_us"], **entry}) for entry in json.loads(path.read_text())["timings"]]
    return {(case, name): value for case, row in by_case(timings).items() for name, value in ratios(row).items()}


def document(timings: Sequence[Timing]) -> str:
    return (
        json.dumps({"environment": environment(), "timings": [asdict(timing) for timing in timings]}, indent=1) + "\n"
    )


def markdown(timings: Sequence[Timing], before: Ratios, *, command: str) -> str:
    """Versions, machine, and a table for each set of variants. before: ratios of the last run that was kept."""
    lines = [
        "# Time of a compiled call",
        "",
        f"Made by `{command}`; the numbers with their tenth and ninetieth percentiles are in bench.json.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "Medians over alternating rounds in one process. *ours / best*: rust_ort's time by that of its best peer, at",
        "most 1.00 where no peer is ahead. Of a step that is watched in every call: outputs compared, by the time of",
        "both rust_ort and eager; nodes compared, by eager's; dumped, by rust_ort's. *before*: the same of the run",
        "that was kept last.",
    ]
    rows = by_case(timings)
    for variants in dict.fromkeys(tuple(row) for row in rows.values()):
        of_these = {case: row for case, row in rows.items() if tuple(row) == variants}
        names = [*ratios(next(iter(of_these.values())))]
        titles = [*variants, *(title for name in names for title in (name, "before"))]
        lines += ["", f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
        for case, row in of_these.items():
            cells = [duration(timing.us) for timing in row.values()]
            for name, value in ratios(row).items():
                cells += [f"{value:.2f}", f"{before[case, name]:.2f}" if (case, name) in before else "-"]
            lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def duration(us: float) -> str:
    return f"{us:.1f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def environment() -> dict[str, str]:
    """Versions, threads and the class of machine, without its name."""
    import onnxruntime

    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    flags = next((line.split() for line in _lines("/proc/cpuinfo") if line.startswith("flags")), [])
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "machine": f"{len(os.sched_getaffinity(0))} cores, {cpu} ({', '.join(known)}), {platform.system()}",
        "threads": f"{torch.get_num_threads()} of torch, as many of ONNX Runtime",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
