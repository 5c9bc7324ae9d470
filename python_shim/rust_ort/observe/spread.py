"""How far rounding moves a value: eager again and again, what each operation computes off by up to one step more."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.unwritten import leaves_unwritten
from rust_ort.link.specs import Spread, Verdict
from rust_ort.observe.wide import NoFloat64, computes, in_float64, widen, written_in_float64
from rust_ort.torch_private import OpOverload, TorchDispatchMode, pytree

log = logging.getLogger("rust_ort")

ROUNDED = (torch.float32, torch.float16, torch.bfloat16)
"""Types whose rounding float64 tells."""
RUNS = 5
"""How often. Of these the second largest counts: one may be an outlier."""
LEAST_RUNS = 3
"""So many tell enough where time ends."""


def spreads(
    wrong: Mapping[str, Verdict], run: Callable[[], Mapping[str, Any]], float64: Mapping[str, Tensor | None], *,
    seconds: float,
) -> dict[str, Spread]:  # fmt: skip
    """{name: how far rounding moves it from its float64} of values that differ, whose float64 is known. wrong: their
    verdicts; run: eager, its values by name; seconds: for all."""
    sizes = {
        name: float(verdict.metrics["max_reference"]) or verdict.max_abs
        for name, verdict in wrong.items()
        if verdict.metrics is not None and float64.get(name) is not None
    }
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    until = time.monotonic() + seconds
    for seed in range(RUNS if sizes else 0):
        rounded = _run_rounded(run, seed=seed, until=until)
        for name, size in sizes.items():
            value, exact = rounded.get(name), float64[name]
            if isinstance(value, Tensor) and exact is not None and value.shape == exact.shape:
                errors[name].append(_errors(value.detach().to(torch.float64), exact, size))
    known = {name: zip(*found, strict=True) for name, found in errors.items() if len(found) >= LEAST_RUNS}
    both = {name: [sorted(sizes)[-2] for sizes in found] for name, found in known.items()}
    return {name: Spread(largest=a, rms=b) for name, (a, b) in both.items() if math.isfinite(a) and math.isfinite(b)}


def _run_rounded(run: Callable[[], Mapping[str, Any]], *, seed: int, until: float) -> Mapping[str, Any]:
    """The values of such a run; {} where time ends before, or the model does not run so."""
    try:
        with Rounded(seed=seed, until=until):
            return run()
    except Exception as error:  # what runs in eager need not run under a dispatch mode
        log.debug("how far rounding moves the model's values is not known: %s", error)
        return {}


class Rounded(TorchDispatchMode):
    """Inside, what an operator rounds is off by up to one more step of its type, as the seed draws: of what it computes
    of floats the elements that are not what it gives in float64. What decides exactly, a comparison, a floor, the
    largest, does so of values that are off, and so may choose otherwise. Costs each operator a second one in float64.
    Errors: TimeoutError of an operator that begins after `until`, as of time.monotonic()."""

    def __init__(self, *, seed: int, until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._until = seed, until
        self._draws: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if time.monotonic() > self._until:
            raise TimeoutError("eager with other roundings takes too long")
        kwargs = kwargs or {}
        if leaves_unwritten(func) or not computes(func, args):
            return func(*args, **kwargs)
        writes = isinstance(func, OpOverload) and func._schema.is_mutable
        given, named = pytree.tree_map(_copied, (args, kwargs)) if writes else (args, kwargs)
        made = func(*args, **kwargs)
        try:
            exact = _written(func, given, named, made) if writes else in_float64(func, given, named, made)
        except NoFloat64:
            return made  # what it rounds nobody knows
        pairs = zip(pytree.tree_leaves(made), pytree.tree_leaves(exact), strict=True)
        moved = [self._moved(leaf, other, writes=writes) for leaf, other in pairs]
        return pytree.tree_unflatten(moved, pytree.tree_structure(made))

    def _moved(self, made: Any, exact: Any, *, writes: bool) -> Any:
        """In place where others may lie over it."""
        if not isinstance(made, Tensor) or made.dtype not in ROUNDED or made.layout is not torch.strided:
            return made
        rounded = exact != made
        if made.device not in self._draws:
            self._draws[made.device] = torch.Generator(made.device).manual_seed(self._seed)
        drawn = torch.empty_like(made, dtype=torch.float64)
        of = torch.finfo(made.dtype)  # below its least normal number the steps are of one size
        steps = made.abs().clamp_(min=of.smallest_normal).to(torch.float64).mul_(of.eps)
        off = drawn.uniform_(-1, 1, generator=self._draws[made.device]).mul_(steps).add_(made).to(made.dtype)
        off = torch.where(rounded & off.isfinite(), off, made)
        return made.copy_(off) if writes else off


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _written(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """What an operator gives in float64 that writes into what it is given. Errors: NoFloat64."""
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise NoFloat64("it would draw once more")
    args, kwargs = pytree.tree_map(widen, (args, kwargs))
    return written_in_float64(func, args, kwargs, made)


def _errors(rounded: Tensor, exact: Tensor, size: float) -> tuple[float, float]:
    """(largest error, root mean square). size: of the largest element, or of what differs where all are zero; what is
    far beyond it is a fill value."""
    apart = (rounded - exact)[exact.abs() <= 2 * size]
    if not apart.numel():
        return 0.0, 0.0
    return float(apart.abs().max()), math.sqrt(float(apart.square().sum()) / exact.numel())
