"""`rust_ort.report("dumps/run")`: what a dump tells, as one page that a browser opens from the disk."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rust_ort._callable import make_callable
from rust_ort.errors import ClientError
from rust_ort.link.program import printed_by
from rust_ort.observe.report import html_lines, html_table
from rust_ort.options.arguments import shown

__all__ = ["Page", "report"]

ON_THE_CARD = ("graph", "node", "op", "module", "source", "command", "next")
"""Of the culprit, what is shown where it is known."""

DATA = '<script type="application/json" id="data">'

WRONG, BEYOND = "#d7301f", 1e30
"""Colour of a node whose verdict is a mismatch; what stands for a distance that is not finite."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Page:
    """What `rust_ort.report` wrote; printed, the verdict and who is to blame. path: the page. data: what it shows, as
    `rust-ort report --json` prints it (docs/design/report.md says field by field). made_in: where its paths begin."""

    path: Path
    data: dict[str, Any]
    made_in: Path = field(default_factory=Path.cwd)

    @property
    def verdict(self) -> str:
        """Of all that was compared: "match", "mismatch", "failed", "not_all_compared" or "nothing_compared"."""
        return str(self.data["verdict"]["kind"])

    def node_data(self, graph: str, *, part: int = 0, error: str = "local") -> dict[str, Any]:
        """What Model Explorer shows on the nodes of a part's model.onnx (`--node_data_paths` of a file with this as
        JSON): of each node the largest of |candidate - reference| by that of |reference|, mismatches in red.

        graph, part: as the dump names them; its first call whose nodes were compared counts. error: "local", of each
        node alone on eager's inputs, or "cumulative".

        Errors: ClientError where there is no such part, its nodes were not compared, or its provenance.json is gone.
        """
        if error not in ("local", "cumulative"):
            raise ClientError(
                f"node_data error: expected 'local' or 'cumulative', got {shown(error)}", code="BAD_ARGUMENT"
            )
        parts = {(one["name"], of["part"]): of for one in self.data["graphs"] for of in one["parts"]}
        found = parts.get((graph, part))
        if found is None:
            known = ", ".join(f"{name!r} part {at}" for name, at in parts) or "none"
            raise ClientError(
                f"node_data: no part {part} of a graph {graph!r}; the dump has {known}", code="BAD_ARGUMENT"
            )
        table = next((step["table"] for step in found["steps"] if step.get("table")), None)
        if table is None:
            raise ClientError(
                f"node_data: no node of {graph!r} part {part} was compared; dump with compare='nodes'",
                code="NOT_COMPARED",
            )
        rows = {row["name"]: row[error] for row in table["nodes"] if row[error]["metrics"]}
        provenance = self.made_in / found["path"] / "provenance.json"
        try:
            written = json.loads(provenance.read_text())["nodes"]
        except (OSError, ValueError, KeyError) as why:
            said = f"node_data: {provenance}: {why}; the dump is not whole"
            raise ClientError(said, code="BAD_ARGUMENT") from why
        results = {node: _shown_as(rows[fx]) for node, fx in written.items() if fx in rows}
        return {"name": f"{error} error", "results": results}

    def __str__(self) -> str:
        return "\n".join([f"{self.path}: {self.data['verdict']['text']}", self.data["culprit"]["text"]])

    def __repr__(self) -> str:
        return f"<Page {self.path}: {self.verdict}>"

    def _repr_html_(self) -> str:
        """For notebooks: the card of the page's first screen."""
        culprit = self.data["culprit"]
        rows = [(field, culprit[field]) for field in ON_THE_CARD if culprit.get(field)]
        return html_lines(str(self).splitlines()) + html_table(("to blame", ""), rows)


def _shown_as(verdict: dict[str, Any]) -> dict[str, Any]:
    distance = float(verdict["metrics"]["max_rel_to_max"])  # "inf" and "nan" are strings
    value = {"value": distance if math.isfinite(distance) else BEYOND}
    return value | ({"bgColor": WRONG} if verdict["kind"] == "mismatch" else {})


def report(path: str | os.PathLike[str], *, output: str | os.PathLike[str] = "report.html") -> Page:
    """Writes what a dump tells as one HTML page, which loads nothing from elsewhere: open it, or send it.

        with rust_ort.dump("mine", folder="dumps"):
            compiled(x).sum().backward()
        print(rust_ort.report("dumps/mine", output="mine.html"))

    path: a run, a graph, a part or a data set of a dump; a folder of dumps with one run. output: the page; a file that
    is there is replaced.

    Returns a Page: print it. Nothing is run; who `rust_ort.blame(folder=…)` or `rust-ort blame` named stands in it.

    Errors: ClientError where no dump is, or the page cannot be written; DaemonFault when the program fails.
    """
    for name, given in (("path", path), ("output", output)):
        if not isinstance(given, str | os.PathLike) or not os.fspath(given):
            raise ClientError(f"report {name}: expected a path, got {shown(given)}", code="BAD_ARGUMENT")
    page = Path(os.fspath(output))
    if str(page) == "-":
        raise ClientError("report output: expected a path, got '-'", code="BAD_ARGUMENT")
    printed_by("report", [f"--output={page}", "--", os.fspath(path)])
    return Page(path=page, data=_data_in(page))


def _data_in(page: Path) -> dict[str, Any]:
    """What a page shows: the JSON of its one element for data, in which no tag can stand (src/cli/report/html.rs)."""
    _, begins, text = page.read_text().partition(DATA)
    if not begins:
        raise ClientError(
            f"report output: {page} does not keep what is written to it; give a file", code="BAD_ARGUMENT"
        )
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return found


make_callable(__name__, report)
