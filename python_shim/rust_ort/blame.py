"""Who makes a model's outputs and gradients differ from eager: an optimizer, a node and what of it, or nobody."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort._callable import make_callable
from rust_ort.compare import compare
from rust_ort.dump import dump
from rust_ort.errors import OptionError
from rust_ort.link.program import said_by
from rust_ort.observe.digits import significant
from rust_ort.observe.peer import TORCHS_OWN
from rust_ort.observe.report import SHOWN_NODES, SHOWS_TORCHS_OWN, Report, html_lines, html_table
from rust_ort.observe.session import holds_calls
from rust_ort.options import Options, arguments

__all__ = ["Blame", "blame"]

RUN = "blame"
"""Name of the run in the folder."""


ELSEWHERE = (
    "values of the model differ from eager's, and every output of its graphs is as right as eager's: what differs is "
    "made of them in eager, or was changed before the graph was exported; print(blamed.report) shows the values"
)


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Who is to blame. report: the comparison that was examined. answers: of each part in each call, in the order in
    which they were compiled, as `rust-ort blame --json` prints them. text: the same for people. folder: the dump,
    where it was kept."""

    report: Report
    answers: list[dict[str, Any]]
    text: str
    folder: Path | None

    @property
    def culprit(self) -> dict[str, Any] | None:
        """Of the first part, in the order in which they ran, that blames somebody; None: nobody is to blame,
        or, where not `complete`, that is undetermined.

        {"graph", "kind": "node", "name", "layer"}, {"graph", "kind": "optimizer", "names", "what", "fused"} or
        {"graph", "kind": "inputs", "names"}.
        """
        culprits = [{"graph": answer["graph"], **answer["culprit"]} for answer in self.answers]
        # What came in from another part is blamed there.
        kinds = (("node", "optimizer"), ("inputs",))
        return next((culprit for kind in kinds for culprit in culprits if culprit["kind"] in kind), None)

    @property
    def nodes(self) -> list[dict[str, Any]]:
        """Nodes of all parts: those that are wrong first, by the share of the output's error that their own error
        makes. Keys: graph, name, op, module, source, share, output, local, own, layer, and more."""
        nodes = [{"graph": answer["graph"], **node} for answer in self.answers for node in answer["nodes"]]
        return sorted(nodes, key=lambda node: (node["own"] != "wrong", -node["share"]))

    @property
    def complete(self) -> bool:
        """Whether everything was looked at before the budget ended, and what was found is enough to be the answer."""
        return all(answer["complete"] for answer in self.answers)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """For notebooks: who is to blame, the nodes with what their own error does, and the comparison."""
        headline = self.text.partition("\n\n")[0].splitlines()
        rows = [
            (node["graph"], node["name"], f"{significant(100 * node['share'], 3)} %", node["own"], node["op"],
             node["module"], node["source"])
            for node in self.nodes[:SHOWN_NODES]
        ]  # fmt: skip
        header = ("graph", "node", "share of the output's error", "own error", "operator", "module", "source")
        return html_lines(headline) + (html_table(header, rows) if rows else "") + self.report._repr_html_()


def blame(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    autocast: torch.dtype | str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    output: str | None = None,
    gradient: str | None = None,
    strategy: str | None = None,
    budget: float | None = None,
    folder: str | os.PathLike[str] | None = None,
    repro: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Blame:
    """Compares `model(*args, **kwargs)` with eager node by node and names the node that makes them differ.

        print(rust_ort.blame(model, input_ids, labels=labels, gradient="lm_head.weight"))

    model, args, kwargs, backward, autocast, loss, options: see `rust_ort.compare`.
    output: explains this output of a graph alone. gradient: explains the gradient of this parameter alone.
    strategy: "linear", "bisect" or "delta"; see `rust-ort blame --help`.
    budget: seconds for each part; by default 50 times eager's time, at least 60.
    folder: where the dump stays, for `rust-ort blame` and other commands; by default it is temporary. It has eager's
    value of every node.
    repro: a folder to write that shows the first culprit with onnx, numpy and onnxruntime alone.

    Returns a Blame: print it, or look at its `culprit`.

    Errors: those of `rust_ort.compare`; OptionError where a dump is open, or asked for by the options; ClientError for
    an output that does not exist, or a folder of somebody else's; DaemonFault when the program fails.
    """
    arguments.checked_model("blame", model, kwargs)
    if strategy is not None:
        arguments.checked_choice("blame", "strategy", strategy, ("linear", "bisect", "delta"))
    if output is not None and gradient is not None:
        raise OptionError(f"blame: expected output or gradient, got output={output!r} and gradient={gradient!r}")
    asked = _asked(
        output=arguments.checked_name("blame", "output", output),
        gradient=arguments.checked_name("blame", "gradient", gradient),
        strategy=strategy,
        budget=arguments.checked_budget("blame", budget),
        repro=None if repro is None else arguments.checked_folder("blame", "repro", repro),
    )
    parsed = arguments.parsed_options("blame", options)
    arguments.checked_no_dump("blame", parsed)
    every = dataclasses.replace(parsed, compare="nodes", dump_values=True, compare_stop="never", compare_only=())
    with _folder(None if folder is None else arguments.checked_folder("blame", "folder", folder)) as path:
        with dump(RUN, folder=path, clean=True, options=every):
            report = compare(model, *args, backward=backward, autocast=autocast, loss=loss, options=every, **kwargs)
        run = path / RUN
        if not holds_calls(run):
            return Blame(report=report, answers=[], text=report.nothing_to("blame"), folder=None)
        kept = None if folder is None else run
        found = _blame(report, said_by("blame", [str(run), *asked]), kept)
        if found.culprit is None and any(verdict.kind == "mismatch" for verdict in report.verdicts):
            # No output of a graph is outside tolerance, what the model made of them is.
            followed = _blame(report, said_by("blame", [str(run), *asked, "--follow"]), kept)
            found = found if followed.culprit is None else followed
            if found.culprit is None and not any(answer["complaints"] for answer in found.answers):
                why = f"{TORCHS_OWN}; {SHOWS_TORCHS_OWN}" if report.is_torchs_own else ELSEWHERE
                found = dataclasses.replace(found, text=f"{found.text}\n{why}\n")
    return found


def _blame(report: Report, said: Mapping[str, Any], folder: Path | None) -> Blame:
    return Blame(report=report, answers=said["answers"], text=said["text"], folder=folder)


def _asked(**given: Any) -> list[str]:
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


@contextlib.contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="rust-ort-blame-") as made:
        yield Path(made)


make_callable(__name__, blame)
