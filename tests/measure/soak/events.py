"""The log of a soak: a line of JSON an event, written whole, so that a process that is killed leaves no half line."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Log:
    """A file that several processes append to."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, kind: str, **facts: Any) -> None:
        """Appends {"t": Unix seconds, "kind": kind, …facts}."""
        line = json.dumps({"t": round(time.time(), 3), "kind": kind, **facts}) + "\n"
        os.write(self._file, line.encode())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Its events, in the order of writing."""
    with path.open() as lines:
        for line in lines:
            yield json.loads(line)
