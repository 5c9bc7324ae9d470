"""Time of the first training step of a causal language model in a fresh process, cold and warm, by backend.

Every process has a socket, a state folder and an inductor cache of this study's own, in a temporary folder; the daemons
that it starts are stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measure.home import Home, home

COUNTERS = ("exports", "sessions_built")
SECTIONS = ("inductor cold", "inductor warm", "aot_eager", "rust_ort cold", "rust_ort warm", "rust_ort after stop")
NOTES = {
    "inductor cold": "its caches empty",
    "inductor warm": "its caches filled",
    "aot_eager": "Dynamo + AOTAutograd alone",
    "rust_ort cold": "no daemon, no plans",
    "rust_ort warm": "executor warm, sessions reused",
    "rust_ort after stop": "plans on disk, sessions built anew",
}


@dataclass(frozen=True, kw_only=True)
class FirstCall:
    """One fresh process. seconds: the step; own: rust_ort's part of them; counted: by the daemon's counters."""

    variant: str
    seconds: float
    own: float | None
    exporter: bool
    counted: dict[str, int]


def child(backend: str, size: str) -> dict[str, Any]:
    """The first step in this process. `exporter`: onnxscript, onnx or torch's exporter was loaded."""
    import torch

    import rust_ort
    from rust_ort.studies import llama_models

    study = llama_models.build("causal_lm", replace(llama_models.SIZES[size], layers=2, sequence=128))
    made = rust_ort.Backend() if backend == "rust_ort" else None
    compiled = torch.compile(study.module, backend=made or backend)
    start = time.perf_counter()
    if made is not None:
        import rust_ort.runtime.compilation  # ours too
    imported = time.perf_counter() - start
    compiled(*study.inputs).backward()
    seconds = time.perf_counter() - start
    phases = [graph.seconds for graph in made.graphs] if made is not None else []
    loaded = {"onnxscript", "onnx", "torch.onnx._internal.exporter._core"} & set(sys.modules)
    return {
        "seconds": seconds,
        "own": imported + sum(graph["total"] for graph in phases) if made is not None else None,
        "phases": phases,
        "exporter": bool(loaded),
    }


def first_call(made: Home, variant: str, size: str) -> FirstCall:
    """The first step of a fresh process of this home. Raises CalledProcessError when the process fails."""
    backend = variant.split()[0]
    before = made.counters()
    command = [sys.executable, "-m", __spec__.name, "--child", backend, "--size", size]
    done = subprocess.run(command, env=made.environment(), stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout.splitlines()[-1])
    after = made.counters()
    counted = {name: after.get(name, 0) - before.get(name, 0) for name in COUNTERS}
    return FirstCall(
        variant=variant,
        seconds=said["seconds"],
        own=said["own"],
        exporter=said["exporter"],
        counted=counted if backend == "rust_ort" else {},
    )


def measure(variants: Sequence[str], *, size: str, rounds: int) -> list[FirstCall]:
    """Each variant in `rounds` fresh processes, a fresh home a round."""
    calls = []
    for round_ in range(rounds):
        with home() as made:
            for variant in variants:
                print(f"round {round_ + 1}: {variant} ...", file=sys.stderr, flush=True)
                if variant.endswith("after stop"):
                    made.stop()
                calls.append(first_call(made, variant, size))
    return calls


def markdown(calls: Sequence[FirstCall], *, command: str, size: str) -> str:
    """docs/results/warm-start.md."""
    from measure.bench.table import environment

    lines = [
        "# First call in a fresh process",
        "",
        f"Made by `{command}`. First training step (forward and backward, compilation included) of a LlamaForCausalLM",
        f"of 2 layers, size {size!r}, batch 2 x 128 tokens, without the imports of torch and transformers. Medians of",
        "fresh processes. Own time: what rust_ort adds to Dynamo and AOTAutograd, its imports included.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "| | | first step s | own time s | exports | sessions built | exporter loaded |",
        "|---|---|---|---|---|---|---|",
    ]
    for variant in dict.fromkeys(call.variant for call in calls):
        of = [call for call in calls if call.variant == variant]
        own = [call.own for call in of if call.own is not None]
        counted = [str(statistics.median_high(call.counted[name] for call in of)) if own else "" for name in COUNTERS]
        lines.append(
            f"| {variant} | {NOTES[variant]} | {statistics.median(call.seconds for call in of):.2f} "
            f"| {f'{statistics.median(own):.2f}' if own else ''} | {' | '.join(counted)} "
            f"| {'yes' if any(call.exporter for call in of) else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measure.warm_start", description=__doc__)
    parser.add_argument("--size", choices=("full", "small"), default="full")
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each variant")
    parser.add_argument("--variants", default=",".join(SECTIONS), help="comma separated, in the order of their runs")
    parser.add_argument("--output", type=Path, help="markdown file")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(child(arguments.child, arguments.size)))
        return 0
    variants = tuple(arguments.variants.split(","))
    unknown = set(variants) - set(SECTIONS)
    if unknown or arguments.rounds < 1:
        parser.error(f"unknown variants {sorted(unknown)}; known: {', '.join(SECTIONS)}; rounds must be at least 1")
    calls = measure(variants, size=arguments.size, rounds=arguments.rounds)
    text = markdown(calls, command="PYTHONPATH=tests python -m measure.warm_start", size=arguments.size)
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
