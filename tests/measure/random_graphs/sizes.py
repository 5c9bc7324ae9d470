"""The sizes of a function that is called with several, and arithmetic on them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

POOL = (0, 1, 1, 2, 2, 3, 3, 4, 6, 8, 9, 16, 17, 31, 64, 127, 257, 1031)
FIRST = ((5, 7, 11), (7, 5, 13), (11, 7, 5), (7, 9, 5), (5, 8, 11))
"""Of the first call: by its value there a size says which of the function's it is, or what was made of them."""
CONSTANT = (1, 2, 3, 4)
Made = Callable[[Sequence[int]], int]


class Sizes:
    """The function's own sizes in each call."""

    def __init__(self, calls: Sequence[Sequence[int]]) -> None:
        self.calls = calls
        self._known: dict[int, Made] = {}
        if len(calls) > 1:
            self._learn(calls[0])

    def in_call(self, size: int, call: int) -> int:
        """What a size of the first call is in another."""
        known = self._known.get(size)
        return max(0, known(self.calls[call])) if known is not None else size

    def shape(self, shape: Sequence[int], call: int) -> list[int]:
        return [self.in_call(size, call) for size in shape]

    def choices(self) -> Sequence[int]:
        """Sizes to draw in the first call."""
        return (*self.calls[0], *self.calls[0], *CONSTANT) if len(self.calls) > 1 else ()

    def _learn(self, first: Sequence[int]) -> None:
        for make in [*_of_one(0), *_of_one(1), *_of_one(2), *_of_two(0, 1), *_of_two(0, 2), *_of_two(1, 2)]:
            with contextlib.suppress(IndexError):  # a function with fewer sizes
                value = make(first)
                if value not in CONSTANT:
                    self._known.setdefault(value, make)


def _of_one(i: int) -> list[Made]:
    return [
        lambda s: s[i],
        lambda s: 2 * s[i],
        lambda s: s[i] - 1,
        lambda s: s[i] + 1,
        lambda s: s[i] // 2,
        lambda s: (s[i] + 1) // 2,
        lambda s: s[i] - 2,
        lambda s: 3 * s[i],
    ]


def _of_two(i: int, j: int) -> list[Made]:
    return [lambda s: s[i] * s[j], lambda s: s[i] + s[j]]


def drawn(rng: random.Random, *, dynamic: bool) -> Sizes:
    """Of one call; dynamic: of two to four, with 0, 1 and large ones among the later."""
    if not dynamic:
        return Sizes([()])
    first = rng.choice(FIRST)
    count = rng.choice((1, 2, 2, 3))
    calls: list[Sequence[int]] = [first]
    for _ in range(rng.choice((1, 2, 2, 3))):
        calls.append([rng.choice(POOL) if rng.random() < 0.8 else size for size in first])
    return Sizes([call[:count] for call in calls])


def expression(rng: random.Random, atoms: Sequence[str], depth: int = 2) -> str:
    """Integer arithmetic on what `atoms` name."""
    if depth == 0 or rng.random() < 0.25 or not atoms:
        return rng.choice(atoms) if atoms and rng.random() < 0.75 else str(rng.choice((-3, -2, -1, 0, 1, 2, 3, 5, 7)))
    left, right = (expression(rng, atoms, depth - 1) for _ in range(2))
    nonzero = str(rng.choice((-3, -2, 2, 3, 4, 5)))
    kind = rng.choice(("+", "+", "-", "-", "*", "//", "%", "min", "max", "neg", "//n", "%n", "abs", "if"))
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})"
    if kind in ("//n", "%n"):
        return f"({left} {kind[:-1]} {nonzero})"
    if kind in ("neg", "abs"):
        return f"(-{left})" if kind == "neg" else f"abs({left})"
    if kind == "if":
        return f"({left} if {rng.choice(atoms)} > {nonzero} else {right})"
    return f"({left} {kind} {right})"
