"""Training of a small LlamaForCausalLM under autocast: does the compiled run's loss stay within eager's own spread?

The spread is that of what the user chose to accept with mixed precision: |loss of eager under autocast - loss of eager
in float32|, both from the same seed (weights and data), the largest over steps and seeds. Runs of different seeds
differ by far more (other weights, other data), so their spread would pass anything; runs of one seed whose sums are
only ordered differently differ by less than half precision rounds, so that would measure the order, not the dtype.
|loss of the compiled run - loss of eager|, both under autocast and from the same seed, has to be at most that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One seed. `spread`: eager's largest difference between autocast and float32. `worst`: compiled and eager's, both
    under autocast. `losses`: of eager under autocast, by step."""

    seed: int
    spread: float
    worst: float
    losses: list[float]


def llama(seed: int) -> nn.Module:
    """Two layers, hidden size 512."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        intermediate_size=2000,
        vocab_size=4000,
        max_position_embeddings=2048,
        use_cache=False,
    )
    made: nn.Module = LlamaForCausalLM(config)
    return made


def losses(
    seed: int, n_steps: int, *, autocast: torch.dtype | None, wrap: Callable[[nn.Module], Any] = lambda model: model
) -> list[float]:
    """Of Adam steps on one batch of random tokens; float16 with a GradScaler."""
    model = llama(seed)
    call = wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    scaler = torch.amp.GradScaler(device="cpu", enabled=autocast is torch.float16)
    tokens = torch.randint(0, 4000, (2, 128), generator=torch.Generator().manual_seed(seed))
    values = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            loss = call(input_ids=tokens, labels=tokens).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        values.append(loss.item())
    return values


def row(seed: int, n_steps: int, dtype: torch.dtype) -> Row:
    """Three runs of a seed: float32, autocast, autocast compiled."""
    float32 = losses(seed, n_steps, autocast=None)
    eager = losses(seed, n_steps, autocast=dtype)
    torch.compiler.reset()
    compiled = losses(
        seed, n_steps, autocast=dtype, wrap=lambda model: torch.compile(model, backend="rust_ort", fullgraph=True)
    )
    return Row(seed=seed, spread=_furthest(eager, float32), worst=_furthest(compiled, eager), losses=eager)


def _furthest(candidate: list[float], reference: list[float]) -> float:
    return max(abs(c - r) for c, r in zip(candidate, reference, strict=True))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rust_ort.studies.mixed_training", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dtype", choices=[*DTYPES, "both"], default="both")
    options = parser.parse_args(arguments)
    ok = True
    for name in DTYPES if options.dtype == "both" else [options.dtype]:
        print(f"autocast {name}, {options.steps} steps\nseed  first loss  last loss   spread    worst", flush=True)
        rows = []
        for seed in range(options.seeds):
            made = row(seed, options.steps, DTYPES[name])
            rows.append(made)
            numbers = f"{made.losses[0]:10.4f} {made.losses[-1]:10.4f} {made.spread:8.2e} {made.worst:8.2e}"
            print(f"{seed:4}  {numbers}", flush=True)
        spread, worst = max(made.spread for made in rows), max(made.worst for made in rows)
        print(f"worst difference {worst:.2e} {'<=' if worst <= spread else '>'} spread {spread:.2e}", flush=True)
        ok = ok and worst <= spread
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
