"""A random function: its inputs and its statements, as Python source that anybody can paste and run."""

from __future__ import annotations

import functools
import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

NAMESPACE = {"torch": torch, "F": torch.nn.functional}
NARROW = ("torch.float32", "torch.float16", "torch.bfloat16")
HEAD = """import torch
import torch.nn.functional as F
from math import inf, nan"""
TAIL = """

def run(function):
    outputs = function(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    if not cotangents or not wanted:
        return outputs
    ends = [outputs[k] for k in cotangents]
    return *outputs, *torch.autograd.grad(ends, wanted, list(cotangents.values()), allow_unused=True)


expected = run(graph)
got = run(torch.compile(graph, backend="rust_ort", fullgraph=True, dynamic=False))
for reference, candidate in zip(expected, got):
    torch.testing.assert_close(candidate, reference, equal_nan=True)
"""
Values = dict[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Input:
    """An argument of the function. `tensor` has the layout that the call sees, and no autograd history."""

    name: str
    tensor: torch.Tensor
    requires_grad: bool

    def fresh(self, *, wide: bool = False) -> torch.Tensor:
        """A leaf with the values and, unless wide (floats as float64), the layout of `tensor`."""
        tensor = self.tensor
        if wide and tensor.is_floating_point():
            made = tensor.double()
        else:
            storage = tensor.untyped_storage().clone()
            made = torch.empty(0, dtype=tensor.dtype).set_(
                storage, tensor.storage_offset(), tensor.size(), tensor.stride()
            )
        return made.requires_grad_(self.requires_grad)

    def literal(self) -> str:
        """The same tensor as a Python expression."""
        tensor = self.tensor
        dtype = str(tensor.dtype)
        if tensor.is_contiguous():
            text = f"torch.tensor({tensor.flatten().tolist()}, dtype={dtype}).reshape({tuple(tensor.shape)})"
        else:
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            storage = tensor.as_strided((count,), (1,), 0).tolist()
            layout = f"{tuple(tensor.shape)}, {tensor.stride()}, {tensor.storage_offset()}"
            text = f"torch.tensor({storage}, dtype={dtype}).as_strided({layout})"
        return text + (".requires_grad_()" if self.requires_grad else "")


@dataclass(frozen=True, kw_only=True)
class Step:
    """Statements of one operator of the table. reads, targets: names of values."""

    operator: str
    family: str
    lines: tuple[str, ...]
    reads: tuple[str, ...]
    targets: tuple[str, ...]

    def run(self, values: Values, *, wide: bool = False) -> None:
        """Adds the targets to `values`; wide: floating dtypes in the text are float64."""
        exec(_compiled("\n".join(self.lines), wide), dict(NAMESPACE), _Scope(values))


@functools.lru_cache(maxsize=4096)
def _compiled(text: str, wide: bool) -> types.CodeType:
    return compile(widened(text) if wide else text, "<step>", "exec")


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """A function of `inputs` that returns `outputs`. cotangents: of the outputs that have a gradient, by name."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    cotangents: Mapping[str, torch.Tensor]

    def source(self) -> str:
        """`def graph(...)` and nothing else."""
        lines = [f"def graph({', '.join(given.name for given in self.inputs)}):"]
        lines += [f"    {line}" for step in self.steps for line in step.lines]
        return "\n".join([*lines, f"    return {', '.join(self.outputs)},", ""])

    def script(self) -> str:
        """A whole script that compares rust_ort with eager."""
        inputs = ",\n    ".join(given.literal() for given in self.inputs)
        text = f"{HEAD}\n\n{self.source()}\n\ninputs = [\n    {inputs},\n]\n"
        ends = ", ".join(f"{self.outputs.index(name)}: {_flat(value)}" for name, value in self.cotangents.items())
        return f"{text}cotangents = {{{ends}}}\n{TAIL}"

    def function(self, *, wide: bool = False, name: str = "graph") -> Callable[..., tuple[Any, ...]]:
        """The function, made from its source anew: no code object is shared with an earlier one."""
        text = widened(self.source()) if wide else self.source()
        filename = f"<random {name}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        namespace = dict(NAMESPACE)
        exec(compile(text, filename, "exec"), namespace)
        return namespace["graph"]  # type: ignore[return-value]

    def run(self, function: Callable[..., tuple[Any, ...]], *, wide: bool = False) -> Results:
        """Calls `function` with fresh inputs, then the backward pass where there is one."""
        inputs = [given.fresh(wide=wide) for given in self.inputs]
        outputs = function(*inputs)
        results = {name: value.detach() for name, value in zip(self.outputs, outputs, strict=True)}
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        if self.cotangents and wanted:
            ends = [outputs[self.outputs.index(name)] for name in self.cotangents]
            seeds = [value.to(end.dtype) for value, end in zip(self.cotangents.values(), ends, strict=True)]
            gradients = torch.autograd.grad(ends, wanted, seeds, allow_unused=True)
            names = [given.name for given in self.inputs if given.requires_grad]
            given = zip(names, gradients, strict=True)
            results.update({f"gradient of {name}": value for name, value in given if value is not None})
        return results

    def used(self) -> Program:
        """Without the statements and inputs that no output needs."""
        needed, steps = set(self.outputs), []
        for step in reversed(self.steps):
            if needed & set(step.targets):
                steps.append(step)
                needed |= set(step.reads)
        inputs = tuple(given for given in self.inputs if given.name in needed)
        return replace(self, steps=tuple(reversed(steps)), inputs=inputs)

    def dtypes(self, results: Results) -> set[str]:
        tensors: Iterator[torch.Tensor] = iter([*(given.tensor for given in self.inputs), *results.values()])
        return {str(tensor.dtype).removeprefix("torch.") for tensor in tensors}


Results = dict[str, torch.Tensor]


def _flat(tensor: torch.Tensor) -> str:
    return f"torch.tensor({tensor.flatten().tolist()}, dtype={tensor.dtype}).reshape({tuple(tensor.shape)})"
