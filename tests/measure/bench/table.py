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
Ratios = dict[str, float]


def ratio(row: Mapping[str, Timing]) -> float | None:
    """Our time by the best peer's: at most 1 where no peer is ahead; None without one of both."""
    peers = [timing.us for variant, timing in row.items() if variant != OURS]
    return row[OURS].us / min(peers) if OURS in row and peers else None


def by_case(timings: Sequence[Timing]) -> dict[str, dict[str, Timing]]:
    rows: dict[str, dict[str, Timing]] = {}
    for timing in timings:
        rows.setdefault(timing.case, {})[timing.variant] = timing
    return rows


def written(path: Path) -> Ratios:
    """{case: ratio} of the document that an earlier run left; {} where there is none."""
    if not path.exists():
        return {}
    timings = [Timing(**{"p90_us": entry["p10_us"], **entry}) for entry in json.loads(path.read_text())["timings"]]
    found = {case: ratio(row) for case, row in by_case(timings).items()}
    return {case: value for case, value in found.items() if value is not None}


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
        "most 1.00 where no peer is ahead; *before*: the same of the run that was kept last.",
    ]
    rows = by_case(timings)
    for variants in dict.fromkeys(tuple(row) for row in rows.values()):
        of_these = {case: row for case, row in rows.items() if tuple(row) == variants}
        lines += ["", f"| | {' | '.join(variants)} | ours / best | before |", "|---" * (len(variants) + 3) + "|"]
        for case, row in of_these.items():
            ours = ratio(row)
            cells = [duration(timing.us) for timing in row.values()]
            cells += ["-" if ours is None else f"{ours:.2f}", f"{before[case]:.2f}" if case in before else "-"]
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
