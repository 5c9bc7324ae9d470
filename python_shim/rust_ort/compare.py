"""Eager against the backend on one call of a model: outputs, loss, every gradient, buffers afterwards."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort._callable import make_callable
from rust_ort.backend import Backend, compiled_apart
from rust_ort.call.client import Client
from rust_ort.export.provenance import named_as_in
from rust_ort.link.specs import Policy, Verdict, not_compared
from rust_ort.observe import limits
from rust_ort.observe.graph_info import GraphInfo
from rust_ort.observe.peer import TORCHS_OWN, VARIES, alike, torchs_own
from rust_ort.observe.report import Report
from rust_ort.observe.second_look import LOOKS_INSIDE_SECONDS, Known, looked_at_again, seconds_for, terms_of
from rust_ort.observe.sides import BY_CHANCE, Call, Run, fill, is_compiled, named_members, pairs
from rust_ort.observe.spread import spreads
from rust_ort.observe.turned import Following
from rust_ort.observe.values import same
from rust_ort.observe.verdicts import Pair, graph_breaks, missing, policy
from rust_ort.observe.wide import in_wide
from rust_ort.options import Options, arguments

__all__ = ["Report", "compare"]

UNDETERMINED = "whether it is noise is undetermined (the option compare_float64='all' takes the time)"

log = logging.getLogger("rust_ort")


def compare(
    model: nn.Module | Callable[..., Any],
    *args: Any,
    backward: bool = True,
    autocast: torch.dtype | str | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    options: Mapping[str, Any] | Options | None = None,
    **kwargs: Any,
) -> Report:
    """Runs `model(*args, **kwargs)` in eager and through the backend, from the same state, and compares the two.

        report = rust_ort.compare(model, input_ids, labels=labels, autocast=torch.bfloat16)
        print(report)
        report.check()  # raises NumericMismatch

    model: a module or a function of tensors of any dtype and shape. Its outputs may be nested.
    args, kwargs: of the model, as in a call of it: `labels=labels`, not `kwargs={"labels": labels}`.
    backward: also compares the gradients of every parameter and of inputs that require them.
    autocast: the dtype of an autocast region around the forward: torch.bfloat16, torch.float16 or its name.
    loss: a function from the outputs to a scalar tensor. None takes the output's `loss`, else the sum of every floating
    output's mean with weights cos(i), over both parts of complex ones.
    options: of the backend, see `rust_ort.Options`. {"compare": "nodes"} names the node to blame. None takes those of a
    model that rust_ort compiled already.

    Returns a Report. Its values are named "output", "loss", "grad of <parameter>", "grad of input[i]", "buffer <name>",
    and "input[i] afterwards" or "parameter <name> afterwards" where the two sides left it different. Objects are looked
    into by attribute; numbers and their like are named where they differ. A buffer that nobody wrote into, a tensor
    without elements, an argument given back and what ran in eager are "not_compared".

    The model's parameters, buffers, gradients and training mode and the random states of torch, Python and NumPy are
    restored. Arguments are copied, with the memory they share; one that cannot be copied is said to be shared. What a
    function closes over is not restored: it runs twice or more. Compilation is off in all threads while the reference
    runs, and comparisons of a process run one at a time.

    A value outside tolerance is looked at again, in this order:
    - Eager runs once more for Σ|terms| of its sums: a gradient that is zero but for rounding is judged by these.
    - Eager runs with each operator in float64, too, for 60 s or 50 times eager's time at most: a value that is no
      further from float64 than eager's is "noise", a pass. In half precision this comes first.
    - The backend runs with the outputs of its graphs compared, and their nodes where eager took 4 s or less. A wrong
      node is named. What follows from a branch that rounding turned is a "tie", a pass, and so is what eager gives when
      it takes the backend's branches. A fault outside the graphs stays a mismatch.
    - Where each node alone is right, eager runs with every operation off by a rounding: a value that this moves as far
      is "noise", too.
    - torch's own backend aot_eager runs: a mismatch that it shows as well is torch.compile's, and its reason says so. A
      value that eager itself gives otherwise is "not_compared".
    compare_float64="all" gives every value its distances from float64.

    Eager's first call is not the reference where it alone draws other random numbers than the backend (a model that
    makes layers in its first call): a later one is.

    Errors: OptionError for an argument or option; ClientError for a model that cannot be called, a loss that fails, a
    transform that fails; DaemonFault. What the model raises comes through, with a note that names the side.
    """
    arguments.checked_model("compare", model, kwargs)
    arguments.checked_flag("compare", "backward", backward)
    arguments.checked_loss("compare", loss)
    dtype = arguments.checked_autocast("compare", autocast)
    backend = Backend(arguments.checked_options("compare", options))
    call = Call(model=model, args=args, kwargs=kwargs, backward=backward, autocast=dtype, loss=loss)
    sides = _both_sides(call, backend, as_compiled=options is None and is_compiled(model))
    judge = _Judge(call=call, sides=sides, used=_options_of(sides.graphs, backend))
    verdicts = judge.verdicts()
    verdicts |= judge.excused(verdicts)
    # Equal options are those of an equal backend, which compiled the model before.
    may_look = judge.may_excuse and sides.compiled_here and judge.used == backend.options
    if may_look and _differ(verdicts) and judge.used.compare != "nodes":
        sides.graphs = _looked_inside(call, judge.used, sides.seconds) or sides.graphs
        verdicts |= judge.not_noise(verdicts)
        verdicts |= judge.excused(verdicts)
    verdicts |= judge.explained(verdicts)
    return Report(
        verdicts=judge.in_order(verdicts), graphs=sides.graphs,
        missing=[*missing(judge.used, sides.graphs), *_unmet(sides.graphs, backward), *sides.not_its_own],
        drew_otherwise=not sides.by_chance and not sides.reference.drew_as(sides.candidate),
    )  # fmt: skip


@dataclass(kw_only=True)
class _Sides:
    """Both runs of the call. seconds: what eager took. by_chance: values of which eager itself gives another each time.
    compiled_here: whether the backend compiled the model for this. breaks: graph breaks of the candidate. not_its_own:
    a verdict for each function of the user's compiled model that ran in eager, where another was compiled for this."""

    reference: Run
    candidate: Run
    graphs: list[GraphInfo]
    breaks: Counter[str]
    seconds: float
    by_chance: frozenset[str]
    compiled_here: bool
    not_its_own: list[Verdict]


def _both_sides(call: Call, backend: Backend, *, as_compiled: bool) -> _Sides:
    """Runs the call in eager and through the backend, from one state. as_compiled: by what rust_ort compiled the model
    with already, if it did."""
    model = [*named_members(call.model, "parameters"), *named_members(call.model, "buffers")]
    with call.runs() as runs, named_as_in(model):
        begin = time.monotonic()
        reference = runs.eager()
        seconds = time.monotonic() - begin
        breaks = graph_breaks()
        graphs: list[GraphInfo] = []
        not_its_own: list[Verdict] = []
        if as_compiled:
            candidate, graphs = runs.watched("the compiled model", call.model)
        compiled_here = not graphs
        if as_compiled and compiled_here:
            ran = candidate.limited.items()
            why = "; what is compared was compiled apart from it"
            not_its_own = [not_compared(one.name, limits.in_words({one: count}) + why) for one, count in ran]
        if compiled_here:
            candidate, graphs = runs.watched("the backend", compiled_apart(call.model, backend))
        breaks = graph_breaks() - breaks
        by_chance = frozenset[str]()
        if not reference.drew_as(candidate):
            # A model that makes layers in its first call draws their weights there alone, and drops what it does not
            # drop after; one that seeds the generators itself never draws the same.
            later = runs.eager()
            if later.drew_as(candidate):
                reference = later
            elif not later.drew_as(reference):
                by_chance = reference.differing(later)
    for name, parameter in named_members(call.model, "parameters"):
        fill((reference, candidate), f"parameter {name} afterwards", parameter)
    return _Sides(
        reference=reference, candidate=candidate, graphs=graphs, breaks=breaks, seconds=seconds, by_chance=by_chance,
        compiled_here=compiled_here, not_its_own=not_its_own,
    )  # fmt: skip


def _options_of(graphs: Sequence[GraphInfo], backend: Backend) -> Options:
    """A model that rust_ort compiled already is judged by what it was compiled with."""
    return next((graph.options for graph in graphs if graph.options is not None), backend.options)


class _Judge:
    """Verdicts on the values of both sides. used: the options by which they are judged."""

    def __init__(self, *, call: Call, sides: _Sides, used: Options) -> None:
        self._call, self._sides, self.used = call, sides, used
        self._entries = [
            not_compared(entry[0], BY_CHANCE) if isinstance(entry, tuple) and entry[0] in sides.by_chance else entry
            for entry in pairs(sides.reference, sides.candidate, sides.graphs, sides.breaks)
        ]
        self._wanted = {entry[0]: entry for entry in self._entries if isinstance(entry, tuple)}
        # What was asked for is not put down to noise, nor what a wrong node may have done.
        self._stopped: list[str] = []  # why float64 is not known of all
        self.may_excuse = used.tolerance is None and not _has_wrong_node(sides.graphs)

    def verdicts(self) -> dict[str, Verdict]:
        """{name: the verdict} of each pair, those outside tolerance looked at once more."""
        asked_for: Known = self._float64 if self.used.compare_float64 == "all" else {}

        def judge(names: Collection[str], terms: Known, float64: Known) -> list[Verdict]:
            return self._compared(names, terms=terms, exact={**asked_for, **float64})

        first = judge(self._wanted, {}, {})
        float64 = (lambda: self._float64) if self.may_excuse else None
        looked = looked_at_again(first, judge, lambda: self._terms, float64, half=self._policy.is_half)
        return {verdict.name: verdict for verdict in looked}

    def not_noise(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: the verdict} of what was put down to noise before a node was known to be wrong, judged without it."""
        noise = [name for name, verdict in verdicts.items() if verdict.kind == "noise"]
        if not noise or not _has_wrong_node(self._sides.graphs):
            return {}
        return {verdict.name: verdict for verdict in self._compared(noise, terms=self._terms_beside_float64)}

    def excused(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: the verdict}, of mismatches that are none by what is known of the graphs' nodes."""
        turned, followed = self._turned(verdicts)
        ties = turned | self._ties({**verdicts, **turned}, followed=followed)
        return ties | self._moved_by_rounding({**verdicts, **ties})

    def _ties(self, verdicts: Mapping[str, Verdict], *, followed: bool) -> dict[str, Verdict]:
        """{name: a tie}, of mismatches that a graph gave, and was right of its inputs there: who changed it since is
        not excused. followed: whether eager took the branches that it can, so that these explain no more."""
        branch = _branch([graph for graph in self._sides.graphs if not (followed and graph.is_followed)])
        if not branch:
            return {}
        results = [result for graph in self._sides.graphs for result in graph.results]
        ties = {
            name: branch
            for name, verdict in verdicts.items()
            if verdict.kind == "mismatch" and any(same(result, self._wanted[name][2]) for result in results)
        }
        # Both sides compute the default loss in eager, of the outputs: where these are right it is nobody's fault.
        # Somebody's own may compile, or count its calls.
        outputs = [name for name in verdicts if name.startswith("output")]
        if self._call.loss is None and any(verdicts[name].kind == "tie" or name in ties for name in outputs):
            is_right = all(name in ties or verdicts[name].is_pass for name in outputs)
            is_wrong = "loss" in verdicts and verdicts["loss"].kind == "mismatch"
            ties |= {"loss": branch} if is_right and is_wrong else {}
        return {verdict.name: verdict for verdict in self._compared(ties, ties=ties)}

    def _turned(self, verdicts: Mapping[str, Verdict]) -> tuple[dict[str, Verdict], bool]:
        """({name: a tie}, of mismatches that are none where eager takes the branches that rounding turned in forwards,
        every node of which is right; whether it took them)."""
        graphs = self._sides.graphs
        forwards = [(graph.turned, graph.operators) for graph in graphs if graph.direction != "backward"]
        first = next((value for values, _ in forwards for value in values), None)
        wrong = [name for name, verdict in verdicts.items() if verdict.kind == "mismatch"]
        may = self.may_excuse and self._are_right and not any(graph.calls > 1 for graph in graphs)
        if not wrong or first is None or not may:
            return {}, False
        try:
            with self._call.runs() as runs, Following(forwards) as following:
                eager = runs.eager().values
            following.check()
        except Exception as error:  # what runs in eager need not run under a dispatch mode
            log.debug("eager does not follow the branches of the backend: %s", error)
            return {}, False
        names = [name for name in wrong if isinstance(eager.get(name), Tensor)]
        pairs = [(name, eager[name], self._wanted[name][2], "") for name in names]
        judged = self._against(pairs)
        followed = {
            verdict.name: f"{first}; eager with these branches gives it" for verdict in judged if verdict.is_pass
        }
        ties = {verdict.name: verdict for verdict in self._compared(followed, ties=followed)}
        return ties, True

    @property
    def _are_right(self) -> bool:
        """Whether every node of all graphs alone is right, and so is what each graph gave."""
        graphs = self._sides.graphs
        return bool(graphs) and not _differing(graphs) and all(graph.is_right for graph in graphs)

    def _moved_by_rounding(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: the verdict} of mismatches that rounding may make as large, where every node of all graphs alone is
        right, and so is what each graph gave."""
        wrong = {name: verdict for name, verdict in verdicts.items() if verdict.kind == "mismatch"}
        if not wrong or not self.may_excuse or not self._are_right:
            return {}
        seconds = seconds_for(self._sides.seconds)
        with self._call.runs() as runs:
            moved = spreads(wrong, lambda: runs.eager().values, self._float64, seconds=seconds)
        if not moved:
            return {}
        judged = self._compared(moved, terms=self._terms_beside_float64, exact=self._float64, spreads=moved)
        return {verdict.name: verdict for verdict in judged}

    def explained(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: the verdict with its reason}, of what differs from eager because torch.compile itself does, and of
        mismatches that may be noise for all that is known."""
        undetermined = self._undetermined(verdicts)
        wrong = {
            name: verdict
            for name, verdict in (self._known | dict(verdicts)).items()
            if verdict.kind in ("mismatch", "failed")
        }
        if not wrong or _has_wrong_node(self._sides.graphs):
            return undetermined
        try:
            varying = self._varying(wrong)
            own = self._torchs_own({name: verdict for name, verdict in wrong.items() if name not in varying})
        except Exception as error:  # whatever a model raises that keeps count of its calls; the verdicts stand
            log.info("the model does not run once more, so that it is not known what differs by itself: %s", error)
            return undetermined
        return undetermined | varying | own

    @property
    def _known(self) -> dict[str, Verdict]:
        """{name: the verdict}, of what was known without a comparison."""
        return {entry.name: entry for entry in self._entries if isinstance(entry, Verdict)}

    def _undetermined(self, verdicts: Mapping[str, Verdict]) -> dict[str, Verdict]:
        why = f"{UNDETERMINED}: {self._stopped[0]}" if self._stopped else ""
        return {
            name: dataclasses.replace(verdict, reason="; ".join(filter(None, (verdict.reason, why))))
            for name, verdict in verdicts.items()
            if why and verdict.kind == "mismatch" and self._float64.get(name) is None
        }

    def _varying(self, wrong: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: not compared}, of what eager itself gives otherwise when it runs once more, by more than tolerance."""
        with self._call.runs() as runs:
            steady = alike(wrong, self._sides.reference, runs.eager(), self._against)
        return {name: not_compared(name, VARIES) for name in wrong if name not in steady}

    def _torchs_own(self, wrong: Mapping[str, Verdict]) -> dict[str, Verdict]:
        """{name: the verdict, marked}, of what differs from eager in torch's aot_eager, too."""
        if not wrong:
            return {}
        with self._call.runs() as runs:
            own = torchs_own(wrong, self._sides.reference, self._sides.candidate, runs, self._against)
        return {
            name: dataclasses.replace(
                wrong[name], reason="; ".join(filter(None, (wrong[name].reason, TORCHS_OWN))), noise=None,
                is_torchs_own=True,
            )
            for name in own
        }  # fmt: skip

    def in_order(self, verdicts: Mapping[str, Verdict]) -> list[Verdict]:
        """These and what is known without a comparison, as the sides gave the values."""
        every = [
            verdicts[entry[0]] if isinstance(entry, tuple) else verdicts.get(entry.name, entry)
            for entry in self._entries
        ]
        nothing = "the model gave no tensor, neither as output nor as gradient or buffer"
        return every or [not_compared("output", nothing)]

    def _compared(self, names: Iterable[str], **known: Any) -> list[Verdict]:
        wanted = [self._wanted[name] for name in names]
        return Client.get(self.used).compare(wanted, self._policy, **known)

    def _against(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Verdicts on pairs whose reference is none of eager's first run: what its sums add up is taken from that."""
        sizes = {name: reference.shape for name, reference, _, _ in pairs if reference is not None}
        known = self._terms_beside_float64.items()
        terms = {name: one for name, one in known if one is not None and one.shape == sizes.get(name)}
        return Client.get(self.used).compare(pairs, self._policy, terms=terms)

    @property
    def _policy(self) -> Policy:
        return policy(self.used, self._sides.graphs)

    @property
    def _terms_beside_float64(self) -> Known:
        return {} if self._policy.is_half else self._terms

    @functools.cached_property
    def _terms(self) -> Known:
        with self._call.runs() as runs:
            return terms_of(lambda: runs.eager().values)

    @functools.cached_property
    def _float64(self) -> Known:
        asked_for = self.used.compare_float64 == "all"
        seconds = math.inf if asked_for else seconds_for(self._sides.seconds)
        with self._call.runs() as runs:
            return in_wide(
                lambda: runs.eager().values, expected=self._sides.reference.values, seconds=seconds,
                stopped=self._stopped.append,
            )  # fmt: skip


def _differ(verdicts: Mapping[str, Verdict]) -> bool:
    return any(verdict.kind == "mismatch" for verdict in verdicts.values())


def _has_wrong_node(graphs: Sequence[GraphInfo]) -> bool:
    return any(node.is_wrong for graph in graphs for _, node in graph.nodes)


def _looked_inside(call: Call, used: Options, seconds: float) -> list[GraphInfo]:
    """The graphs of one more run, in which what each gives is compared, and its nodes where eager took no longer than
    these may: a branch that rounding turned is seen there alone, and so is who is to blame. seconds: of eager's first
    run, in which the process may have made threads and memory."""
    try:
        with call.runs() as runs:
            is_long = seconds > LOOKS_INSIDE_SECONDS and _seconds_of(runs.eager) > LOOKS_INSIDE_SECONDS
            looking = Backend(dataclasses.replace(used, compare="outputs" if is_long else "nodes"))
            return runs.watched("the backend", compiled_apart(call.model, looking))[1]
    except Exception as error:  # whatever a model raises that keeps count of its calls; the verdicts stand
        log.info("the model does not run once more, so that its nodes are not compared: %s", error)
        return []


def _seconds_of(run: Callable[[], Run]) -> float:
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def _differing(graphs: Sequence[GraphInfo]) -> bool:
    """Whether what a graph gave is outside tolerance, and nothing excuses it."""
    return any(verdict.kind in ("mismatch", "failed") for graph in graphs for _, verdict in graph.verdicts)


def _branch(graphs: Sequence[GraphInfo]) -> str:
    """The first branch that a graph took otherwise than eager, where every node of all graphs alone is as right as
    eager's; "" where none did, or nodes were not compared."""
    if any(node.is_wrong or node.is_failed for graph in graphs for _, node in graph.nodes):
        return ""
    if _differing(graphs):
        return ""
    reasons = (verdict.reason for graph in graphs for _, verdict in graph.verdicts if verdict.kind == "tie")
    return next(reasons, "")


def _unmet(graphs: Sequence[GraphInfo], backward: bool) -> list[Verdict]:
    """A verdict for each graph that was to run on ONNX Runtime and did not, and for gradients that cannot be had."""
    unmet = [not_compared(graph.name, graph.fallen_back) for graph in graphs if graph.fallen_back]
    if backward and torch.is_inference_mode_enabled():
        why = "torch.inference_mode() is on, in which there are none; leave it, or pass backward=False"
        unmet.append(not_compared("gradients", why))
    return unmet


make_callable(__name__, compare)
