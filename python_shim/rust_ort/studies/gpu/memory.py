"""Device memory: it does not grow over a training loop, and a client that is killed leaves none behind. An executor
that is killed lets its client's stream go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.studies.gpu.cases import mlp, normal, seeded
from rust_ort.studies.gpu.device import synchronize, used_bytes, waited
from rust_ort.studies.gpu.record import CheckFailed, Numbers, Record, short

STEPS = 1000
READINGS = (100, 200, STEPS)
EMPTIED = (300, 500, 700)
"""Steps after which torch gives its cached blocks back."""
BLOCK_BYTES = {"cuda": 2 << 20, "cpu": 16 << 20}
"""What may come on top: one block of torch's allocator. In a rehearsal processes' own heaps are counted, too."""
RETURNED_S = 10.0
PAUSE_S = 0.3
"""After which the client is in the midst of its calls."""
FEATURES = {"cuda": 4096, "cpu": 256}
"""Of the client that is killed: a tensor is 64 MiB on the GPU."""
QUEUED = 50
"""Calls that were handed to an executor when it is killed, more than it has done."""
REST_S = 5.0
"""In which a client's stream is to be at rest whose executor was killed."""
CALLS_S = 15.0
"""More, for the calls that follow, the first of which starts an executor."""
NOT_TOLD = "no"
MIB = 1 << 20


def run(record: Record, device: str) -> None:
    record.row(f"{STEPS} steps of SGD", partial(training, device))
    served = Served(device)
    record.row("memory of a client killed in mid-call", partial(killed_client, served, device), least_s=RETURNED_S)
    record.row("calls after the client was killed", partial(after, served, device))


def deaths(record: Record, device: str) -> None:
    record.row("an executor killed with work on the device", partial(killed_executor, device))


# --- a training loop -------------------------------------------------------------------------------------------------


def training(device: str, numbers: Numbers) -> None:
    """Errors: CheckFailed where memory grows or the loss is not eager's."""
    expected = loss_after(seeded(mlp).to(device), lambda module: module, device)
    used: dict[int, int] = {}
    backend = rust_ort.Backend()
    got = loss_after(
        seeded(mlp).to(device), lambda module: torch.compile(module, backend=backend, fullgraph=True), device, used
    )
    numbers |= {f"MiB after {step}": used[step] / MIB for step in READINGS}
    numbers |= {"loss": got, "eager's": expected}
    first, second, last = (used[step] for step in READINGS)
    allowed = BLOCK_BYTES[device] + max(0, second - first)
    if last - second > allowed:
        raise CheckFailed(f"{last - second} bytes more after {STEPS} steps than after {READINGS[1]}; allowed {allowed}")
    if not abs(got - expected) <= 1e-2 * abs(expected):
        raise CheckFailed(f"the loss after {STEPS} steps is {got}, eager's {expected}")


def loss_after(
    module: nn.Module,
    compiled: Callable[[nn.Module], Callable[..., Any]],
    device: str,
    used: dict[int, int] | None = None,
) -> float:
    """Trains the module; the last step's loss. used: to be filled with the bytes in use after the steps of READINGS."""
    call = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    given, wanted = normal(32, 64, device=device), normal(64, 32, device=device).t()
    loss = torch.zeros(())
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = (call(given) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        if step in (*EMPTIED, *READINGS):
            synchronize(device)
            torch.cuda.empty_cache()  # nothing where CUDA is not used
        if used is not None and step in READINGS:
            used[step] = used_bytes(device)
    return float(loss.detach())


# --- a client that is killed -----------------------------------------------------------------------------------------


class Served:
    """A compiled function of this process, which the daemon is to serve whatever becomes of others."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._call = torch.compile(_served, backend=rust_ort.Backend(), fullgraph=True)

    def check(self) -> None:
        """Errors: AssertionError; what the call raises."""
        given = normal(8, 8, device=self._device)
        torch.testing.assert_close(self._call(given), _served(given))


def after(served: Served, device: str, numbers: Numbers) -> None:
    """The daemon serves this process, and others. Errors: AssertionError; CheckFailed."""
    served.check()
    with client(device, "ends") as process:
        ended(process)
    numbers["clients"] = 2


def _served(x: Tensor) -> Tensor:
    return torch.tanh(x) * 2


def killed_client(served: Served, device: str, numbers: Numbers) -> None:
    """What is in use after one client was killed, by what was in use after its like ended in order: executors that
    are kept warm hold the same. Errors: CheckFailed."""
    served.check()
    with client(device, "ends") as process:
        ended(process)
    in_order = settled(device)
    with client(device, "calls") as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "calling":
            raise CheckFailed("the client did not come to its calls; the log says why")
        time.sleep(PAUSE_S)
        with_client = used_bytes(device)
        process.send_signal(signal.SIGKILL)
        process.wait()
    allowed = in_order + BLOCK_BYTES[device]
    seconds = waited(lambda: used_bytes(device) <= allowed, seconds=RETURNED_S)
    left = used_bytes(device)
    numbers |= {
        "MiB before": in_order / MIB, "with the client": with_client / MIB, "after": left / MIB,
        "seconds until returned": "-" if seconds is None else round(seconds, 2),
    }  # fmt: skip
    if seconds is None:
        raise CheckFailed(f"{RETURNED_S:.0f} s after the client was killed {left - in_order} bytes more are in use")


def killed_executor(device: str, numbers: Numbers) -> None:
    """A client's stream that waits for what an executor does not finish comes to rest, the client is told, and its next
    call works. Errors: CheckFailed."""
    with client(device, "loses") as process:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "killing":
            raise CheckFailed("the client did not come to its calls; the log says why")
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        watchdog = threading.Timer(REST_S + CALLS_S, give_up)
        watchdog.start()
        said = process.stdout.read()
        watchdog.cancel()
        code = process.wait()
    if late.is_set():
        raise CheckFailed(
            f"{REST_S + CALLS_S:.0f} s after its executor was killed the client waits; {REST_S:.0f} s are asked"
        )
    if code:
        raise CheckFailed(f"the client ended with {code}: {said.strip()}; the log says why")
    numbers |= json.loads(said)
    if device == "cuda" and not numbers["work was pending"]:
        raise CheckFailed("the executor had done all its work when it was killed: this shows nothing")
    if numbers["seconds until at rest"] > REST_S:
        raise CheckFailed(f"the client's stream was not at rest within {REST_S:.0f} s")
    if device == "cuda" and numbers["told"] == NOT_TOLD:
        raise CheckFailed("nothing said that what the lost calls gave may be wrong")


@contextlib.contextmanager
def client(device: str, way: str) -> Iterator[subprocess.Popen[str]]:
    """A process that calls: "ends" after some calls, "calls" until it is killed, or "loses" its executor; it ends with
    the block."""
    command = [sys.executable, "-m", __name__, device, way]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ended(process: subprocess.Popen[str]) -> None:
    """Errors: CheckFailed where the client did not end in order."""
    process.communicate()
    if process.returncode:
        raise CheckFailed(f"a client ended with {process.returncode}; the log says why")


def settled(device: str) -> int:
    """Bytes in use once they no longer change: what a client held goes a moment after it."""
    readings = [used_bytes(device)]

    def same() -> bool:
        time.sleep(0.5)
        readings.append(used_bytes(device))
        return abs(readings[-1] - readings[-2]) < MIB

    waited(same, seconds=RETURNED_S)
    return readings[-1]


def lost(call: Callable[[Tensor], Tensor], given: Tensor, device: str) -> dict[str, Any]:
    """Kills this process's executor while work that was handed to it is still to be done. told: what the next call
    says. Errors: AssertionError."""
    expected = call(given)
    synchronize(device)
    status = rust_ort.status()
    own = [client["id"] for client in status["clients"] if client["pid"] == os.getpid()]
    (pid,) = [executor["pid"] for executor in status["executors"] if executor["leased_to"] in own]
    for _ in range(QUEUED):
        call(given)
    pending = device == "cuda" and not torch.cuda.current_stream().query()
    print("killing", flush=True)
    os.kill(pid, signal.SIGKILL)
    start = time.perf_counter()
    synchronize(device)
    rested = time.perf_counter() - start
    told = NOT_TOLD
    for _ in range(2):
        try:
            call(given)
        except rust_ort.ExecutorLost as error:
            told = short(str(error))
            continue
        break
    torch.testing.assert_close(call(given), expected)
    return {"seconds until at rest": round(rested, 2), "work was pending": pending, "told": told}


def main(device: str, way: str) -> int:
    """The client."""
    features = FEATURES[device]
    module = nn.Linear(features, features).to(device)
    call = torch.compile(module, backend=rust_ort.Backend(), fullgraph=True)
    given = normal(features, features, device=device)
    call(given).sum().backward()
    if way == "ends":
        for _ in range(10):
            call(given).sum().backward()
        return 0
    if way == "loses":
        print(json.dumps(lost(call, given, device)))
        return 0
    print("calling", flush=True)
    while True:
        call(given).sum().backward()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
