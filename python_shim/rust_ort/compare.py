"""Eager against the backend on one call of a model: outputs, loss, every gradient, buffers afterwards."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort._callable import make_callable
from rust_ort.backend import Backend
from rust_ort.call.client import Client
from rust_ort.link.specs import Verdict, not_compared
from rust_ort.observe.graph_info import GraphInfo, called
from rust_ort.observe.reference import in_eager, one_at_a_time
from rust_ort.observe.report import Report
from rust_ort.observe.second_look import Known, looked_at_again, seconds_for, terms_of
from rust_ort.observe.sides import BY_CHANCE, Run, fill, named_members, pairs, run_side
from rust_ort.observe.state import kept_state
from rust_ort.observe.values import same
from rust_ort.observe.verdicts import graph_breaks, missing, policy
from rust_ort.observe.wide import in_wide
from rust_ort.options import Options, arguments
from rust_ort.torch_private import is_optimized_module

__all__ = ["Report", "compare"]

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
    """Runs `model(*args, **kwargs)` in eager and through the backend from the same state and compares the two.

    model: a module or a function of tensors, of any dtype and shape; what it returns may be nested.
    backward: also the gradients of every parameter and of inputs that require them.
    autocast: dtype of an autocast region around the forward, torch.bfloat16 or torch.float16 or its name.
    loss: a scalar tensor from the outputs; None takes the output's `loss`, else the sum of every floating output's mean
    with weights cos(i).
    options: of the backend, see `rust_ort.Options`; {"compare": "nodes"} names the node to blame; None with a model
    that rust_ort compiled already: that model's own. The reference runs with every compilation off, in all threads.

    Returns a Report: print it, or `report.check()`. Values are named "output", "loss", "grad of <parameter>",
    "grad of input[i]", "buffer <name>", and "input[i] afterwards" or "parameter <name> afterwards" where the two left
    it different. Attributes of objects are looked into; numbers and their like are named where they differ. A buffer
    that nobody wrote into, what has no elements, an argument given back and what ran in eager is "not_compared".

    Parameters, buffers, gradients, training mode and the random state of torch, Python and numpy are afterwards as
    before. Arguments are copied, with the memory they share, so in-place changes stay inside; one that cannot be copied
    is said to be shared. Of a function, what it closes over is not kept: it runs twice or more. Comparisons of a
    process run one at a time. Where eager drew other random numbers than the backend and a later call of eager does
    not, as of a model that makes layers in its first, the later is the reference; where each call draws others, what
    differs among eager's own is "not_compared". Where values are outside tolerance, eager runs once more, to know what
    its sums add up (a gradient that is zero but for rounding is judged by its terms), and where some still are, once
    more with each operator in float64, too, for 60 s or 50 times as long as eager at most: what is no further from that
    than eager is "noise", which is ok. Where some differ all the same, the backend runs once more with what its graphs
    give compared, and their nodes where that differs and eager took no more than 4 s: what a graph gives after a branch
    that rounding turned is a "tie", which is ok, and a wrong node is named. What is made of it outside the graphs stays
    a mismatch. Under the option compare_float64="all" every value tells how far both sides are from float64.

    Errors: OptionError for an argument or option; ClientError for a model that cannot be called, a loss that fails, a
    transform that fails; DaemonFault. What the model raises comes through, with a note that says on which side.
    """
    arguments.checked_model("compare", model, kwargs)
    arguments.checked_flag("compare", "backward", backward)
    arguments.checked_loss("compare", loss)
    dtype = arguments.checked_autocast("compare", autocast)
    backend = Backend(arguments.checked_options("compare", options))

    def run(side: str, call: Callable[..., Any]) -> Run:
        return run_side(side, call, model, args, kwargs, state, backward=backward, autocast=dtype, loss=loss)

    with one_at_a_time(), kept_state(model) as state:
        begin = time.monotonic()
        with in_eager():
            reference = run("eager", model)
        seconds = time.monotonic() - begin
        state.restore()
        breaks = graph_breaks()
        graphs: list[GraphInfo] = []
        by_chance = frozenset[str]()
        if options is None and _is_compiled(model):
            with called() as called_graphs:
                candidate = run("the compiled model", model)
            graphs = called_graphs()
            state.restore()
        compiled_here = not graphs
        if compiled_here:
            with called() as called_graphs:
                candidate = run("the backend", torch.compile(model, backend=backend))
            graphs = called_graphs()
        breaks = graph_breaks() - breaks
        if not reference.drew_as(candidate):
            # A model that makes layers in its first call draws their weights there alone, and drops what it does not
            # drop after; one that seeds the generators itself never draws the same.
            state.restore()
            with in_eager():
                later = run("eager", model)
            if later.drew_as(candidate):
                reference = later
            elif not later.drew_as(reference):
                by_chance = reference.differing(later)
    for name, parameter in named_members(model, "parameters"):
        fill((reference, candidate), f"parameter {name} afterwards", parameter)
    # A model that rust_ort compiled already is judged by what it was compiled with.
    used = next((graph.options for graph in graphs if graph.options is not None), backend.options)
    entries = [
        not_compared(entry[0], BY_CHANCE) if isinstance(entry, tuple) and entry[0] in by_chance else entry
        for entry in pairs(reference, candidate, graphs, breaks)
    ]
    exact: dict[str, Tensor | None] = {}
    if used.compare_float64 == "all":
        with one_at_a_time(), kept_state(model) as state, in_eager():
            exact = in_wide(lambda: run("eager", model).values, expected=reference.values)
    wanted = {entry[0]: entry for entry in entries if isinstance(entry, tuple)}

    def judge(names: Collection[str], terms: Known, float64: Known) -> list[Verdict]:
        pairs = [wanted[name] for name in names]
        return Client.get(used).compare(pairs, policy(used, graphs), terms=terms, exact={**exact, **float64})

    def again(look: Callable[[Callable[[], Mapping[str, Any]]], Known]) -> Known:
        nonlocal state
        with one_at_a_time(), kept_state(model) as state, in_eager():
            return look(lambda: run("eager", model).values)

    def float64() -> Known:
        expected = reference.values
        return exact or again(lambda run: in_wide(run, expected=expected, seconds=seconds_for(seconds)))

    # What was asked for is not put down to noise, nor what a wrong node may have done.
    wrong = any(node.is_wrong for graph in graphs for _, node in graph.nodes)
    excuses = used.tolerance is None and not wrong
    judged = looked_at_again(judge(wanted, {}, {}), judge, lambda: again(terms_of), float64 if excuses else None)
    # Equal options are those of an equal backend, which compiled the model before.
    if excuses and compiled_here and used == backend.options and used.compare == "off" and _differs(judged):
        # What each graph gives is compared, and its nodes where that differs: a branch that rounding turned is seen
        # there alone, and so is who is to blame.
        looking = Backend(dataclasses.replace(used, compare="outputs"))
        try:
            with one_at_a_time(), kept_state(model) as state, called() as called_graphs:
                run("the backend", torch.compile(model, backend=looking))
            graphs = called_graphs() or graphs
        except Exception as error:  # whatever a model raises that keeps count of its calls; the verdicts stand
            log.info("the model does not run once more, so that its nodes are not compared: %s", error)
    if branch := _branch(graphs):
        # What a graph gave, and was right of its inputs there; who changed it since is not excused.
        results = [result for graph in graphs for result in graph.results]
        ties = {
            verdict.name: branch
            for verdict in judged
            if verdict.kind == "mismatch" and any(same(result, wanted[verdict.name][2]) for result in results)
        }
        excused = Client.get(used).compare([wanted[name] for name in ties], policy(used, graphs), ties=ties)
        judged = [*judged, *excused]
    known = {verdict.name: verdict for verdict in judged}
    verdicts = [known[entry[0]] if isinstance(entry, tuple) else entry for entry in entries]
    if not verdicts:
        verdicts = [not_compared("output", "the model gave no tensor, neither as output nor as gradient or buffer")]
    return Report(
        verdicts=verdicts, graphs=graphs, missing=[*missing(used, graphs), *_unmet(graphs, backward)],
        drew_otherwise=not by_chance and not reference.drew_as(candidate),
    )  # fmt: skip


def _differs(verdicts: Sequence[Verdict]) -> bool:
    return any(verdict.kind == "mismatch" for verdict in verdicts)


def _branch(graphs: Sequence[GraphInfo]) -> str:
    """The first branch that a graph took otherwise than eager, where every node of all graphs alone is as right as
    eager's; "" where none did, or nodes were not compared."""
    if any(node.is_wrong or node.is_failed for graph in graphs for _, node in graph.nodes):
        return ""
    if any(verdict.kind in ("mismatch", "failed") for graph in graphs for _, verdict in graph.verdicts):
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


def _is_compiled(model: Any) -> bool:
    """Whether `torch.compile` made it, or `model.compile()` was called."""
    return (
        is_optimized_module(model)
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


make_callable(__name__, compare)
