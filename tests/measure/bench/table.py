"""Timings → docs/results/bench.md and docs/results/bench.json."""

from __future__ import annotations

import itertools
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from measure.bench.memory import Peak
from measure.bench.timing import Timing

OURS = "rust_ort"
FROZEN = "rust_ort frozen"
"""With the option freeze_parameters."""
BEST = "ours / best"
INDUCTOR = "ours / inductor"
FROZEN_BEST = "frozen / best"
OTHERS = {
    "outputs / both": ("outputs compared", ("eager", OURS)),
    "nodes / eager": ("nodes compared", ("eager",)),
    "dumped / ours": ("dumped", (OURS,)),
    "cold / inductor": ("rust_ort cold", ("inductor cold",)),
    "warm / aot_eager": ("rust_ort warm", ("aot_eager",)),
}
"""{name: (a variant's time, by these variants' times together)}, of a watched step and of the first one."""
DEVICE_MEMORY = "device memory"
"""In the names of rows that tell of a GPU's."""
PSS = "The most that all processes of a variant hold together (Pss), in fresh processes:"
OF_GPU = "The most that all processes of a variant hold of the GPU, with their contexts and caches:"
NO_GPU = "What all processes of a variant hold of a GPU: missing, there is none here."
Ratios = dict[tuple[str, str], float]
"""{(case, name of the ratio): ratio}."""


def ratios(row: Mapping[str, Timing]) -> dict[str, float]:
    """Those of OTHERS that the variants have; of other rows our times by the best peer's, and by inductor's."""
    found = {
        name: row[variant].us / sum(row[other].us for other in others)
        for name, (variant, others) in OTHERS.items()
        if {variant, *others} <= row.keys()
    }
    peers = {variant: timing.us for variant, timing in row.items() if variant not in (OURS, FROZEN)}
    if found or OURS not in row or not peers:
        return found
    found[BEST] = row[OURS].us / min(peers.values())
    # A call of microseconds is eager's to win: what a compiler costs there is seen beside another one.
    if "inductor" in peers and len(peers) > 1:
        found[INDUCTOR] = row[OURS].us / peers["inductor"]
    if FROZEN in row:
        found[FROZEN_BEST] = row[FROZEN].us / min(peers.values())
    return found


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


def document(timings: Sequence[Timing], peaks: Sequence[Peak] = ()) -> str:
    found = {"environment": environment(), "timings": [asdict(timing) for timing in timings]}
    if peaks:
        found["memory"] = [asdict(peak) for peak in peaks]
    return json.dumps(found, indent=1) + "\n"


def markdown(
    timings: Sequence[Timing], before: Ratios, *, command: str, peaks: Sequence[Peak] = (), plots: Sequence[str] = ()
) -> str:
    """Versions, machine, and a table for each set of variants. before: ratios of the last run that was kept. plots:
    files beside this one."""
    lines = [
        "# Time of a compiled call",
        "",
        f"Made by `{command}`; the numbers with their tenth and ninetieth percentiles are in bench.json.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "Medians over alternating rounds in one process. *ours / best*: rust_ort's time by that of its best peer, at",
        "most 1.00 where no peer is ahead; *frozen / best*: the same with freeze_parameters. Of a step that is watched",
        "in every call: outputs compared, by the time of both rust_ort and eager; nodes compared, by eager's; dumped,",
        "by rust_ort's. Of n clients, processes of one thread each: the time that passes by call of any of them. Of a",
        "first call, in fresh processes: cold, by inductor's with empty caches; with a warm daemon, by that of Dynamo",
        "and AOTAutograd alone. *before*: the same",
        "of the run that was kept last.",
    ]
    rows = by_case(timings)
    for variants, cases in itertools.groupby(rows, key=lambda case: tuple(rows[case])):
        lines += ["", *_table(variants, {case: rows[case] for case in cases}, before)]
    if peaks:
        of_gpu = [peak for peak in peaks if DEVICE_MEMORY in peak.case]
        if of_host := [peak for peak in peaks if peak not in of_gpu]:
            lines += ["", *_memory_table(PSS, of_host)]
        lines += ["", *(_memory_table(OF_GPU, of_gpu) if of_gpu else [NO_GPU])]
    for plot in plots:
        lines += ["", f"![{Path(plot).stem}]({plot})"]
    return "\n".join(lines) + "\n"


def _table(variants: Sequence[str], rows: Mapping[str, Mapping[str, Timing]], before: Ratios) -> list[str]:
    found = {case: ratios(row) for case, row in rows.items()}
    titles = [*variants, *(title for name in next(iter(found.values())) for title in (name, "before"))]
    lines = [f"| | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for case, row in rows.items():
        cells = [duration(timing.us) for timing in row.values()]
        for name, value in found[case].items():
            cells += [f"{value:.2f}", f"{before[case, name]:.2f}" if (case, name) in before else "-"]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


def _memory_table(title: str, peaks: Sequence[Peak]) -> list[str]:
    rows: dict[str, dict[str, int]] = {}
    for peak in peaks:
        rows.setdefault(peak.case, {})[peak.variant] = peak.bytes
    variants = list(dict.fromkeys(peak.variant for peak in peaks))
    lines = [
        title,
        "",
        f"| GiB | {' | '.join(variants)} | ours / eager |",
        "|---" * (len(variants) + 2) + "|",
    ]
    for case, row in rows.items():
        cells = [f"{row[variant] / 2**30:.2f}" if variant in row else "-" for variant in variants]
        ratio = f"{row[OURS] / row['eager']:.2f}" if {OURS, "eager"} <= row.keys() else "-"
        lines.append(f"| {case} | {' | '.join(cells)} | {ratio} |")
    return lines


def duration(us: float) -> str:
    if us < 1e3:
        return f"{us:.1f} µs"
    return f"{us / 1e3:.1f} ms" if us < 1e7 else f"{us / 1e6:.1f} s"


def environment() -> dict[str, str]:
    """Versions, threads and the class of machine, without its name."""
    import onnxruntime

    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    flags = next((line.split() for line in _lines("/proc/cpuinfo") if line.startswith("flags")), [])
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    instructions = os.environ.get("ONEDNN_MAX_CPU_ISA")
    limited = {"instructions": f"of oneDNN, which torch multiplies with: up to {instructions}"} if instructions else {}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "machine": f"{len(os.sched_getaffinity(0))} cores, {cpu} ({', '.join(known)}), {platform.system()}",
        "threads": f"{torch.get_num_threads()} of torch, as many of ONNX Runtime",
        **limited,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
