"""Float64 beside eager: what the same operators give of the same values where nothing is rounded on the way.

Of a node alone, on eager's values widened; of a graph, on its inputs widened and carried on; of a model that runs, in
every operator that torch dispatches. Complex numbers on the way are complex128. Choices are eager's: integers and
bools, and the random numbers that it drew.
"""

from __future__ import annotations

import logging
import math
import operator
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.weak import WeakTensorKeyDictionary

from rust_ort.export.partition import is_pure
from rust_ort.export.unwritten import UNWRITTEN, drops, is_unwritten, leaves_unwritten
from rust_ort.memory.device import free_bytes_beside
from rust_ort.observe import recurrent
from rust_ort.observe.masked import attention, lost_beside
from rust_ort.observe.values import same
from rust_ort.torch_private import OpOverload, TorchDispatchMode, pytree

log = logging.getLogger("rust_ort")
aten = torch.ops.aten

EXACT = "integers and bools have no float64: they are exact"
DRAWN = "random numbers: float64 is as eager drew them"


QUANTIZING = frozenset({aten.floor, aten.ceil, aten.round, aten.trunc, aten.sign, aten.floor_divide, aten.fix})
"""Operators whose results are a choice, though they are floats: at an edge float64 would choose otherwise."""

OVERWRITING = frozenset(
    {
        aten.bernoulli.p, aten.uniform.default, aten.normal_functional.default, aten.exponential.default,
        aten.geometric.default, aten.cauchy.default, aten.log_normal.default,
    }
)  # fmt: skip
"""Operators that draw by numbers: of the tensor that they take nothing is left but its shape."""

REPLACING = frozenset({aten.set_, aten.resize_})
"""Operators that give a tensor other memory. What is in it, and in memory that nobody wrote, is widened as it is first
read: whoever fills it may do so past torch."""


WIDE_COPIES = 4
"""Of the largest argument of an operator: what it reads and gives in float64, and what that computes with."""
FREE_SHARE = 2
SMALL_BYTES = 64 << 20
"""Less than this is there."""


class NoFloat64(Exception):
    """Why there is no float64 of a value, and of what is made of it."""


@dataclass(frozen=True)
class Unknown:
    """In the place of a value whose float64 nobody knows."""

    reason: str


def widen(value: Any) -> Any:
    """Tensors of floats, and their dtypes, as float64, of complex numbers as complex128; anything else as it is.
    Errors: NoFloat64."""
    if isinstance(value, Unknown):
        raise NoFloat64(value.reason)
    if isinstance(value, Tensor):
        return value.to(_wide_dtype(value.dtype))
    return _wide_dtype(value) if isinstance(value, torch.dtype) else value


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def in_float64(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any) -> Any:
    """What `target` gives of these arguments, which are wide but for their dtypes. made: what eager made of its own;
    where that is no float, and where it was drawn, it is what this gives, too.

    Errors: NoFloat64.
    """
    if not any(_is_float(leaf) for leaf in pytree.tree_leaves(made)):
        return made
    if getattr(target, "overloadpacket", None) in QUANTIZING:
        return pytree.tree_map(widen, made)
    if not (isinstance(target, OpOverload) or target is operator.getitem):
        raise NoFloat64(f"{target} is no operator of ATen")
    args, kwargs = pytree.tree_map(widen, (tuple(args), dict(kwargs)))
    if isinstance(target, OpOverload):
        if not is_pure(target):
            raise NoFloat64(f"custom operators of {target.namespace!r} are not run twice")
        if target._schema.is_mutable:
            raise NoFloat64("it writes into what it is given")
        if _draws(target, args, kwargs):
            return _drawn(target, args, made)
        kwargs = _made_wide(target, args, kwargs)
    try:
        masked = attention(target, args, kwargs)
        special = recurrent.layer(target, args, made) if masked is None else masked
        wide = target(*args, **kwargs) if special is None else special
        if target is aten.add.Tensor:
            wide = lost_beside(wide, made, args)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        log.debug("%s: no float64: %s", target, error)
        raise NoFloat64(f"{target} cannot: {str(error).partition(chr(10))[0]}") from None
    return like(made, wide if _has_floats((args, kwargs)) else pytree.tree_map(widen, wide))


def _made_wide(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What makes floats of no floats makes float64, where it can be told to."""
    takes = [declared.name for declared in target._schema.arguments if declared.kwarg_only]
    if "dtype" in takes and kwargs.get("dtype") is None and not _has_floats((args, kwargs)):
        return {**kwargs, "dtype": torch.float64}
    return kwargs


def _has_floats(values: Any) -> bool:
    return any(_is_float(leaf) for leaf in pytree.tree_leaves(values))


def _is_float(leaf: Any) -> bool:
    """Whether it is rounded: a tensor of floats or of complex numbers."""
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def written_in_float64(func: Any, args: Any, kwargs: Any, made: Any) -> Any:
    """What an operator gives that writes into what it is given, of wide arguments but for their dtypes: it writes into
    these. made: what eager's gave. Errors: NoFloat64."""
    if not is_pure(func):
        raise NoFloat64("a custom operator writes")
    args, kwargs = pytree.tree_map(lambda v: _wide_dtype(v) if isinstance(v, torch.dtype) else v, (args, kwargs))
    try:
        wide = func(*args, **kwargs)
        if func is aten.add_.Tensor:
            wide.copy_(lost_beside(wide, made, args[1:2]))
        return like(made, wide)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError) as error:
        raise NoFloat64(str(error)) from None


def like(made: Any, wide: Any) -> Any:
    """`wide` where `made` is a float, else `made`. Errors: NoFloat64 where the two are not alike."""
    leaves, spec = pytree.tree_flatten(made)
    others = pytree.tree_leaves(wide)
    if len(others) != len(leaves):
        raise NoFloat64("in float64 it gives something else")
    for leaf, other in zip(leaves, others, strict=True):
        if _is_float(leaf) and not (isinstance(other, Tensor) and other.dtype is _wide_dtype(leaf.dtype)):
            raise NoFloat64("in float64 it gives no float64")
        if _is_float(leaf) and other.shape != leaf.shape:
            raise NoFloat64("in float64 it gives another shape")
    chosen = [other if _is_float(leaf) else leaf for leaf, other in zip(leaves, others, strict=True)]
    return pytree.tree_unflatten(chosen, spec)


def _draws(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether random numbers are drawn."""
    return torch.Tag.nondeterministic_seeded in target.tags and drops(target, args, kwargs)


def _drawn(target: Any, args: Sequence[Any], made: Any) -> Any:
    """Errors: NoFloat64 where what was drawn and what was computed cannot be told apart."""
    if target is aten.native_dropout.default:
        drops = len(args) < 3 or args[2] is not False  # None: it does
        kept = 1.0 - args[1] if drops else 1.0
        return like(made, (args[0] * made[1] / kept if kept else torch.zeros_like(args[0]), made[1]))
    name = target.overloadpacket.__name__
    if (
        target in OVERWRITING
        or name.endswith("_like")
        or not any(_is_float(leaf) for leaf in pytree.tree_leaves(list(args)))
    ):
        return pytree.tree_map(widen, made)
    raise NoFloat64("it draws random numbers by its values")


def reason_of(node: fx.Node, value: Tensor) -> str:
    """Why the value of a node is not measured against float64, whatever it was made of; "" where it is."""
    if not value.is_floating_point():
        return EXACT if not value.is_complex() else "complex values have none"
    if is_unwritten(node):
        return UNWRITTEN
    target = node.target
    if isinstance(target, OpOverload) and _draws(target, node.args, node.kwargs):
        return DRAWN
    return ""


class WideGraph:
    """Float64 carried through a graph, node by node beside eager. `values`: of the nodes so far, to be let go of as
    eager's are."""

    def __init__(self) -> None:
        self.values: dict[fx.Node, Any] = {}
        self._last: tuple[fx.Node, Any] | None = None
        """(operator, what it gives of eager's values): its results ask one after the other."""

    def take(self, node: fx.Node, value: Any) -> None:
        """An input: eager's value, or its float64 where that is carried on from elsewhere."""
        self.values[node] = value if isinstance(value, Unknown) else pytree.tree_map(_wide_or_unknown, value)

    def step(self, node: fx.Node, made: Any) -> None:
        """Goes on by a node of which eager made this."""
        if is_unwritten(node):
            self.values[node] = pytree.tree_map(_wide_or_unknown, made)
            return
        try:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: self.values[source])
            self.values[node] = in_float64(node.target, args, kwargs, made)
        except NoFloat64 as error:
            reason = str(error)
            known = reason.startswith("not known from ")
            self.values[node] = Unknown(reason if known else f"not known from {node.name!r} on: {reason}")

    def carried(self, node: fx.Node) -> tuple[Tensor | None, str]:
        """(float64 of the node's value as it drifted, why there is none)."""
        value = self.values[node]
        if isinstance(value, Unknown):
            return None, value.reason
        return (value, "") if isinstance(value, Tensor) and value.dtype is torch.float64 else (None, EXACT)

    def alone(self, node: fx.Node, made: Tensor, env: Mapping[fx.Node, Any]) -> tuple[Tensor | None, str]:
        """(float64 of a node on eager's values, why there is none). env: eager's values."""
        source, index = node.args if node.target is operator.getitem else (node, None)
        assert isinstance(source, fx.Node)
        try:
            if self._last is None or self._last[0] is not source:
                self._last = None  # not beside the next
                args, kwargs = fx.map_arg((source.args, source.kwargs), lambda read: env[read])
                self._last = (source, in_float64(source.target, args, kwargs, env[source]))
            wide: Any = self._last[1]
            if source is node:
                self._last = None
            else:
                wide = wide[index]
        except NoFloat64 as error:
            return None, str(error)
        return (wide, "") if isinstance(wide, Tensor) and wide.shape == made.shape else (None, EXACT)


def _wide_or_unknown(value: Any) -> Any:
    try:
        return widen(value)
    except NoFloat64 as error:
        return Unknown(str(error))


class Wide(TorchDispatchMode):
    """Inside, every operator runs in float64 beside itself: `of` any tensor that still lives. What was there before is
    widened as it is first read. Costs each operator a second one in float64; what would take more than `seconds` in
    all, or more than a part of the free memory, is not known, and `stopped` says why."""

    def __init__(self, *, seconds: float = math.inf) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: Any = WeakTensorKeyDictionary()
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self.stopped = ""

    def of(self, tensor: Any) -> Tensor | None:
        """Its float64; None where nobody knows, and of what is no float, or is complex."""
        known = self._known.get(tensor) if isinstance(tensor, Tensor) else None
        is_known = isinstance(known, Tensor) and known.shape == tensor.shape and known.dtype is torch.float64
        return known if is_known else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if leaves_unwritten(func) or getattr(func, "overloadpacket", None) in REPLACING:
            made = func(*args, **kwargs)
            for leaf in filter(_is_float, pytree.tree_leaves(made)):
                self._known.pop(leaf, None)
            return made
        writes = isinstance(func, OpOverload) and func._schema.is_mutable
        try:
            self._check_room(args)
            wide = pytree.tree_map(self._wide, (args, kwargs))  # before `func` writes into what it is given
            wide = _apart_from(func, args, kwargs, wide) if writes else wide
            known = ""
        except NoFloat64 as error:
            wide, known = ((), {}), str(error)
        made = func(*args, **kwargs)
        try:
            if known:
                raise NoFloat64(known)
            beside = self._written(func, args, wide, made) if writes else in_float64(func, wide[0], wide[1], made)
        except NoFloat64 as error:
            for leaf in filter(_is_float, pytree.tree_leaves((made, args if writes else ()))):
                self._known[leaf] = Unknown(str(error))
            return made
        for leaf, other in zip(pytree.tree_leaves(made), pytree.tree_leaves(beside), strict=True):
            if _is_float(leaf):
                self._known[leaf] = other
        return made

    def _check_room(self, args: Any) -> None:
        """Errors: NoFloat64 where time is up, or what is widened would take too much memory."""
        if not self.stopped and time.monotonic() > self._until:
            self.stopped = f"float64 of everything takes more than {self._seconds:.0f} s"
        largest = max(filter(_is_float, pytree.tree_leaves(args)), key=torch.numel, default=None)
        needed = 0 if largest is None else WIDE_COPIES * _wide_dtype(largest.dtype).itemsize * largest.numel()
        if not self.stopped and largest is not None and needed > SMALL_BYTES:
            free = free_bytes_beside(largest)
            if needed > free // FREE_SHARE:
                self.stopped = f"float64 needs {needed >> 20} MiB at a time, and {free >> 20} MiB are free"
        if self.stopped:
            raise NoFloat64(self.stopped)

    def _wide(self, value: Any) -> Any:
        if not _is_float(value):
            return widen(value) if isinstance(value, Tensor) else value
        known = self._known.get(value)
        if known is None or (isinstance(known, Tensor) and known.shape != value.shape):
            known = self._known[value] = value.detach().to(_wide_dtype(value.dtype), copy=True)
        if isinstance(known, Unknown):
            raise NoFloat64(known.reason)
        return known

    def _written(self, func: Any, args: Any, wide: Any, made: Any) -> Any:
        """`func` writes into what it is given: so it does into the wide ones."""
        if is_pure(func) and torch.Tag.nondeterministic_seeded in func.tags:
            return self._drawn_into(func, args, wide[0], made)
        given, named = wide
        return written_in_float64(func, given, named, made)

    def _drawn_into(self, func: Any, args: Any, wide: Any, made: Any) -> Any:
        """What it writes is as eager drew it. Errors: NoFloat64 where it gives something that is computed of that."""
        written = []
        for declared, given, other in zip(func._schema.arguments, args, wide, strict=False):
            if declared.alias_info is not None and declared.alias_info.is_write:
                other.copy_(given)
                written.append((given, other))

        def beside(leaf: Any) -> Any:
            for given, other in written:
                if leaf is given:
                    return other
            if _is_float(leaf):
                raise NoFloat64("it draws random numbers by its values")
            return widen(leaf)

        return pytree.tree_map(beside, made)


def _apart_from(func: Any, args: Any, kwargs: Any, wide: Any) -> Any:
    """`wide` with a copy of each tensor of `args` and `kwargs` that `func` writes into and that is in both, as it is no
    float: written into once in each, it would be written into twice."""
    given, named = list(wide[0]), dict(wide[1])
    for place, declared in enumerate(func._schema.arguments):
        if declared.alias_info is None or not declared.alias_info.is_write:
            continue
        into, key = (given, place) if place < len(given) else (named, declared.name)
        value = args[place] if place < len(given) else kwargs.get(declared.name)
        if isinstance(value, Tensor) and into[key] is value:
            into[key] = value.clone()
    return tuple(given), named


def computes(func: Any, args: Any) -> bool:
    """Whether an operator rounds: it reads floats, and gives no view of them."""
    is_view = isinstance(func, OpOverload) and not func._schema.is_mutable and any(
        result.alias_info is not None for result in func._schema.returns
    )  # fmt: skip
    return not is_view and _has_floats(args)


def _log_stopped(why: str) -> None:
    log.warning("whether values outside tolerance are noise is not known of all: %s", why)


def in_wide(
    run: Callable[[], Mapping[str, Any]], *, expected: Mapping[str, Any] | None = None, seconds: float = math.inf,
    stopped: Callable[[str], None] = _log_stopped,
) -> dict[str, Tensor | None]:  # fmt: skip
    """{name: float64} of the values that an eager run gives, where that takes no more time and there is memory for it;
    {} where it cannot be told. expected: what eager gave before; of what it does not give to the bit again (by a
    generator of the model's own, by what it counts) float64 says nothing. stopped: called with the reason where not all
    was computed for want of time or memory."""
    try:
        with Wide(seconds=seconds) as wide:
            found = {
                name: wide.of(value) if expected is None or same(value, expected.get(name)) else None
                for name, value in run().items()
            }
        if wide.stopped:
            stopped(wide.stopped)
        return found
    except Exception as error:  # what runs in eager need not run under a dispatch mode
        log.debug("the model's values in float64 are not known: %s", error)
        return {}
