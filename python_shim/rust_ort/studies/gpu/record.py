"""Rows of a step: what was tried, what came of it, numbers. Written as they come: a step that hangs loses none.

A record may have rows of an earlier run: they are not tried again. What has no time left is left out, and says so.
"""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

WORKS, FAILED, MISSING, LEFT_OUT = "works", "FAILED", "missing", "left out"
EXIT_CODES = {WORKS: 0, FAILED: 1, MISSING: 2, LEFT_OUT: 2}
LEAST_S = 2.0
"""With less time left a row is not begun."""
MOST_LETTERS = 300
"""Of a reason: the whole is in the step's log."""

Numbers = dict[str, Any]


class MissingHere(Exception):
    """The machine, or what was built, lacks what a row needs; the text says what."""


class CheckFailed(Exception):
    """It ran and is not as it is to be."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was tried. why: of what does not work."""

    what: str
    verdict: str = WORKS
    why: str = ""
    numbers: Numbers = field(default_factory=dict)
    seconds: float = 0.0


class Record:
    """Writes the rows of a step into a file, a line each, and prints them. until: when the step is to be done, by
    time.monotonic(), which all processes of a machine share."""

    def __init__(self, path: Path, until: float = math.inf) -> None:
        self.path = path
        self.until = until
        self._known = {row.what for row in read(path).rows}

    @property
    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())

    def lacks(self, what: str) -> bool:
        return what not in self._known

    def needs(self, what: str, least_s: float = LEAST_S) -> bool:
        """Whether a row is to be tried: no earlier run has, and there is time, or it is told that there is none.
        least_s: with less it is not begun."""
        if what in self._known:
            return False
        if self.left_s > least_s:
            return True
        self.add(Row(what=what, verdict=LEFT_OUT, why=f"{self.left_s:.0f} s were left of the step's share"))
        return False

    def row(self, what: str, fill: Callable[[Numbers], None], *, least_s: float = LEAST_S) -> None:
        """A row of what `fill` does, which fills in the numbers, where it `needs` to be tried. An exception is the
        row's verdict and goes no further: the next row is to be tried whatever this one does."""
        if not self.needs(what, least_s):
            return
        self.begin(what)
        began = time.monotonic()
        numbers: Numbers = {}
        verdict, why = outcome(fill, numbers)
        seconds = round(time.monotonic() - began, 2)
        self.add(Row(what=what, verdict=verdict, why=short(why), numbers=numbers, seconds=seconds))

    def begin(self, what: str) -> None:
        """What a step is at, should it be ended."""
        self._write({"begins": what})

    def end(self) -> None:
        """Every row of the step was looked at."""
        self._write({"ends": True})

    def add(self, row: Row) -> None:
        """A row of which there is none yet."""
        if row.what not in self._known:
            self._known.add(row.what)
            self._write(asdict(row))
            print(line_of(row), flush=True)

    def _write(self, entry: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def outcome(fill: Callable[[Numbers], None], numbers: Numbers) -> tuple[str, str]:
    """(verdict, why) of what it does."""
    try:
        fill(numbers)
    except MissingHere as error:
        return MISSING, str(error)
    except CheckFailed as error:
        return FAILED, str(error)
    except Exception as error:  # whatever it was, it is told
        traceback.print_exc()
        return FAILED, f"{type(error).__name__}: {error}"
    return WORKS, ""


@dataclass(kw_only=True)
class Read:
    """Of a record. begun: what had begun and did not end, "" for nothing; ended: the step came to its end."""

    rows: list[Row] = field(default_factory=list)
    begun: str = ""
    ended: bool = False


def read(path: Path) -> Read:
    """What is in a record. A last line cut short is left out."""
    found = Read()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "begins" in entry:
            found.begun = entry["begins"]
        elif "ends" in entry:
            found.ended = True
        else:
            found.rows.append(Row(**entry))
            found.begun = ""
    return found


def write(path: Path, rows: Sequence[Row]) -> None:
    """A record of an earlier run's rows."""
    path.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def worst(verdicts: Sequence[str]) -> str:
    """FAILED before missing before left out before works; of nothing, FAILED: what tried nothing shows nothing."""
    return next((verdict for verdict in (FAILED, MISSING, LEFT_OUT, WORKS) if verdict in verdicts), FAILED)


def short(text: str) -> str:
    """One line of it."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else line[: MOST_LETTERS - 1] + "…"


def line_of(row: Row) -> str:
    numbers = ", ".join(f"{name} {shown(value)}" for name, value in row.numbers.items())
    return "  ".join(filter(None, (f"{row.what}: {row.verdict}{f': {row.why}' if row.why else ''}", numbers)))


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
