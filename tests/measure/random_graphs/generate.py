"""A random function from a seed, and nothing else.

Beside eager's values two more are computed with each statement: in float64, and shaken, where every floating value that
is not exact is moved by a few units in its last place. A statement whose shaken results differ by more than a small
multiple of that, or in a single integer or bool, makes differences of rounding visible, in whatever implementation:
another one is drawn in its place. This looks at eager alone, so no error of the candidate is avoided by it.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from measure.random_graphs.draw import FLOATS, INTS, Draw, NotFitting
from measure.random_graphs.operator import EXACT, Operator
from measure.random_graphs.program import Input, Program, Results, Step, Values
from measure.random_graphs.table import operators

SHAKE_ULPS = 2
ALLOWED_ULPS = 64
"""Of the largest value of a tensor: what shaking may move in it."""
MAX_MAGNITUDE = 1000.0
MAX_RESULT_ELEMENTS = 1000
ACCUMULATING = (
    "reduction", "matmul", "convolution", "norm", "cumulative", "loss", "softmax", "pooling", "pad and resize",
)  # fmt: skip
"""Families whose error is of the size of what they add up, however small the sum."""


class Rejected(Exception):
    """A statement or function that is drawn again; the text is why."""


@dataclass(kw_only=True)
class Generated:
    """A function, eager's results, and how many draws went before. special: some inputs are NaN or infinite."""

    seed: int
    program: Program
    expected: Results
    rejected: Counter[str]
    special: bool


def generate(seed: int) -> Generated:
    """The function of this seed; the same in every process."""
    rng = random.Random(seed)
    rejected: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            growing = Growing(rng=rng, rejected=rejected)
            try:
                program = growing.grow()
                expected = _results(program, growing)
            except Rejected as why:
                rejected[f"functions: {why}"] += 1
                continue
            return Generated(seed=seed, program=program, expected=expected, rejected=rejected, special=growing.special)


@dataclass(kw_only=True)
class Growing:
    """A function in the making."""

    rng: random.Random
    rejected: Counter[str]
    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    real: Values = field(default_factory=dict)
    wide: Values = field(default_factory=dict)
    shaken: Values = field(default_factory=dict)
    moved: dict[str, torch.Tensor] = field(default_factory=dict)
    """What was added to a value in shaking it."""

    def __post_init__(self) -> None:
        self.special = self.rng.random() < 0.05
        self.gradients = self.rng.random() < 0.7
        self.dtypes = _dtypes(self.rng)

    def grow(self) -> Program:
        rng = self.rng
        wanted = rng.randint(3, 8)
        families = list(operators())
        for _ in range(20 * wanted):
            if len(self.steps) == wanted:
                break
            choices = operators()[rng.choice(families)]
            self.attempt(rng.choices(choices, [operator.weight for operator in choices])[0])
        if len(self.steps) < 3:
            raise Rejected("too few statements")
        return self._program()

    def attempt(self, operator: Operator) -> bool:
        """Adds a statement with the operator, unless its operands do not fit or it is rejected."""
        self.rejected["drawn"] += 1
        values = dict(self.real)
        draw = Draw(
            rng=self.rng, values=values, inputs=self.inputs, dtypes=self.dtypes, special=self.special,
            gradients=self.gradients,
        )  # fmt: skip
        try:
            step = self._step(operator, draw)
            self._add(step, draw.added)
            return True
        except NotFitting:
            self.rejected["no operand fits"] += 1
        except Rejected as why:
            self.rejected[str(why)] += 1
        return False

    def _step(self, operator: Operator, draw: Draw) -> Step:
        made = operator.make(draw)
        count = sum(len(step.targets) for step in self.steps)
        targets = tuple(f"v{count + k}" for k in range(draw.n_targets))
        if isinstance(made, str):
            comma = "," if len(targets) == 1 and operator.family == "join" and "split" in made + operator.name else ""
            lines = [f"{', '.join(targets)}{comma} = {made}"]
        else:
            lines = [line.replace("@", targets[0]) for line in made]
        return Step(
            operator=operator.name,
            family=operator.family,
            lines=tuple(lines),
            reads=tuple(dict.fromkeys(draw.reads)),
            targets=targets,
        )

    def _add(self, step: Step, added: Sequence[Input]) -> None:
        real = {**self.real, **{given.name: given.fresh().detach() for given in added}}
        wide = {**self.wide, **{given.name: given.fresh(wide=True).detach() for given in added}}
        shaken = {**self.shaken, **{given.name: real[given.name] for given in added}}
        with torch.no_grad():
            try:
                step.run(real)
                with wide_default():
                    step.run(wide, wide=True)
                step.run(shaken)
            except Exception as error:  # whatever eager refuses
                raise Rejected("eager refuses it") from error
            moved = {}
            for name in step.targets:
                self._check(step, real, name)
                moved[name] = _shake(step, real, wide[name], name, self.rng)
                if real[name].is_floating_point():
                    shaken[name] = shaken[name] + moved[name]
                _compare(real[name], shaken[name])
        self.real, self.wide, self.shaken = real, wide, shaken
        self.moved.update({name: delta for name, delta in moved.items() if delta is not None})
        self.inputs += added
        self.steps.append(step)

    def _check(self, step: Step, values: Values, name: str) -> None:
        value = values[name]
        if not isinstance(value, torch.Tensor) or value.dtype not in (*FLOATS, *INTS, torch.bool):
            raise Rejected("not a tensor of these dtypes")
        if value.numel() > MAX_RESULT_ELEMENTS or value.dim() > 5:
            raise Rejected("too large")
        reads = [values[read] for read in step.reads]
        finite = all(bool(read.isfinite().all()) for read in reads)
        if finite or not value.is_floating_point():
            if not bool(value.isfinite().all()) or (value.numel() and _largest(value) > MAX_MAGNITUDE):
                raise Rejected("too large or not finite")
            if not finite and value.dtype in INTS:
                raise Rejected("an integer of what is not finite")

    def _program(self) -> Program:
        read = {name for step in self.steps for name in step.reads}
        outputs = [name for step in self.steps for name in step.targets if name not in read]
        program = Program(
            inputs=tuple(self.inputs), steps=tuple(self.steps), outputs=tuple(outputs), cotangents={}
        ).used()
        if not self.gradients or not any(given.requires_grad for given in program.inputs):
            return program
        try:
            outputs_now = program.function()(*(given.fresh() for given in program.inputs))
        except Exception as error:
            raise Rejected("eager refuses it with gradients") from error
        ends = {
            name: _cotangent(output, self.rng)
            for name, output in zip(program.outputs, outputs_now, strict=True)
            if output.requires_grad
        }
        return replace(program, cotangents=ends)


def _dtypes(rng: random.Random) -> list[torch.dtype]:
    """Of new operands: mostly one floating dtype."""
    main = rng.choices(FLOATS, (60, 10, 15, 15))[0]
    made = [main] * 6 + [rng.choice(INTS)]
    return made + [rng.choice(FLOATS)] * 3 if rng.random() < 0.25 else made


def _cotangent(output: torch.Tensor, rng: random.Random) -> torch.Tensor:
    data = [rng.randint(-8, 8) / 8 for _ in range(output.numel())]
    return torch.tensor(data, dtype=output.dtype).reshape(output.shape)


@contextlib.contextmanager
def wide_default() -> Iterator[None]:
    """Python floats and integer divisions make float64, too."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def _shake(step: Step, real: Values, wide: torch.Tensor, name: str, rng: random.Random) -> torch.Tensor:
    """What to add to a value: some ulps where it is not exact."""
    value = real[name]
    if not value.is_floating_point() or step.family in EXACT or not value.numel():
        return torch.zeros((), dtype=value.dtype)
    exact = value.double() == wide
    scale = value.abs()
    if step.family in ACCUMULATING:
        sources = [real[read] for read in step.reads if real[read].is_floating_point()]
        scale = torch.full_like(value, max(_largest(tensor) for tensor in [value, *sources]))
    signs = torch.tensor([rng.choice((-1, 1)) for _ in range(value.numel())], dtype=value.dtype).reshape(value.shape)
    delta = SHAKE_ULPS * torch.finfo(value.dtype).eps * scale * signs
    return torch.where(exact | ~value.isfinite(), torch.zeros_like(value), delta)


def _largest(tensor: torch.Tensor) -> float:
    """The largest finite magnitude; 0 where there is none."""
    finite = tensor[tensor.isfinite()]
    return float(finite.double().abs().max()) if finite.numel() else 0.0


def _compare(real: torch.Tensor, shaken: torch.Tensor) -> None:
    """Raises Rejected where shaking changed more than rounding does."""
    if not real.is_floating_point():
        if not torch.equal(real, shaken):
            raise Rejected("rounding decides an integer or bool")
        return
    allowed = ALLOWED_ULPS * torch.finfo(real.dtype).eps * max(_largest(real), 2.0**-6)
    same = (real == shaken) | (real.isnan() & shaken.isnan())
    if bool((~same & ~((real - shaken).abs() <= allowed)).any()):
        raise Rejected("ill-conditioned")


def _results(program: Program, growing: Growing) -> Results:
    """Eager's results. Raises Rejected where eager refuses, or where shaking changes a gradient too much."""
    try:
        expected = program.run(program.function())
        again = program.run(program.function())
        shaken = program.run(_shaking(program, growing.moved))
    except Exception as error:
        raise Rejected("eager refuses it with gradients") from error
    for name, value in expected.items():
        if not torch.equal(value.nan_to_num(), again[name].nan_to_num()):
            raise Rejected("eager gives something else each time")
        if not growing.special and not bool(value.isfinite().all()):
            raise Rejected("a gradient is not finite")
        _compare(value, shaken[name])
    return expected


def _shaking(program: Program, moved: dict[str, torch.Tensor]) -> Callable[..., tuple[Any, ...]]:
    """The function with the same shaking as in its making."""

    def graph(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = {given.name: tensor for given, tensor in zip(program.inputs, inputs, strict=True)}
        for step in program.steps:
            step.run(values)
            for name in step.targets:
                if values[name].is_floating_point():
                    values[name] = values[name] + moved[name]
        return tuple(values[name] for name in program.outputs)

    return graph
