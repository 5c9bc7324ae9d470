"""One operator in one dtype: torch's own OpInfo samples through torch.compile, forward and backward, against eager."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from measure.coverage_judge import Exact, difference
from rust_ort import torch_private
from rust_ort.export.aliases import SHARES_MEMORY
from rust_ort.export.partition import NO_ELEMENTS
from rust_ort.torch_private import TorchDispatchMode, pytree

SEED = 0
NO_GRAPH = ("no graph", "what Dynamo captured was not compiled")
VERDICTS = ("nothing", "right", "eager", "nondeterministic", "untraceable", "crashed", "wrong")
"""From best to worst; what the words mean is in the report's head."""
FAULTS = ("crashed", "wrong")
WITHOUT_VALUES = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


@dataclass(frozen=True, kw_only=True)
class Item:
    """op: OpInfo's full name. dtype: a name in torch. samples: how many of OpInfo's, 0 for all. backend, dynamic: of
    torch.compile."""

    op: str
    dtype: str
    samples: int
    backend: str = "rust_ort"
    dynamic: bool = False


@dataclass(kw_only=True)
class Result:
    """Verdicts of an item. backward: None where OpInfo has no autograd for it. eager: (direction, operator, reason).
    notes: (sample, direction, verdict, shapes, what is wrong) of every verdict that is no success."""

    op: str
    dtype: str
    forward: str
    backward: str | None
    eager: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[tuple[int, str, str, str, str]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0


@dataclass(kw_only=True)
class Ran:
    """One run of a sample. gradients: None where none were wanted; failed: what stopped it, in which direction."""

    outputs: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor | None] | None = None
    failed: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict on one direction of a sample. detail: what is wrong; eager: (operator, reason) of what ran in eager."""

    verdict: str
    detail: str = ""
    eager: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Wide:
    """A run in float64, of inputs that are off by up to eps, relatively; seed: of these errors."""

    eps: float = 0.0
    seed: int = 0


ROUNDINGS = 4
Call = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
Values = Sequence[Tensor | None]


@functools.cache
def op_infos() -> dict[str, Any]:
    """{full name: OpInfo}, sorted. Their functions draw from the generator as it is: `run` seeds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        invocations = torch_private.method_invocations()
    # Dynamo cannot trace what theirs does to the generator.
    setattr(invocations, "wrapper_set_seed", _unseeded)  # noqa: B010
    return {info.full_name: info for info in sorted(invocations.op_db, key=lambda info: str(info.full_name))}


def _unseeded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


CHOOSE_AMONG_EQUALS = frozenset({"argsort", "msort", "sort", "topk"})
"""Operators that promise no order of equal elements: their inputs are made distinct."""

DISTINCT_HALVES = 20_000
A_QUARTER = {torch.float16: 0x3400, torch.bfloat16: 0x3E80}
"""Bits of 0.25, from which as many larger numbers of half precision are finite."""


def _make_distinct(sample: Any) -> None:
    given = sample.input
    if given.dtype is torch.bool or given.numel() > DISTINCT_HALVES:
        return
    numbers = torch.randperm(given.numel(), generator=torch.Generator().manual_seed(0)).reshape(given.shape)
    first = A_QUARTER.get(given.dtype)
    made = numbers.to(given.dtype) if first is None else (numbers + first - 7000).to(torch.int16).view(given.dtype)
    sample.input = made.requires_grad_(given.requires_grad)


def has_backward(info: Any, dtype: torch.dtype) -> bool:
    """Whether OpInfo says that autograd works for this dtype."""
    return bool(dtype.is_floating_point and info.supports_autograd and dtype in info.backward_dtypes)


def run_item(item: Item, through: Callable[[], None] = lambda: None) -> Result:
    """Every chosen sample of the item, the worst verdicts, and why. through: called after each sample."""
    begin = time.perf_counter()
    info = op_infos()[item.op]
    dtype = getattr(torch, item.dtype)
    result = Result(op=item.op, dtype=item.dtype, forward="nothing", backward=None)
    backward = has_backward(info, dtype)
    if backward:
        result.backward = "nothing"
    with _quiet():
        try:
            chosen = samples_of(info, dtype, count=item.samples, requires_grad=backward)
        except Exception as error:
            return _without_samples(result, f"OpInfo makes no samples: {_one_line(error)}")
        if not chosen:
            return _without_samples(result, "OpInfo has no sample")
        for index, sample in chosen:
            if item.op in CHOOSE_AMONG_EQUALS:
                _make_distinct(sample)
            judged = judge_sample(info.op, sample, backward=backward, backend=item.backend, dynamic=item.dynamic)
            through()
            for direction, verdict in judged.items():
                _add(result, direction, verdict, index, sample)
    result.samples = len(chosen)
    result.eager.sort()
    result.seconds = round(time.perf_counter() - begin, 2)
    return result


def _without_samples(result: Result, why: str) -> Result:
    backward = result.backward and "untraceable"
    notes = [(-1, "forward", "untraceable", "", why)]
    return dataclasses.replace(result, forward="untraceable", backward=backward, notes=notes)


def _add(result: Result, direction: str, judged: Judged, index: int, sample: Any) -> None:
    before = getattr(result, direction)
    setattr(result, direction, max(before, judged.verdict, key=VERDICTS.index))
    for op, reason in judged.eager:
        if (direction, op, reason) not in result.eager:
            result.eager.append((direction, op, reason))
    if judged.detail:
        result.notes.append((index, direction, judged.verdict, described(sample), judged.detail))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def samples_of(info: Any, dtype: torch.dtype, *, count: int, requires_grad: bool) -> list[tuple[int, Any]]:
    """(index, sample) of `count` samples: the first ones, then some over the rest up to the last."""
    _seed(SEED)
    everything = list(info.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    return [(index, everything[index]) for index in spread(len(everything), count)]


def spread(length: int, count: int) -> list[int]:
    """Indices of the first half of `count`, and of the other half evenly over the rest; all where there are few, and
    of a count of 0."""
    if not count or length <= count:
        return list(range(length))
    first = (count + 1) // 2
    rest = count - first
    return [*range(first), *(first - 1 + (length - first) * (k + 1) // rest for k in range(rest))]


def _seed(seed: int) -> None:
    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def described(sample: Any) -> str:
    """Shapes of the tensors and values of the rest."""

    def text(value: Any) -> Any:
        return list(value.shape) if isinstance(value, Tensor) else value

    given = pytree.tree_map(text, (sample.input, *sample.args))
    named = pytree.tree_map(text, sample.kwargs)
    return ", ".join([*map(str, given), *(f"{name}={value}" for name, value in named.items())])[:200]


def copied(given: Any, wide: Wide | None = None) -> Any:
    """The tensors in `given` anew, with their strides and with what they share."""
    storages: dict[int, torch.UntypedStorage] = {}
    generator = torch.Generator().manual_seed(wide.seed if wide is not None else SEED)

    def anew(value: Any) -> Any:
        if isinstance(value, torch.dtype) and wide is not None:
            return _wider(value)
        if not isinstance(value, Tensor):
            return value
        with torch.no_grad():
            made = _same_view(value, storages)
            if wide is not None:
                made = _off(made.to(_wider(value.dtype)), wide, generator)
        return made.requires_grad_(value.requires_grad)

    return pytree.tree_map(anew, given)


def _off(value: Tensor, wide: Wide, generator: torch.Generator) -> Tensor:
    """`value` with a rounding error in each element."""
    if not wide.eps or not (value.is_floating_point() or value.is_complex()) or value.layout is not torch.strided:
        return value
    return value * (1 + wide.eps * (2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1))


def _wider(given: torch.dtype) -> torch.dtype:
    if given.is_complex:
        return torch.complex128
    return torch.float64 if given.is_floating_point else given


def _same_view(value: Tensor, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    value = value.detach()
    if value.layout is not torch.strided or value.is_quantized or type(value) is not Tensor:
        return value.clone()
    storage = value.untyped_storage()
    kept = storages.setdefault(storage._cdata, storage.clone())
    made = torch.empty(0, dtype=value.dtype).set_(kept, value.storage_offset(), value.shape, value.stride())
    made = made.conj() if value.is_conj() else made
    return torch_private.neg_view(made) if value.is_neg() else made


def run(call: Call, sample: Any, *, backward: bool, wide: Wide | None = None) -> Ran:
    """`call` on copies of the sample's arguments under one seed, and the gradients of what it gives."""
    given = copied((sample.input, tuple(sample.args), dict(sample.kwargs)), wide)
    if not backward:
        given = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach(), given)
    ran = Ran()
    torch.manual_seed(SEED)
    try:
        outputs = call(*given)
        ran.outputs = [_kept(leaf) for leaf in pytree.tree_leaves(outputs) if _compared(leaf)]
    except Exception as error:
        ran.failed = ("forward", _one_line(error))
        return ran
    if backward:
        try:
            ran.gradients = _gradients(sample.output_process_fn_grad(outputs), given, wide or Wide())
        except Exception as error:
            ran.failed = ("backward", _one_line(error))
    return ran


def _compared(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, bool, int, float, complex))


def _kept(leaf: Any) -> Tensor:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else torch.tensor(leaf)


def _gradients(outputs: Any, given: Any, wide: Wide) -> list[Tensor | None]:
    wanted = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor) and leaf.requires_grad]
    summed = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not wanted or not summed:
        return []
    generator = torch.Generator().manual_seed(SEED + 1)
    noise = torch.Generator().manual_seed(wide.seed)
    tangents = [_off(_tangent(output, generator), wide, noise) for output in summed]
    return [
        gradient if gradient is None else gradient.detach().clone()
        for gradient in torch.autograd.grad(summed, wanted, tangents, allow_unused=True)
    ]


def _tangent(output: Tensor, generator: torch.Generator) -> Tensor:
    """Values that bfloat16 holds, so that they are the same in every dtype."""
    drawn = torch.randn(output.shape, generator=generator).to(torch.bfloat16).to(output.dtype)
    return drawn if output.layout is torch.strided else torch.ones_like(output.detach())


def _one_line(error: Exception) -> str:
    """Without Dynamo's advice and without the names of this run's graph and log."""
    text = re.sub(r"Set TORCHDYNAMO_VERBOSE=1 [^\n]*|\s(graph|log): \S+", "", str(error))
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}"[:500]


def judge_sample(
    op: Callable[..., Any], sample: Any, *, backward: bool, backend: str = "rust_ort", dynamic: bool = False
) -> dict[str, Judged]:
    """{direction: verdict} of one sample under torch.compile with `backend`."""

    def eagerly(given: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return op(given, *args, **kwargs)

    directions = ("forward", "backward") if backward else ("forward",)
    reference = run(eagerly, sample, backward=backward)
    if reference.failed is not None and reference.failed[0] == "forward":
        return {way: Judged(verdict="untraceable", detail=f"eager: {reference.failed[1]}") for way in directions}
    if not reference.outputs:
        return {way: Judged(verdict="untraceable", detail="it gives nothing to compare") for way in directions}
    chance = _chance(eagerly, sample, reference, backward=backward)
    if chance["forward"]:
        return {way: Judged(verdict="nondeterministic", detail=chance["forward"]) for way in directions}
    compiled = functools.partial(_compiled_verdicts, eagerly, sample, reference, backward=backward, dynamic=dynamic)
    found = compiled(backend=backend)
    if reference.failed is not None:
        found["backward"] = Judged(verdict="untraceable", detail=f"eager: {reference.failed[1]}")
    elif chance["backward"]:
        found["backward"] = Judged(verdict="nondeterministic", detail=chance["backward"])
    if any(judged.verdict in FAULTS for judged in found.values()):
        control = compiled(backend="aot_eager")
        found = {way: _whose_fault(judged, control[way]) for way, judged in found.items()}
    return found


def _whose_fault(judged: Judged, control: Judged) -> Judged:
    """What torch.compile itself cannot do is told apart by the same sample under aot_eager."""
    if judged.verdict in FAULTS and control.verdict in FAULTS:
        return Judged(verdict="untraceable", detail=f"aot_eager too: {control.detail}")
    return judged


def _chance(call: Call, sample: Any, reference: Ran, *, backward: bool) -> dict[str, str]:
    """{direction: how eager differs from itself where memory that nobody wrote has other content, "" for no way}."""
    found = {"forward": "", "backward": ""}
    for memory in (filled_memory, ZeroedMemory):
        with memory():
            again = run(call, sample, backward=backward)
        for way, text in differences(reference, again).items():
            found[way] = found[way] or (text and f"eager differs from eager: {text}")
    return found


@contextlib.contextmanager
def filled_memory() -> Iterator[None]:
    """Memory that torch.empty and its like give is NaN, or the largest integer."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


class ZeroedMemory(TorchDispatchMode):
    """Tensors that are made without values hold zeros: bools, where chance and the largest integer are the same."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func.overloadpacket.__name__ in WITHOUT_VALUES else made


def _compiled_verdicts(
    call: Call, sample: Any, reference: Ran, *, backward: bool, backend: str, dynamic: bool
) -> dict[str, Judged]:  # fmt: skip
    candidate, ways = _compiled_run(call, sample, backward=backward, backend=backend, dynamic=dynamic)
    exact = functools.cache(lambda: _exactly(call, sample, backward=backward))
    if candidate.failed is not None and candidate.failed[0] == "forward":
        crashed = Judged(verdict="crashed", detail=candidate.failed[1])
        if not backward:
            return {"forward": crashed}
        alone = _compiled_verdicts(call, sample, reference, backward=False, backend=backend, dynamic=dynamic)
        return {**alone, "backward": crashed}
    found = differences(reference, candidate, exact)
    made = {}
    for way in ways:
        if candidate.failed is not None and way == "backward":
            made[way] = Judged(verdict="crashed", detail=candidate.failed[1])
        elif found[way]:
            made[way] = Judged(verdict="wrong", detail=found[way], eager=ways[way].eager)
        else:
            made[way] = ways[way]
    return made


def _exactly(call: Call, sample: Any, *, backward: bool) -> list[Ran]:
    """In float64, then of inputs with rounding errors; what fails is left out."""
    dtypes = {value.dtype for value in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if _rounds(value)}
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    made = [run(call, sample, backward=backward, wide=Wide())]
    made += [run(call, sample, backward=backward, wide=Wide(eps=eps, seed=seed)) for seed in range(ROUNDINGS)]
    return [ran for ran in made if ran.failed is None] if made[0].failed is None else []


def _rounds(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def differences(reference: Ran, candidate: Ran, exact: Callable[[], Sequence[Ran]] = tuple) -> dict[str, str]:
    """{direction: the first difference in words, "" for none}. exact: the runs in float64."""

    def precise(values: Callable[[Ran], Values], index: int) -> list[Tensor]:
        found = [values(ran)[index] for ran in exact() if index < len(values(ran))]
        return [value for value in found if value is not None]

    def first(values: Callable[[Ran], Values]) -> str:
        expected, got = values(reference), values(candidate)
        if len(got) != len(expected):
            return f"{len(got)} values, expected {len(expected)}"
        pairs = enumerate(zip(expected, got, strict=True))
        texts = (
            (index, _difference(one, other, functools.partial(precise, values, index))) for index, (one, other) in pairs
        )
        return next((f"value {index}: {text}" for index, text in texts if text), "")

    return {"forward": first(lambda ran: ran.outputs), "backward": first(lambda ran: ran.gradients or ())}


def _difference(reference: Tensor | None, candidate: Tensor | None, exact: Exact) -> str:
    """A gradient that is None is one of zeros."""
    if reference is None or candidate is None:
        given = candidate if reference is None else reference
        return "" if given is None or not bool(given.to_dense().any()) else "a gradient where the other has none"
    return difference(reference, candidate, exact)


def _compiled_run(
    call: Call, sample: Any, *, backward: bool, backend: str, dynamic: bool
) -> tuple[Ran, dict[str, Judged]]:  # fmt: skip
    """The run under torch.compile, and where each direction of it ran."""
    import rust_ort

    torch.compiler.reset()
    counters = torch_private.compile_counters()
    counters.clear()
    made = rust_ort.Backend() if backend == "rust_ort" else None
    compiled = torch.compile(call, backend=made or backend, dynamic=dynamic)
    ran = run(compiled, sample, backward=backward)
    graphs = made.graphs if made is not None else []
    outside = _outside(counters)
    if counters["stats"]["calls_captured"] and not graphs and not outside:
        outside = [NO_GRAPH]
    forward = [graph for graph in graphs if graph.direction != "backward"]
    ways = {"forward": where_it_ran(forward, outside)}
    if backward:
        ways["backward"] = where_it_ran([graph for graph in graphs if graph.direction == "backward"], outside)
    return ran, ways


def _outside(counters: Any) -> list[tuple[str, str]]:
    """(operator, reason) of what Dynamo left outside every graph."""
    reasons = [reason.splitlines()[0] for reason in counters["graph_break"]]
    for text in counters["unimplemented"]:  # an error in a compilation that Dynamo turns into a break is only here
        found = re.match(r"Backend compiler exception\s+Explanation: .* failed with (\S+)", text)
        reasons += [f"its compilation needs a value: {found[1]}"] if found else []
    return [("graph break", reason) for reason in reasons]


def where_it_ran(graphs: Sequence[Any], outside: Sequence[tuple[str, str]]) -> Judged:
    """graphs: GraphInfo of one direction. outside: what ran in eager without being in a graph.

    Where a sample has no elements there is nothing that could be translated: a node that reads none is not counted, nor
    is a view that shares an output's memory.
    """
    uncounted = (NO_ELEMENTS, SHARES_MEMORY)
    eager = {(node.op, node.reason) for graph in graphs for node in graph.eager if node.reason not in uncounted}
    eager |= set(outside)
    translated = any(graph.parts and graph.calls and not graph.daemon_fallbacks for graph in graphs)
    if eager:
        return Judged(verdict="eager", eager=frozenset(eager))
    return Judged(verdict="right" if translated else "nothing")
