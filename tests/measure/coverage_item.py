"""One operator in one dtype: torch's own OpInfo samples through torch.compile, forward and backward, against eager."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from measure.coverage_sample import FAULTS, SEED, Judged, judge_sample, one_line, together
from rust_ort import torch_private
from rust_ort.torch_private import pytree

VERDICTS = ("nothing", "right", "eager", "nondeterministic", "untraceable", "crashed", "wrong")
"""From best to worst; what the words mean is in the report's head."""
GOES_FOR_ALL = frozenset({"nothing", "right", "eager"})
"""Verdicts on several samples in one function that hold for each of them."""
TOGETHER = 16
"""Samples in one compiled function."""
DYNAMIC_TOGETHER = 4
"""Where sizes are symbols: equal sizes are one symbol, and what fixes it for one sample fixes it for all."""

ALIKE = 120
"""Characters at the beginning of what is told of two samples: so many make it the same."""


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
    notes: (sample, direction, verdict, shapes, what is wrong) of every fault, and of the first of what else is no
    success, and alike."""

    op: str
    dtype: str
    forward: str
    backward: str | None
    eager: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[tuple[int, str, str, str, str]] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0


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
"""Operators that promise no order of equal elements: their inputs are made distinct, or left out where they have more
elements than their dtype has numbers."""


def _roots_alone_are_rounded_twice() -> bool:
    """Whether eager's `x ** -0.5` of bfloat16 depends on how many there are: of few the root is rounded first."""
    root = torch.tensor([0.6875], dtype=torch.bfloat16)
    return bool(root.pow(-0.5) != root.repeat(64).pow(-0.5)[0])


EAGERS_OWN: dict[tuple[str, str, str], tuple[Callable[[], bool], str]] = {
    ("nn.functional.normalize", "bfloat16", "[1, 2, 4, 5], p=0.5, dim=0"): (
        _roots_alone_are_rounded_twice,
        "x ** -0.5 of few numbers",
    ),
}
"""{(operator, dtype, what `described` says of the sample): whether eager differs from eager here, and in what}, where
it was looked into: docs/design/known-wrong-upstream.md."""

DISTINCT_HALVES = 20_000
A_QUARTER = {torch.float16: 0x3400, torch.bfloat16: 0x3E80}
"""Bits of 0.25, from which as many larger numbers of half precision are finite."""


def _may_be_distinct(sample: Any) -> bool:
    given = sample.input
    return given.dtype is not torch.uint8 or given.numel() <= 256


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
            return _without_samples(result, f"OpInfo makes no samples: {one_line(error)}")
        if not chosen:
            return _without_samples(result, "OpInfo has no sample")
        if item.op in CHOOSE_AMONG_EQUALS:
            chosen = [(index, sample) for index, sample in chosen if _may_be_distinct(sample)]
            for _, sample in chosen:
                _make_distinct(sample)
        size = DYNAMIC_TOGETHER if item.dynamic else TOGETHER
        for batch in (chosen[first : first + size] for first in range(0, len(chosen), size)):
            for index, sample, judged in _judged(info.op, batch, item, backward=backward, through=through):
                for direction, verdict in judged.items():
                    _add(result, direction, verdict, index, sample)
    result.samples = len(chosen)
    result.eager.sort()
    result.seconds = round(time.perf_counter() - begin, 2)
    return result


def _judged(
    op: Callable[..., Any],
    batch: Sequence[tuple[int, Any]],
    item: Item,
    *,
    backward: bool,
    through: Callable[[], None],
) -> Iterator[tuple[int, Any, dict[str, Judged]]]:
    """(index, sample, verdicts). A batch is one compiled function; one that is not all well is halved, so that what is
    not well is judged, and told of, alone."""
    judge = functools.partial(judge_sample, backward=backward, backend=item.backend, dynamic=item.dynamic)
    if len(batch) == 1:
        [(index, sample)] = batch
        yield index, sample, _less_eagers_own(judge(op, sample), item, sample)
        through()
        return
    judged = judge(*together(op, [sample for _, sample in batch]))
    through()
    if all(verdict.verdict in GOES_FOR_ALL for verdict in judged.values()):
        for index, sample in batch:
            yield index, sample, judged
        return
    middle = len(batch) // 2
    for half in (batch[:middle], batch[middle:]):
        yield from _judged(op, half, item, backward=backward, through=through)


def _less_eagers_own(judged: dict[str, Judged], item: Item, sample: Any) -> dict[str, Judged]:
    looked_into = item.op, item.dtype, described(sample)
    if looked_into not in EAGERS_OWN:
        return judged
    differs, what = EAGERS_OWN[looked_into]
    if not differs():
        return judged

    def less(one: Judged) -> Judged:
        if one.verdict != "wrong":
            return one
        return dataclasses.replace(one, verdict="nondeterministic", detail=f"{what}: {one.detail}")

    return {way: less(one) for way, one in judged.items()}


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
    told = {(way, verdict, detail[:ALIKE]) for _, way, verdict, _, detail in result.notes}
    if judged.detail and (judged.verdict in FAULTS or (direction, judged.verdict, judged.detail[:ALIKE]) not in told):
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
