"""What a comparison came to: as text, as rows, as JSON, as an exception."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rust_ort.errors import ClientError, NumericMismatch
from rust_ort.link.specs import Verdict
from rust_ort.observe import placement, work
from rust_ort.observe.digits import distance_text, few, significant
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.observe.peer import TORCHS_OWN
from rust_ort.observe.rules import rule_lines, total
from rust_ort.tables import VERDICT_KINDS

SCHEMA_VERSION = 7
"""Of Report.to_json. 2: metrics, nodes, what is missing. 3: noise, births of NaN and infinity. 4: division.
5: placement. 6: verdicts "noise", "tie", "open_order". 7: spread."""

NO_CALL = (
    "no call was compared; call the model under compare='outputs' or 'nodes' first (what an equal backend compiled "
    "before is in that one's report)"
)
OTHER_DRAWS = (
    "the backend drew other random numbers than eager, so what differs may be chance; in a compiled function "
    "numpy.random is torch's generator, and its own again with torch._dynamo.config.use_numpy_random_stream = True"
)
SHOWS_TORCHS_OWN = "torch.compile(model, backend='aot_eager') beside eager shows the same, without this backend"
ZEROS = "so that the match tells little (weights that begin at zero make it so)"
SHOWN_WRONG = 5
SHOWN_NODES = 20
ALL_SHOWN = 20
"""Up to so many values a report shows all; of more what is not a match, and counts."""
_FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(kw_only=True)
class Report:
    """Eager against the backend. `verdicts`: one a value compared, or not compared with the reason. `missing`: what was
    asked for by name and is not there; with any the report is not ok. `graphs`: what the backend compiled.
    `drew_otherwise`: whether it drew other random numbers than eager, which gives the same when it runs again."""

    verdicts: list[Verdict] = field(default_factory=list)
    graphs: list[GraphInfo] = field(default_factory=list)
    missing: list[Verdict] = field(default_factory=list)
    drew_otherwise: bool = False

    @property
    def ok(self) -> bool:
        """At least one value was compared; every value and every node's own kernel is as right as eager's (inside
        tolerance, or outside it by noise, a tie or an open order), and none failed; all that was asked for by name was
        compared."""
        passed = any(verdict.is_pass for verdict in self.verdicts)
        return passed and not self._wrong and self.first_wrong_node is None and not self._failed and not self.missing

    @property
    def nodes(self) -> list[tuple[str, NodeVerdict]]:
        """(graph, verdicts) of every FX node, under the option compare="nodes"."""
        return [(graph.name, node) for graph in self.graphs for _, node in graph.nodes]

    @property
    def first_wrong_node(self) -> tuple[str, NodeVerdict] | None:
        """(graph, node) of the first node whose own kernel differs from eager on eager's inputs."""
        return next(((graph, node) for graph, node in self.nodes if node.is_wrong), None)

    @property
    def noise(self) -> dict[str, dict[str, int]]:
        """{"value", "local", "cumulative": {kind: count}} of what is known against float64, under
        compare_float64="all"."""
        of = {
            "value": self.verdicts,
            "local": [node.local for _, node in self.nodes],
            "cumulative": [node.cumulative for _, node in self.nodes],
        }
        return {
            judged: dict(Counter(verdict.noise["kind"] for verdict in verdicts if verdict.noise is not None))
            for judged, verdicts in of.items()
        }

    @property
    def first_worse_node(self) -> tuple[str, NodeVerdict] | None:
        """(graph, node) of the first node whose own kernel is further from float64 than eager's by more than noise."""
        return next(((graph, node) for graph, node in self.nodes if node.local.is_worse), None)

    @property
    def first_births(self) -> list[tuple[str, NodeVerdict, dict[str, Any]]]:
        """(graph, node, birth): where the first NaN and the first infinity come from, of either side."""
        born = [(graph, node, birth) for graph, node in self.nodes for birth in node.births]
        found = []
        for side in ("candidate", "reference"):
            for is_nan in (True, False):
                found += [b for b in born if b[2]["side"] == side and (b[2]["kind"] == "nan") is is_nan][:1]
        return found

    def nothing_to(self, do: str) -> str:
        """What a tool says that has nothing to `do`, as "blame": nothing of the model ran on ONNX Runtime, and why."""
        reasons = dict.fromkeys(verdict.reason for verdict in self.verdicts if verdict.kind == "not_compared")
        why = "; ".join(filter(None, reasons)) or "nothing was dumped of it"
        return f"nothing of it ran on ONNX Runtime, so there is nothing to {do}: {why}"

    @property
    def is_torchs_own(self) -> bool:
        """Whether values differ from eager, and every one of them because torch.compile itself changes it."""
        return bool(self._wrong) and all(verdict.is_torchs_own for verdict in self._wrong)

    @property
    def _failed(self) -> list[tuple[str, NodeVerdict]]:
        """(graph, node) of the nodes that could not be compared: none of them is accused."""
        return [(graph, node) for graph, node in self.nodes if node.is_failed]

    @property
    def _wrong(self) -> list[Verdict]:
        """Values outside tolerance or without a comparable counterpart, the worst first."""
        wrong = [verdict for verdict in self.verdicts if verdict.kind in ("mismatch", "failed")]
        return sorted(wrong, key=_badness, reverse=True)

    def check(self) -> Report:
        """This report, when it is ok.

        Errors: NumericMismatch that names the worst values and the first wrong node; ClientError when nothing was
        compared, or not all that was asked for by name.
        """
        if self.ok:
            return self
        blamed = self.first_wrong_node
        if self._wrong or blamed is not None:
            graph, node = (blamed[0], blamed[1].name) if blamed is not None else ("", "")
            raise NumericMismatch(self._mismatch_message(), code="MISMATCH", graph=graph, node=node)
        verdicts = self.missing or [node.local for _, node in self._failed] or self.verdicts
        reasons = dict.fromkeys(f"{verdict.name}: {verdict.reason}" for verdict in verdicts if verdict.reason)
        some = self.missing or self._failed
        what = "not all that was asked for was compared" if some else "nothing was compared with eager"
        lines = list(reasons) or [NO_CALL]
        raise ClientError("\n  ".join([f"{what}, so nothing is known to match:", *lines]), code="NOT_COMPARED")

    def _mismatch_message(self) -> str:
        wrong = self._wrong
        lines = [f"{len(wrong)} of {len(self.verdicts)} values differ from eager's:"]
        lines += [f"  {_sentence(verdict)}" for verdict in wrong[:SHOWN_WRONG]]
        if len(wrong) > SHOWN_WRONG:
            lines.append(f"  and {len(wrong) - SHOWN_WRONG} more")
        if self.first_wrong_node is not None:
            lines.append("first wrong node: {}: {}".format(*self.first_wrong_node))
        lines += self._next()
        return "\n".join(lines)

    def _next(self) -> list[str]:
        """What to do next about what is wrong."""
        if not self._wrong and self.first_wrong_node is None:
            return []
        if self.drew_otherwise:
            return [f"next: {OTHER_DRAWS}"]
        if self.is_torchs_own:
            return [f"next: {SHOWS_TORCHS_OWN}"]
        worst = next((verdict.name for verdict in self._wrong), "")
        of = f", gradient={worst.removeprefix('grad of ')!r}" if worst.startswith("grad of ") else ""
        return [f"next: print(rust_ort.blame(model, ...{of})) says which node is to blame, if any"]

    def rows(self) -> list[dict[str, Any]]:
        """One flat dict a verdict, all with the same keys: `pandas.DataFrame(report.rows())`.

        judged: "value" (an output, a gradient, a buffer), or of a node "local" and "cumulative". Numbers are the
        daemon's metrics, nested ones joined by "_", e.g. worst_reference; None where there are none.
        """
        rows = [_row(verdict, judged="value") for verdict in [*self.verdicts, *self.missing]]
        for graph in self.graphs:
            for step, node in graph.nodes:
                where = {"graph": graph.name, "step": step, "part": node.part, "op": node.op, "module": node.module,
                         "source": node.source}  # fmt: skip
                rows.append(_row(node.local, judged="local", **where))
                rows.append(_row(node.cumulative, judged="cumulative", **where))
        keys = dict.fromkeys(key for row in rows for key in row)
        return [dict.fromkeys(keys) | row for row in rows]

    def to_json(self) -> str:
        """The report as JSON; a number that JSON lacks is "nan", "inf" or "-inf"."""
        plain = {
            "schema": SCHEMA_VERSION,
            "ok": self.ok,
            "verdicts": [_plain(verdict) for verdict in self.verdicts],
            "missing": [_plain(verdict) for verdict in self.missing],
            "noise": self.noise,
            "graphs": [
                {
                    "name": graph.name,
                    "direction": graph.direction,
                    "compute_nodes": graph.compute_nodes,
                    "fallen_back": graph.fallen_back,
                    "division": dataclasses.asdict(graph.division),
                    "placement": dataclasses.asdict(graph.placement),
                    "eager": [{"node": node.name, "op": node.op, "reason": node.reason} for node in graph.eager],
                    "nodes": [_plain_node(step, node) for step, node in graph.nodes],
                }
                for graph in self.graphs
            ],
        }
        return json.dumps(plain, indent=1, allow_nan=False)

    def __str__(self) -> str:
        shown = self._shown()
        width = max([len(verdict.name) for verdict in shown] + [4])
        lines = [f"{'name':<{width}}  {'verdict':<12}  {'max |c-r|':>9}  {'/max |r|':>9}  outside"]
        for verdict in shown:
            numbers = (
                f"{distance_text(verdict.max_abs):>9}  {distance_text(verdict.max_rel_to_max):>9}  {verdict.outside}"
                if verdict.is_measured
                else str(verdict.reason)
            )
            if verdict.kind in ("tie", "open_order"):
                numbers = f"{numbers:<31}  {verdict.reason}"
            if verdict.noise is not None:
                numbers = f"{numbers:<31}  {noise_text(verdict)}"
            if verdict.is_measured and verdict.is_torchs_own:
                numbers = f"{numbers:<31}  torch.compile's own, see below"
            lines.append(f"{verdict.name:<{width}}  {verdict.kind:<12}  {numbers}")
        lines += self._hidden(shown)
        worst = next((verdict for verdict in self._wrong if verdict.kind == "mismatch"), None)
        if worst is not None:
            lines.append(f"worst: {_sentence(worst)}")
        return "\n".join([*lines, *self._summary(), *self._next()])

    def _hidden(self, shown: Sequence[Verdict]) -> list[str]:
        hidden = _kinds([*self.verdicts, *self.missing])
        hidden.subtract(_kinds(shown))
        return [f"and {hidden.total()} more ({_listed(hidden)}): report.rows() has all"] if hidden.total() else []

    def _shown(self) -> list[Verdict]:
        """What is wrong, the worst first, then what is missing, then what is ok; of many values so many as a screen has
        of what tells something, while those that match, and what was not compared beside values that were, are only
        counted."""
        rest = [verdict for verdict in self.verdicts if verdict.kind not in ("mismatch", "failed")]
        values = [*self._wrong, *self.missing, *rest]
        if len(values) <= ALL_SHOWN:
            return values
        dull = ("match", "not_compared") if any(verdict.is_pass for verdict in self.verdicts) else ("match",)
        telling = [verdict for verdict in rest if verdict.kind not in dull]
        n_wrong = max(ALL_SHOWN - len(self.missing), SHOWN_WRONG)
        shown = [*self._wrong[:n_wrong], *self.missing]
        shown += telling[: max(ALL_SHOWN - len(shown), 0)]
        return shown or rest[:SHOWN_WRONG]

    @property
    def _zeros(self) -> list[str]:
        """Names of floating values that match and are zero all over, on both sides."""
        return [
            verdict.name
            for verdict in self.verdicts
            if verdict.kind == "match"
            and verdict.metrics is not None
            and verdict.metrics["dtype"] in _FLOATS
            and verdict.metrics["max_reference"] == verdict.max_abs == 0
        ]

    def _summary(self) -> list[str]:
        """Counts, and the first wrong node."""
        nodes = sum(graph.onnxruntime_nodes for graph in self.graphs)
        eager = sum(graph.eager_nodes for graph in self.graphs)
        found = _listed(_kinds([*self.verdicts, *self.missing])) or "nothing compared"
        division = total(graph.division for graph in self.graphs)
        where = "ONNX Runtime and libtorch" if any(on != "ort" for on in division.nodes) else "ONNX Runtime"
        share = work.in_eager(self.graphs)
        lines = [f"{found}; {len(self.graphs)} graphs, {nodes} nodes on {where}, {eager} in eager{share}"]
        lines += [f"{graph.name}: {graph.fallen_back}" for graph in self.graphs if graph.fallen_back]
        if division.rules:
            lines += [str(division), *rule_lines(division)]
        if placed := placement.total(graph.placement for graph in self.graphs):
            lines.append(str(placed))
        if zeros := self._zeros:
            more = f" and {len(zeros) - 1} more" if len(zeros) > 1 else ""
            lines.append(f"zero on both sides, {ZEROS}: {zeros[0]}{more}")
        if self.nodes:
            kinds = Counter(node.local.kind for _, node in self.nodes)
            lines.append("nodes: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
        noise = self.noise
        measured = bool(noise["value"] or noise["cumulative"])  # not of mismatches alone
        for judged, known in noise.items():
            if known and measured:
                shown = ", ".join(f"{known[kind]} {text}" for kind, text in _NOISES.items() if kind in known)
                lines.append(f"against float64, {_JUDGED[judged]}: {shown}")
        if self.first_wrong_node is not None:
            lines.append("first wrong node: {}: {}".format(*self.first_wrong_node))
        for graph, node, birth in self.first_births:
            what = "NaN" if birth["kind"] == "nan" else "infinity"
            lines.append(f"first {what} of {_SIDES[birth['side']]}: {graph}: {node.name} ({node.op}): {_birth(birth)}")
        if measured and self.first_worse_node is not None:
            graph, node = self.first_worse_node
            lines.append(f"first node worse than eager: {graph}: {node.name} ({node.op}): {noise_text(node.local)}")
        if own := sum(verdict.is_torchs_own for verdict in self._wrong):
            lines.append(f"{own} of {len(self._wrong)} wrong values: {TORCHS_OWN}")
        if self._failed:
            lines.append(
                "could not be compared, {} nodes, the first: {}: {}".format(len(self._failed), *self._failed[0])
            )
        return lines

    def _repr_html_(self) -> str:
        """For notebooks: the verdicts, and the nodes whose own kernel does not match."""
        shown = self._shown()
        values = [
            (v.name, v.kind, distance_text(v.max_abs), distance_text(v.max_rel_to_max), v.outside, v.reason)
            for v in shown
        ]
        made = html_table(("name", "verdict", "max |c-r|", "/max |r|", "outside", "reason"), values)
        wrong = [(graph, node) for graph, node in self.nodes if node.is_wrong]
        if wrong:
            nodes = [(graph, n.name, n.op, n.module, n.source, n.local.reason) for graph, n in wrong[:SHOWN_NODES]]
            made += html_table(("graph", "wrong node", "operator", "module", "source", "its own kernel"), nodes)
        return made + html_lines([*self._hidden(shown), *self._summary()])


def html_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; every cell is escaped."""

    def line(tag: str, cells: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line("th", header) + "".join(line("td", row) for row in rows) + "</table>"


def html_lines(lines: Iterable[str]) -> str:
    """Lines of text as HTML, escaped."""
    return "<p>" + "<br>".join(html.escape(line) for line in lines) + "</p>"


def _badness(verdict: Verdict) -> float:
    """What cannot be compared at all is worst, then what differs most of its size."""
    if verdict.kind == "failed" or math.isnan(verdict.max_rel_to_max):
        return math.inf
    return verdict.max_rel_to_max


def _kinds(verdicts: Iterable[Verdict]) -> Counter[str]:
    return Counter(verdict.kind for verdict in verdicts)


def _listed(counts: Mapping[str, int]) -> str:
    """Of `_kinds`, such as "8 match, 1 open order"; "" of none."""
    return ", ".join(
        f"{counts[kind]} {kind}".replace("open_order", "open order") for kind in VERDICT_KINDS if counts.get(kind)
    )


def _sentence(verdict: Verdict) -> str:
    """The daemon's own, which begins with the name; else what is known."""
    known = verdict.reason or f"max |candidate - reference| {few(verdict.max_abs)}, {verdict.outside} outside"
    return known if verdict.name in known else f"{verdict.name}: {known}"


_NOISES = {
    "noise": "noise",
    "candidate_worse": "candidate worse",
    "reference_worse": "reference worse",
    "ill_conditioned": "ill-conditioned",
}
_JUDGED = {"value": "values", "local": "nodes alone", "cumulative": "nodes as they drift"}


_SIDES = {"candidate": "ONNX Runtime", "reference": "eager"}


def _birth(birth: Mapping[str, Any]) -> str:
    """What was born, how much of it, and of what."""
    value = birth["value"]
    count = value["nan" if birth["kind"] == "nan" else "inf"]
    said = [f"{'NaN' if birth['kind'] == 'nan' else 'infinite'}, {count} of {value['n']}"]
    if birth["kind"] == "overflow":
        limit, largest = (significant(float(birth[key]), 5) for key in ("limit", "largest"))
        said = [
            f"overflow of {birth['dtype']} (largest {limit}), {count} of {value['n']}; the largest finite number read "
            f"or computed is {largest}"
        ]
    for read in birth["read"]:
        low, high = (significant(float(read[end]), 5) for end in ("min", "max"))
        counts = [f", {read[key]} {key}" for key in ("nan", "inf", "zeros") if read[key]]
        said.append(f"it read {read['name']} {read['dtype']}{read['dims']} from {low} to {high}{''.join(counts)}")
    return "; ".join(said)


def noise_text(verdict: Verdict) -> str:
    """How far both sides are from float64; "" where it is not known."""
    if verdict.noise is None:
        return ""
    reference, candidate = (float(verdict.noise[side]) for side in ("reference_error", "candidate_error"))
    kind, steps = verdict.noise["kind"], float(verdict.noise.get("condition", math.nan))
    judged = _NOISES[kind]
    if kind == "ill_conditioned" and not math.isnan(steps):
        judged += f", eager is off by {few(steps)} steps"
    said = f"{judged}: from float64 eager is {few(reference)}, ONNX Runtime {few(candidate)}"
    if spread := verdict.noise.get("spread"):
        said += f", rounding moves it by {few(float(spread['largest']))}"
    rounding = verdict.noise.get("rounding")
    if rounding is None or kind not in ("candidate_worse", "reference_worse"):
        return said
    rms, bias, beyond = (
        [rounding[f"{side}_{what}"] for side in ("reference", "candidate")] for what in ("rms", "bias", "beyond")
    )
    return (
        f"{said}; in steps of the type: root mean square {float(rms[0]):.2f} and {float(rms[1]):.2f}, mean "
        f"{float(bias[0]):.2f} and {float(bias[1]):.2f}; off by more than rounding: {beyond[0]} and {beyond[1]} of "
        f"{rounding['n']} elements"
    )


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {
        "name": verdict.name,
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "max_abs": _number(verdict.max_abs),
        "max_rel_to_max": _number(verdict.max_rel_to_max),
        "outside": verdict.outside,
        "metrics": verdict.metrics,
        "noise": verdict.noise,
    }


def _plain_node(step: int, node: NodeVerdict) -> dict[str, Any]:
    return {
        "step": step,
        "part": node.part,
        "name": node.name,
        "op": node.op,
        "module": node.module,
        "source": node.source,
        "local": _plain(node.local),
        "cumulative": _plain(node.cumulative),
        "no_float64": node.no_float64,
        "births": list(node.births),
    }


def _row(verdict: Verdict, *, judged: str, **where: Any) -> dict[str, Any]:
    numbers = _flat(verdict.metrics or {})
    if not numbers and verdict.is_measured:
        numbers = {"max_abs": verdict.max_abs, "max_rel_to_max": verdict.max_rel_to_max, "outside": verdict.outside}
    named = {"name": verdict.name, "judged": judged, "verdict": verdict.kind, "reason": verdict.reason}
    noise = _flat(verdict.noise, "noise_") if verdict.noise is not None else {}
    return named | dict.fromkeys(("graph", "step", "part", "op", "module", "source")) | where | numbers | noise


_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def _flat(metrics: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested metrics with joined names; lists, such as shapes, as text."""
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{before}{key}_")
        elif isinstance(value, list):
            flat[before + key] = str(value)
        else:
            flat[before + key] = _NOT_FINITE.get(value, value) if isinstance(value, str) else value
    return flat
