"""CPU seconds of compiling a Llama's training step in fresh processes, by its layers: ours beside torch's own.

Every process has a socket and a state folder of this study's own, in a temporary folder; the daemons that it starts are
stopped. CPU seconds are counted, not time that passes: other work on the machine changes them less.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure.home import Home, home

VARIANTS = {
    "cold": "no daemon, no plans",
    "warm": "executor warm, sessions reused",
    "after stop": "plans on disk, sessions built anew",
}
OURS = ("_compile_aot_graph", "_compile_name", "input_sources")
"""Functions of runtime.compilation that are all ours; beside them what it times by phase, and its import."""


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One fresh process. nodes: compute nodes of all graphs. CPU seconds: of this package in the process, of its daemon
    and executor, and of Dynamo and AOTAutograd; a later step's are taken off, which is the call's own."""

    layers: int
    variant: str
    nodes: int
    client: float
    served: float
    torchs: float

    @property
    def ratio(self) -> float:
        """All that is ours by what is torch's."""
        return (self.client + self.served) / self.torchs


class _Clock:
    """CPU seconds inside functions of ours; one called by another counts once. `collecting`: of Python's searches for
    garbage, which are nobody's: they go over all objects of the process, a fifth of a second once torch is loaded, and
    in whose turn one falls is chance."""

    def __init__(self) -> None:
        self.seconds, self.collecting = 0.0, 0.0
        self._inside, self._since = False, 0.0
        gc.callbacks.append(self._collection)

    def _collection(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._since = time.process_time()
            return
        spent = time.process_time() - self._since
        self.collecting += spent
        if self._inside:
            self.seconds -= spent

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, start = True, time.process_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.process_time() - start
                self._inside = False

        return run


def child(layers: int) -> dict[str, float]:
    """The first step in this process, and a second."""
    import torch

    warm = torch.compile(lambda x: x * 2, backend="aot_eager")  # loads what a compilation loads, whoever is the backend
    warm(torch.ones(2, requires_grad=True)).sum().backward()
    clock = _Clock()
    rust_ort = clock.counted(importlib.import_module)("rust_ort")
    from rust_ort.studies import llama_models

    torch.set_num_threads(1)
    size = llama_models.Size(hidden=128, heads=4, intermediate=256, vocabulary=256, layers=layers, sequence=64)
    study = llama_models.build("causal_lm", replace(size, batch=2))
    backend = rust_ort.Backend()
    compiled = torch.compile(study.module, backend=backend)

    def patched() -> None:
        from rust_ort.runtime import compilation, kept_plans
        from rust_ort.runtime.dynamo_graph import Compilation

        for name in OURS:
            setattr(compilation, name, clock.counted(getattr(compilation, name)))
        Compilation.readable = clock.counted(Compilation.readable)  # type: ignore[method-assign]
        kept_plans.decomposition_table = clock.counted(kept_plans.decomposition_table)

    def step() -> tuple[float, float]:
        before, start, collecting = _served(), time.process_time(), clock.collecting
        compiled(*study.inputs).backward()
        return time.process_time() - start - (clock.collecting - collecting), _served() - before

    clock.counted(patched)()
    imported = clock.seconds
    first, second = step(), step()
    return {
        "nodes": sum(graph.compute_nodes for graph in backend.graphs),
        "client": clock.seconds,
        "served": max(first[1] - second[1], 0.0),
        "torchs": first[0] - second[0] - (clock.seconds - imported),
    }


def _served() -> float:
    """CPU seconds of the daemon of this socket and its executors; 0.0 where there is none."""
    from rust_ort.link.daemon import find_binary

    done = subprocess.run([find_binary(), "status", "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return 0.0
    parents = {pid: stat[1] for pid in filter(str.isdigit, os.listdir("/proc")) if (stat := _stat(pid))}
    served = {str(json.loads(done.stdout)["daemon"]["pid"])}
    while found := {pid for pid, parent in parents.items() if parent in served} - served:
        served |= found
    ticks = sum(int(number) for pid in served if (stat := _stat(pid)) for number in stat[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: str) -> list[str]:
    """Fields of /proc/PID/stat from the state on; none of a process that ended."""
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def compiled(made: Home, layers: int, variant: str) -> Compile:
    """A fresh process of this home. Errors: CalledProcessError when it fails."""
    command = [sys.executable, "-m", __spec__.name, "--child", "--layers", str(layers)]
    environment = {**made.environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Compile(layers=layers, variant=variant, **json.loads(done.stdout.splitlines()[-1]))


def measure(layers: Sequence[int], *, rounds: int) -> list[Compile]:
    """Each variant in `rounds` fresh processes, a fresh home for each number of layers."""
    import rust_ort

    compileall.compile_dir(Path(rust_ort.__file__).parent, quiet=1)  # installed, a package has its bytecode
    found = []
    for n in [n for _ in range(rounds) for n in layers]:
        with home() as made:
            for variant in VARIANTS:
                print(f"{n} layers: {variant} ...", file=sys.stderr, flush=True)
                if variant == "after stop":
                    made.stop()
                found.append(compiled(made, n, variant))
    return found


def markdown(found: Sequence[Compile], *, command: str) -> str:
    """docs/results/compile-time.md."""
    from measure.bench.table import environment

    lines = [
        "# CPU time of a compilation",
        "",
        f"Made by `{command}`.",
        "First training step of a LlamaForCausalLM, hidden size 128, batch 2 x 64 tokens, in fresh processes of one",
        "thread. CPU seconds, medians. Ours: this package's in the process (its imports included), and those of daemon",
        "and executor, which build the sessions; torch's own: Dynamo and AOTAutograd. What a later step takes is taken",
        "off, and so are Python's searches for garbage, which go over torch's objects in whoever's turn they fall.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "| layers | nodes | | | ours s | daemon and executor s | torch's own s | ours / torch's | with daemon |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for layers, variant in dict.fromkeys((one.layers, one.variant) for one in found):
        of = [one for one in found if (one.layers, one.variant) == (layers, variant)]
        client, served, torchs = (statistics.median(getattr(x, n) for x in of) for n in ("client", "served", "torchs"))
        ratios = statistics.median(one.client / one.torchs for one in of), statistics.median(one.ratio for one in of)
        lines.append(
            f"| {layers} | {of[0].nodes} | {variant} | {VARIANTS[variant]} | {client:.2f} | {served:.2f} "
            f"| {torchs:.2f} | {ratios[0]:.3f} | {ratios[1]:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measure.compile_time", description=__doc__)
    parser.add_argument("--layers", default="8,32,64", help="comma separated")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each variant")
    parser.add_argument("--output", type=Path, help="markdown file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    layers = [int(number) for number in arguments.layers.split(",")]
    if arguments.child:
        print(json.dumps(child(*layers)))
        return 0
    found = measure(layers, rounds=arguments.rounds)
    chosen = ("layers", "rounds")
    given = [f" --{name} {value}" for name in chosen if (value := getattr(arguments, name)) != parser.get_default(name)]
    text = markdown(found, command=f"PYTHONPATH=tests python -m measure.compile_time{''.join(given)}")
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
