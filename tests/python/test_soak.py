"""Memory stays flat over changing shapes, dropped backwards, retained outputs and two threads."""

import gc
import os
import random
import threading
from collections import deque
from pathlib import Path

import pytest
import torch


def rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"no VmRSS for {pid}")


def worker(model: torch.nn.Module, compiled: torch.nn.Module, n_calls: int, seed: int, errors: list[str]) -> None:
    rng = random.Random(seed)
    retained: deque[tuple[torch.Tensor, torch.Tensor]] = deque(maxlen=20)
    for call in range(n_calls):
        x = torch.randn(rng.randint(2, 64), 32)
        expected = model(x)
        got = compiled(x)
        if not torch.allclose(got, expected, atol=1e-5, rtol=1e-4):
            errors.append(f"call {call} of thread {seed}: forward differs")
        if rng.random() < 0.5:  # the other half's backward is dropped
            weights = list(model.parameters())
            for g, e in zip(
                torch.autograd.grad(got.square().mean(), weights),
                torch.autograd.grad(expected.square().mean(), weights),
                strict=True,
            ):
                if not torch.allclose(g, e, atol=1e-6, rtol=1e-3):
                    errors.append(f"call {call} of thread {seed}: gradient differs")
        if rng.random() < 0.3:
            retained.append((got.detach(), expected.detach()))
        for kept, reference in retained:
            if not torch.allclose(kept, reference, atol=1e-5, rtol=1e-4):
                errors.append(f"call {call} of thread {seed}: a retained output changed")


def run_calls(model: torch.nn.Module, compiled: torch.nn.Module, n_calls: int, errors: list[str]) -> None:
    threads = [threading.Thread(target=worker, args=(model, compiled, n_calls // 2, seed, errors)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_thousand_calls_leave_memory_flat(daemon, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 16))
    compiled = torch.compile(model, backend="rust_ort", dynamic=True)
    errors: list[str] = []
    # One call first, alone: two threads compiling the same frame at once is torch's own business.
    compiled(torch.randn(7, 32)).sum().backward()
    run_calls(model, compiled, 400, errors)
    gc.collect()

    def sizes() -> dict[str, int]:
        pids = {"client": os.getpid(), "daemon": daemon.pid()}
        pids |= {f"executor-{e['pid']}": e["pid"] for e in daemon.client().status()["executors"]}
        return {name: rss_kib(pid) for name, pid in pids.items()}

    before = sizes()
    run_calls(model, compiled, 2000, errors)
    gc.collect()
    after = sizes()
    with capsys.disabled():
        print("\nRSS in KiB, before and after 2,000 calls:", before, after)
    assert not errors, errors[:5]
    assert before.keys() == after.keys()
    for name in before:
        assert after[name] - before[name] < 24 * 1024, f"{name} grew from {before[name]} to {after[name]} KiB"
