"""Rows of the table as operators."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence

from measure.random_graphs.draw import Draw
from measure.random_graphs.operator import Made, Operator

_PLACE = re.compile(r"\{([^{}]+)\}")
_VALUE = re.compile(r"(f|i|b|n|any)(\d)?(\+)?")


def _filled(template: str, draw: Draw) -> str:
    """The text of a row with its places filled, from left to right."""
    first = ""

    def place(match: re.Match[str]) -> str:
        nonlocal first
        what = match.group(1)
        value = _VALUE.fullmatch(what)
        if value:
            kind, rank, plus = value.groups()
            pick = getattr(draw, kind)
            name = str(pick() if rank is None else pick(least=int(rank)) if plus else pick(int(rank)))
            first = first or name
            return name
        if what in ("integer", "count"):
            return str(getattr(draw, what)(*_known(draw, first)))
        return _of_first(what, draw, first) if what in _OF_FIRST else _plain(what, draw)

    return _PLACE.sub(place, template)


def _known(draw: Draw, first: str) -> list[str]:
    return [first] if first else [name for name in draw.values if name.startswith("x")][:2]


_OF_FIRST: dict[str, Callable[[Draw, str], object]] = {
    "x": lambda d, x: x,
    "other": lambda d, x: d.other(x),
    "same": lambda d, x: d.other(x, same=True),
    "equal": lambda d, x: d.sized(d.t(x).shape, d.t(x).dtype),
    "dim": lambda d, x: d.dim(x),
    "dims": lambda d, x: d.dims(x),
    "lastdim": lambda d, x: -1,
    "size": lambda d, x: d.size(x, -1),
    "newdim": lambda d, x: d.whole(-d.t(x).dim() - 1, d.t(x).dim()),
    "order": lambda d, x: tuple(d.rng.sample(range(d.t(x).dim()), d.t(x).dim())),
    "regrouped": lambda d, x: regrouped(d, d.t(x).shape),
    "distinct": lambda d, x: d.distinct(x)[:0],
}


def _of_first(what: str, draw: Draw, first: str) -> str:
    return str(_OF_FIRST[what](draw, first))


def _plain(what: str, draw: Draw) -> str:
    if what == "flag":
        return str(draw.flag())
    if what in ("number", "scalar", "argument"):
        return str(getattr(draw, what)())
    if what == "dtype":
        return str(draw.dtype())
    return draw.rng.choice(what.split("|"))


def regrouped(draw: Draw, shape: Sequence[int]) -> tuple[int, ...]:
    """Another shape of as many elements."""
    count = math.prod(shape)
    if count == 0:
        return (*shape, draw.whole(1, 3))
    made: list[int] = []
    while count > 1 and len(made) < 3:
        divisor = draw.rng.choice([k for k in range(1, count + 1) if count % k == 0])
        made.append(divisor)
        count //= divisor
    return (*made, count)


def of_row(family: str, text: str, weights: Mapping[str, float]) -> Operator:
    """weights: of the operators that have one, by name."""
    count, _, template = text.rpartition(": ") if re.match(r"\d: ", text) else ("1", "", text)
    named = re.search(r"((?:torch|F)\.[\w.]+)\(", template) or re.search(r"(?<=\})\s*(\.\w+|\[|\S+)", template)
    name = named.group(1) if named else template

    def make(draw: Draw) -> Made:
        draw.n_targets = int(count)
        filled = _filled(template, draw)
        return filled.split(";; ") if "@ = " in template else filled

    return Operator(name=name, family=family, make=make, weight=weights.get(name, 1.0), writes=family == "memory")
