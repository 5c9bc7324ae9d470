"""Eager against the backend on one call of a model: outputs, loss, every gradient, buffers afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort import arguments
from rust_ort._callable import make_callable
from rust_ort.backend import Backend, client_of
from rust_ort.errors import ClientError, RustOrtError
from rust_ort.graph_info import GraphInfo, called, fits, half_tolerance
from rust_ort.options import Options
from rust_ort.reference import in_eager, rng_kept
from rust_ort.report import Report
from rust_ort.state import Copies, State, is_plain, kept_state
from rust_ort.torch_private import compile_counters, is_optimized_module
from rust_ort.transport import process
from rust_ort.transport.specs import Verdict, not_compared
from rust_ort.values import NotWalked, kept, named_tensors, named_values, plain, ragged, same

__all__ = ["Report", "compare"]

Pair = tuple[str, Tensor | None, Tensor | None, str]
"""(name, reference, candidate, why there is nothing to compare or "")."""

ONE_SIDED = "a value comes from one side alone: "


class _Absent:
    """In the place of a value that a side has not."""


ABSENT = _Absent()


@dataclass(kw_only=True)
class Run:
    """What a run gave. values: {name: tensor or other leaf}. idle: {name: why the run has no part in the value}.
    shared: {name: why an argument is no copy}."""

    values: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)


_one_at_a_time = threading.RLock()


def one_at_a_time() -> contextlib.AbstractContextManager[Any]:
    """The lock of comparisons and explanations: while one has its reference, nothing compiled runs in this process."""
    return _one_at_a_time


def _after_fork_in_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


process.after_fork_in_child.append(_after_fork_in_child)


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
    is said to be shared. Of a function, what it closes over is not kept: it runs twice. Comparisons of a process run
    one at a time.

    Errors: OptionError for an argument or option; ClientError for a model that cannot be called, a loss that fails, a
    transform that fails; DaemonFault. What the model raises comes through, with a note that says on which side.
    """
    arguments.checked_model("compare", model, kwargs)
    arguments.checked_flag("compare", "backward", backward)
    arguments.checked_loss("compare", loss)
    dtype = arguments.checked_autocast("compare", autocast)
    backend = Backend(arguments.checked_options("compare", options))

    def run(side: str, call: Callable[..., Any]) -> Run:
        return _run(side, call, model, args, kwargs, state, backward=backward, autocast=dtype, loss=loss)

    with one_at_a_time(), kept_state(model) as state:
        with in_eager():
            reference = run("eager", model)
        state.restore()
        breaks = graph_breaks()
        graphs: list[GraphInfo] = []
        if options is None and _is_compiled(model):
            with called() as called_graphs:
                candidate = run("the compiled model", model)
            graphs = called_graphs()
            state.restore()
        if not graphs:
            with called() as called_graphs:
                candidate = run("the backend", torch.compile(model, backend=backend))
            graphs = called_graphs()
        breaks = graph_breaks() - breaks
    for name, parameter in _named(model, "parameters"):
        _fill((reference, candidate), f"parameter {name} afterwards", parameter)
    # A model that rust_ort compiled already is judged by what it was compiled with.
    used = next((graph.options for graph in graphs if graph.options is not None), backend.options)
    verdicts = _judged(_pairs(reference, candidate, graphs, breaks), used, graphs)
    if not verdicts:
        verdicts = [not_compared("output", "the model gave no tensor, neither as output nor as gradient or buffer")]
    return Report(verdicts=verdicts, graphs=graphs, missing=[*missing(used, graphs), *_unmet(graphs, backward)])


def _fill(sides: tuple[Run, Run], name: str, unwritten: Tensor) -> None:
    """Where one side alone wrote into a parameter, gives the other what it has."""
    if any(name in side.values for side in sides):
        for side in sides:
            side.values.setdefault(name, kept(unwritten))


def _unmet(graphs: Sequence[GraphInfo], backward: bool) -> list[Verdict]:
    """A verdict for each graph that was to run on ONNX Runtime and did not, and for gradients that cannot be had."""
    unmet = [not_compared(graph.name, graph.fallen_back) for graph in graphs if graph.fallen_back]
    if backward and torch.is_inference_mode_enabled():
        why = "torch.inference_mode() is on, in which there are none; leave it, or pass backward=False"
        unmet.append(not_compared("gradients", why))
    return unmet


def graph_breaks() -> Counter[str]:
    """Why Dynamo left code to eager in this process, counted: what broke a graph, or kept it from being made."""
    counters = compile_counters()
    return Counter(counters["graph_break"]) | Counter(counters["unimplemented"])


def missing(options: Options, graphs: Sequence[GraphInfo]) -> list[Verdict]:
    """A verdict for each pattern of compare_only by which no node was compared."""
    if options.compare_only and options.compare != "nodes":
        why = f"no node is compared under compare={options.compare!r}; use compare='nodes'"
        return [not_compared("option compare_only", why)]
    found = []
    nodes = [node for graph in graphs for _, node in graph.nodes]
    for pattern in options.compare_only:
        fitting = [node for node in nodes if fits([pattern], (node.name, node.op, node.module))]
        if not fitting:
            found.append(not_compared(f"compare_only {pattern!r}", _no_node(pattern, graphs)))
        elif all(node.local.kind == "not_compared" for node in fitting):
            why = f"{fitting[0].name}: {fitting[0].local.reason}"
            found.append(not_compared(f"compare_only {pattern!r}", why))
    return found


def _no_node(pattern: str, graphs: Sequence[GraphInfo]) -> str:
    names = [name for graph in graphs for named in (graph.operators, graph.modules) for pair in named.items()
             for name in pair if name]  # fmt: skip
    known = list(dict.fromkeys(names))
    close = difflib.get_close_matches(pattern.strip("*?"), known, n=3, cutoff=0.4)
    operators = list(dict.fromkeys(operator for graph in graphs for operator in graph.operators.values()))
    hint = f"the nearest: {', '.join(close)}" if close else f"the operators: {', '.join(operators[:10]) or 'none'}"
    return f"no node matched {pattern!r}; {hint}"


def _is_compiled(model: Any) -> bool:
    """Whether `torch.compile` made it, or `model.compile()` was called."""
    return (
        is_optimized_module(model)
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


def _judged(entries: Sequence[Pair | Verdict], options: Options, graphs: Sequence[GraphInfo]) -> list[Verdict]:
    """Verdicts in the order of `entries`. Where half precision took part, floats are judged by its steps."""
    pairs = [entry for entry in entries if isinstance(entry, tuple)]
    client, tolerance = client_of(options), options.tolerance
    dtypes = {graph.lowest_precision for graph in graphs}
    half = next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in dtypes), None)
    judged = client.compare(pairs, tolerance) if tolerance is not None else judged_as_half(pairs, client, half)
    verdicts = iter(judged)
    return [next(verdicts) if isinstance(entry, tuple) else entry for entry in entries]


def judged_as_half(pairs: Sequence[Pair], client: Any, half: torch.dtype | None) -> list[Any]:
    """Verdicts in the order of `pairs`; floats by the steps of `half`. None: all by their own dtype."""
    if half is None:
        return list(client.compare(list(pairs), None))
    wide = [pair[1] is not None and pair[1].dtype.is_floating_point for pair in pairs]
    floats = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if w], half_tolerance(half)))
    others = iter(client.compare([p for p, w in zip(pairs, wide, strict=True) if not w], None))
    return [next(floats if w else others) for w in wide]


def _run(
    side: str, call: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], state: State, *,
    backward: bool, autocast: torch.dtype | None, loss: Callable[[Any], Tensor] | None,
) -> Run:  # fmt: skip
    """One run on copies of the arguments: outputs, loss, gradients, buffers, and what became of the arguments."""
    copies = Copies(model)
    args = tuple(copies.of(arg, f"input[{index}]") for index, arg in enumerate(args))
    kwargs = {name: copies.of(arg, f"input.{name}") for name, arg in kwargs.items()}
    given = _inputs(args, kwargs)
    run = Run(shared=copies.shared)
    values = run.values
    device = next((leaf.device.type for _, leaf in given), "cpu")
    with rng_kept(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if backward else torch.no_grad())
        with noted(side), torch.autocast(device, dtype=autocast) if autocast is not None else contextlib.nullcontext():
            outputs = call(*args, **kwargs)
        found = [(f"output{path}", leaf) for path, leaf in named_values(outputs)]
        values |= {name: kept(leaf) for name, leaf in found}
        values |= {f"{name} {part}": entry for name, leaf in found for part, entry in ragged(leaf).items()}
        if backward or loss is not None:
            total = scalar_loss(outputs, loss, side=side, backward=backward)
            if total is not None:
                values["loss"] = kept(total)
            if backward and total is not None:
                with noted(f"{side}, in the backward"):
                    total.backward()
    named = _named(model, "parameters")
    if backward:
        values |= {f"grad of {name}": kept(parameter.grad) for name, parameter in named if parameter.requires_grad}
        values |= {f"grad of {name}": kept(leaf.grad) for name, leaf in given if leaf.requires_grad and leaf.is_leaf}
    buffers = _named(model, "buffers")
    values |= {f"buffer {name}": kept(buffer) for name, buffer in buffers}
    written = [(name, parameter) for name, parameter in named if not state.unchanged(parameter)]
    values |= {f"parameter {name} afterwards": kept(parameter) for name, parameter in written}
    values |= {f"{name} afterwards": kept(leaf) for name, leaf in _inputs(args, kwargs)}
    run.idle = {f"buffer {name}": "neither side wrote into it" for name, buffer in buffers if state.unchanged(buffer)}
    untouched = [entry for entry in named if f"parameter {entry[0]} afterwards" not in values]
    run.idle |= _passed_through(found, given, copies, untouched)
    return run


def _passed_through(
    found: Sequence[tuple[str, Any]], given: Sequence[tuple[str, Tensor]], copies: Copies,
    parameters: Sequence[tuple[str, Tensor]],
) -> dict[str, str]:  # fmt: skip
    """{output: why} of outputs over the memory of an argument or a parameter that nobody wrote into."""
    names = {id(leaf): name for name, leaf in given}
    written = {_memory(made) for value, made in copies.tensors if not same(value, made)}
    owners = {_memory(made): names.get(id(made), "an argument") for _, made in copies.tensors}
    owners |= {_memory(parameter): name for name, parameter in parameters}
    over = {name: _memory(leaf) for name, leaf in found if isinstance(leaf, Tensor)}
    return {
        name: f"it is {owners[memory]} as it was given"
        for name, memory in over.items() if memory is not None and memory in owners and memory not in written
    }  # fmt: skip


def _memory(tensor: Tensor) -> int | None:
    """Where the memory begins that a tensor lies in; None for one without."""
    return (tensor.untyped_storage().data_ptr() or None) if is_plain(tensor) else None


@contextlib.contextmanager
def noted(side: str) -> Iterator[None]:
    """What is raised inside says on which side of the comparison it was."""
    try:
        yield
    except RustOrtError:  # not the model's
        raise
    except Exception as error:
        error.add_note(f"rust_ort.compare: raised by the model in {side}")
        raise


def _inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """(name, tensor) of every tensor among the arguments: input[0], input.mask."""
    named = [*named_values(args), *named_values(kwargs)]
    return [(f"input{path}", leaf) for path, leaf in named if isinstance(leaf, Tensor)]


def scalar_loss(
    outputs: Any, loss: Callable[[Any], Tensor] | None, *, side: str = "eager", backward: bool = True
) -> Tensor | None:
    """`loss` of the outputs, else their own, else a weighted mean of all; None when none needs a gradient.

    Errors: ClientError when `loss` raises, or gives no scalar tensor that a backward can begin at.
    """
    if loss is not None:
        return _given_loss(outputs, loss, side, backward=backward)
    own = getattr(outputs, "loss", None)
    if isinstance(own, Tensor) and own.requires_grad and own.numel() == 1:
        return own
    parts = [_weighted_mean(leaf) for _, leaf in named_tensors(outputs) if leaf.requires_grad and leaf.numel() > 0]
    return torch.stack(parts).sum() if parts else None


def _given_loss(outputs: Any, loss: Callable[[Any], Tensor], side: str, *, backward: bool) -> Tensor:
    name = arguments.function_name(loss)
    given = ", ".join(f"{path or 'it'} {leaf.dtype}{list(leaf.shape)}" for path, leaf in named_tensors(outputs)[:5])
    about = f"called with the outputs of {side}, a {type(outputs).__name__} ({given or 'no tensor'})"
    try:
        total = loss(outputs)
    except Exception as error:  # whatever the user's function raises
        raised = arguments.raised_at(error, loss)
        raise ClientError(f"argument loss: {name} raised {raised}; it was {about}", code="BAD_LOSS") from error
    if not isinstance(total, Tensor) or total.numel() != 1:
        got = arguments.shown(total)
        raise ClientError(f"argument loss: {name} gave {got}, expected a scalar tensor; {about}", code="BAD_LOSS")
    if backward and not total.requires_grad:
        raise ClientError(
            f"argument loss: {name} gave a tensor that requires no gradient, so no backward can begin at it; "
            "do not detach it, give an input or parameter that requires one, or pass backward=False",
            code="BAD_LOSS",
        )
    return total


def _weighted_mean(output: Tensor) -> Tensor:
    """Mean with weights cos(i). Of equal weights or squares the gradient through a normalization is zero: noise."""
    output = plain(output)
    weights = torch.arange(output.numel(), dtype=torch.float32, device=output.device).cos().reshape(output.shape)
    return (output.float() * weights).mean()


def _pairs(
    reference: Run, candidate: Run, graphs: Sequence[GraphInfo], breaks: Counter[str]
) -> list[Pair | Verdict]:  # fmt: skip
    """What to judge, and what is known already. Where nothing ran on ONNX Runtime, eager would be compared with eager:
    that is no comparison."""
    forward, gradients = why_eager(graphs, breaks)
    entries: list[Pair | Verdict] = []
    for name in dict.fromkeys([*reference.values, *candidate.values]):
        left, right = reference.values.get(name, ABSENT), candidate.values.get(name, ABSENT)
        idle = gradients if name.startswith("grad of ") else forward
        if not idle and name in reference.idle and name in candidate.idle and same(left, right):
            idle = candidate.idle[name]
        entry = _entry(name, left, right, idle)
        if entry is not None:
            entries.append(entry)
    entries += [not_compared(name, f"{why}: both runs had the same") for name, why in candidate.shared.items()]
    return entries


def why_eager(graphs: Sequence[GraphInfo], breaks: Mapping[str, int]) -> tuple[str, str]:
    """Why there is no comparison of (values of the forward, gradients); "" where there is one.

    A value cannot be told to be of one graph, so what one graph of several computed after a daemon's fault is in all.
    """
    fallen = [graph for graph in graphs if graph.fallen_back]
    lost = "; ".join(f"{graph.name}: {graph.fallen_back}" for graph in fallen)
    reasons = "; ".join(sorted({node.reason for graph in graphs for node in graph.eager}))
    idle = f"ran in eager: {reasons}" if reasons else why_nothing(breaks)
    ran = {graph.direction for graph in graphs if graph.parts}
    forward = lost if any(graph.direction != "backward" for graph in fallen) else "" if ran - {"backward"} else idle
    return forward, lost or ("" if ran else idle)


def _entry(name: str, left: Any, right: Any, idle: str) -> Pair | Verdict | None:
    """What is to be judged of a value: a pair for the daemon, a verdict, None where both sides' need no mention."""
    tensors = isinstance(left, Tensor), isinstance(right, Tensor)
    if all(tensors):
        if name.endswith((" afterwards", " offsets", " lengths")) and same(left, right):
            return None
        if not idle and left.numel() == 0 and (left.shape, left.dtype) == (right.shape, right.dtype):
            idle = "it has no elements"
        return name, left, right, idle
    if left is None and right is None:
        return not_compared(name, idle or "both are None") if name.startswith("grad of ") else None
    if isinstance(left, NotWalked) and left == right:
        return not_compared(name, f"a {left.what} is not looked into")
    if not any(tensors) and same(left, right):
        return None
    if idle:
        return not_compared(name, idle)
    for one, other, side in ((left, right, "eager"), (right, left, "the backend")):
        if other is ABSENT or (isinstance(one, Tensor) and other is None):
            return dataclasses.replace(not_compared(name, ONE_SIDED + side), kind="failed")
    if isinstance(left, (float, complex)) and type(left) is type(right) and not any(tensors):
        dtype = torch.float32 if isinstance(left, float) else torch.complex64
        return name, torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype), ""
    why = f"eager gave {arguments.shown(left)}, the backend {arguments.shown(right)}"
    return dataclasses.replace(not_compared(name, why), kind="failed")


def why_nothing(breaks: Mapping[str, int]) -> str:
    """Why the backend was given no graph. breaks: as of `graph_breaks`."""
    reasons = "; ".join(dict.fromkeys(reason.splitlines()[0] for reason in breaks if reason))
    return f"no graph was compiled: {reasons or 'torch.compile found nothing to compute on tensors'}"


def _named(model: Any, kind: str) -> list[tuple[str, Tensor]]:
    """Parameters or buffers as a user knows them: without the names of what `torch.compile` wraps around modules."""
    named = getattr(model, f"named_{kind}")() if isinstance(model, nn.Module) else ()
    return [(".".join(step for step in name.split(".") if step != "_orig_mod"), tensor) for name, tensor in named]


make_callable(__name__, compare)
