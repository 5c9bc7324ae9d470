"""Calls of n processes at once, of one thread each: on one daemon, and in eager."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from measure.bench import curves
from measure.bench.timing import Timing, of_rounds
from measure.home import with_tools

CLIENTS = (1, 2, 4, 8)
VARIANTS = ("eager", "rust_ort")
PART = "decoder"
NAME = "clients"
"""All of them are one job: they are the same processes."""
ROUND_SECONDS = 0.5
WATCHDOG_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Client:
    """A process that has both variants, warm."""

    process: subprocess.Popen[str]

    def ask(self, **asked: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Errors: RuntimeError when the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a client of the bench ended with {self.process.wait()}; stderr says why")
        return json.loads(line)


@contextlib.contextmanager
def clients(n: int, *, size: str) -> Iterator[list[Client]]:
    """n of them, ready to be asked; they end with the block."""
    command = [sys.executable, "-m", __spec__.name, size]
    environment = {**with_tools(), "OMP_NUM_THREADS": "1"}
    made: list[Client] = []
    try:
        for _ in range(n):
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            made.append(Client(process=process))
        for client in made:
            client.answer()
        yield made
    finally:
        for client in made:
            assert client.process.stdin is not None
            client.process.stdin.close()
        for client in made:
            try:
                client.process.wait(WATCHDOG_S)
            except subprocess.TimeoutExpired:
                client.process.kill()


def measure(
    counts: Sequence[int] = CLIENTS, *, rounds: int, size: str = "bench", seconds: float = ROUND_SECONDS
) -> list[Timing]:
    """Time by call of the first n of as many clients as the most that are wanted; the others wait. Errors: RuntimeError
    when a client ends, as it does where its result differs from eager's."""
    timings = []
    with clients(max(counts), size=size) as made:
        for n in counts:
            means: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
            calls = dict.fromkeys(VARIANTS, 0)
            for round_ in range(rounds):
                for variant in VARIANTS if round_ % 2 == 0 else reversed(VARIANTS):
                    us, called = _round(made[:n], variant, seconds)
                    means[variant].append(us)
                    calls[variant] += called
            timings += [
                of_rounds(
                    curves.name("clients", n, f"{PART} forward"), variant, means[variant], calls[variant] // rounds
                )
                for variant in VARIANTS
            ]
    return timings


def _round(asked: Sequence[Client], variant: str, seconds: float) -> tuple[float, int]:
    """Microseconds by call of all of them, and how many calls these were."""
    for client in asked:
        client.ask(variant=variant, seconds=seconds)
    answers = [client.answer() for client in asked]
    return 1e6 / sum(answer["calls"] / answer["seconds"] for answer in answers), sum(a["calls"] for a in answers)


def serve(size: str) -> None:
    """The process of a client: says that it is warm, then calls a variant for as long as each line of stdin asks."""
    import torch

    from rust_ort.studies import llama_models

    sizes = {"bench": llama_models.Size(batch=1, sequence=128), **llama_models.SIZES}
    study = llama_models.build(PART, sizes[size])
    # A module of its own: rust_ort moves the parameters of the one that it compiles.
    compiled = torch.compile(copy.deepcopy(study.module), backend="rust_ort", dynamic=False)
    calls: dict[str, Callable[..., Any]] = {"eager": study.module, "rust_ort": compiled}
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(*study.inputs), study.module(*study.inputs), rtol=1e-3, atol=1e-3)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            call, n, begin = calls[asked["variant"]], 0, time.perf_counter()
            while (passed := time.perf_counter() - begin) < asked["seconds"]:
                call(*study.inputs)
                n += 1
            print(json.dumps({"calls": n, "seconds": passed}), flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
