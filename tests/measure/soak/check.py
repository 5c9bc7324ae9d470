"""What must be there after a soak, and what must not."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rust_ort.link.daemon import find_binary

WHOLE, NOT_ALL_TOLD = 0, 3
"""How `rust-ort verify` ends: all files are whole; none is damaged or missing, and of some nothing tells."""


@dataclass(frozen=True, kw_only=True)
class Told:
    """said: "whole", or why a dump is not; lost: calls in it that raised DaemonLost or ExecutorLost."""

    said: str
    lost: int


@dataclass(kw_only=True)
class Checked:
    """counts: by what was seen; wrong: what must not be, in words."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Checked) -> None:
        self.counts += other.counts
        self.wrong += other.wrong


def client(events: Iterable[dict[str, Any]], dumps: Path, environment: dict[str, str]) -> Checked:
    """What a client was told, held against what is on disk: `dumps` is the folder of its runs."""
    found, told = Checked(), dict[str, Told]()
    for event in events:
        if event["kind"] == "calls":
            found.counts["calls right"] += event["right"]
        elif event["kind"] == "lost":
            found.counts[f"calls lost, {event['error']}"] += 1
        elif event["kind"] == "peer lost":
            found.counts["ranks without their peer"] += 1
        elif event["kind"] == "dump":
            told[event["path"]] = Told(said=event["told"], lost=event["lost"])
        elif event["kind"] == "wrong":
            found.wrong.append(f"{event['error']}\n{event.get('trace', '')}")
    for run in sorted(dumps.glob("*/run.json")):
        found.add(dump(run.parent, told.pop(str(run.parent), None), environment))
    for path, dump_told in told.items():
        if dump_told.said == "whole":
            found.wrong.append(f"{path}: told whole, and there is none")
        found.counts["dumps told incomplete"] += 1
    return found


def dump(run: Path, told: Told | None, environment: dict[str, str]) -> Checked:
    """One run. told: None of a client that was killed before."""
    found = Checked()
    command = [find_binary(), "verify", str(run), "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    verified = json.loads(done.stdout) if done.stdout else {}
    torn = [*verified.get("damaged", []), *verified.get("missing", [])]
    if torn or done.returncode not in (WHOLE, NOT_ALL_TOLD):
        found.wrong.append(f"{run}: told {told}; verify exits with {done.returncode}: {torn or done.stderr}")
        return found
    # The inputs of a call are written before it runs, so that one that is lost leaves its reproduction.
    unfinished = {str(Path(path).parent) for path in verified["not_sealed"]}
    unfinished |= {str(of["path"]) for of in verified["incomplete"]}
    if told is None:
        found.counts["dumps of clients that were killed"] += 1
    elif told.said != "whole":
        found.counts["dumps told incomplete"] += 1
    elif verified["unlisted"] or len(unfinished) > told.lost:
        found.wrong.append(f"{run}: told whole, and {told.lost} calls lost; verify: {done.stdout}")
    else:
        found.counts["dumps told whole"] += 1
        found.counts["inputs of calls that were lost, in them"] += len(unfinished)
    return found
