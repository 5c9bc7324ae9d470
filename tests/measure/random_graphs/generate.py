"""A random function from a seed, and nothing else.

Each statement is computed by eager in every call as it is drawn, beside that in float64, and shaken (conditioning.py):
what eager refuses, and where rounding decides, is drawn again.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from measure.random_graphs import conditioning, features, samples, sizes
from measure.random_graphs.conditioning import Rejected, wide_default
from measure.random_graphs.draw import Draw, Features, NotFitting
from measure.random_graphs.layouts import overlaps
from measure.random_graphs.observe import Seen, function_of, observe
from measure.random_graphs.operator import EXACT, Operator, exact
from measure.random_graphs.program import Input, Memory, Program, Step, Values, execute
from measure.random_graphs.table import operators
from measure.random_graphs.values import DTYPES

MAX_MAGNITUDE = 1000.0
MAX_RESULT_ELEMENTS = 1000
MAX_LARGE_RESULT = 40_000
"""In a call with large sizes."""
_SIGN = re.compile(r"^@|@(?= =)|(?<=[ (])@(?=[.\[,)])|@$")
"""Where a statement names its target."""


_LITERAL = re.compile(r"(?<![\w.'\"])(?<!e-)-?\d+(?![\w.'\"])")
"""A whole number in a statement, of which an argument may take the place."""
_DIVIDING = re.compile(r"//|%|div|remainder|fmod|gcd|lcm")


@dataclass(kw_only=True)
class Generated:
    """A function, what eager does in each call, and how many draws went before."""

    seed: int
    program: Program
    expected: list[Seen]
    rejected: Counter[str]
    features: Features
    reached: list[tuple[str, str, bool]]
    """Of each statement: the operator, the dtype of its first operand, whether it reads one that is not row-major."""


def generate(seed: int) -> Generated:
    """The function of this seed; the same in every process."""
    rng = random.Random(seed)
    rejected: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while True:
            growing = Growing(rng=rng, features=features.drawn(rng), rejected=rejected)
            try:
                program = growing.grow()
                expected = growing.expected(program)
            except Rejected as why:
                rejected[f"functions: {why}"] += 1
                continue
            return Generated(
                seed=seed, program=program, expected=expected, rejected=rejected, features=growing.features,
                reached=[growing.reached(step) for step in program.steps],
            )  # fmt: skip


@dataclass(kw_only=True)
class Call:
    """The values of one call: as they are, in float64, and shaken. refused: eager raised, nothing is computed on."""

    real: Values = field(default_factory=dict)
    wide: Values = field(default_factory=dict)
    shaken: Values = field(default_factory=dict)
    moved: dict[str, torch.Tensor] = field(default_factory=dict)
    refused: bool = False

    def copy(self) -> Call:
        return Call(
            real=dict(self.real), wide=dict(self.wide), shaken=dict(self.shaken), moved=dict(self.moved),
            refused=self.refused,
        )  # fmt: skip

    def make(self, lines: Sequence[str]) -> None:
        """Memories and arguments."""
        for line in lines:
            execute(line, self.real)
            execute(line, self.wide, wide=True)
            execute(line, self.shaken)

    def run(self, step: Step) -> None:
        step.run(self.real)
        with wide_default():
            step.run(self.wide, wide=True)
        step.run(self.shaken)

    def shake(self, name: str, delta: torch.Tensor) -> None:
        """In its memory: what shares it is moved, too."""
        self.moved[name] = delta
        try:
            self.shaken[name].add_(delta)
        except RuntimeError:  # elements that share memory
            self.shaken[name] = self.shaken[name] + delta


@dataclass(kw_only=True)
class Growing:
    """A function in the making."""

    rng: random.Random
    features: Features
    rejected: Counter[str]
    inputs: list[Input] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sizes = sizes.drawn(self.rng, dynamic=self.features.dynamic)
        self.calls = [Call() for _ in self.sizes.calls]
        self.dtypes = features.dtypes(self.rng, self.features)
        self.families = features.families(self.features)

    def grow(self) -> Program:
        rng = self.rng
        wanted = features.statements(rng, self.features)
        families, weights = list(self.families), list(self.families.values())
        for _ in range(20 * wanted):
            if len(self.steps) == wanted or any(call.refused for call in self.calls[:1]):
                break
            family = rng.choices(families, weights)[0]
            choices = samples.leaves() if family == samples.FAMILY else operators()[family]
            self.attempt(rng.choices(choices, [operator.weight for operator in choices])[0])
        if not self.steps:
            raise Rejected("too few statements")
        return self._program()

    def attempt(self, operator: Operator) -> bool:
        """Adds a statement with the operator, unless its operands do not fit or it is rejected."""
        self.rejected["drawn"] += 1
        draw = Draw(
            rng=self.rng, calls=[dict(call.real) for call in self.calls], inputs=self.inputs, memories=self.memories,
            dtypes=self.dtypes, features=self.features, sizes=self.sizes,
        )  # fmt: skip
        step = None
        try:
            step = self._step(operator, draw)
            self._add(step, draw)
            return True
        except NotFitting:
            self.rejected["no operand fits"] += 1
        except Rejected as why:
            self.rejected[str(why)] += 1
            if operator.writes:
                self._replay()
        return False

    def _step(self, operator: Operator, draw: Draw) -> Step:
        made = operator.make(draw)
        count = sum(len(step.targets) for step in self.steps)
        targets = tuple(f"v{count + k}" for k in range(draw.n_targets))
        if isinstance(made, str):
            comma = "," if len(targets) == 1 and operator.family == "join" and "split" in made + operator.name else ""
            lines = [f"{', '.join(targets)}{comma} = {made}"]
        else:
            lines = [_SIGN.sub(targets[0], line) for line in made]
        if self.features.dynamic and self.rng.random() < 0.35:
            lines = [_LITERAL.sub(lambda found: draw.in_place_of(found.group()), line) for line in lines]
        return Step(
            operator=operator.name, family=operator.family, lines=tuple(lines), targets=targets,
            reads=tuple(dict.fromkeys(draw.reads)), writes=operator.writes, exact=exact(lines),
        )  # fmt: skip

    def _add(self, step: Step, draw: Draw) -> None:
        calls = [call.copy() for call in self.calls]
        with torch.no_grad():
            for position, call in enumerate(calls):
                call.make([each.line(position) for each in draw.added_memories])
                call.make([each.line(position) for each in draw.added])
                if not call.refused:
                    self._run(step, call, first=position == 0)
        self.calls = calls
        self.inputs += draw.added
        self.memories += draw.added_memories
        self.steps.append(step)

    def _run(self, step: Step, call: Call, *, first: bool) -> None:
        if step.writes and any(overlaps(call.real[name]) for name in step.reads):
            raise Rejected("it writes where elements share memory")
        if _DIVIDING.search("\n".join(step.lines)) and any(_has_least(call.real[name]) for name in step.reads):
            raise Rejected("the least integer divided: eager ends the process")
        try:
            call.run(step)
        except Exception as error:  # whatever eager refuses
            if self.features.errors and self.rng.random() < (0.6 if first else 0.9):
                call.refused = True
                return
            raise Rejected("eager refuses it") from error
        for name in step.targets:
            value = call.real[name]
            if isinstance(value, (int, float)) and step.family == "size arithmetic":
                continue
            self._check(step, call, name, first=first)
            sources = [call.real[read] for read in step.reads if _is_float(call.real[read])]
            adding = conditioning.accumulates(step.family, "\n".join(step.lines))
            if adding and any(conditioning.may_overflow(source) for source in sources):
                raise Rejected("a sum that may overflow on its way")
            delta = conditioning.shaking(value, call.wide[name], sources if adding else (), self.rng)
            if delta is not None and step.family not in EXACT:
                call.shake(name, delta)
            conditioning.compare(value, call.shaken[name])
            if not value.is_floating_point() and any(_rounded(call, read) for read in step.reads):
                conditioning.compare(value, call.wide[name])

    def _check(self, step: Step, call: Call, name: str, *, first: bool) -> None:
        value = call.real[name]
        if not isinstance(value, torch.Tensor) or value.dtype not in DTYPES:
            raise Rejected("not a tensor of these dtypes")
        if value.numel() > (MAX_RESULT_ELEMENTS if first else MAX_LARGE_RESULT) or value.dim() > 5:
            raise Rejected("too large")
        reads = [call.real[read] for read in step.reads if isinstance(call.real[read], torch.Tensor)]
        if not value.is_floating_point() and any(_beyond(read, value.dtype) for read in reads):
            raise Rejected("an integer of what it cannot hold")
        if self.features.values == "plain" and all(bool(read.isfinite().all()) for read in reads):
            bound = MAX_MAGNITUDE if value.is_floating_point() else 2.0**31
            if not bool(value.isfinite().all()) or conditioning.largest(value) > bound:
                raise Rejected("too large or not finite")

    def _replay(self) -> None:
        """All values anew: a statement that was rejected may have written into them."""
        with torch.no_grad():
            for position, call in enumerate(self.calls):
                anew = Call(refused=call.refused)
                anew.make([each.line(position) for each in self.memories])
                anew.make([each.line(position) for each in self.inputs])
                for step in self.steps:
                    if call.refused and not all(name in call.real for name in step.targets):
                        break
                    anew.run(step)
                    for name in step.targets:
                        if name in call.moved:
                            anew.shake(name, call.moved[name])
                self.calls[position] = anew

    def _program(self) -> Program:
        read = {name for step in self.steps for name in step.reads}
        made = [name for step in self.steps for name in step.targets]
        outputs = [name for name in made if name not in read] or made[-1:]
        program = features.options(
            self.rng,
            Program(
                memories=tuple(self.memories), inputs=tuple(self.inputs), steps=tuple(self.steps),
                outputs=tuple(outputs), n_calls=len(self.calls),
            ),
            self.features,
            self.calls[0].real,
            self.sizes.calls[0],
        ).used()  # fmt: skip
        if not program.inputs:
            raise Rejected("it reads nothing")
        return program

    def expected(self, program: Program) -> list[Seen]:
        """What eager does in each call. Raises Rejected where it does something else the second time, or refuses what
        it did while the function was drawn, or where shaking changes a gradient too much."""
        text = program.text()
        function = function_of(text)
        all_seen = []
        for position, call in enumerate(self.calls):
            seen, again = (observe(text, function, position) for _ in range(2))
            if seen.error is not None and not call.refused and not self.features.errors:
                raise Rejected("eager refuses it with gradients or in this mode")
            if not same(seen, again):
                raise Rejected("eager gives something else each time")
            gradients = {name: value for name, value in seen.values.items() if name.startswith("gradient")}
            if gradients and not program.after and not any(step.writes for step in program.steps):
                shaken = observe(text, self._shaking(program, call), position)
                for name, value in gradients.items():
                    if self.features.values == "plain" and not bool(value.isfinite().all()):
                        raise Rejected("a gradient is not finite")
                    if name in shaken.values:
                        conditioning.compare(value, shaken.values[name])
            all_seen.append(seen)
        return all_seen

    def _shaking(self, program: Program, call: Call) -> Any:
        """The function with the same shaking as in its making."""

        def graph(*inputs: Any) -> tuple[Any, ...]:
            values = {given.name: value for given, value in zip(program.inputs, inputs, strict=True)}
            for step in program.steps:
                step.run(values)
                for name in step.targets:
                    if name in call.moved:
                        values[name] = values[name] + call.moved[name]
            return tuple(values[name] for name in program.outputs)

        return graph

    def reached(self, step: Step) -> tuple[str, str, bool]:
        """See Generated."""
        reads = [self.calls[0].real.get(name) for name in step.reads]
        tensors = [value for value in reads if isinstance(value, torch.Tensor)]
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
        return step.operator, dtype, any(not tensor.is_contiguous() or tensor.storage_offset() for tensor in tensors)


def same(one: Seen, other: Seen) -> bool:
    """Whether two runs of eager gave the same, to the bit but for the sign of zero."""
    if (one.error is None) != (other.error is None) or set(one.values) != set(other.values):
        return False
    for name, value in one.values.items():
        second = other.values[name]
        if not isinstance(value, torch.Tensor):
            if value != second and value == value:
                return False
        elif value.shape != second.shape or not bool(
            ((value == second) | ((value != value) & (second != second))).all()
        ):
            return False
    return True


def _rounded(call: Call, name: str) -> bool:
    """Whether a value is not what it is in float64."""
    real, wide = call.real[name], call.wide[name]
    return _is_float(real) and (
        real.shape != wide.shape or not torch.equal(real.double().nan_to_num(), wide.double().nan_to_num())
    )


def _has_least(value: Any) -> bool:
    """Whether an integer tensor holds its dtype's least: divided by -1 it is a trap of the processor."""
    if not isinstance(value, torch.Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        return False
    return bool((value == torch.iinfo(value.dtype).min).any())


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _beyond(read: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether C++ leaves undefined what a floating value becomes in an integer dtype."""
    if dtype == torch.bool or not read.is_floating_point() or not read.numel():
        return False
    info = torch.iinfo(dtype)
    wide = read.double()
    return not bool((wide.isfinite() & (wide > float(info.min) - 1) & (wide < float(info.max) + 1)).all())
