"""A call of a model as an ONNX graph, whose sizes may change: traced, and tried where torch would take sizes apart."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort import torch_private
from rust_ort.errors import ClientError, OptionError
from rust_ort.export.forward_model import ForwardGraph, forward_graph, overwritten_inputs, translated, written_inputs
from rust_ort.export.model_file import ModelOutput
from rust_ort.export.text import one_line
from rust_ort.export.translate import Translated
from rust_ort.observe.values import named_values
from rust_ort.options import Options
from rust_ort.runtime.assumptions import LEAST_TRACED, Assumptions
from rust_ort.runtime.cache_key import opset as opset_of
from rust_ort.runtime.capture import Captured, capture
from rust_ort.runtime.dynamic_shapes import DynamicSize, resize
from rust_ort.runtime.forward_call import Call
from rust_ort.runtime.forward_names import Names, in_words, names_of_sizes, traced_as


@dataclass(kw_only=True)
class Forward:
    """The forward of a call, in ONNX. size_names: as names_of_sizes gives them. overwritten: members that it writes
    into and does not read. right_at_one: sizes, in words, of which 1 was tried."""

    call: Call
    captured: Captured
    names: Names
    graph: ForwardGraph
    onnx: Translated
    assumed: Assumptions
    size_names: dict[str, str]
    outputs: list[ModelOutput]
    overwritten: list[Tensor]
    right_at_one: set[str] = field(default_factory=set)

    def right_at(self, sizes: Iterable[DynamicSize]) -> None:
        """Notes that 1 was tried of these sizes, too."""
        self.right_at_one |= set(map(in_words, sizes))

    def assumes(self) -> list[str]:
        """What holds of sizes in it, one thing a line."""
        return list(self.assumed.lines(self.right_at_one))


def forward(model: Any, call: Callable[[], Call], options: Options) -> Forward:
    """The forward in ONNX. call: makes one, of the same arguments again each time. Errors: ClientError, OptionError."""
    made = _of_any_size(model, call, options)
    # A forward that fills a buffer in its first call alone reads it in the next, which finds what it held before.
    if made.overwritten and _difference(model, made, call()):
        raise _writes([made.names.of_tensor(tensor, "") for tensor in made.overwritten], model)
    return made


def _of_any_size(model: Any, call: Callable[[], Call], options: Options) -> Forward:
    """The forward, right for the sizes that are to be dynamic.

    torch fixes a size of 0 or 1, and takes any other for 2 or more. Where a 1 is to be dynamic, the example has 2
    elements in its place, and the graph is run once on the example as it is, for eager's results. A program that does
    not run with 2 is traced as it is. Of another example the graph is run once with 1, which tells whether 1 is right.
    """
    example, larger = call(), call()
    small = example.small()
    if not small:
        made = _traced(model, example, options)
        _try_one(model, made, call)
        return made
    resize(larger.small(least=1), LEAST_TRACED)
    failed: Exception | None = None
    if not larger.small():
        try:
            made = _traced(model, larger, options)
        except Exception as error:  # what the model raises, too
            if isinstance(error, ClientError) and error.code not in ("FIXED_SIZE", "GRAPH_BREAK"):
                raise
            failed = error
        else:
            if differs := _difference(model, made, example):
                raise _apart_error(small, f"traced with 2 there, {differs}")
            left = _try_one(model, made, call)
            if left:
                raise _apart_error(left, "traced with 2 there, its graph is right for this example, not for others")
            return made
    try:
        with torch_private.small_sizes_as_any(True):
            return _traced(model, example, options)
    except ClientError as error:
        if one_line(str(error)) == one_line(str(failed)):  # sizes of 1 have no part in it
            raise error from None
        if isinstance(failed, OptionError) and not any(str(size) in str(failed) for size in small):
            raise failed from None  # it is of another size
        why = f"with 2 there, {failed}" if failed else str(error)
        raise _apart_error(small, why) from (failed or error)


def _try_one(model: Any, made: Forward, call: Callable[[], Call]) -> list[DynamicSize]:
    """Lowers what is assumed to 1 where the graph gives eager's results for it, of one size alone and of several.
    Returns sizes of 1 in the example that it is not right for. call: makes one, of the arguments as traced."""
    open_to_one = {size for bounds in made.assumed.bounds if bounds.open_to_one for size in bounds.sizes}
    fakes = traced_as(made.captured, made.graph)
    symbols = [
        str(fakes[id(size.tensor)].shape[size.axis]) if id(size.tensor) in fakes else str(size)
        for size in made.call.sizes
    ]
    small = set(map(in_words, call().small()))
    candidates: dict[str, None] = dict.fromkeys(
        symbol for size, symbol in zip(made.call.sizes, symbols, strict=True) if in_words(size) in open_to_one | small
    )
    tried = {chosen: _differs_at_one(model, made, call, symbols, chosen) for chosen in _some_of(candidates)}
    wrong = [chosen for chosen, differs in tried.items() if differs]
    right: set[str] = set()
    for symbol in candidates:
        if not any(chosen <= right | {symbol} for chosen in wrong):
            right.add(symbol)
    known = [chosen for chosen, differs in tried.items() if differs is False and chosen <= right]
    in_example = {symbol for size, symbol in zip(made.call.sizes, symbols, strict=True) if in_words(size) in small}
    right &= in_example.union(*known)
    made.right_at(size for size, symbol in zip(made.call.sizes, symbols, strict=True) if symbol in right)
    return [size for size, symbol in zip(call().sizes, symbols, strict=True) if symbol in in_example - right]


def _some_of(symbols: Collection[str]) -> Iterator[frozenset[str]]:
    """Each, each two of a few, and all of them."""
    counts = {1, 2, len(symbols)} if len(symbols) <= MOST_IN_PAIRS else {1, len(symbols)}
    for count in sorted(counts - {0}):
        yield from map(frozenset, itertools.combinations(symbols, count))


MOST_IN_PAIRS = 4
"""Sizes, each two of which are tried together: the model runs for each."""


def _differs_at_one(
    model: Any, made: Forward, call: Callable[[], Call], symbols: Sequence[str], chosen: Collection[str]
) -> bool | None:
    """Whether the graph gives other results than eager where the chosen sizes are 1, and all others the example's or as
    small as they may be; None where that is against what is assumed, or the model takes no such call."""
    trials = [_differs(model, made, call(), symbols, chosen, small=small) for small in (False, True)]
    return True if any(trials) else next((differs for differs in trials if differs is not None), None)


def _differs(
    model: Any, made: Forward, call: Call, symbols: Sequence[str], chosen: Collection[str], *, small: bool
) -> bool | None:
    sizes = list(zip(call.sizes, symbols, strict=True))
    resize([size for size, symbol in sizes if symbol in chosen], 1)
    least = {size: bounds.least for bounds in made.assumed.bounds for size in bounds.sizes}
    others = [size for size, symbol in sizes if symbol not in chosen and not symbol.isdigit()]  # a number is fixed
    for size in others:
        if small or size.length == 1:
            resize([size], max(LEAST_TRACED, least.get(in_words(size), 0)))
    if not made.assumed.holds({in_words(size): size.length for size, _ in sizes}):
        return None
    with contextlib.suppress(Exception), warnings.catch_warnings():  # a model that takes no 1 may say so as it likes
        warnings.simplefilter("ignore")
        return bool(_difference(model, made, call))
    return None


def _apart_error(small: Sequence[DynamicSize], why: str) -> OptionError:
    sizes = " and ".join(f"{size} is {size.length}" for size in small)
    return OptionError(
        f"to_onnx dynamic_shapes: {sizes} in the example, to be dynamic, but the program takes that size apart; take "
        f"an example of size >= 2, or leave the size fixed\n  {why}",
        code="FIXED_SIZE",
    )


def _traced(model: Any, call: Call, options: Options) -> Forward:
    custom = options.custom_translations
    with contextlib.ExitStack() as after:

        def check(made: Captured) -> None:
            after.enter_context(_kept(_overwritten(model, call.leaves, made)))

        captured = capture(model, call.args, call.kwargs, call.sizes, custom, check)
    names = Names(model, call.leaves, captured)
    overwritten = _overwritten(model, call.leaves, captured)
    _check_returned(model, names, captured, overwritten)
    graph = forward_graph(captured.graph, own_sizes=call.own_sizes)
    onnx = translated(graph, name=_model_name(model), opset=opset_of(options), custom=custom)
    assumed = names.assumptions()
    return Forward(
        call=call,
        captured=captured,
        names=names,
        graph=graph,
        onnx=onnx,
        assumed=assumed,
        size_names=names_of_sizes(captured, graph, call.sizes, assumed),
        outputs=names.outputs(graph),
        overwritten=overwritten,
    )


@contextlib.contextmanager
def _kept(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restores what tensors hold."""
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def _difference(model: Any, made: Forward, call: Call) -> str:
    """What a graph does with the tensors of a call that the model does not; "" where they agree."""
    instead = {id(traced): own for (_, traced), (_, own) in zip(made.call.leaves, call.leaves, strict=True)}
    inputs: dict[str, Any] = dict(made.graph.constants)
    for name, position in made.graph.inputs.items():
        tensor = made.captured.inputs[position]
        inputs[name] = instead.get(id(tensor), tensor)
    placeholders = made.graph.module.graph.find_nodes(op="placeholder")
    with torch.no_grad(), _kept(made.overwritten):  # until the end: what is returned may be views of them
        try:
            got = made.graph.module(*(inputs[node.name] for node in placeholders))
        except Exception as error:  # whatever an operator raises
            return f"its graph fails on the example: {one_line(str(error))}"
        expected = [leaf for _, leaf in named_values(model(*call.args, **call.kwargs)) if isinstance(leaf, Tensor)]
        if len(expected) != len(made.outputs):
            return f"it has {len(made.outputs)} outputs, of the example {len(expected)}"
        for output, reference in zip(made.outputs, expected, strict=True):
            if isinstance(output.value, int) and not _close(got[output.value], reference):
                shapes = [str(list(tensor.shape)) for tensor in (got[output.value], reference)]
                what = "other values" if shapes[0] == shapes[1] else f"{shapes[0]}, not {shapes[1]}"
                return f"its graph gives {what} in {output.name} of the example"
    return ""


def _close(candidate: Tensor, reference: Tensor) -> bool:
    """Whether two results differ by rounding alone."""
    if (candidate.shape, candidate.dtype) != (reference.shape, reference.dtype):
        return False
    if not reference.dtype.is_floating_point:
        return torch.equal(candidate, reference)
    step = torch.finfo(reference.dtype).eps ** 0.5
    candidate, reference = candidate.double(), reference.double()
    largest = reference[reference.isfinite()].abs().max().item() if reference.isfinite().any() else 0.0
    return torch.allclose(candidate, reference, rtol=step, atol=step * largest, equal_nan=True)


@contextlib.contextmanager
def same_members(model: Any) -> Iterator[None]:
    """Restores which tensors are registered where. Errors: ClientError where the call registered another: an ONNX model
    has no state."""
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    before: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for module in modules:
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
            before.append((kind, table, dict(table)))
    try:
        yield
        for kind, table, then in before:
            other = [name for name, tensor in table.items() if then.get(name) is not tensor]
            if other:
                raise _writes([f"{kind} {name}" for name in other], model)
    finally:
        for _, table, then in before:
            if {name: id(tensor) for name, tensor in table.items()} != {name: id(then[name]) for name in then}:
                table.clear()
                table.update(then)


def _overwritten(model: Any, leaves: Sequence[tuple[str, Tensor]], captured: Captured) -> list[Tensor]:
    """Parameters and buffers that the graph writes into whole, and does not read before: no state, as an attribute that
    is set is none. Errors: ClientError where it writes into what it is given otherwise."""
    names = Names(model, leaves, captured)
    overwritten = set(overwritten_inputs(captured.graph))
    found, written = [], []
    for position in written_inputs(captured.graph):
        name = names.of_input(position)
        if position in overwritten and not names.is_argument(name):
            found.append(captured.inputs[position])
        else:
            written.append(name)
    if given := [name for name in written if names.is_argument(name)]:
        raise ClientError(
            f"to_onnx: the forward writes into {', '.join(given)}, which an ONNX model cannot: have it write into a "
            "clone() of the argument",
            code="MUTATION",
        )
    if written:
        raise _writes(written, model)
    return found


def _check_returned(model: Any, names: Names, captured: Captured, overwritten: Sequence[Tensor]) -> None:
    """Errors: ClientError where what is overwritten is returned itself: the graph has what it held before."""
    returned = {id(leaf) for _, leaf in named_values(captured.result)}
    found = [names.of_tensor(tensor, "") for tensor in overwritten if id(tensor) in returned]
    if found:
        raise _writes(found, model)


def _writes(written: Sequence[str], model: Any) -> ClientError:
    training = isinstance(model, nn.Module) and any(module.training for module in model.modules())
    mode = (
        "and the model is in training mode: call model.eval(), which ends it for batch norm and its like" if training
        else "and nothing is in training mode, where it would end: return the new value instead"
    )  # fmt: skip
    return ClientError(
        f"to_onnx: the forward writes into {', '.join(written)}, which an ONNX model cannot, {mode}", code="MUTATION"
    )


def _model_name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "model")
