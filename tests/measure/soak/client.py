"""One client of a soak: `python -m measure.soak.client`. It trains a small model, calls eager beside every call, dumps
some of its steps, and logs what it was told."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import rust_ort
from measure.home import spare_torchs_own_measuring
from measure.soak.events import Log
from rust_ort.errors import DaemonLost, ExecutorLost, RustOrtError

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"compare": "outputs"},
    {"compare": "nodes", "compare_every": 5},
    {"threads": 1},
    {"ort_optimization": "disable"},
)
STEPS_OF_A_DUMP = 12
STEPS_BETWEEN = 100
OF_GLOO = ("gloo", "closed by peer", "Wait timeout")
"""What a rank hears whose peer was killed."""
PEER_TIMEOUT = datetime.timedelta(seconds=60)


class Attention(nn.Module):
    """A block of a decoder, small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        added: Tensor = x + self.out(y.transpose(1, 2).flatten(2))
        return added


def model_of(draws: random.Random) -> tuple[nn.Module, Callable[[], Tensor]]:
    """A model, and its next input."""
    width = draws.choice((16, 32))
    kind = draws.choice(("layers", "convolutions", "attention"))
    if kind == "layers":
        model: nn.Module = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        return model, lambda: torch.randn(draws.choice((4, 8)), width)
    if kind == "convolutions":
        # No rectifiers: rounding turns one in 300,000 calls.
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 4, 3), nn.Flatten())
        return model, lambda: torch.randn(draws.choice((1, 2)), 3, 12, 12)
    return Attention(width), lambda: torch.randn(2, draws.choice((6, 8)), width)


def wrong(got: Tensor, expected: Tensor) -> bool:
    """Outside of what float32 sums of this size may differ by."""
    return not torch.allclose(got, expected, rtol=1e-3, atol=1e-4)


class Trainer:
    """Trains its model a step at a time."""

    def __init__(self, seed: int, log: Log, *, rank: int, ranks: int) -> None:
        # All ranks have one model: what they add up has one size.
        draws = random.Random(seed - rank)
        torch.manual_seed(seed - rank)
        self.log, self.ranks = log, ranks
        self.model, self.draw = model_of(draws)
        torch.manual_seed(seed)
        self.options = draws.choice(OPTIONS)
        self.compiled = torch.compile(self.model, backend="rust_ort", options=self.options)
        self.counts = {"right": 0, "lost": 0}

    def steps(self, n: int) -> None:
        """So many. Errors: those of a step."""
        for _ in range(n):
            self.step()

    def step(self) -> None:
        """A call and its gradients, against eager's; then the model moves on. Errors: what a call raises that is
        neither DaemonLost nor ExecutorLost; ArithmeticError for a value that is not eager's."""
        x, weights = self.draw(), list(self.model.parameters())
        expected = self.model(x)
        gradients = torch.autograd.grad(expected.square().mean(), weights)
        try:
            got = self.compiled(x)
            found = torch.autograd.grad(got.square().mean(), weights)
        except (DaemonLost, ExecutorLost) as lost:
            self.counts["lost"] += 1
            self.log.write("lost", error=type(lost).__name__)
            # Its peer waits for what it adds.
            got, found = expected, gradients
        else:
            self.counts["right"] += 1
        if any(map(wrong, [got, *found], [expected, *gradients])):
            raise ArithmeticError(f"{self.options}: a value is not eager's")
        with torch.no_grad():
            for weight, gradient in zip(weights, found, strict=True):
                if self.ranks > 1:
                    dist.all_reduce(gradient)
                weight.sub_(gradient, alpha=0.01 / self.ranks)


def dumped(trainer: Trainer, folder: Path, run: str, calls: str) -> None:
    """Some steps in a dump; logs whether this client was told that the dump is whole, and of how many calls that were
    lost. Errors: those of the steps, which run whatever becomes of the dump."""
    told = ""
    with warnings.catch_warnings(record=True) as caught, contextlib.ExitStack() as stack:
        warnings.simplefilter("always")
        try:
            stack.enter_context(rust_ort.dump(run, folder=folder, calls=calls, clean=True))
        except RustOrtError as error:
            told = f"{type(error).__name__}: {error.message}"
        trainer.steps(STEPS_OF_A_DUMP)
        try:
            stack.close()
        except RustOrtError as error:
            told = f"{type(error).__name__}: {error.message}"
    said = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
    told = told or "; ".join(said) or "whole"
    trainer.log.write("dump", path=str(folder / run), told=told, lost=trainer.counts["lost"])


def train(trainer: Trainer, folder: Path, seed: int, seconds: float) -> None:
    """Until the time is over. Every second piece of it is dumped."""
    draws, end, n = random.Random(seed + 1), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        n += 1
        if n % 2:
            run, calls = f"{os.getpid()}_{seed}_{n}", draws.choice(("first", "all"))
            dumped(trainer, folder, run, calls)
        else:
            trainer.steps(STEPS_BETWEEN)
        trainer.log.write("calls", **trainer.counts)
        trainer.counts = dict.fromkeys(trainer.counts, 0)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m measure.soak.client", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="for dumps")
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--store", type=Path, help="a file at which ranks meet")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    log = Log(options.log)
    torch.set_num_threads(1)
    spare_torchs_own_measuring()
    try:
        if options.ranks > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.ranks,
                timeout=PEER_TIMEOUT,
            )  # fmt: skip
        trainer = Trainer(options.seed, log, rank=options.rank, ranks=options.ranks)
        train(trainer, options.folder, options.seed, options.seconds)
    except Exception as error:
        peer = options.ranks > 1 and any(words in str(error) for words in OF_GLOO)
        log.write("peer lost" if peer else "wrong", error=repr(error), trace=traceback.format_exc())
    log.write("end", ranks=options.ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
