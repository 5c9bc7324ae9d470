"""Training of a small LlamaForCausalLM under autocast: is the compiled run as close to float32 as eager's is?

Three runs of one seed (equal weights, equal data): eager in float32, eager under autocast, compiled under autocast. The
two runs under autocast are each judged by their distance from the float32 run, never by their distance from each other:
that depends on the order in which this CPU's kernels sum, and after a few steps of Adam on chance. The distance is of
all trained weights, |weights - float32's| relative to the way that float32 training went, |float32's - start|, both
2-norms: millions of roundings average out in it, so it is a figure of the dtype, not of the CPU or the seed. The
compiled run may be at most `NOISE` times as far from float32 as eager is, and each of its steps must have run
forward and backward on ONNX Runtime, in graphs that hold the dtype. Losses are shown, not judged: one number of a run
is chance.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rust_ort.observe import graph_info
from rust_ort.observe.graph_info import GraphInfo

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

NOISE = 1.5
"""How many times eager's distance is still the dtype's own noise."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training. `losses`: by step. `weights`: all of them before and after, flat, float32."""

    losses: list[float]
    before: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Row:
    """One seed. `eager`, `compiled`: distance of the weights trained under autocast from those trained in float32,
    relative to the way from the start. `losses`: of the three runs, by step. `on_onnxruntime`: {direction: calls of the
    compiled run's graphs that have parts on ONNX Runtime and hold `dtype`}."""

    seed: int
    n_steps: int
    dtype: torch.dtype
    eager: float
    compiled: float
    losses: dict[str, list[float]]
    on_onnxruntime: dict[str, int]

    @property
    def problem(self) -> str:
        """Why this is no run under autocast as good as eager's, "" when it is one."""
        for direction in ("forward", "backward"):
            n_calls = self.on_onnxruntime.get(direction, 0)
            if n_calls < self.n_steps:
                return f"{direction}: {n_calls} of {self.n_steps} steps on ONNX Runtime in {self.dtype}"
        if not self.eager > 0:
            return "eager trained nothing in lower precision"
        if not self.compiled <= NOISE * self.eager:
            return f"further from float32 than eager: {self.compiled:.2e}, eager {self.eager:.2e}"
        return ""

    @property
    def ok(self) -> bool:
        return not self.problem


HIDDEN = 512
"""Hidden size of the model of docs/results/mixed-training.md."""


def llama(seed: int, hidden: int = HIDDEN, *, cache: bool = False) -> nn.Module:
    """Two layers of heads of 64. cache: fills one with keys and values that no step reads, as the class does."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=2,
        num_attention_heads=hidden // 64,
        intermediate_size=hidden * 4 - 48,
        vocab_size=4000,
        max_position_embeddings=2048,
        use_cache=cache,
    )
    made: nn.Module = LlamaForCausalLM(config)
    return made


def train(
    seed: int,
    n_steps: int,
    *,
    autocast: torch.dtype | None,
    hidden: int = HIDDEN,
    cache: bool = False,
    wrap: Callable[[nn.Module], Any] = lambda model: model,
) -> Run:
    """Adam steps on one batch of random tokens; float16 with a GradScaler."""
    model = llama(seed, hidden, cache=cache)
    before = _flat(model)
    call = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(device="cpu", enabled=autocast is torch.float16)
    tokens = torch.randint(0, 4000, (2, 128), generator=torch.Generator().manual_seed(seed))
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = call(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return Run(losses=losses, before=before, weights=_flat(model))


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="rust_ort", fullgraph=True)


def row(
    seed: int,
    n_steps: int,
    dtype: torch.dtype,
    *,
    hidden: int = HIDDEN,
    wrap: Callable[[nn.Module], Any] = compiled,
) -> Row:
    """Three runs of a seed: float32, autocast, autocast through `wrap`."""
    reference = train(seed, n_steps, autocast=None, hidden=hidden)
    eager = train(seed, n_steps, autocast=dtype, hidden=hidden)
    torch.compiler.reset()
    with graph_info.called() as called:
        candidate = train(seed, n_steps, autocast=dtype, hidden=hidden, wrap=wrap)
        graphs = called()
    return Row(
        seed=seed,
        n_steps=n_steps,
        dtype=dtype,
        eager=_distance(eager, reference),
        compiled=_distance(candidate, reference),
        losses={"float32": reference.losses, "eager": eager.losses, "compiled": candidate.losses},
        on_onnxruntime=_calls(graphs, dtype),
    )


def _calls(graphs: Iterable[GraphInfo], dtype: torch.dtype) -> dict[str, int]:
    """{direction: calls} of graphs with parts that ran on ONNX Runtime and values of `dtype`."""
    found: Counter[str] = Counter()
    for info in graphs:
        if info.parts and info.unreachable is None and info.lowest_precision is dtype:
            found[info.direction] += info.calls - info.daemon_fallbacks
    return dict(found)


def _distance(run: Run, reference: Run) -> float:
    way = torch.linalg.vector_norm(reference.weights - reference.before, dtype=torch.float64)
    return float(torch.linalg.vector_norm(run.weights - reference.weights, dtype=torch.float64) / way)


HEAD = "seed  first loss  last: f32       eager    compiled     eager  compiled  ratio"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.mixed_training", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=[*DTYPES, "both"], default="both")
    options = parser.parse_args(arguments)
    ok = True
    for name in DTYPES if options.dtype == "both" else [options.dtype]:
        print(f"autocast {name}, {options.steps} steps\n{HEAD}", flush=True)
        for seed in range(options.seeds):
            made = row(seed, options.steps, DTYPES[name])
            last = [made.losses[run][-1] for run in ("float32", "eager", "compiled")]
            numbers = f"{made.losses['float32'][0]:10.4f} {last[0]:11.5f} {last[1]:11.5f} {last[2]:11.5f}"
            judged = f"{made.eager:9.2e} {made.compiled:9.2e} {made.compiled / made.eager:6.2f}"
            print(f"{seed:4}  {numbers} {judged}  {made.problem.upper() or 'noise'}", flush=True)
            ok = ok and made.ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
