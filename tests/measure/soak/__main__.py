"""`make soak`: clients that train and dump for hours amid chaos; counts into docs/results/trust.md."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measure import trust
from measure.home import Home, home
from measure.soak import chaos, check, growth, processes
from measure.soak.clients import IN_A_NAMESPACE, KINDS, Clients, possible
from measure.soak.events import Log, read

ROOT = Path(__file__).resolve().parents[3]
MARK = "RUST_ORT_SOAK"
SAMPLE_S = 5.0
CALM = 0.4
"""Of the time, at its end: daemons are left alone, and must not grow."""
QUIET_S = 20.0
"""Before chaos begins: clients import torch."""


@dataclass(kw_only=True)
class Soak:
    """One run of it, in a home of its own. skipped: what this machine does not allow, and why."""

    home: Home
    options: argparse.Namespace
    skipped: dict[str, str] = field(default_factory=dict)
    checked: check.Checked = field(default_factory=check.Checked)
    lives: list[growth.Life] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Runs for the time that was asked for; what was counted and what was wrong."""
        begun, seconds = time.monotonic(), self.options.seconds
        mark = f"{MARK}={os.getpid()}.{time.time_ns()}"
        environment = {**self.home.environment(), MARK: mark.partition("=")[2]}
        folder, draws, log = self.home.folder, random.Random(self.options.seed), Log(self.options.log)
        kinds = self._kinds()
        small = folder / "small" if "small disk" in kinds else None
        clients = Clients(folder=folder, environment=environment, draws=draws, log=log, kinds=kinds)
        happening = chaos.Chaos(clients=clients, environment=environment, mark=mark, draws=draws, log=log, small=small)
        try:
            at, sampled = begun + QUIET_S, begun
            while (left := begun + seconds - time.monotonic()) > 0:
                clients.keep_up(left)
                self._check_done(clients, environment)
                now = time.monotonic()
                if now >= sampled:
                    sampled = now + SAMPLE_S
                    self._sample(mark)
                if now >= at:
                    happening.happen(daemons_live=left < CALM * seconds)
                    at = time.monotonic() + draws.expovariate(1 / self.options.every)
                time.sleep(0.2)
            clients.end()
            self.checked.wrong += clients.hung
            self._check_done(clients, environment)
        finally:
            for group in clients.groups:
                for process in group.processes:
                    process.kill()
                    process.wait()
            self.home.stop()
            if small is not None:
                chaos.without_disk(small)
        self._leftovers(mark)
        return self._told(time.monotonic() - begun)

    def _kinds(self) -> list[str]:
        kinds = list(KINDS[: self.options.clients])
        if "namespace" in kinds and not possible(IN_A_NAMESPACE):
            self.skipped["namespace"] = "unshare --pid is not allowed"
            kinds.remove("namespace")
        if "small disk" in kinds and (why := chaos.small_disk(self.home.folder / "small")):
            self.skipped["full disk"] = why
            kinds.remove("small disk")
        if os.geteuid() == 0:
            self.skipped["limit of threads"] = "it does not bind root"
        return kinds

    def _sample(self, mark: str) -> None:
        for process in processes.marked(mark):
            if process.role == "daemon":
                growth.sample(self.lives, process.pid)

    def _check_done(self, clients: Clients, environment: dict[str, str]) -> None:
        """Dumps of clients that ended; then they go, or they would fill the disk."""
        while clients.done:
            group = clients.done.pop()
            found = check.client(read(group.log), group.dumps, environment)
            deaths = [process.returncode for process in group.processes if process.returncode < 0]
            if deaths and not group.killed:
                found.wrong.append(f"a client ({group.kind}) died of signal {-deaths[0]}, and nobody sent one")
            self.checked.add(found)
            self.checked.counts[f"clients, {group.kind}"] += 1
            if found.wrong:
                clients.log.write("wrong", client=group.kind, found=found.wrong)
                kept = self.options.log.parent / f"kept_{group.log.parent.name}"
                shutil.copytree(group.log.parent, kept, dirs_exist_ok=True)
                if group.dumps.is_dir():
                    shutil.copytree(group.dumps, kept / "dumps", dirs_exist_ok=True)
            shutil.rmtree(group.dumps, ignore_errors=True)
            shutil.rmtree(group.log.parent, ignore_errors=True)

    def _leftovers(self, mark: str) -> None:
        end = time.monotonic() + 30
        while (left := list(processes.marked(mark))) and time.monotonic() < end:
            time.sleep(0.5)
        self.checked.wrong += [f"a process is left: {process}" for process in left]
        for process in left:
            processes.signalled(process.pid, signal.SIGKILL)
        self.checked.wrong += [f"left in shared memory: {path}" for path in Path("/dev/shm").glob("*rust-ort*")]
        for life in self.lives:
            if life.grows():
                mib, descriptors = life.an_hour()
                self.checked.wrong.append(
                    f"a daemon of {life.seconds:.0f} s grows by {mib:.0f} MiB and {descriptors:.0f} descriptors an hour"
                )

    def _told(self, seconds: float) -> dict[str, Any]:
        events = Counter(event["event"] for event in read(self.options.log) if event["kind"] == "event")
        longest = max(self.lives, key=lambda life: life.seconds, default=growth.Life(pid=0))
        return {
            "seconds": round(seconds),
            "seed": self.options.seed,
            "events": dict(sorted(events.items())),
            "counts": dict(sorted(self.checked.counts.items())),
            "skipped": self.skipped,
            "daemons": len(self.lives),
            "longest_life_s": round(longest.seconds),
            "mib_an_hour": round(longest.an_hour()[0], 1),
            "descriptors_an_hour": round(longest.an_hour()[1], 1),
            "wrong": self.checked.wrong,
        }


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m measure.soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=24.0)
    length.add_argument("--minutes", type=float)
    parser.add_argument("--clients", type=int, default=len(KINDS), help=f"the first so many of {', '.join(KINDS)}")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two events, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak", help="of the log, and of what is wrong")
    parser.add_argument("--output", type=Path, help="docs/results/trust.md, with .json beside it")
    options = parser.parse_args(arguments)
    options.seconds = 3600 * options.hours if options.minutes is None else 60 * options.minutes
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    options.log = options.folder / "log.jsonl"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    # Whoever ends it early finds nothing left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with home() as made:
        told = Soak(home=made, options=options).run()
    if options.output is not None:
        trust.update(options.output, "soak", told)
    print(trust.soak_table(told))
    return 1 if told["wrong"] or not told["counts"].get("calls right") else 0


if __name__ == "__main__":
    sys.exit(main())
