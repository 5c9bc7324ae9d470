"""Many random functions in subprocesses, each with one thread, under a watchdog."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import queue
import resource
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from measure.home import spare_torchs_own_measuring
from measure.random_graphs.check import Outcome, check

WATCHDOG_S = 300.0
GRAPHS_A_PROCESS = 400
"""Then a fresh one: torch keeps what it compiled."""
RESET_EVERY = 20
MEMORY_BYTES = 6 * 2**30
"""What a process may allocate: a drawn size may be any number, and eager's error says so."""


def child() -> None:
    """Reads seeds from standard input, writes one JSON line for each to standard output."""
    import torch

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    spare_torchs_own_measuring()
    _spare_the_collector()
    for count, line in enumerate(sys.stdin, 1):
        asked = json.loads(line)
        outcome = check(asked["seed"], reduce=asked["reduce"])
        print(json.dumps(outcome.as_json()), file=answers, flush=True)
        if count % RESET_EVERY == 0:
            torch.compiler.reset()


def _spare_the_collector() -> None:
    """It need not walk all that torch has loaded, again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


class Worker:
    """One subprocess, replaced when it is lost or has served long enough."""

    def __init__(self, environment: Mapping[str, str], *, reduce: bool) -> None:
        self._environment = {**environment, "OMP_NUM_THREADS": "1", "RUST_ORT_THREADS": "1"}
        self._reduce = reduce
        self._process: subprocess.Popen[str] | None = None
        self._served = 0

    def check(self, seed: int) -> Outcome:
        """The outcome of a seed; a process that dies or hangs is one, unless inductor did it, which is asked about what
        fails."""
        outcome = self._asked(seed, reduce=self._reduce)
        if outcome.kind in ("crashed", "hung") and self._reduce:
            return self._asked(seed, reduce=False)
        return outcome

    def _asked(self, seed: int, *, reduce: bool) -> Outcome:
        process = self._started()
        self._served += 1
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"seed": seed, "reduce": reduce}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._lost(seed)
        if not _readable(process.stdout):
            self.close(kill=True)
            return Outcome(seed=seed, kind="hung", why=f"no answer for {WATCHDOG_S:.0f} s")
        line = process.stdout.readline()
        return Outcome(**json.loads(line)) if line else self._lost(seed)

    def close(self, *, kill: bool = False) -> None:
        """Ends the subprocess."""
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        with contextlib.suppress(OSError):
            process.communicate()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._served < GRAPHS_A_PROCESS:
            return self._process
        self.close()
        self._served = 0
        command = [sys.executable, "-m", "measure.random_graphs", "--child"]
        self._process = subprocess.Popen(
            command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return self._process

    def _lost(self, seed: int) -> Outcome:
        process = self._process
        assert process is not None
        code = process.wait()
        self.close()
        why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return Outcome(seed=seed, kind="crashed", why=f"the process ended: {why}")


def _readable(stream: IO[str]) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(WATCHDOG_S))


def run(seeds: Sequence[int], environment: Mapping[str, str], *, workers: int, reduce: bool) -> Iterator[Outcome]:
    """The outcome of every seed, as they come."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
    for seed in seeds:
        waiting.put(seed)

    def serve() -> None:
        worker = Worker(environment, reduce=reduce)
        try:
            while True:
                done.put(worker.check(waiting.get_nowait()))
        except queue.Empty:
            pass
        except BaseException as error:
            done.put(error)
        finally:
            worker.close()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for _ in seeds:
        outcome = done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    for thread in threads:
        thread.join()
