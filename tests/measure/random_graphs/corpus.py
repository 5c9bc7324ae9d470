"""The corpus: programs that once failed, small, as lines of JSON that people can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from measure.random_graphs.program import Text

PLAIN = Text(graph="", calls=(), arguments=())
"""What an entry does not say."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """name: what once went wrong, as a sentence. still_open: it still does, and why; "" where it is mended."""

    name: str
    text: Text
    still_open: str = ""


def read(path: Path) -> list[Case]:
    """Every case of a file, in its order."""
    return [
        Case(name=given["name"], text=_text(given), still_open=given.get("open", ""))
        for given in json.loads(path.read_text())
    ]


def write(path: Path, cases: list[Case]) -> None:
    """The whole file."""
    listed = [{"name": c.name, **({"open": c.still_open} if c.still_open else {}), **entry(c.text)} for c in cases]
    path.write_text(json.dumps(listed, indent=1) + "\n")


def entry(text: Text) -> dict[str, Any]:
    """A program as JSON: its lines, its calls' lines, and what is not plain."""
    plain = asdict(PLAIN)
    rest = {name: value for name, value in asdict(text).items() if value != plain[name]}
    calls = [call.splitlines() for call in text.calls]
    return {**rest, "graph": text.graph.splitlines(), "calls": calls}


def _text(given: dict[str, Any]) -> Text:
    known = {field.name for field in fields(Text)} - {"graph", "calls", "arguments", "after"}
    return Text(
        graph="\n".join(given["graph"]) + "\n",
        calls=tuple("\n".join(lines) for lines in given["calls"]),
        arguments=tuple(given.get("arguments", ())),
        after=tuple(given.get("after", ())),
        **{name: given[name] for name in known if name in given},
    )
