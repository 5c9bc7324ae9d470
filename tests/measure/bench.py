"""Time of a compiled call: eager, inductor, ONNX Runtime in the process over the same ONNX, rust_ort.

Rounds alternate between the variants, so that a machine that gets slower is slower for all. Every variant's result is
held against eager's before it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

ROUND_SECONDS = 0.03


class InProcess:
    """A torch.compile backend: our export, onnxruntime's Python session, io-binding and DLPack, no copy."""

    def __init__(self, *, threads: int | None = None, spinning: bool = False) -> None:
        self.threads = threads
        self.spinning = spinning

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        from rust_ort.export import decompositions
        from rust_ort.torch_private import aot_autograd

        backend = aot_autograd(fw_compiler=self._compile, decompositions=decompositions.table())
        compiled: Callable[..., Any] = backend(gm, inputs)
        return compiled

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        import onnxruntime
        from functorch.compile import make_boxed_func

        from rust_ort.export.partition import Support, partition
        from rust_ort.export.translate import translate

        cut = partition(gm, Support())
        if len(cut.parts) != 1 or cut.eager:
            raise RuntimeError(f"the bench wants one part and nothing in eager, got {cut.parts_json()}")
        part = cut.parts[0].module
        translated = translate(part, name="bench")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads or 0
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(self.spinning)))
        session = onnxruntime.InferenceSession(translated.model, options, providers=["CPUExecutionProvider"])
        placeholders = [node.name for node in cut.outer.graph.nodes if node.op == "placeholder"]
        used = [(name, placeholders.index(name)) for name in translated.input_names]
        outputs = [(name, _meta(cut.module, name)) for name in translated.output_names]

        def call(*tensors: Tensor) -> list[Tensor]:
            binding = session.io_binding()
            for name, position in used:
                binding.bind_ortvalue_input(name, onnxruntime.OrtValue.from_dlpack(tensors[position].detach()))
            results = []
            for name, (shape, dtype) in outputs:
                result = torch.empty(shape, dtype=dtype)
                binding.bind_ortvalue_output(name, onnxruntime.OrtValue.from_dlpack(result))
                results.append(result)
            session.run_with_iobinding(binding)
            return results

        boxed: Callable[..., Any] = make_boxed_func(call)
        return boxed


def _meta(gm: fx.GraphModule, name: str) -> tuple[tuple[int, ...], torch.dtype]:
    value = next(node for node in gm.graph.nodes if node.name == name).meta["val"]
    return tuple(value.shape), value.dtype


@dataclass(frozen=True, kw_only=True)
class Case:
    """One function and its inputs."""

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]


def cases() -> list[Case]:
    """Add of 10 floats; a perceptron of two 512 x 512 layers on 1 and on 32 rows. float32."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval()
    add = Case(name="Add of 10", function=torch.add, inputs=tuple(torch.randn(2, 10, generator=generator).unbind()))
    rows = [
        Case(name=f"MLP {n}x512", function=mlp, inputs=(torch.randn(n, 512, generator=generator),)) for n in (1, 32)
    ]
    return [add, *rows]


VARIANTS = ("eager", "inductor", "in-process ONNX Runtime", "rust_ort")


def compiled(variant: str, case: Case, *, spinning: bool) -> Callable[..., Tensor]:
    """`case.function` under `variant`. Eager runs as it is."""
    if variant == "eager":
        return case.function

    def function(*inputs: Tensor) -> Tensor:  # torch.add itself is no code that Dynamo traces
        return case.function(*inputs)

    # Dynamo's cache hangs on the code object: with one of its own, no variant looks through the others' entries first.
    function.__code__ = function.__code__.replace(co_name=variant.replace("-", "_").replace(" ", "_"))
    import rust_ort

    backends: dict[str, Any] = {
        "inductor": "inductor",
        "in-process ONNX Runtime": InProcess(spinning=spinning),
        "rust_ort": rust_ort.Backend(),
    }
    call: Callable[..., Tensor] = torch.compile(function, backend=backends[variant], fullgraph=True, dynamic=False)
    return call


@dataclass(frozen=True, kw_only=True)
class Timing:
    """us: median over rounds of a round's mean. p10_us: the tenth percentile of the rounds."""

    case: str
    variant: str
    us: float
    p10_us: float
    rounds: int
    calls_per_round: int


def measure(case: Case, variants: Sequence[str], *, rounds: int, spinning: bool) -> list[Timing]:
    """Each variant's time, in alternating rounds. Raises AssertionError when a result differs from eager's."""
    torch.compiler.reset()
    expected = case.function(*case.inputs)
    calls, counts = {}, {}
    for variant in variants:
        call = compiled(variant, case, spinning=spinning)
        torch.testing.assert_close(call(*case.inputs), expected)
        begin = time.perf_counter()
        for _ in range(20):
            call(*case.inputs)
        counts[variant] = max(10, int(ROUND_SECONDS / ((time.perf_counter() - begin) / 20)))
        calls[variant] = call
    means: dict[str, list[float]] = {variant: [] for variant in variants}
    for round_ in range(rounds):
        order = variants if round_ % 2 == 0 else tuple(reversed(variants))
        for variant in order:
            means[variant].append(_round_us(calls[variant], case.inputs, counts[variant]))
    return [
        Timing(
            case=case.name,
            variant=variant,
            us=statistics.median(values),
            p10_us=sorted(values)[len(values) // 10],
            rounds=rounds,
            calls_per_round=counts[variant],
        )
        for variant, values in means.items()
    ]


def _round_us(call: Callable[..., Tensor], inputs: tuple[Tensor, ...], n: int) -> float:
    for _ in range(max(3, n // 20)):  # the first calls after another variant's round pay for its caches
        call(*inputs)
    begin = time.perf_counter()
    for _ in range(n):
        call(*inputs)
    return (time.perf_counter() - begin) / n * 1e6


def markdown(timings: Sequence[Timing], *, command: str) -> str:
    """docs/bench.md: command, versions, machine, table with ratios to rust_ort."""
    variants = list(dict.fromkeys(timing.variant for timing in timings))
    by_case: dict[str, dict[str, Timing]] = {}
    for timing in timings:
        by_case.setdefault(timing.case, {})[timing.variant] = timing
    lines = [
        "# Time of a compiled call",
        "",
        f"Made by `{command}`; the numbers with their tenth percentiles are in bench.json.",
        "",
        "\n".join(f"- {name}: {value}" for name, value in environment().items()),
        "",
        "Microseconds a call, float32, no gradients, median over alternating rounds. In parentheses: time of that",
        "variant divided by that of rust_ort, so above 1 means that rust_ort is faster.",
        "",
        "| | " + " | ".join(variants) + " |",
        "|---|" + "---|" * len(variants),
    ]
    for case, row in by_case.items():
        ours = row.get("rust_ort")
        ratios = {v: f" ({row[v].us / ours.us:.2f})" if ours and v != "rust_ort" else "" for v in variants}
        cells = [f"{row[v].us:.1f}{ratios[v]}" for v in variants]
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def environment() -> dict[str, str]:
    """Versions and the class of machine, without its name."""
    import onnxruntime

    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "machine": f"{len(os.sched_getaffinity(0))} cores, {cpu}, {platform.system()}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table, write it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m measure.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--variants", default=",".join(VARIANTS), help="comma separated")
    parser.add_argument("--cases", default="", help="only cases whose name contains this")
    parser.add_argument("--spinning", action="store_true", help="let in-process ONNX Runtime's threads spin")
    parser.add_argument("--output", type=Path, help="markdown file; the JSON goes beside it")
    arguments = parser.parse_args(argv)
    variants = tuple(arguments.variants.split(","))
    unknown = set(variants) - set(VARIANTS)
    if unknown or arguments.rounds < 1:
        parser.error(f"unknown variants {sorted(unknown)}; known: {', '.join(VARIANTS)}; rounds must be at least 1")
    timings: list[Timing] = []
    with torch.no_grad():
        for case in cases():
            if arguments.cases in case.name:
                print(f"{case.name} ...", file=sys.stderr, flush=True)
                timings += measure(case, variants, rounds=arguments.rounds, spinning=arguments.spinning)
    text = markdown(timings, command="make bench")
    print(text)
    if arguments.output:
        arguments.output.write_text(text)
        document = {"environment": environment(), "timings": [asdict(timing) for timing in timings]}
        arguments.output.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
