"""What happens to a soak, at times and in an order that a seed decides."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure.soak import processes
from measure.soak.clients import Clients
from measure.soak.events import Log
from rust_ort.link.daemon import find_binary

WEIGHTS = {
    "kill executor": 5,
    "kill client": 4,
    "stop and continue": 5,
    "full disk": 3,
    "kill daemon": 1,
    "remove socket": 1,
    "stop --force": 1,
}
OF_DAEMONS = frozenset({"kill daemon", "remove socket", "stop --force"})
"""They end a daemon's life, so that nothing can be said of its growth."""
STOPPED_S = (0.1, 3.0)
FULL_S = (1.0, 5.0)
SMALL_DISK_MB = 24
BALLAST = "ballast"


def small_disk(folder: Path) -> str:
    """Mounts a disk of SMALL_DISK_MB there. Returns why not; "" when it did."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m,mode=700", "soak", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip()


def without_disk(folder: Path) -> None:
    """Unmounts it."""
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@dataclass(kw_only=True)
class Chaos:
    """Does one thing at a time, to processes that carry `mark` and to no others. small: the disk that is filled; None
    where there is none."""

    clients: Clients
    environment: dict[str, str]
    mark: str
    draws: random.Random
    log: Log
    small: Path | None

    def happen(self, *, daemons_live: bool) -> None:
        """Something, and logs what it was done to; where there was nothing to do it to, logs that as another kind."""
        left_out = (OF_DAEMONS if daemons_live else frozenset()) | (frozenset() if self.small else {"full disk"})
        weights = {kind: weight for kind, weight in WEIGHTS.items() if kind not in left_out}
        (kind,) = self.draws.choices(list(weights), list(weights.values()))
        does: dict[str, Callable[[], Any]] = {
            "kill executor": lambda: self._signal("executor", signal.SIGKILL),
            "kill client": self.clients.kill,
            "stop and continue": self._stop_and_continue,
            "full disk": self._full_disk,
            "kill daemon": lambda: self._signal("daemon", signal.SIGKILL),
            "remove socket": self._remove_socket,
            "stop --force": self._stop,
        }
        done_to = does[kind]()
        self.log.write("event" if done_to else "no event", event=kind, done_to=done_to)

    def _one(self, *roles: str) -> int:
        pids = [process.pid for process in processes.marked(self.mark) if process.role in roles]
        return self.draws.choice(pids) if pids else 0

    def _signal(self, role: str, number: signal.Signals) -> int:
        return processes.signalled(self._one(role), number)

    def _stop_and_continue(self) -> int:
        pid = processes.signalled(self._one(self.draws.choice(("daemon", "executor", "client"))), signal.SIGSTOP)
        try:
            time.sleep(self.draws.uniform(*STOPPED_S))
        finally:
            processes.signalled(pid, signal.SIGCONT)
        return pid

    def _full_disk(self) -> str:
        assert self.small is not None
        ballast = self.small / BALLAST
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            for _ in range(16 * SMALL_DISK_MB):
                file.write(bytes(1 << 16))
        time.sleep(self.draws.uniform(*FULL_S))
        ballast.unlink()
        return str(ballast)

    def _remove_socket(self) -> str:
        path = Path(self.environment["RUST_ORT_SOCKET"])
        if not path.exists():
            return ""
        path.unlink(missing_ok=True)
        return str(path)

    def _stop(self) -> str:
        command = [find_binary(), "stop", "--force"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""
