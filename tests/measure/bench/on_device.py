"""What `make gpu-check` shows of speed and memory: small calls, a causal LM's step and forward, on a device.

Each variant is a process of its own with a daemon of its own; rounds alternate between them. What a variant's processes
hold of the device is what is in use more than before it came there, while the others wait.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from measure.bench.memory import Peak
from measure.bench.variant import CAPTURED, EAGER, IN_PROCESS, INDUCTOR, OURS
from measure.home import Home, home
from rust_ort.studies.gpu.device import used_bytes
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Numbers, Record, short
from rust_ort.studies.llama_models import Size

LARGE = Size(hidden=2048, heads=32, intermediate=5632, vocabulary=32_000, layers=4, batch=2, sequence=2048)
MIDDLE = Size(hidden=512, heads=8, intermediate=2000, vocabulary=32_000, layers=2, batch=2, sequence=1024)
TINY = Size(hidden=64, heads=4, intermediate=96, vocabulary=128, layers=2, batch=2, sequence=32)
"""For a rehearsal on the CPU."""
CLOSE = {"fp32": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
"""Of losses and results, by the largest of eager's."""
GIB = 1 << 30
LOOK_S = 0.002
CORES_TO_START_ALL = 8
ANSWER_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """size: of a causal LM; None for one of calls.cases. ways: what of it is shown, a row each. rounds, calls: how many
    of each variant, and in each. least_s: with less time it is not begun. goals: {way: (peer, ours at most by
    that)}."""

    name: str
    variants: tuple[str, ...]
    ways: tuple[str, ...]
    size: Size | None = None
    precision: str = "fp32"
    rounds: int
    calls: int
    least_s: float = 5.0
    goals: dict[str, tuple[str, float]] = field(default_factory=dict)

    def json(self) -> str:
        size = None if self.size is None else dataclasses.asdict(self.size)
        return json.dumps({"name": self.name, "size": size, "precision": self.precision})

    def row(self, way: str) -> str:
        return self.name if way == "call" else f"{self.name}: {way}"


MEMORY = "device memory of all processes, step"
LM_GOALS = {"step": (EAGER, 1.0), "forward": (EAGER, 1.0), MEMORY: (EAGER, 1.2)}


def cases(device: str) -> list[Case]:
    """What matters most first."""
    # Ours before its peer: of a device that is too small for all, the last one lacks memory.
    lm = (EAGER, INDUCTOR, OURS, IN_PROCESS) if device == "cuda" else (EAGER, OURS)

    def of(size: Size, precision: str, *ways: str) -> Case:
        name = f"causal LM {size.layers} x {size.hidden}, ({size.batch}, {size.sequence}), {precision}"
        rounds, calls = (7, 2) if device == "cuda" else (2, 1)
        return Case(name=name, variants=lm, ways=ways, size=size, precision=precision, rounds=rounds, calls=calls,
                    least_s=10, goals=LM_GOALS)  # fmt: skip

    rounds, calls = (15, 100) if device == "cuda" else (3, 20)
    small = [
        Case(name=name, variants=(EAGER, INDUCTOR, IN_PROCESS, OURS, CAPTURED), ways=("call",), rounds=rounds,
             calls=calls, goals={"call": (INDUCTOR, 1.2)})
        for name in ("Add of 10", "MLP 32x512")
    ]  # fmt: skip
    if device == "cpu":
        return [*small, of(TINY, "bf16", "step", "forward", MEMORY)]
    return [
        of(LARGE, "bf16", "step", "forward", MEMORY),
        *small,
        of(MIDDLE, "bf16", "step"),
        of(LARGE, "fp16", "step", "forward", MEMORY),
        of(LARGE, "fp32", "step", "forward", MEMORY),
        of(MIDDLE, "fp16", "step"),
        of(MIDDLE, "fp32", "step"),
    ]


# --- processes of variants -------------------------------------------------------------------------------------------


class Variant:
    """A process that measures one variant, and its daemon's home."""

    def __init__(self, case: Case, variant: str, device: str, made: Home) -> None:
        self.name = variant
        self._home = made
        command = [sys.executable, "-m", "measure.bench.variant", variant, device, case.json()]
        self._process = subprocess.Popen(
            command, env=made.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._imported = False
        self.fault = ""

    def ask(self, do: str, **asked: Any) -> dict[str, Any]:
        """Errors: VariantFailed, and at each later call."""
        if self.fault:
            raise VariantFailed(self.fault)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **asked}) + "\n")
            self._process.stdin.flush()
        if not self._imported:
            self._answer()
            self._imported = True
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(ANSWER_S, self._process.kill)
        watchdog.start()
        line = self._process.stdout.readline()
        watchdog.cancel()
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"it ended with {self._process.wait()}"}
        if "error" in answer:
            self.fault = short(answer["error"])
            raise VariantFailed(self.fault)
        return answer

    def end(self) -> None:
        """Its processes give the device back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._home.stop()


class VariantFailed(Exception):
    """A variant cannot be measured; the text says why."""


class Fleet:
    """All variants of a case."""

    def __init__(self, case: Case, device: str, stack: contextlib.ExitStack) -> None:
        self._case, self._device = case, device
        self._variants = [
            Variant(case, variant, device, stack.enter_context(home()))
            for variant in case.variants
            if device == "cuda" or variant != CAPTURED
        ]
        for variant in self._variants:
            stack.callback(variant.end)
        self._first_s: dict[str, dict[str, float]] = {}
        self.bytes: dict[str, int] = {}

    def _able(self) -> list[Variant]:
        return [variant for variant in self._variants if not variant.fault]

    def timed(self, way: str, numbers: Numbers) -> None:
        """Errors: CheckFailed where our variant fails, or gives another result than eager."""
        results = self.begin(way)
        spans: dict[str, dict[str, list[float]]] = {variant.name: {} for variant in self._able()}
        for round_ in range(self._case.rounds):
            for variant in self._able() if round_ % 2 == 0 else reversed(self._able()):
                with contextlib.suppress(VariantFailed):
                    for name, us in variant.ask("round", way=way, n=self._case.calls).items():
                        spans[variant.name].setdefault(name, []).append(us)
        medians = {
            variant.name: {name: statistics.median(us) for name, us in spans[variant.name].items()}
            for variant in self._able()
        }
        for name, found in medians.items():
            numbers |= shown(name, found, way)
        queued = {name: found["queued"] for name, found in medians.items()}
        self._told(numbers, way, queued)
        first = ", ".join(f"{name} {seconds:.2g}" for name, seconds in self._first_s[way].items())
        numbers["first call, s"] = first
        self._judge(results, numbers)

    def begin(self, way: str) -> dict[str, list[list[float]]]:
        """{variant: what its first calls gave}, one variant after the other: what it takes of the device is its own.
        Fills in `bytes` by a step."""
        results: dict[str, list[list[float]]] = {}
        self._first_s[way] = {}
        for variant in self._able():
            with contextlib.suppress(VariantFailed), Watch(self._device) as watch:
                variant.ask("prepare")
                found = variant.ask("first", way=way)
                self._first_s[way][variant.name] = found["s"]
                later = variant.ask("again", way=way, n=2)
                results[variant.name] = [found["result"], later["result"]]
            if way == "step":
                self.bytes[variant.name] = watch.more
        return results

    def _judge(self, results: dict[str, list[list[float]]], numbers: Numbers) -> None:
        for variant in self._variants:
            if variant.fault and variant.name not in (OURS, CAPTURED):
                numbers[f"{variant.name} not measured"] = variant.fault
        expected = results.get(EAGER)
        for variant in self._variants:
            if variant.name in (OURS, CAPTURED):
                if variant.fault:
                    raise CheckFailed(f"{variant.name}: {variant.fault}")
                if expected and not close(results[variant.name], expected, CLOSE[self._case.precision]):
                    raise CheckFailed(f"{variant.name} gives {results[variant.name]}, eager {expected}")

    def _told(self, numbers: Numbers, way: str, of: dict[str, float]) -> None:
        """Ours by the peers', and the goal."""
        if OURS not in of:
            return
        for peer in (EAGER, INDUCTOR):
            if of.get(peer):
                numbers[f"ours / {peer}"] = of[OURS] / of[peer]
        peer, most = self._case.goals[way]
        if of.get(peer) and self._device == "cuda":
            numbers[f"goal: at most {most:g} x {peer}"] = "met" if of[OURS] <= most * of[peer] else "missed"

    def memory(self, numbers: Numbers) -> None:
        """Errors: MissingHere; CheckFailed where no step of ours ran."""
        if self._device != "cuda":
            raise MissingHere("memory of a device needs a GPU")
        if not self.bytes:
            self.begin("step")
        found = {variant.name: self.bytes[variant.name] for variant in self._able() if variant.name in self.bytes}
        if OURS not in found:
            raise CheckFailed("no step of rust_ort ran; the row of the step says why")
        numbers |= {f"{name} GiB": n / GIB for name, n in found.items()}
        self._told(numbers, MEMORY, {name: float(n) for name, n in found.items()})


class Watch:
    """Inside, looks at what is in use on the device over and over. more: the most, less what was in use before."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.more = 0

    def __enter__(self) -> Watch:
        if self._device == "cuda":
            self._before = used_bytes(self._device)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._device == "cuda":
            self._over.set()
            self._thread.join()

    def _look(self) -> None:
        while True:
            ended = self._over.wait(LOOK_S)
            self.more = max(self.more, used_bytes(self._device) - self._before)
            if ended:
                return


def shown(name: str, us: dict[str, float], way: str) -> Numbers:
    """Of a small call all three times; of a model's, which queues no further than its own length, one."""
    if way == "call":
        return {
            f"{name}, µs host / queued / synced": " / ".join(f"{us[key]:.3g}" for key in ("host", "queued", "synced"))
        }
    return {f"{name} ms": us["queued"] / 1e3}


def close(found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]], part: float) -> bool:
    """Within this part of the largest element."""
    pairs = [(a, b) for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True)]
    allowed = part * max(abs(b) for _, b in pairs)
    return all(math.isfinite(a) and abs(a - b) <= allowed for a, b in pairs)


def run(record: Record, device: str) -> None:
    """A row for each way of each case. Where there are cores for it, all processes start first and import at once."""
    left = [case for case in cases(device) if any(record.lacks(case.row(way)) for way in case.ways)]
    at_once = len(os.sched_getaffinity(0)) >= CORES_TO_START_ALL
    with contextlib.ExitStack() as every:
        stacks = [every.enter_context(contextlib.ExitStack()) for _ in left]
        ready = [Fleet(case, device, stack) if at_once else None for case, stack in zip(left, stacks, strict=True)]
        for case, stack, fleet in zip(left, stacks, ready, strict=True):
            with stack:
                for way in case.ways:
                    if record.needs(case.row(way), case.least_s):
                        fleet = fleet or Fleet(case, device, stack)
                        record.row(case.row(way), fleet.memory if way == MEMORY else partial(fleet.timed, way))


def peaks() -> list[Peak]:
    """What each variant's processes hold of the GPU in a step of the large model under autocast to bfloat16; of those
    that can be measured."""
    case = next(case for case in cases("cuda") if MEMORY in case.ways)
    with contextlib.ExitStack() as stack:
        fleet = Fleet(case, "cuda", stack)
        fleet.begin("step")
        return [Peak(case=case.row(MEMORY), variant=name, bytes=n, rounds=1) for name, n in fleet.bytes.items()]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.bench.on_device", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--record", type=Path, required=True, help="file of rows")
    parser.add_argument("--until", type=float, default=math.inf, help="by time.monotonic()")
    arguments = parser.parse_args(argv)
    run(Record(arguments.record, arguments.until), arguments.device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
