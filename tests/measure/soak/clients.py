"""The clients of a soak: several alone, two ranks, one with a small disk, one in a namespace of its own."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure.soak import processes
from measure.soak.events import Log

KINDS = ("alone", "alone", "ranks", "small disk", "namespace")
LIVES_S = (30.0, 120.0)
END_S = 60.0


@dataclass(kw_only=True)
class Group:
    """Processes that live and end together: one, or all ranks. dumps: where theirs are."""

    kind: str
    processes: list[subprocess.Popen[bytes]]
    dumps: Path
    log: Path
    killed: bool = False

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.poll() is None]

    def ended(self) -> bool:
        """Whether all of them have."""
        return not self.pids


@dataclass(kw_only=True)
class Clients:
    """Starts a group of each kind again when it ended. hung: those that did not end by
    themselves, in words. numbers: of the groups, which name their folders."""

    folder: Path
    environment: dict[str, str]
    draws: random.Random
    log: Log
    kinds: list[str]
    groups: list[Group] = field(default_factory=list)
    done: list[Group] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def keep_up(self, left_s: float) -> None:
        """Moves groups that ended to `done`, and starts others of the same kinds, as long as there is time."""
        for group in [group for group in self.groups if group.ended()]:
            self.groups.remove(group)
            self.done.append(group)
        running = [group.kind for group in self.groups]
        for kind in self.kinds:
            if kind in running:
                running.remove(kind)
            elif left_s > LIVES_S[0] / 2:
                self.groups.append(self._start(kind, min(left_s, self.draws.uniform(*LIVES_S))))

    def kill(self) -> int:
        """kill -9 of a client, and what its ranks make of it. Returns its pid; 0 when none runs."""
        running = [group for group in self.groups if group.pids and not group.killed]
        if not running:
            return 0
        group = self.draws.choice(running)
        group.killed = True
        pid = self.draws.choice(group.pids)
        return processes.signalled(pid, signal.SIGKILL)

    def end(self) -> None:
        """Waits for all; who takes too long is logged and killed."""
        watchdog = time.monotonic() + END_S + LIVES_S[1]
        while self.groups and time.monotonic() < watchdog:
            self.keep_up(0)
            time.sleep(0.2)
        for group in self.groups:
            self.hung.append(f"a client ({group.kind}, {group.pids}) does not end")
            self.log.write("wrong", error=self.hung[-1])
            for pid in group.pids:
                processes.signalled(pid, signal.SIGKILL)
        for group in self.groups:
            for process in group.processes:
                process.wait()

    def _start(self, kind: str, seconds: float) -> Group:
        number = next(self.numbers)
        home = self.folder / f"client_{number}"
        home.mkdir()
        dumps = self.folder / "small" / f"client_{number}" if kind == "small disk" else home
        ranks = 2 if kind == "ranks" else 1
        log = home / "log.jsonl"
        log.touch()
        arguments = ["--seconds", f"{seconds:.0f}", "--folder", dumps, "--log", log]
        if ranks > 1:
            arguments += ["--ranks", ranks, "--store", home / "store"]
        processes = []
        for rank in range(ranks):
            own = [*arguments, "--seed", 1000 * number + rank, "--rank", rank]
            command = [sys.executable, "-W", "ignore", "-m", "measure.soak.client", *map(str, own)]
            if kind == "namespace":
                command = [*IN_A_NAMESPACE, *command]
            with (home / f"stderr_{rank}").open("wb") as stderr:
                processes.append(
                    subprocess.Popen(
                        command, env=self.environment, stderr=stderr, stdout=stderr, stdin=subprocess.DEVNULL
                    )
                )
        self.log.write("client", client=kind, number=number, pids=[process.pid for process in processes])
        return Group(kind=kind, processes=processes, dumps=dumps, log=log)


IN_A_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def possible(command: Sequence[str]) -> bool:
    """Whether a command that does nothing runs."""
    try:
        return subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False
