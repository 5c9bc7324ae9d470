"""The two runs of a comparison, and the pairs of values that they come to."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.errors import ClientError, RustOrtError
from rust_ort.export.unwritten import UNWRITTEN
from rust_ort.link.specs import Verdict, not_compared
from rust_ort.observe import failures, limits
from rust_ort.observe.graph_info import GraphInfo, called
from rust_ort.observe.reference import Generators, generators, in_eager, one_at_a_time, rng_kept, same_generators
from rust_ort.observe.state import Copies, State, is_plain, kept_state
from rust_ort.observe.values import NotWalked, kept, named_tensors, named_values, plain, ragged, same
from rust_ort.observe.verdicts import Pair, why_eager
from rust_ort.options import arguments
from rust_ort.torch_private import is_optimized_module

BOTH_NONE = "both are None"
BY_CHANCE = "eager itself gives another value when it runs again: the model seeds its random numbers itself"
AS_GIVEN = "as it was given"
"""Ends the reason of an output that is an argument or parameter."""
ONE_SIDED = "a value comes from one side alone: "
ZEROS_FOR_NONE = (
    "eager gives None, and AOTAutograd zeros, with every backend: the loss uses no output that depends on it (an "
    "optimizer skips None, and decays the weights of zeros)"
)


Unwritten = Callable[[], list[tuple[Tensor, Tensor]]]


class _Absent:
    """In the place of a value that a side has not."""


ABSENT = _Absent()


@dataclass(kw_only=True)
class Run:
    """What a run gave. values: {name: tensor or other leaf}. idle: {name: why the run has no part in the value}.
    unwritten: names of outputs that are memory nobody wrote into, as far as its graphs tell. shared: {name: why an
    argument is no copy}. drawn: the generators as it left them. limited: {function that met Dynamo's recompile limit:
    calls of it that ran in eager}. not_compiled: why graphs ran in eager that the backend failed to compile."""

    values: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)
    unwritten: set[str] = field(default_factory=set)
    shared: dict[str, str] = field(default_factory=dict)
    drawn: Generators | None = None
    limited: Counter[limits.Limited] = field(default_factory=Counter)
    not_compiled: list[str] = field(default_factory=list)

    def drew_as(self, other: Run) -> bool:
        """Whether both drew as many random numbers."""
        return self.drawn is None or other.drawn is None or same_generators(self.drawn, other.drawn)

    def differing(self, other: Run) -> frozenset[str]:
        """Names of values that the other did not give, or gave otherwise."""
        return frozenset(
            name for name, value in self.values.items()
            if name not in other.values or not same(value, other.values[name])
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Call:
    """The call that is compared. loss: None takes the output's own, else the weighted mean of all."""

    model: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    backward: bool
    autocast: torch.dtype | None
    loss: Callable[[Any], Tensor] | None

    @contextlib.contextmanager
    def runs(self) -> Iterator[Runs]:
        """Inside, the call may run; the model's state is afterwards as before. No other comparison runs meanwhile."""
        with one_at_a_time(), kept_state(self.model) as state:
            yield Runs(self, state)


class Runs:
    """Runs of a call, each from the state that the model had before the first."""

    def __init__(self, call: Call, state: State) -> None:
        self._call, self._state, self._is_first = call, state, True

    @property
    def model(self) -> Any:
        """What is called."""
        return self._call.model

    def eager(self) -> Run:
        with in_eager():
            return self._run("eager", self._call.model)

    def other(self, side: str, compiled: Callable[..., Any]) -> Run:
        """A run by what another backend compiled. side: in messages."""
        return self._run(side, compiled)

    def watched(self, side: str, compiled: Callable[..., Any]) -> tuple[Run, list[GraphInfo]]:
        """A run and the compiled graphs that it called. side: in messages."""
        with called() as graphs, limits.counted() as in_eager_for_the_limit, failures.heard() as not_compiled:
            run = self._run(side, compiled, lambda: [pair for graph in graphs() for pair in graph.unwritten])
        run.not_compiled = not_compiled()
        run.limited = in_eager_for_the_limit()
        return run, graphs()

    def _run(self, side: str, function: Callable[..., Any], unwritten: Unwritten = list) -> Run:
        if not self._is_first:
            self._state.restore()
        self._is_first = False
        return _run_side(side, function, self._call, self._state, unwritten)


def _run_side(side: str, function: Callable[..., Any], call: Call, state: State, unwritten: Unwritten) -> Run:
    """One run on copies of the arguments: outputs, loss, gradients, buffers, and what became of the arguments.
    unwritten: gives what graphs returned as memory that nobody wrote into, each with a copy of then."""
    model, backward = call.model, call.backward
    copies = Copies(model)
    args = tuple(copies.of(arg, f"input[{index}]") for index, arg in enumerate(call.args))
    kwargs = {name: copies.of(arg, f"input.{name}") for name, arg in call.kwargs.items()}
    given = _inputs(args, kwargs)
    run = Run(shared=copies.shared)
    values = run.values
    device = next((leaf.device.type for _, leaf in given), "cpu")
    with rng_kept(), contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad() if backward else torch.no_grad())
        with noted(side), _autocast(device, call.autocast):
            outputs = function(*args, **kwargs)
        found = [(f"output{path}", leaf) for path, leaf in named_values(outputs)]
        values |= {name: kept(leaf) for name, leaf in found}
        # Who writes through NumPy, or in inference mode, counts no version.
        chance = {_memory(tensor) for tensor, then in unwritten() if _same_bytes(tensor, then)} - {None}
        run.unwritten = {name for name, leaf in found if isinstance(leaf, Tensor) and _memory(leaf) in chance}
        values |= {f"{name} {part}": entry for name, leaf in found for part, entry in ragged(leaf).items()}
        if backward or call.loss is not None:
            total = scalar_loss(outputs, call.loss, side=side, backward=backward)
            if total is not None:
                values["loss"] = kept(total)
            if backward and total is not None:
                with noted(f"{side}, in the backward"):
                    total.backward()
        run.drawn = generators()
    named = named_members(model, "parameters")
    if backward:
        values |= {f"grad of {name}": kept(parameter.grad) for name, parameter in named if parameter.requires_grad}
        values |= {f"grad of {name}": kept(leaf.grad) for name, leaf in given if leaf.requires_grad and leaf.is_leaf}
    buffers = named_members(model, "buffers")
    values |= {f"buffer {name}": kept(buffer) for name, buffer in buffers}
    written = [(name, parameter) for name, parameter in named if not state.unchanged(parameter)]
    values |= {f"parameter {name} afterwards": kept(parameter) for name, parameter in written}
    values |= {f"{name} afterwards": kept(leaf) for name, leaf in _inputs(args, kwargs)}
    run.idle = {f"buffer {name}": "neither side wrote into it" for name, buffer in buffers if state.unchanged(buffer)}
    untouched = [entry for entry in named if f"parameter {entry[0]} afterwards" not in values]
    run.idle |= _passed_through(found, given, copies, untouched)
    return run


def _autocast(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if dtype is None else torch.autocast(device, dtype=dtype)


def is_compiled(model: Any) -> bool:
    """Whether `torch.compile` made it, or `model.compile()` was called."""
    return (
        is_optimized_module(model)
        or hasattr(model, "_torchdynamo_orig_callable")
        or getattr(model, "_compiled_call_impl", None) is not None
    )


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
        name: f"it is {owners[memory]} {AS_GIVEN}"
        for name, memory in over.items() if memory is not None and memory in owners and memory not in written
    }  # fmt: skip


def _same_bytes(tensor: Tensor, other: Tensor) -> bool:
    """NaN of the same bits is the same."""
    one, two = (value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (tensor, other))
    return torch.equal(one, two)


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


def named_members(model: Any, kind: str) -> list[tuple[str, Tensor]]:
    """Parameters or buffers as a user knows them: without the names of what `torch.compile` wraps around modules."""
    named = getattr(model, f"named_{kind}")() if isinstance(model, nn.Module) else ()
    return [(".".join(step for step in name.split(".") if step != "_orig_mod"), tensor) for name, tensor in named]


def fill(sides: tuple[Run, Run], name: str, unwritten: Tensor) -> None:
    """Where one side alone wrote into a parameter, gives the other what it has."""
    if any(name in side.values for side in sides):
        for side in sides:
            side.values.setdefault(name, kept(unwritten))


def pairs(
    reference: Run, candidate: Run, graphs: Sequence[GraphInfo], breaks: Counter[str]
) -> list[Pair | Verdict]:  # fmt: skip
    """What to judge, and what is known already. Where nothing ran on ONNX Runtime, eager would be compared with eager:
    that is no comparison."""
    forward, gradients = why_eager(graphs, breaks)
    ran = "; ".join(filter(None, (limits.in_words(candidate.limited), *candidate.not_compiled)))
    forward, gradients = ran or forward, ran or gradients
    entries: list[Pair | Verdict] = []
    for name in dict.fromkeys([*reference.values, *candidate.values]):
        idle = gradients if name.startswith("grad of ") else forward
        left, right = _both(name, reference, candidate)
        if not idle and name in reference.idle and name in candidate.idle and same(left, right):
            idle = candidate.idle[name]
        if not idle and name in candidate.unwritten:
            idle = UNWRITTEN
        entry = _entry(name, left, right, idle)
        if entry is not None:
            entries.append(entry)
    entries += [not_compared(name, f"{why}: both runs had the same") for name, why in candidate.shared.items()]
    return entries


def paired(name: str, reference: Run, candidate: Run) -> Pair | Verdict | None:
    """A pair to judge, a verdict where there is none, None where both have the same or neither has it."""
    return _entry(name, *_both(name, reference, candidate), "")


def _both(name: str, reference: Run, candidate: Run) -> tuple[Any, Any]:
    return reference.values.get(name, ABSENT), candidate.values.get(name, ABSENT)


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
        return not_compared(name, idle or BOTH_NONE) if name.startswith("grad of ") else None
    if isinstance(left, NotWalked) and left == right:
        return not_compared(name, f"a {left.what} is not looked into")
    if not any(tensors) and same(left, right):
        return None
    if idle:
        return not_compared(name, idle)
    if name.startswith("grad of ") and left is None and isinstance(right, Tensor) and not right.any():
        return not_compared(name, ZEROS_FOR_NONE)
    for one, other, side in ((left, right, "eager"), (right, left, "the backend")):
        if other is ABSENT or (isinstance(one, Tensor) and other is None):
            return dataclasses.replace(not_compared(name, ONE_SIDED + side), kind="failed")
    if isinstance(left, (float, complex)) and type(left) is type(right) and not any(tensors):
        dtype = torch.float32 if isinstance(left, float) else torch.complex64
        return name, torch.tensor(left, dtype=dtype), torch.tensor(right, dtype=dtype), ""
    why = f"eager gave {arguments.shown(left)}, the backend {arguments.shown(right)}"
    return dataclasses.replace(not_compared(name, why), kind="failed")


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
    """Mean with weights cos(i), of complex numbers over both parts. Of equal weights or squares the gradient through a
    normalization is zero: noise."""
    output = plain(output)
    if output.is_complex():
        output = torch.view_as_real(output.resolve_conj())
    weights = torch.arange(output.numel(), dtype=torch.float32, device=output.device).cos().reshape(output.shape)
    return (output.float() * weights).mean()
