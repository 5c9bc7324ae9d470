"""Rows of a step: what was tried, what came of it, numbers. Written as they come: a step that hangs loses none."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WORKS, FAILED, MISSING = "works", "FAILED", "missing"
EXIT_CODES = {WORKS: 0, FAILED: 1, MISSING: 2}
MOST_LETTERS = 300
"""Of a reason: the whole is in the step's log."""


class MissingHere(Exception):
    """The machine, or what was built, lacks what a row needs; the text says what."""


class CheckFailed(Exception):
    """It ran and is not as it is to be."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was tried. why: of FAILED and missing."""

    what: str
    verdict: str = WORKS
    why: str = ""
    numbers: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Record:
    """Writes the rows of a step into a file, a line each, and prints them."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, row: Row) -> None:
        self._write(asdict(row))
        print(line_of(row), flush=True)

    @contextmanager
    def row(self, what: str) -> Iterator[dict[str, Any]]:
        """A row of what happens inside, which fills the numbers. An exception is the row's verdict and goes no
        further: the next row is to be tried whatever this one does."""
        self._write({"begins": what})
        begin = time.monotonic()
        numbers: dict[str, Any] = {}
        verdict, why = WORKS, ""
        try:
            yield numbers
        except MissingHere as error:
            verdict, why = MISSING, str(error)
        except CheckFailed as error:
            verdict, why = FAILED, str(error)
        except Exception as error:  # whatever it was, it is told
            traceback.print_exc()
            verdict, why = FAILED, f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - begin, 2)
        self.add(Row(what=what, verdict=verdict, why=short(why), numbers=numbers, seconds=seconds))

    def _write(self, entry: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def read(path: Path) -> tuple[list[Row], str]:
    """The rows in a record, and what had begun and did not end, "" for nothing. A last line cut short is left out."""
    rows: list[Row] = []
    begun = ""
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "begins" in entry:
            begun = entry["begins"]
        else:
            rows.append(Row(**entry))
            begun = ""
    return rows, begun


def worst(verdicts: Sequence[str]) -> str:
    """FAILED before missing before works; of nothing, FAILED: what tried nothing shows nothing."""
    return next((verdict for verdict in (FAILED, MISSING, WORKS) if verdict in verdicts), FAILED)


def short(text: str) -> str:
    """One line of it."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 1] + "…"


def line_of(row: Row) -> str:
    numbers = ", ".join(f"{name} {shown(value)}" for name, value in row.numbers.items())
    return "  ".join(filter(None, (f"{row.what}: {row.verdict}{f': {row.why}' if row.why else ''}", numbers)))


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
