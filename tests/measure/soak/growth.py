"""Whether the daemon's memory and descriptors grow: a line through what they were while one daemon lived."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LEAST_LIFE_S = 1800.0
"""A daemon that lived shorter tells nothing: its clients, and what it keeps of them, came and went."""
MOST_MIB_AN_HOUR = 64.0
MOST_DESCRIPTORS_AN_HOUR = 60.0


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line of least squares through (x, y): y for each x. 0 of fewer than three points."""
    n = len(points)
    if n < 3:
        return 0.0
    mean_x, mean_y = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


@dataclass(kw_only=True)
class Life:
    """One daemon's. memory: (seconds, MiB), descriptors: (seconds, how many)."""

    pid: int
    memory: list[tuple[float, float]] = field(default_factory=list)
    descriptors: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.memory[-1][0] - self.memory[0][0] if self.memory else 0.0

    def an_hour(self) -> tuple[float, float]:
        """MiB and descriptors that it grew by in an hour, its first third left out: it fills its caches then."""
        late = [points[len(points) // 3 :] for points in (self.memory, self.descriptors)]
        return 3600 * slope(late[0]), 3600 * slope(late[1])

    def grows(self) -> bool:
        """Whether it lived long enough to tell, and grew."""
        mib, descriptors = self.an_hour()
        return self.seconds >= LEAST_LIFE_S and (mib > MOST_MIB_AN_HOUR or descriptors > MOST_DESCRIPTORS_AN_HOUR)


def sample(lives: list[Life], pid: int) -> None:
    """Adds what the daemon has now; one that was not seen before begins a life."""
    life = next((life for life in lives if life.pid == pid), None)
    if life is None:
        life = Life(pid=pid)
        lives.append(life)
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        n_descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return
    now = time.monotonic()
    life.memory.append((now, pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
    life.descriptors.append((now, float(n_descriptors)))
