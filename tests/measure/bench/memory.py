"""Memory of a training step: the most that all of a variant's processes hold together, in fresh processes.

Pss, so that a page which several processes map counts once. Of the first step, compilation included, and of later ones.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.home import Home, home
from rust_ort.studies.gpu.device import pss

NAME = "memory"
VARIANTS = ("eager", "inductor", "rust_ort")
SIZES = {
    "full": {"hidden": 1024, "heads": 16, "intermediate": 2816, "vocabulary": 32_000, "layers": 16, "batch": 1,
             "sequence": 256},
    "small": {"hidden": 64, "heads": 4, "intermediate": 96, "vocabulary": 128, "layers": 2, "batch": 1, "sequence": 32},
}  # fmt: skip
"""Of llama_models.Size: 271 M parameters, and of a test."""
LATER_STEPS = 3
PERIOD_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Peak:
    """bytes: median over fresh processes."""

    case: str
    variant: str
    bytes: int
    rounds: int


def measure(variants: Sequence[str] = VARIANTS, *, rounds: int, size: str = "full") -> list[Peak]:
    """Each variant in `rounds` fresh processes. Errors: RuntimeError when one ends before it is done."""
    found: dict[tuple[str, str], list[int]] = {}
    for _ in range(rounds):
        for variant in variants:
            with home() as made:
                for step, peak in _of_processes(made, variant, size).items():
                    found.setdefault((step, variant), []).append(peak)
    steps = dict.fromkeys(step for step, _ in found)
    return [
        Peak(case=f"{NAME}, {step}", variant=variant, bytes=int(statistics.median(of)), rounds=len(of))
        for step in steps
        for variant in variants
        if (of := found.get((step, variant)))
    ]


def _of_processes(made: Home, variant: str, size: str) -> dict[str, int]:
    """{which step: the peak} of one fresh process and of those that it started."""
    command = [sys.executable, "-m", __spec__.name, variant, size]
    child = subprocess.Popen(command, env=made.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    peaks = {}
    try:
        for line in child.stdout:
            step = line.strip()
            with Watch(made, child.pid) as watch:
                child.stdin.write("go\n")
                child.stdin.flush()
                if child.stdout.readline().strip() != "done":
                    break
            peaks[step] = watch.peak
    finally:
        child.stdin.close()
        if child.wait() != 0:
            raise RuntimeError(f"a process of the bench ended with {child.returncode}; stderr says why")
    return peaks


class Watch:
    """Inside, looks at what a process and a home's daemon and executors hold, over and over. peak: the most, bytes."""

    def __init__(self, made: Home, pid: int) -> None:
        self.peak = 0
        self._folder = str(made.folder)
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            ended = self._over.wait(PERIOD_S)
            self.peak = max(self.peak, sum(map(pss, self._processes())))
            if ended:
                return

    def _processes(self) -> list[int]:
        """The process, its children, and whatever else has the home's folder in its environment."""
        found = [self._pid]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self._pid:
                try:
                    inside = self._folder.encode() in (entry / "environ").read_bytes()
                except OSError:  # another user's, or gone
                    continue
                if inside:
                    found.append(int(entry.name))
        return found


def child(variant: str, size: str) -> None:
    """Trains, each step when it is told to."""
    import torch

    import rust_ort
    from rust_ort.studies import llama_models

    study = llama_models.build("causal_lm", llama_models.Size(**SIZES[size]))
    module: Any = study.module
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    backend: Any = rust_ort.Backend() if variant == "rust_ort" else variant  # from sources no name is known
    call = module if variant == "eager" else torch.compile(module, backend=backend)

    def step() -> None:
        call(*study.inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    def told(what: str, n: int) -> None:
        print(what, flush=True)
        sys.stdin.readline()
        for _ in range(n):
            step()
        print("done", flush=True)

    told("the first training step", 1)
    step()  # what the first one left is given back, and buffers come to stay
    time.sleep(0.1)
    told("a training step", LATER_STEPS)


if __name__ == "__main__":
    child(*sys.argv[1:])
