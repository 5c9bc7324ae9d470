"""One sample of an operator under torch.compile, forward and backward, judged against eager.

Several samples at once are a sample, too (`together`): what a compilation costs is paid once for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from measure.coverage_judge import Exact, difference
from rust_ort import torch_private
from rust_ort.export.aliases import SHARES_MEMORY
from rust_ort.export.arguments import NO_ELEMENTS
from rust_ort.torch_private import TorchDispatchMode, pytree

SEED = 0
NO_GRAPH = ("no graph", "what Dynamo captured was not compiled")
FAULTS = ("crashed", "wrong")
WITHOUT_VALUES = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})


class Sample(Protocol):
    """What an operator is called with, as OpInfo has it. output_process_fn_grad: what of the outputs is summed for the
    gradients."""

    @property
    def input(self) -> Any: ...

    @property
    def args(self) -> Sequence[Any]: ...

    @property
    def kwargs(self) -> Mapping[str, Any]: ...

    @property
    def output_process_fn_grad(self) -> Callable[[Any], Any]: ...


@dataclass(frozen=True, kw_only=True)
class Together:
    """Several samples as one: see `together`."""

    input: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]
    output_process_fn_grad: Callable[[Any], Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


def together(op: Callable[..., Any], samples: Sequence[Sample]) -> tuple[Callable[..., Any], Together]:
    """A function that calls `op` with every sample in turn, and the one sample it takes."""

    def each(given: Sequence[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        return [op(value, *args, **kwargs) for value, args, kwargs in given]

    def summed(outputs: list[Any]) -> list[Any]:
        return [sample.output_process_fn_grad(output) for sample, output in zip(samples, outputs, strict=True)]

    given = [(sample.input, tuple(sample.args), dict(sample.kwargs)) for sample in samples]
    return each, Together(input=given, output_process_fn_grad=summed)


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
class Retaken:
    """How a run is taken once more: of inputs that are off by up to eps, relatively; seed: of these errors. wide: in
    float64; else in the dtypes as given, which shows the kernel's own rounding."""

    eps: float = 0.0
    seed: int = 0
    wide: bool = True


ROUNDINGS = 12
"""So many that what eager rounds at an element is met: of 100,000 elements some are right by chance in a few."""
Call = Callable[[Any, Sequence[Any], dict[str, Any]], Any]
Values = Sequence[Tensor | None]


def copied(given: Any, retaken: Retaken | None = None) -> Any:
    """The tensors in `given` anew, with their strides and with what they share."""
    storages: dict[int, torch.UntypedStorage] = {}
    generator = torch.Generator().manual_seed(retaken.seed if retaken is not None else SEED)

    def anew(value: Any) -> Any:
        if isinstance(value, torch.dtype) and retaken is not None:
            return _wider(value) if retaken.wide else value
        if not isinstance(value, Tensor):
            return value
        with torch.no_grad():
            made = _same_view(value, storages)
            if retaken is not None:
                off = _off(made.to(_wider(value.dtype)), retaken, generator)
                made = off if retaken.wide else off.to(value.dtype)
        return made.requires_grad_(value.requires_grad)

    return pytree.tree_map(anew, given)


def _off(value: Tensor, retaken: Retaken, generator: torch.Generator) -> Tensor:
    """`value` with a rounding error in each element."""
    if not retaken.eps or not (value.is_floating_point() or value.is_complex()) or value.layout is not torch.strided:
        return value
    return value * (1 + retaken.eps * (2 * torch.rand(value.shape, generator=generator, dtype=torch.float64) - 1))


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


def run(call: Call, sample: Sample, *, backward: bool, retaken: Retaken | None = None) -> Ran:
    """`call` on copies of the sample's arguments under one seed, and the gradients of what it gives."""
    given = copied((sample.input, tuple(sample.args), dict(sample.kwargs)), retaken)
    if not backward:
        given = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach(), given)
    ran = Ran()
    torch.manual_seed(SEED)
    try:
        outputs = call(*given)
        ran.outputs = [_kept(leaf) for leaf in pytree.tree_leaves(outputs) if _compared(leaf)]
    except Exception as error:
        ran.failed = ("forward", one_line(error))
        return ran
    if backward:
        try:
            ran.gradients = _gradients(sample.output_process_fn_grad(outputs), given, retaken or Retaken())
        except Exception as error:
            ran.failed = ("backward", one_line(error))
    return ran


def _compared(leaf: Any) -> bool:
    return isinstance(leaf, (Tensor, bool, int, float, complex))


def _kept(leaf: Any) -> Tensor:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else torch.tensor(leaf)


def _gradients(outputs: Any, given: Any, retaken: Retaken) -> list[Tensor | None]:
    wanted = [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, Tensor) and leaf.requires_grad]
    summed = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not wanted or not summed:
        return []
    generator = torch.Generator().manual_seed(SEED + 1)
    noise = torch.Generator().manual_seed(retaken.seed)
    tangents = [_off(_tangent(output, generator), retaken, noise).to(output.dtype) for output in summed]
    return [
        gradient if gradient is None else gradient.detach().clone()
        for gradient in torch.autograd.grad(summed, wanted, tangents, allow_unused=True)
    ]


def _tangent(output: Tensor, generator: torch.Generator) -> Tensor:
    """Values that bfloat16 holds, so that they are the same in every dtype."""
    drawn = torch.randn(output.shape, generator=generator).to(torch.bfloat16).to(output.dtype)
    return drawn if output.layout is torch.strided else torch.ones_like(output.detach())


def one_line(error: Exception) -> str:
    """Without Dynamo's advice and without the names of this run's graph and log."""
    text = re.sub(r"Set TORCHDYNAMO_VERBOSE=1 [^\n]*|\s(graph|log): \S+", "", str(error))
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}"[:500]


def judge_sample(
    op: Callable[..., Any], sample: Sample, *, backward: bool, backend: str = "rust_ort", dynamic: bool = False
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


def _chance(call: Call, sample: Sample, reference: Ran, *, backward: bool) -> dict[str, str]:
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
    call: Call, sample: Sample, reference: Ran, *, backward: bool, backend: str, dynamic: bool
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


def _exactly(call: Call, sample: Sample, *, backward: bool) -> list[Ran]:
    """In float64, then of inputs with rounding errors, in float64 and in their own dtypes; what fails is left out."""
    dtypes = {value.dtype for value in pytree.tree_leaves((sample.input, sample.args, sample.kwargs)) if _rounds(value)}
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=0.0)
    made = [run(call, sample, backward=backward, retaken=Retaken())]
    off = [Retaken(eps=eps, seed=seed, wide=wide) for seed in range(ROUNDINGS) for wide in (True, False)]
    made += [run(call, sample, backward=backward, retaken=retaken) for retaken in off]
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
    call: Call, sample: Sample, *, backward: bool, backend: str, dynamic: bool
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
