"""Operands for the operators of the table: values that the function already has, or new inputs of a fitting kind."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from measure.random_graphs.program import Input, Values

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32)
MAX_RANK = 4
MAX_ELEMENTS = 240
"""At most 256, so that as many different multiples of one power of two are exact in every floating dtype."""
MAX_INPUTS = 6
SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0)


class NotFitting(Exception):
    """No operand of the wanted kind."""


@dataclass(kw_only=True)
class Draw:
    """Where the choices for one operator come from. Every one is a function of `rng` alone."""

    rng: random.Random
    values: Values
    inputs: list[Input]
    dtypes: Sequence[torch.dtype]
    special: bool
    gradients: bool
    reads: list[str] = field(default_factory=list)
    added: list[Input] = field(default_factory=list)
    n_targets: int = 1
    before: list[str] = field(default_factory=list)

    # --- values ---

    def f(
        self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK, dtype: torch.dtype | None = None
    ) -> str:
        """A floating value of this rank, or of a rank between least and most."""
        return self._value(lambda t: t.is_floating_point() and dtype in (None, t.dtype), dtype, rank, least, most)

    def i(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """An integer value."""
        dtype = self.rng.choice(INTS)
        return self._value(lambda t: t.dtype in INTS, dtype, rank, least, most)

    def b(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """A bool value."""
        return self._value(lambda t: t.dtype == torch.bool, torch.bool, rank, least, most)

    def n(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """A number: mostly floating, else an integer."""
        if self.rng.random() < 0.2:
            return self.i(rank, least=least, most=most)
        return self.f(rank, least=least, most=most)

    def any(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """Of any dtype."""
        if self.rng.random() < 0.1:
            return self.b(rank, least=least, most=most)
        return self.n(rank, least=least, most=most)

    def other(self, name: str, *, same: bool = False) -> str:
        """A second operand that broadcasts with `name`; same: of its dtype; now and then a 0-d tensor."""
        tensor = self.t(name)
        dtype = tensor.dtype if same or self.rng.random() < 0.8 else self.dtype()
        shape = list(tensor.shape)
        fitting = [
            known
            for known, value in self.values.items()
            if known != name and value.dtype == dtype and _broadcasts(value.shape, tensor.shape)
        ]
        if fitting and self.rng.random() < 0.6:
            return self._read(self.rng.choice(fitting))
        if self.rng.random() < 0.4:
            shape = [1 if self.rng.random() < 0.4 else size for size in shape]
            shape = shape[self.rng.randint(0, len(shape)) if self.rng.random() < 0.4 else 0 :]
        return self.new(shape, dtype)

    def sized(self, shape: Sequence[int], dtype: torch.dtype) -> str:
        """A value of exactly this shape and dtype."""
        fitting = [n for n, v in self.values.items() if v.dtype == dtype and tuple(v.shape) == tuple(shape)]
        if fitting and self.rng.random() < 0.6:
            return self._read(self.rng.choice(fitting))
        return self.new(shape, dtype)

    def index(self, shape: Sequence[int], size: int, *, negative: bool = False) -> str:
        """A new int64 input with values below `size`. Raises NotFitting when there are none."""
        count = math.prod(shape)
        if size == 0 and count:
            raise NotFitting
        low = -size if negative else 0
        data = [self.rng.randrange(low, size) if size else 0 for _ in range(count)]
        return self._add(torch.tensor(data, dtype=torch.int64).reshape(tuple(shape)))

    def permutation(self, size: int, count: int) -> str:
        """A new int64 input: `count` different indices below `size`."""
        if count > size:
            raise NotFitting
        return self._add(torch.tensor(self.rng.sample(range(size), count), dtype=torch.int64))

    def permutations(self, shape: Sequence[int], dim: int, size: int) -> str:
        """A new int64 input of this shape, whose indices along `dim` differ from each other."""
        if shape[dim] > size:
            raise NotFitting
        rows = math.prod(shape) // shape[dim] if shape[dim] else 0
        data = [self.rng.sample(range(size), shape[dim]) for _ in range(rows)]
        moved = [s for k, s in enumerate(shape) if k != dim] + [shape[dim]]
        made = torch.tensor(data, dtype=torch.int64).reshape(moved).movedim(-1, dim)
        return self._add(made.contiguous())

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> str:
        """A new input with values that are exact in every dtype and, in floating ones, different from each other."""
        count = math.prod(shape)
        if count > MAX_ELEMENTS or len(shape) > MAX_RANK + 1:
            raise NotFitting
        if dtype == torch.bool:
            data: list[float] = [self.rng.random() < 0.5 for _ in range(count)]
        elif dtype.is_floating_point:
            half = max(16, (count + 1) // 2 + 1)
            step = 8 if half <= 32 else 32
            data = [value / step for value in self.rng.sample(range(-half, half), count)]
            if self.special and self.rng.random() < 0.5:
                for _ in range(min(count, 2)):
                    data[self.rng.randrange(count)] = self.rng.choice(SPECIAL)
        else:
            data = [self.rng.randint(-6, 6) for _ in range(count)]
        return self._add(self._laid_out(torch.tensor(data, dtype=dtype).reshape(tuple(shape))))

    def t(self, name: str) -> torch.Tensor:
        """The value behind a name."""
        value: torch.Tensor = self.values[name]
        return value

    def distinct(self, name: str, dim: int | None = None) -> str:
        """The name again. Raises NotFitting unless all values (along dim) are finite and differ from each other."""
        tensor = self.t(name)
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise NotFitting
        if tensor.numel() and tensor.dim():
            ordered = tensor.flatten().sort().values if dim is None else tensor.sort(dim).values
            if bool((ordered.diff(dim=0 if dim is None else dim) == 0).any()):
                raise NotFitting
        return name

    def finite(self, name: str) -> str:
        """The name again. Raises NotFitting unless all values are finite."""
        if not bool(self.t(name).isfinite().all()):
            raise NotFitting
        return name

    # --- what is no value ---

    def dtype(self) -> torch.dtype:
        """One of the function's own mostly, else any."""
        if self.rng.random() < 0.8:
            return self.rng.choice(list(self.dtypes))
        return self.rng.choice([*FLOATS, *INTS])

    def dim(self, name: str) -> int:
        """A dimension, from the front or from the back. 0 or -1 of a 0-d tensor."""
        rank = max(1, self.t(name).dim())
        return self.rng.randrange(-rank, rank)

    def dims(self, name: str) -> tuple[int, ...]:
        """Some dimensions, each once."""
        rank = self.t(name).dim()
        if rank == 0:
            raise NotFitting
        chosen = self.rng.sample(range(rank), self.rng.randint(1, rank))
        return tuple(dim - rank if self.rng.random() < 0.3 else dim for dim in chosen)

    def size(self, name: str, dim: int) -> int:
        """1 for a 0-d tensor."""
        tensor = self.t(name)
        return tensor.shape[dim] if tensor.dim() else 1

    def number(self) -> float | int:
        """A Python scalar; an int or a float that every dtype holds exactly, now and then 0.1."""
        kind = self.rng.random()
        if kind < 0.4:
            return self.rng.choice((-3, -2, -1, 1, 2, 3))
        return 0.1 if kind < 0.45 else self.rng.choice((-1.5, -0.75, -0.25, 0.25, 0.5, 1.25, 2.5))

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    def one_of(self, *choices: object) -> object:
        return self.rng.choice(choices)

    def whole(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def shape(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> list[int]:
        """A random shape of at most MAX_ELEMENTS elements."""
        rank = self.rng.choice([r for r in (0, 1, 1, 2, 2, 2, 3, 3, 4) if least <= r <= most]) if rank is None else rank
        shape = [self.rng.choice((1, 2, 2, 3, 3, 4, 5, 6)) for _ in range(rank)]
        if rank and self.rng.random() < 0.04:
            shape[self.rng.randrange(rank)] = 0
        while math.prod(shape) > MAX_ELEMENTS:
            shape[shape.index(max(shape))] -= 1
        return shape

    # --- inside ---

    def _value(
        self, fits: Callable[[torch.Tensor], bool], dtype: torch.dtype | None, rank: int | None, least: int, most: int
    ) -> str:
        low, high = (least, most) if rank is None else (rank, rank)
        fitting = [n for n, v in self.values.items() if fits(v) and low <= v.dim() <= high]
        if fitting and (self.rng.random() < 0.85 or len(self.inputs) + len(self.added) >= MAX_INPUTS):
            computed = [name for name in fitting if name.startswith("v")]
            latest = computed and self.rng.random() < 0.7
            return self._read(computed[-1] if latest else self.rng.choice(fitting))
        shape = self.shape(rank, least=low, most=high)
        wanted = [d for d in self.dtypes if d.is_floating_point] or [torch.float32]
        return self.new(shape, dtype or self.rng.choice(wanted))

    def _read(self, name: str) -> str:
        self.reads.append(name)
        return name

    def _add(self, tensor: torch.Tensor) -> str:
        name = f"x{len(self.inputs) + len(self.added)}"
        wants = self.gradients and tensor.is_floating_point() and self.rng.random() < 0.7
        self.added.append(Input(name=name, tensor=tensor, requires_grad=wants))
        self.values[name] = tensor
        return self._read(name)

    def _laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same values, now and then in a layout that is not row-major."""
        kind = self.rng.random()
        if kind > 0.4 or tensor.dim() == 0 or tensor.numel() < 2:
            return tensor
        if kind < 0.15 and tensor.dim() >= 2:
            order = self.rng.sample(range(tensor.dim()), tensor.dim())
            back = [order.index(k) for k in range(tensor.dim())]
            return tensor.permute(order).contiguous().permute(back)
        if kind < 0.3:
            wide = tensor.new_zeros((*tensor.shape[:-1], 2 * tensor.shape[-1]))
            wide[..., ::2] = tensor
            return wide[..., ::2]
        longer = torch.cat([tensor.new_zeros(1), tensor.flatten()])
        return longer[1:].reshape(tensor.shape)


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return len(one) <= len(other) and all(a == b or a == 1 for a, b in pairs)
