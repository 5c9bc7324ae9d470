"""A daemon of a tool's own: its socket, its state and inductor's cache in a temporary folder, its end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rust_ort.link.daemon import find_binary
from rust_ort.torch_private import spare_guard_timing

TESTS = Path(__file__).resolve().parents[1]


def with_tools() -> dict[str, str]:
    """This process's, in which a subprocess finds these tools."""
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def spare_torchs_own_measuring() -> None:
    """Half of the time of small graphs: torch flushes the processor's caches to time the guards of each."""
    spare_guard_timing()


@dataclass(frozen=True, kw_only=True)
class Home:
    """Folder of a socket, plans and inductor's caches."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """What a process of the tool has in its environment: this one's, with the home's folders."""
        return {
            **with_tools(),
            "RUST_ORT_SOCKET": str(self.folder / "run" / "v1.sock"),
            "RUST_ORT_STATE_DIR": str(self.folder / "state"),
            "RUST_ORT_IDLE_TIMEOUT_S": "300",
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
        }

    def counters(self) -> dict[str, int]:
        """The daemon's; {} when there is none."""
        done = self._rust_ort("status", "--json")
        counters: dict[str, int] = json.loads(done.stdout)["counters"] if done.returncode == 0 else {}
        return counters

    def stop(self) -> None:
        """Ends the daemon and its executors, if there are any."""
        self._rust_ort("stop", "--force")

    def _rust_ort(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [find_binary(), *arguments], env=self.environment(), capture_output=True, text=True, check=False
        )


@contextlib.contextmanager
def home() -> Iterator[Home]:
    """A home of its own, whose daemon ends with it."""
    with tempfile.TemporaryDirectory(prefix="rort-") as folder:
        made = Home(folder=Path(folder))
        (made.folder / "run").mkdir(mode=0o700)
        try:
            yield made
        finally:
            made.stop()
