"""A failing function made small: outputs, gradients and statements go as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from measure.random_graphs.program import Input, Program, Values

MAX_TRIES = 80


def reduced(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The smallest function found for which `fails` still holds."""
    tries = 0
    again = True
    while again:
        again = False
        for smaller in _smaller(program):
            tries += 1
            if tries > MAX_TRIES:
                return program
            if _holds(fails, smaller):
                program, again = smaller, True
                break
    return program


def _holds(fails: Callable[[Program], bool], program: Program) -> bool:
    try:
        return fails(program)
    except Exception:  # eager refuses what was made
        return False


def _smaller(program: Program) -> Iterator[Program]:
    """Functions with less in them, what takes away most first."""
    if program.cotangents:
        yield replace(program, cotangents={})
    if len(program.outputs) > 1:
        for name in program.outputs:
            kept = {key: value for key, value in program.cotangents.items() if key == name}
            yield replace(program, outputs=(name,), cotangents=kept).used()
    if len(program.steps) > 1:
        values = _values(program)
        for position, step in enumerate(program.steps):
            if not set(program.outputs) <= set(step.targets):
                yield _without(program, position, values)
    for position, given in enumerate(program.inputs):
        if given.requires_grad:
            inputs = list(program.inputs)
            inputs[position] = replace(given, requires_grad=False)
            yield replace(program, inputs=tuple(inputs))
        if not given.tensor.is_contiguous():
            inputs = list(program.inputs)
            inputs[position] = replace(given, tensor=given.tensor.contiguous())
            yield replace(program, inputs=tuple(inputs))


def _values(program: Program) -> Values:
    values: Values = {given.name: given.fresh() for given in program.inputs}
    for step in program.steps:
        step.run(values)
    return values


def _without(program: Program, position: int, values: Values) -> Program:
    """Eager's values of a statement as inputs in its place."""
    step = program.steps[position]
    steps = (*program.steps[:position], *program.steps[position + 1 :])
    read = {name for other in steps for name in other.reads}
    made = []
    for name in step.targets:
        if name in read:
            value: torch.Tensor = values[name]
            made.append(Input(name=name, tensor=value.detach().clone(), requires_grad=value.requires_grad))
    outputs = tuple(name for name in program.outputs if name not in step.targets)
    cotangents = {name: value for name, value in program.cotangents.items() if name in outputs}
    return replace(program, inputs=(*program.inputs, *made), steps=steps, outputs=outputs, cotangents=cotangents).used()
