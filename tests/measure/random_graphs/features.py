"""What kinds of functions are drawn, and how often."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import torch

from measure.random_graphs import samples
from measure.random_graphs.draw import Features
from measure.random_graphs.layouts import overlaps
from measure.random_graphs.program import Program, Values
from measure.random_graphs.table import ROWS
from measure.random_graphs.values import CLASSES, FLOATS, INTS, SMALL_INTS

BASE = ("convolution", "index", "in place", *ROWS)
"""Families of operators that every function may have."""
SLOW = {"convolution": 0.5, "pooling": 0.5, "pad and resize": 0.5, "norm": 0.5, "loss": 0.5, "sort": 0.7}


def drawn(rng: random.Random) -> Features:
    """A fifth of all functions are plain: static, of the usual dtypes and numbers."""
    if rng.random() < 0.2:
        return Features(values="special" if rng.random() < 0.05 else "plain", gradients=rng.random() < 0.7)
    data = rng.random() < 0.06
    return Features(
        dynamic=rng.random() < 0.4,
        views=rng.random() < 0.4,
        values=rng.choice(CLASSES) if rng.random() < 0.4 else "plain",
        wide=rng.random() < 0.4,
        errors=rng.random() < 0.15,
        autocast=rng.random() < 0.06,
        data=data,
        gradients=rng.random() < 0.4,
    )


def statements(rng: random.Random, features: Features) -> int:
    """How many a function has: few where much else may fail."""
    if features == Features(values=features.values, gradients=features.gradients):
        return rng.randint(2, 7)
    return rng.choice((1, 1, 2, 2, 3, 4))


def families(features: Features) -> dict[str, float]:
    """Weights of the families of operators."""
    weights = {family: SLOW.get(family, 1.0) for family in BASE}
    weights |= {"scalar": 1.5 if features.wide else 0.5, "factory": 1.0 if features.wide else 0.5}
    weights["size arithmetic"] = 12.0 if features.dynamic else 0.5
    weights[samples.FAMILY] = 2.0
    if features.views:
        weights |= {"memory": 9.0, "output view": 6.0, "view": 3.0, "in place": 2.0}
    if features.errors:
        weights["index"] = 25.0
    if features.data:
        weights["data-dependent"] = 15.0
    if features.autocast:
        weights["autocast"] = 12.0
    return weights


def dtypes(rng: random.Random, features: Features) -> Sequence[torch.dtype]:
    """Of new operands: mostly one floating dtype."""
    main = rng.choices(FLOATS, (60, 10, 15, 15))[0]
    if features.wide:
        return [main, main, rng.choice(FLOATS), rng.choice((*INTS, *SMALL_INTS)), rng.choice(SMALL_INTS)]
    made = [main] * 6 + [rng.choice(INTS)]
    return made + [rng.choice(FLOATS)] * 3 if rng.random() < 0.25 else made


def options(rng: random.Random, program: Program, features: Features, values: Values, first: Sequence[int]) -> Program:
    """How the function is compiled, called, and what is done with its outputs. values: of the first call; first: its
    sizes."""
    program = replace(program, backward=features.gradients)
    if not features.gradients:
        program = replace(program, mode=rng.choice(("grad", "grad", "no_grad", "inference_mode")))
    if features.dynamic:
        program = replace(program, dynamic=rng.choice((True, True, None)))
        if rng.random() < 0.2:
            program = replace(program, dynamic=None, marks=_marks(rng, program, values, first))
    if features.data:
        program = replace(program, fullgraph=False, capture=rng.random() < 0.5)
    if features.views:
        program = _viewing(rng, program, values)
    return program


def _marks(rng: random.Random, program: Program, values: Values, first: Sequence[int]) -> tuple[str, ...]:
    """Dimensions that are said to be dynamic."""
    how = rng.choice(("mark_dynamic", "maybe_mark_dynamic", "maybe_mark_dynamic"))
    found = [
        f"torch._dynamo.{how}({given.name}, {dim})"
        for given in program.inputs
        if given.memory
        for dim, size in enumerate(values[given.name].shape)
        if size in first
    ]
    return tuple(rng.sample(found, min(len(found), rng.randint(1, 2))))


def _viewing(rng: random.Random, program: Program, values: Values) -> Program:
    """More outputs than what nothing reads, arguments among them; some are written to afterwards."""
    named = [name for name, value in values.items() if name[0] in "xv" and isinstance(value, torch.Tensor)]
    more = [name for name in rng.sample(named, min(len(named), rng.randint(0, 2))) if name not in program.outputs]
    outputs = (*program.outputs, *more)
    if rng.random() < 0.5:
        return replace(program, outputs=outputs)
    after = []
    for position, name in enumerate(outputs):
        value = values.get(name)
        if isinstance(value, torch.Tensor) and not overlaps(value) and rng.random() < 0.7:
            write = "logical_not_()" if value.dtype == torch.bool else rng.choice(("add_(1)", "mul_(2)", "zero_()"))
            after.append(f"o{position}.{write}")
    return replace(program, outputs=outputs, after=tuple(after))
