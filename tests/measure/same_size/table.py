"""Rows → docs/results/same-size.md and .json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from measure.planted.table import counts
from measure.same_size.run import Measured

VERDICTS = ("candidate_worse", "noise", "reference_worse", "ill_conditioned")


def matched(faults: Sequence[Measured], clean: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    """Each fault with a run without one, used once, whose largest error is the next at or above the fault's; the
    largest faults choose first. Errors: ValueError where none is as large."""
    left = list(clean)
    pairs = {}
    for index in sorted(range(len(faults)), key=lambda index: -faults[index].error):
        larger = [run for run in left if run.error >= faults[index].error]
        if not larger:
            raise ValueError(f"no rounding is as large as {faults[index].error} of {faults[index].place}")
        # Of its own operator where there is one.
        own = [run for run in larger if run.place == faults[index].place]
        pairs[index] = min(own or larger, key=lambda run: run.error)
        left.remove(pairs[index])
    return [(fault, pairs[index]) for index, fault in enumerate(faults)]


def write(
    output: Path, dtype: str, pairs: Sequence[tuple[Measured, Measured]], clean: Sequence[Measured],
    faults: Sequence[Measured], *, seed: int,
) -> None:  # fmt: skip
    """The tables, and beside them every row as JSON."""
    output.write_text(text(dtype, pairs, clean, faults, seed=seed))
    content = {
        "seed": seed,
        "dtype": dtype,
        "noise": [{**asdict(run), "kind": run.kind} for run in clean],
        "faults": [{**asdict(run), "kind": run.kind} for run in faults],
    }
    output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")


def text(
    dtype: str, pairs: Sequence[tuple[Measured, Measured]], clean: Sequence[Measured], faults: Sequence[Measured], *,
    seed: int,
) -> str:  # fmt: skip
    accused = sum(fault.node in fault.worse for fault, _ in pairs)
    acquitted = sum(noise.kind != "candidate_worse" for _, noise in pairs)
    all_accused = sum(fault.node in fault.worse for fault in faults)
    others = sum(name != fault.node for fault in faults for name in fault.worse)
    worse = sum(len(run.worse) for run in clean)
    lines = [
        "# Faults no larger than rounding",
        "",
        f"Made by `make same-size` (seed {seed}): functions of one operator in {dtype}, forward and backward, compared",
        'under `compare="nodes", compare_float64="all"`. What is planted, by `tests/measure/same_size/faults.py`, is',
        "0.2 to 0.5 of the largest error that rounding makes of the value. Each fault has a partner without one whose",
        "largest error is the next at or above its own, so that largest errors tell nothing. *rms*, *mean*: of the",
        "errors, in steps of the type; *beyond*: elements that are off by more than one rounding explains",
        "(`src/compare/rounding.rs`). *Reference worse*: eager's own kernel rounds in the middle, and a fault that is",
        "smaller than that hides behind it.",
        "",
        f"- Of {len(pairs)} faults {accused} are accused (candidate worse at the node); of {len(pairs)} partners",
        f"  {acquitted} are acquitted.",
        f"- All faults, each kind at each place: {all_accused} of {len(faults)} accused, and {others} other nodes of",
        "  their runs.",
        f"- All {len(clean)} runs without one: {sum(run.n_nodes for run in clean)} nodes, of which {worse} are accused"
        f"{_named(clean)}.",
        "",
        "| fault | at | largest error | rms | mean | beyond | verdict | partner | largest error | rms | mean | beyond"
        " | verdict |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for fault, noise in pairs:
        assert fault.fault is not None
        lines.append(
            f"| {fault.fault.kind} | {fault.place} {fault.direction} | {_numbers(fault)} | "
            f"{noise.place} {noise.direction} | {_numbers(noise)} |"
        )
    told = [(run.fault.kind, run.kind) for run in faults if run.fault is not None]
    lines += ["", "Every fault:", "", *counts("kind", told, VERDICTS)]
    lines += ["", *counts("place", [(f"{run.place} {run.direction}", run.kind) for run in faults], VERDICTS)]
    lines += ["", "Nothing planted:", ""]
    lines += counts("place", [(f"{run.place} {run.direction}", run.kind) for run in clean], VERDICTS)
    return "\n".join(lines) + "\n"


def _named(clean: Sequence[Measured]) -> str:
    names = sorted({f"{run.place} {run.direction} {name}" for run in clean for name in run.worse})
    return f" ({', '.join(names)})" if names else ""


def _numbers(run: Measured) -> str:
    rounding = run.noise["rounding"]
    rms, mean = (float(rounding[f"candidate_{what}"]) for what in ("rms", "bias"))
    beyond = f"{rounding['candidate_beyond']} of {rounding['n']}"
    return f"{run.error:.2e} | {rms:.2f} | {mean:+.2f} | {beyond} | {run.kind.replace('_', ' ')}"
