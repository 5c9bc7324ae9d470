"""A random function and the arguments of its calls, as Python source that anybody can paste and run."""

from __future__ import annotations

import functools
import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

NAMESPACE = {
    "torch": torch, "F": torch.nn.functional, "math": __import__("math"), "nan": float("nan"), "inf": float("inf"),
}  # fmt: skip
NARROW = ("torch.float32", "torch.float16", "torch.bfloat16")
HEAD = """import math

import torch
import torch.nn.functional as F
from math import inf, nan"""
TAIL = """

def shown(value):
    return (value, value.stride(), value.storage_offset()) if isinstance(value, torch.Tensor) else value


def run(function):
    for call in calls:
        try:
            arguments, leaves = call()
            with {mode}:
                outputs = function(*arguments)
            print(*map(shown, outputs), sep="\\n")
            {gradients}
            with {mode}:
                {names}, = outputs
                {after}
            print("arguments:", *map(shown, arguments), sep="\\n")
        except Exception as error:
            print(type(error).__name__, str(error)[:300])


print("eager")
run(graph)
print("rust_ort")
{capture}
run(torch.compile(graph, backend="rust_ort", fullgraph={fullgraph}, dynamic={dynamic}))
"""
GRADIENTS = """ends = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
            cotangents = [(torch.arange(x.numel()) * 7 + 3) % 17 / 8 - 1 for x in ends]
            cotangents = [c.to(x.dtype).reshape(x.shape) for c, x in zip(cotangents, ends)]
            print(*(torch.autograd.grad(ends, leaves, cotangents, allow_unused=True) if ends and leaves else ()))"""
CAPTURE = "torch._dynamo.config.capture_scalar_outputs = torch._dynamo.config.capture_dynamic_output_shape_ops = True"
MODES = {"grad": "torch.enable_grad()", "no_grad": "torch.no_grad()", "inference_mode": "torch.inference_mode()"}
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Text:
    """All that a run needs, as source. graph: `def graph(x0, …)`. calls: for each call the statements that make memory
    (`b0 = …`) and the arguments. after: statements on the outputs o0, o1, … of each call. exact: only operations whose
    results IEEE 754 fixes. mode: "grad", "no_grad" or "inference_mode". capture: Dynamo captures data-dependent sizes.
    """

    graph: str
    calls: tuple[str, ...]
    arguments: tuple[str, ...]
    after: tuple[str, ...] = ()
    dynamic: bool | None = False
    fullgraph: bool = True
    capture: bool = False
    mode: str = "grad"
    backward: bool = False
    exact: bool = False

    def script(self) -> str:
        """A whole script that shows what rust_ort and eager make of it."""
        defined = [HEAD, "", self.graph]
        for position, call in enumerate(self.calls):
            made = [line.partition(" =")[0] for line in call.splitlines() if line[0] in "bx"]
            leaves = "[x for x in ({},) if x.is_leaf and x.requires_grad]".format(", ".join(dict.fromkeys(made)))
            given = ", ".join(self.arguments)
            lines = [f"    {line}" for line in call.splitlines()]
            defined += [f"\ndef call_{position}():", *lines, f"    return [{given}], {leaves if made else []}\n"]
        defined.append(f"calls = [{', '.join(f'call_{position}' for position in range(len(self.calls)))}]")
        outputs = self.graph.rstrip().rstrip(",").rpartition("return ")[2].split(", ")
        tail = TAIL.format(
            mode=MODES[self.mode], gradients=GRADIENTS if self.backward else "",
            capture=CAPTURE if self.capture else "",
            names=", ".join(f"o{k}" for k in range(len(outputs))), after="; ".join(self.after) or "pass",
            fullgraph=self.fullgraph, dynamic=self.dynamic,
        )  # fmt: skip
        return "\n".join([*defined, tail])


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What arguments are views of. made: for each call the expression that makes it."""

    name: str
    made: tuple[str, ...]

    def line(self, call: int) -> str:
        return f"{self.name} = {self.made[call]}"


@dataclass(frozen=True, kw_only=True)
class Input:
    """An argument. made: for each call its expression, of its memory's name or a number; memory: "" for a number."""

    name: str
    made: tuple[str, ...]
    memory: str = ""

    def line(self, call: int) -> str:
        return f"{self.name} = {self.made[call]}"


@dataclass(frozen=True, kw_only=True)
class Step:
    """Statements of one operator of the table. reads, targets: names of values. writes: it changes what it reads."""

    operator: str
    family: str
    lines: tuple[str, ...]
    reads: tuple[str, ...]
    targets: tuple[str, ...]
    writes: bool = False
    exact: bool = False

    def run(self, values: Values, *, wide: bool = False) -> None:
        """Adds the targets to `values`; wide: floating dtypes in the text are float64."""
        execute("\n".join(self.lines), values, wide=wide)


def execute(text: str, values: Values, *, wide: bool = False) -> None:
    """Statements, of which each name that they assign goes to `values`; wide: narrow floating dtypes are float64."""
    exec(_compiled(text, wide), dict(NAMESPACE), _Scope(values))


@functools.lru_cache(maxsize=8192)
def _compiled(text: str, wide: bool) -> types.CodeType:
    return compile(widened(text) if wide else text, "<statement>", "exec")


class _Scope(dict[str, Any]):
    """Local names of a statement; what it assigns goes to the values themselves."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value
        super().__setitem__(name, value)


def widened(text: str) -> str:
    for name in NARROW:
        text = text.replace(name, "torch.float64")
    return text


@dataclass(frozen=True, kw_only=True)
class Program:
    """A function of `inputs` that returns `outputs`, and how it is compiled and called; see Text for the rest."""

    memories: tuple[Memory, ...]
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    n_calls: int = 1
    marks: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    dynamic: bool | None = False
    fullgraph: bool = True
    capture: bool = False
    mode: str = "grad"
    backward: bool = False

    def text(self) -> Text:
        """Its source."""
        return Text(
            graph=self.source(), calls=tuple(self.call(k) for k in range(self.n_calls)),
            arguments=tuple(given.name for given in self.inputs), after=self.after, dynamic=self.dynamic,
            fullgraph=self.fullgraph, capture=self.capture, mode=self.mode, backward=self.backward,
            exact=all(step.exact for step in self.steps),
        )  # fmt: skip

    def source(self) -> str:
        """`def graph(...)` and nothing else."""
        lines = [f"def graph({', '.join(given.name for given in self.inputs)}):"]
        lines += [f"    {line}" for step in self.steps for line in step.lines]
        return "\n".join([*lines, f"    return {', '.join(self.outputs)},", ""])

    def call(self, position: int) -> str:
        """The statements that make the arguments of a call."""
        lines = [each.line(position) for each in self.memories]
        lines += [each.line(position) for each in self.inputs]
        return "\n".join([*lines, *(self.marks if position == 0 else ())])

    def used(self) -> Program:
        """Without the statements, inputs and memories that no output needs and that change none."""
        needed, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if step.writes or needed & set(step.targets):
                steps.append(step)
                needed |= set(step.reads)
        inputs = tuple(given for given in self.inputs if given.name in needed)
        kept = {given.memory for given in inputs}
        names = {given.name for given in inputs}
        return replace(
            self,
            steps=tuple(reversed(steps)),
            inputs=inputs,
            memories=tuple(memory for memory in self.memories if memory.name in kept),
            marks=tuple(line for line in self.marks if line.partition("(")[2].partition(",")[0] in names),
        )

    def of_calls(self, kept: Sequence[int]) -> Program:
        """With these calls alone."""
        memories = (replace(memory, made=tuple(memory.made[k] for k in kept)) for memory in self.memories)
        inputs = (replace(given, made=tuple(given.made[k] for k in kept)) for given in self.inputs)
        return replace(self, memories=tuple(memories), inputs=tuple(inputs), n_calls=len(kept))

    def without_steps(self) -> Program:
        """Its arguments alone."""
        return replace(self, steps=(), outputs=(), after=(), marks=())


def literal(tensor: torch.Tensor) -> str:
    """A contiguous tensor of the same values as a Python expression."""
    listed = tensor.detach().flatten().tolist()
    return f"torch.tensor({listed}, dtype={tensor.dtype}).reshape({tuple(tensor.shape)})"
