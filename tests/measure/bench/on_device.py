"""What `make gpu-check` shows of speed: small calls, a Llama decoder's forward and training step, on a device.

A line of JSON a case, as it is measured: {"case", "us": {variant: microseconds}, "left_out": {variant: why}}.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence

import torch

from measure.bench import calls, models
from measure.bench.timing import Timing
from rust_ort.studies.llama_models import SIZES

Job = tuple[str, tuple[str, ...], Callable[[Sequence[str]], list[Timing]]]
"""(name, its variants, its measuring)."""


def jobs(device: str, *, rounds: int) -> list[Job]:
    # On the CPU it is a rehearsal, which make bench's own sizes would make long.
    size = models.SIZE if device == "cuda" else SIZES["small"]
    small = [
        (case.name, calls.VARIANTS, functools.partial(calls.measure, case, rounds=rounds, spinning=False))
        for case in calls.cases(device)
    ]
    cases = [
        models.Case(part="decoder", way=way, precision=precision, size=size, device=device)
        for precision in ("fp32", "bf16")
        for way in ("forward", "step")
    ]
    return [*small, *((c.name, models.VARIANTS, functools.partial(models.measure, c, rounds=rounds)) for c in cases)]


def unusable(device: str) -> dict[str, str]:
    """{variant: why it cannot be measured here}, of the peers."""
    found = {}
    try:
        torch.compile(lambda x: torch.sin(x) + 1, backend="inductor")(torch.ones(8, device=device))
    except Exception as error:  # inductor has many ways of missing a compiler
        found["inductor"] = f"{type(error).__name__}: {error}"
    torch.compiler.reset()
    import onnxruntime

    if device == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        found["in-process ONNX Runtime"] = "the module onnxruntime has no CUDAExecutionProvider"
    return found


def measured(job: Job, left_out: dict[str, str]) -> dict[str, object]:
    """What is told of a case. Where measuring fails, each variant is tried alone, and those that fail are left out."""
    name, variants, measure = job
    left_out = {variant: why for variant, why in left_out.items() if variant in variants}
    used = [variant for variant in variants if variant not in left_out]
    try:
        timings = measure(used)
    except Exception:  # a peer's fault or ours: the others are to be measured whatever it was
        left_out |= {variant: why for variant in used if (why := _fault(measure, variant))}
        timings = measure([variant for variant in used if variant not in left_out])
    return {"case": name, "us": {timing.variant: timing.us for timing in timings}, "left_out": left_out}


def _fault(measure: Callable[[Sequence[str]], list[Timing]], variant: str) -> str:
    """Why a variant cannot be measured; "" for one that can."""
    try:
        measure([variant])
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.bench.on_device", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--rounds", type=int, help="default 12; 2 on the CPU")
    arguments = parser.parse_args(argv)
    left_out = unusable(arguments.device)
    for job in jobs(arguments.device, rounds=arguments.rounds or (12 if arguments.device == "cuda" else 2)):
        print(json.dumps(measured(job, left_out)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
