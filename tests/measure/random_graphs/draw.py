"""Operands for the operators of the table: values that the function already has, or new inputs of a fitting kind."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from measure.random_graphs import layouts, sizes
from measure.random_graphs.program import Input, Memory, Values, execute
from measure.random_graphs.values import FLOATS, INTS, SMALL_INTS, numbers

MAX_RANK = 4
MAX_ELEMENTS = 240
"""At most 256, so that as many different multiples of one power of two are exact in every floating dtype."""
MAX_INPUTS = 6
MAX_LARGE = 4000
"""Elements of an input in a call with large sizes."""
SCALARS = (
    "True", "False", "0", "1", "-1", "2", "-3", "7", "255", "-128", "2**24 + 1", "2**31", "-2**31", "2**53 + 1",
    "0.0", "-0.0", "0.1", "-1.5", "0.5", "1e-45", "65504.0", "65520.0", "3.4e38", "1e39", "inf", "-inf", "nan",
)  # fmt: skip


class NotFitting(Exception):
    """No operand of the wanted kind."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a function has beside operators. values: the class of its inputs' numbers. wide: every dtype, not only the
    usual. errors: indices and sizes that eager may refuse. regions: autocast, data-dependent sizes. scalars: Python
    numbers and factories."""

    dynamic: bool = False
    views: bool = False
    values: str = "plain"
    wide: bool = False
    errors: bool = False
    autocast: bool = False
    data: bool = False
    gradients: bool = False

    @property
    def ints(self) -> Sequence[torch.dtype]:
        return (*INTS, *SMALL_INTS) if self.wide else INTS


@dataclass(kw_only=True)
class Draw:
    """Where the choices for one operator come from. Every one is a function of `rng` alone. calls: the values of each
    call, the first of which the choices look at."""

    rng: random.Random
    calls: list[Values]
    inputs: list[Input]
    memories: list[Memory]
    dtypes: Sequence[torch.dtype]
    features: Features
    sizes: sizes.Sizes
    reads: list[str] = field(default_factory=list)
    added: list[Input] = field(default_factory=list)
    added_memories: list[Memory] = field(default_factory=list)
    n_targets: int = 1
    before: list[str] = field(default_factory=list)

    @property
    def values(self) -> Values:
        """Of the first call, without what arguments are views of."""
        return {name: value for name, value in self.calls[0].items() if name[0] in "xv" and _is_tensor(value)}

    # --- values ---

    def f(
        self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK, dtype: torch.dtype | None = None
    ) -> str:
        """A floating value of this rank, or of a rank between least and most."""
        return self._value(lambda t: t.is_floating_point() and dtype in (None, t.dtype), dtype, rank, least, most)

    def i(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """An integer value."""
        dtype = self.rng.choice(self.features.ints)
        return self._value(lambda t: t.dtype in self.features.ints, dtype, rank, least, most)

    def b(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """A bool value."""
        return self._value(lambda t: t.dtype == torch.bool, torch.bool, rank, least, most)

    def n(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> str:
        """A number: mostly floating, else an integer."""
        if self.rng.random() < (0.4 if self.features.wide else 0.2):
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
        """A new int64 input with values below `size`, or, where errors are wanted, now and then not. Raises NotFitting
        when there are none."""
        if size == 0 and 0 not in shape and not self.features.errors:
            raise NotFitting
        beyond = self.features.errors and self.rng.random() < 0.4
        below = self.features.errors and self.rng.random() < 0.3

        def listed(call: int) -> list[int]:
            bound = self.sizes.in_call(size, call)
            low = -bound if negative or below else 0
            data = [self.rng.randrange(low, bound) if bound else 0 for _ in range(self._count(shape, call))]
            if beyond and data:
                data[self.rng.randrange(len(data))] = self.rng.choice((bound, bound + 1, -bound - 1, 2**31, -(2**40)))
            return data

        return self._integers(shape, listed)

    def permutation(self, size: int, count: int) -> str:
        """A new int64 input: `count` different indices below `size`."""
        return self.permutations([count], 0, size)

    def permutations(self, shape: Sequence[int], dim: int, size: int) -> str:
        """A new int64 input of this shape, whose indices along `dim` differ from each other."""

        def listed(call: int) -> list[int]:
            here, bound = self.sizes.shape(shape, call), self.sizes.in_call(size, call)
            if here[dim] > bound:
                raise NotFitting
            rows = math.prod(here) // here[dim] if here[dim] else 0
            data = [self.rng.sample(range(bound), here[dim]) for _ in range(rows)]
            moved = [s for k, s in enumerate(here) if k != dim] + [here[dim]]
            made = torch.tensor(data, dtype=torch.int64).reshape(moved).movedim(-1, dim)
            listed: list[int] = made.flatten().tolist()
            return listed

        return self._integers(shape, listed)

    def new(self, shape: Sequence[int], dtype: torch.dtype) -> str:
        """A new input whose values are of the function's class."""
        if math.prod(shape) > MAX_ELEMENTS or len(shape) > MAX_RANK + 1:
            raise NotFitting
        kind = self.features.values if self.rng.random() < 0.7 else "plain"
        layout = layouts.drawn(self.rng, len(shape), views=self.features.views)
        grad = dtype.is_floating_point and self.features.gradients and self.rng.random() < 0.7
        of_memory = grad and self.rng.random() < 0.5
        made, viewed = [], []
        for call in range(len(self.calls)):
            memory, view = layout(self.sizes.shape(shape, call))
            if math.prod(memory) > MAX_LARGE:
                raise NotFitting
            made.append(numbers(self.rng, memory, dtype, kind) + (".requires_grad_()" if of_memory else ""))
            viewed.append(view + (".requires_grad_()" if grad and not of_memory else ""))
        if of_memory and self.features.views and self.rng.random() < 0.5:
            made = [f"{text}.clone()" for text in made]  # no leaf: it may be written to
        return self._add(made, viewed)

    def given(self, text: str, dtype: torch.dtype, rank: int) -> str:
        """A new input of this value in every call, where views are wanted now and then transposed."""
        grad = dtype.is_floating_point and self.features.gradients and self.rng.random() < 0.7
        moved = self.features.views and rank >= 2 and self.rng.random() < 0.4
        view = ("@.mT.contiguous().mT" if moved else "@") + (".requires_grad_()" if grad else "")
        return self._add([text] * len(self.calls), [view] * len(self.calls))

    def t(self, name: str) -> torch.Tensor:
        """The value behind a name."""
        value: torch.Tensor = self.values[name]
        return value

    def distinct(self, name: str, dim: int | None = None) -> str:
        """The name again. Raises NotFitting unless, in every call, all values (along dim) are finite and differ."""
        for values in self.calls:
            tensor = values.get(name)
            if tensor is None:
                continue
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise NotFitting
            if tensor.numel() and tensor.dim():
                ordered = tensor.flatten().sort().values if dim is None else tensor.sort(dim).values
                if bool((ordered[1:] == ordered[:-1] if dim is None else ordered.diff(dim=dim) == 0).any()):
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
        return self.rng.choice([*FLOATS, *self.features.ints])

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

    def scalar(self) -> str:
        """A Python number of any kind, as text."""
        return f"({self.rng.choice(SCALARS)})"

    def argument(self) -> str:
        """A number as an argument of the function, of one kind in every call."""
        kind = self.rng.choice(("float", "float", "bool", "int"))
        if kind == "int":
            return self.size_argument()
        choices = ("True", "False") if kind == "bool" else ("0.5", "-1.5", "0.1", "2.0", "0.0", "-0.0", "inf", "nan")
        return self._input([self.rng.choice(choices) for _ in self.calls], "")

    def in_place_of(self, literal: str) -> str:
        """Now and then an integer argument that has the literal's value in the first call."""
        if self.rng.random() < 0.5 or len(self.added) > 3:
            return literal
        others = [str(int(literal) + self.rng.choice((0, 0, 0, 1, -1))) for _ in self.calls[1:]]
        return self._input([literal, *others], "")

    def size_argument(self) -> str:
        """An integer argument of the function."""
        known = [given.name for given in self.inputs if not given.memory and type(self.calls[0][given.name]) is int]
        if known and self.rng.random() < 0.7:
            return self._read(self.rng.choice(known))
        values = [str(self.rng.choice((0, 1, 2, 3, 5, -1, -2, 7, 13, 31))) for _ in self.calls]
        values[0] = str(self.rng.choice((2, 3, 4, -2)))
        return self._input(values, "")

    def integer(self, *names: str) -> str:
        """Arithmetic on sizes of the named values, integer arguments and constants."""
        atoms = [
            f"{name}.shape[{k - (self.t(name).dim() if self.rng.random() < 0.3 else 0)}]"
            for name in names
            for k in range(self.t(name).dim())
        ]
        atoms += [self.rng.choice((f"{name}.numel()", f"len({name})")) for name in names if self.t(name).dim()]
        atoms += [name for name, value in self.calls[0].items() if isinstance(value, int) and name[0] == "v"]
        if self.features.dynamic and self.rng.random() < 0.6:
            atoms.append(self.size_argument())
        text = sizes.expression(self.rng, atoms)
        self.reads += [atom for atom in atoms if atom[0] == "v" and atom.isalnum() and atom in text]
        return text

    def count(self, *names: str) -> str:
        """A size that is mostly small and not negative."""
        text = self.integer(*names)
        return self.rng.choice((f"{text} % 5", f"min(max({text}, 0), 6)", f"abs({text}) % 4 + 1", f"({text}) // 3"))

    def flag(self) -> bool:
        return self.rng.random() < 0.5

    def one_of(self, *choices: object) -> object:
        return self.rng.choice(choices)

    def whole(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def shape(self, rank: int | None = None, *, least: int = 0, most: int = MAX_RANK) -> list[int]:
        """A random shape of at most MAX_ELEMENTS elements."""
        rank = self.rng.choice([r for r in (0, 1, 1, 2, 2, 2, 3, 3, 4) if least <= r <= most]) if rank is None else rank
        choices = self.sizes.choices() or (1, 2, 2, 3, 3, 4, 5, 6)
        shape = [self.rng.choice(choices) for _ in range(rank)]
        if rank and self.rng.random() < 0.04:
            shape[self.rng.randrange(rank)] = 0
        while math.prod(shape) > MAX_ELEMENTS:
            shape[shape.index(max(shape))] = 1 if self.sizes.choices() else max(shape) - 1
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
        if self.features.views and self.memories and rank is None and self.rng.random() < 0.4:
            name = self._of_same_memory()
            if fits(self.t(name)) and low <= self.t(name).dim() <= high:
                return name
            raise NotFitting
        shape = self.shape(rank, least=low, most=high)
        wanted = [d for d in self.dtypes if d.is_floating_point] or [torch.float32]
        return self.new(shape, dtype or self.rng.choice(wanted))

    def _of_same_memory(self) -> str:
        memory = self.rng.choice(self.memories)
        rank = self.calls[0][memory.name].dim()
        view = layouts.of_same_memory(self.rng, rank)
        try:
            return self._input([view.replace("@", memory.name)] * len(self.calls), memory.name)
        except (RuntimeError, IndexError) as error:
            raise NotFitting from error

    def _read(self, name: str) -> str:
        self.reads.append(name)
        return name

    def _count(self, shape: Sequence[int], call: int) -> int:
        count = math.prod(self.sizes.shape(shape, call))
        if count > MAX_LARGE:
            raise NotFitting
        return count

    def _integers(self, shape: Sequence[int], listed: Callable[[int], list[int]]) -> str:
        made = [
            f"torch.tensor({listed(call)}, dtype=torch.int64).reshape({tuple(self.sizes.shape(shape, call))})"
            for call in range(len(self.calls))
        ]
        return self._add(made, ["@"] * len(made))

    def _add(self, made: Sequence[str], views: Sequence[str]) -> str:
        memory = Memory(name=f"b{len(self.memories) + len(self.added_memories)}", made=tuple(made))
        self.added_memories.append(memory)
        for values, text in zip(self.calls, made, strict=True):
            execute(f"{memory.name} = {text}", values)
        return self._input([view.replace("@", memory.name) for view in views], memory.name)

    def _input(self, made: Sequence[str], memory: str) -> str:
        """An argument; memory: "" for a number."""
        name = f"{'x' if memory else 'n'}{len(self.inputs) + len(self.added)}"
        for values, text in zip(self.calls, made, strict=True):
            execute(f"{name} = {text}", values)
        self.added.append(Input(name=name, made=tuple(made), memory=memory))
        return self._read(name)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    pairs = zip(reversed(one), reversed(other), strict=False)
    return len(one) <= len(other) and all(a == b or a == 1 for a, b in pairs)
