"""Which values of a half-precision model to keep in float32, so that its outputs and gradients are near enough."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.compare import compare
from rust_ort.dump import dump
from rust_ort.errors import ClientError, OptionError
from rust_ort.link.program import said_by
from rust_ort.observe.digits import significant
from rust_ort.observe.report import SHOWN_NODES, Report, html_lines, html_table
from rust_ort.observe.session import holds_calls
from rust_ort.options import Options, arguments

__all__ = ["Kept", "keep_in_float32"]

RUN = "keep"
"""Name of the run in the folder."""


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What to keep in float32. rules: for the option `precision_rules`; {} where none are needed or help. verified:
    with these rules every graph's outputs are within their limit that can be, as the program ran them. answers: of
    each part, as `rust-ort keep --json` prints them; text: the same for people. before, after: the model in eager and
    compiled without and with the rules, every value with its distance from float64 (`verdict.noise`); after is None
    without rules. folder: the dump, where it was kept."""

    rules: dict[str, tuple[str, ...]]
    verified: bool
    answers: list[dict[str, Any]]
    text: str
    before: Report
    after: Report | None
    folder: Path | None

    @property
    def culprits(self) -> list[dict[str, Any]]:
        """Roundings of all parts, those first that make an output infinite, then by their share of its squared error.
        Keys: graph, pattern, values, op, module, source, share, output, n_infinite."""
        all_of = [{"graph": answer["graph"], **culprit} for answer in self.answers for culprit in answer["culprits"]]
        return sorted(all_of, key=lambda culprit: (-culprit["n_infinite"], -culprit["share"]))

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Outputs of all parts. Keys: graph, name, role, and before, after (or None) and everything, each {"verdict",
        "times", "within"}: without rules, with them, and with everything kept."""
        return [{"graph": answer["graph"], **output} for answer in self.answers for output in answer["outputs"]]

    @property
    def beyond(self) -> list[tuple[str, str]]:
        """(graph, output) of those that are not within their limit whatever is kept: their own rounding takes them out
        of it, or makes them infinite, as what a forward saves for its backward."""
        return [(answer["graph"], name) for answer in self.answers for name in answer["beyond"]]

    @property
    def complete(self) -> bool:
        """Whether the search ended before its budget did."""
        return all(answer["complete"] for answer in self.answers)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """For notebooks: the rules, what each rounding does to an output, and every value before and after."""
        headline = [f"precision_rules={self.rules!r}" if self.rules else "no rules", *self._unsettled()]
        rows = [
            (culprit["graph"], culprit["pattern"], f"{significant(100 * culprit['share'], 3)} %", culprit["output"],
             culprit["n_infinite"] or "", culprit["op"], culprit["module"], culprit["source"])
            for culprit in self.culprits[:SHOWN_NODES]
        ]  # fmt: skip
        header = ("graph", "rounding", "share of the output's error", "output", "makes infinite", "operator", "module",
                  "source")  # fmt: skip
        made = html_lines(headline) + (html_table(header, rows) if rows else "")
        reports = [("without rules", self.before), *([("with the rules", self.after)] if self.after else [])]
        return made + "".join(html_lines([title]) + report._repr_html_() for title, report in reports)

    def _unsettled(self) -> list[str]:
        beyond = ", ".join(f"{name} of {graph}" for graph, name in self.beyond)
        said = {
            "with these rules not every output within reach is within its limit": not self.verified,
            "the search ended before its time": not self.complete,
            f"beyond any rule: {beyond}": bool(beyond),
        }
        return [text for text, holds in said.items() if holds]


def keep_in_float32(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    autocast: torch.dtype | str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    tolerance: Mapping[str, float] | None = None,
    times: float | None = None,
    by: str = "node",
    strategy: str = "smallest",
    budget: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Kept:
    """Finds the values of `model(*args, **kwargs)` that have to stay in float32 for its graphs' outputs to be near
    enough to those without any rounding, and compiles the model with them.

        kept = rust_ort.keep_in_float32(model, input_ids, labels=labels, autocast=torch.bfloat16)
        print(kept)
        model = torch.compile(model, backend=rust_ort.backend(precision_rules=kept.rules))

    model, args, kwargs, backward, autocast, loss, options: see `rust_ort.compare`.
    tolerance: {"atol", "rtol", "scale"} of outputs against float64; by default that of the options, else of the half
    precision that takes part. times: instead of it, each output's error is at most so many times what rounding its
    exact value gives.
    by: a rule names a "node" (few values) or a "module" (the shortest list).
    strategy: "smallest", or "greedy", which does not try to leave out again.
    budget: seconds for each part, by default 600.
    folder: where the dump stays, for `rust-ort keep`; by default it is temporary.

    Each graph is held against itself in float64 on the inputs that it got. Where an earlier graph has overflowed, the
    model runs again with the rules found so far, and they are looked for anew. What the forward saves for the backward
    is half precision between the two, as eager's is: no rule of the backward undoes that rounding.

    Returns a Kept: print it, and compile with `precision_rules=kept.rules`.

    Errors: those of `rust_ort.compare`; OptionError where a dump is open, or the options have precision_rules already
    or a dump; ClientError where nothing is of half precision, or nothing ran on ONNX Runtime; DaemonFault when the
    program fails.
    """
    arguments.checked_model("keep_in_float32", model, kwargs)
    arguments.checked_choice("keep_in_float32", "by", by, ("node", "module"))
    arguments.checked_choice("keep_in_float32", "strategy", strategy, ("smallest", "greedy"))
    if tolerance is not None and times is not None:
        raise OptionError("keep_in_float32: expected tolerance or times, got both")
    terms = arguments.checked_terms("keep_in_float32", tolerance)
    expected = "a finite number that is at least 0"
    times = arguments.checked_number("keep_in_float32", "times", times, expected)
    budget = arguments.checked_budget("keep_in_float32", budget)
    kept_in = None if folder is None else arguments.checked_folder("keep_in_float32", "folder", folder)
    parsed = arguments.parsed_options("keep_in_float32", options)
    arguments.checked_no_dump("keep_in_float32", parsed)
    if parsed.precision_rules:
        why = "it looks for them; leave them out"
        raise OptionError(f"keep_in_float32: got options with precision_rules={parsed.precision_rules!r}: {why}")
    asked = [f"--by={by}", f"--strategy={strategy}", *_given(**terms, times=times, budget=budget)]
    every = dataclasses.replace(parsed, compare="off", compare_float64="all")

    def compared(used: Options) -> Report:
        return compare(model, *args, backward=backward, autocast=autocast, loss=loss, options=used, **kwargs)

    with contextlib.ExitStack() as stack:
        path = kept_in or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rust-ort-keep-")))
        run = os.fspath(path / RUN)
        with dump(RUN, folder=path, clean=True, options=every):
            before = compared(every)
        if not holds_calls(Path(run)):
            raise ClientError(f"keep_in_float32: {before.nothing_to('keep')}", code="NOT_COMPARED")
        said = said_by("keep", [run, *asked])
        known: set[tuple[int, str, str]] = set()
        # What a graph got from one that overflowed tells nothing of how it does on what it will get.
        while said["rules"]["float32"] and (came_in := _infinite(said["answers"])) not in (set(), known):
            known = came_in
            with dump(RUN, folder=path, clean=True, options=every):
                compared(dataclasses.replace(every, precision_rules=_rules(said)))
            said = said_by("keep", [run, *asked])
    rules = _rules(said)
    return Kept(
        rules=rules,
        verified=said["verified"],
        answers=said["answers"],
        text=said["text"],
        before=before,
        after=compared(dataclasses.replace(every, precision_rules=rules)) if rules else None,
        folder=None if kept_in is None else kept_in / RUN,
    )


def _rules(said: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(patterns) for name, patterns in said["rules"].items() if patterns}


def _infinite(answers: Sequence[Mapping[str, Any]]) -> set[tuple[int, str, str]]:
    """(which compilation, direction, input) of inputs that came in infinite or NaN, but for those that nothing helps:
    what the same compilation gives beyond reach. Several compilations use the same names; each has another number when
    the model is compiled again, but keeps its place among them."""
    halves = {answer["graph"]: str(answer["graph"]).rpartition("-") for answer in answers}
    numbers = {name: [int(number) for number in re.findall(r"\d+", name)] for name, _, _ in halves.values()}
    place = {name: at for at, name in enumerate(sorted(numbers, key=numbers.__getitem__))}
    beyond = {(place[halves[answer["graph"]][0]], name) for answer in answers for name in answer["beyond"]}
    came_in = {(place[halves[answer["graph"]][0]], halves[answer["graph"]][2], name)
               for answer in answers for name in answer["infinite_inputs"]}  # fmt: skip
    return {(at, direction, name) for at, direction, name in came_in if (at, name) not in beyond}


def _given(**numbers: float | None) -> list[str]:
    return [f"--{name}={value}" for name, value in numbers.items() if value is not None]
