"""A failing function made small: calls, outputs, gradients and statements go as long as it fails in the same way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from measure.random_graphs.program import Input, Memory, Program, Text, Values, execute, literal

MAX_TRIES = 80


def reduced(program: Program, fails: Callable[[Text], bool]) -> Program:
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


def _holds(fails: Callable[[Text], bool], program: Program) -> bool:
    try:
        return fails(program.text())
    except Exception:  # eager refuses what was made
        return False


def _smaller(program: Program) -> Iterator[Program]:
    """Functions with less in them, what takes away most first."""
    if program.n_calls > 1:
        for kept in range(program.n_calls):
            yield program.of_calls([kept])
        for left in range(program.n_calls if program.n_calls > 2 else 0):
            yield program.of_calls([call for call in range(program.n_calls) if call != left])
    if program.backward:
        yield replace(program, backward=False)
    if program.after:
        yield replace(program, after=())
    if len(program.outputs) > 1 and not program.after:
        for name in program.outputs:
            yield replace(program, outputs=(name,)).used()
    if program.marks:
        yield replace(program, marks=())
    if program.n_calls == 1 and program.dynamic is not False:
        yield replace(program, dynamic=False, marks=())
    if program.mode != "grad":
        yield replace(program, mode="grad")
    if len(program.steps) > 1:
        values = [_values(program, call) for call in range(program.n_calls)]
        for position, step in enumerate(program.steps):
            if set(program.outputs) - set(step.targets):
                with contextlib.suppress(KeyError):  # eager refuses a call before it
                    yield _without(program, position, values)
    yield from _plainer(program)
    if program.n_calls == 1:
        yield from _of_fewer_elements(program)


def _plainer(program: Program) -> Iterator[Program]:
    """With arguments that are row-major, and without autograd history."""
    values: list[Values] = []
    for position, given in enumerate(program.inputs):
        if not given.memory or all(made == given.memory for made in given.made):
            continue
        values = values or [_arguments(program, call) for call in range(program.n_calls)]
        memory = Memory(name=f"b{given.name}", made=tuple(literal(call[given.name]) for call in values))
        plain = Input(name=given.name, made=(memory.name,) * program.n_calls, memory=memory.name)
        inputs = (*program.inputs[:position], plain, *program.inputs[position + 1 :])
        yield replace(program, inputs=inputs, memories=(*program.memories, memory)).used()
    for position, memory in enumerate(program.memories):
        if not any(".requires_grad_()" in made for made in memory.made):
            continue
        plainer = replace(memory, made=tuple(made.replace(".requires_grad_()", "") for made in memory.made))
        yield replace(
            program, memories=(*program.memories[:position], plainer, *program.memories[position + 1 :])
        )  # fmt: skip


def _of_fewer_elements(program: Program) -> Iterator[Program]:
    """Every size that occurs in the arguments, made smaller wherever it occurs."""
    values = _arguments(program, 0)
    tensors = {given.name: values[given.name] for given in program.inputs if given.memory}
    for size in sorted({size for tensor in tensors.values() for size in tensor.shape}, reverse=True):
        for fewer in sorted({1, 2, size // 2} & set(range(1, size))):
            memories, inputs = [], []
            for given in program.inputs:
                tensor = tensors.get(given.name)
                if tensor is None:
                    inputs.append(given)
                    continue
                for dim in range(tensor.dim()):
                    tensor = tensor.narrow(dim, 0, fewer) if tensor.shape[dim] == size else tensor
                grad = ".requires_grad_()" if tensor.requires_grad else ""
                memories.append(Memory(name=f"b{given.name}", made=(literal(tensor) + grad,)))
                inputs.append(replace(given, made=(memories[-1].name,), memory=memories[-1].name))
            yield replace(program, memories=tuple(memories), inputs=tuple(inputs), marks=())


def _arguments(program: Program, call: int) -> Values:
    values: Values = {}
    execute(program.without_steps().call(call), values)
    return values


def _values(program: Program, call: int) -> Values:
    values = _arguments(program, call)
    with torch.no_grad(), contextlib.suppress(Exception):
        for step in program.steps:
            step.run(values)
    return values


def _without(program: Program, position: int, values: list[Values]) -> Program:
    """Eager's values of a statement as inputs in its place."""
    step = program.steps[position]
    steps = (*program.steps[:position], *program.steps[position + 1 :])
    read = {name for other in steps for name in other.reads}
    memories, inputs = list(program.memories), list(program.inputs)
    for name in step.targets:
        if name not in read:
            continue
        if isinstance(values[0][name], torch.Tensor):
            memory = Memory(name=f"b{name}", made=tuple(literal(call[name]) for call in values))
            memories.append(memory)
            inputs.append(Input(name=name, made=(memory.name,) * program.n_calls, memory=memory.name))
        else:
            inputs.append(Input(name=name, made=tuple(repr(call[name]) for call in values)))
    outputs = tuple(name for name in program.outputs if name not in step.targets)
    return replace(
        program, memories=tuple(memories), inputs=tuple(inputs), steps=steps, outputs=outputs, after=()
    ).used()  # fmt: skip
