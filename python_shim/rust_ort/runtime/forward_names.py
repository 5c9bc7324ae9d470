"""What the user calls the tensors and sizes of a captured forward: the names in its ONNX model, and in errors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.errors import ClientError, OptionError
from rust_ort.export.forward_model import ForwardGraph
from rust_ort.export.model_file import ModelInput, ModelOutput
from rust_ort.export.provenance import parameter_name
from rust_ort.observe.sides import named_members
from rust_ort.observe.values import named_values
from rust_ort.options import arguments
from rust_ort.runtime.assumptions import Assumptions, assumptions, size_text
from rust_ort.runtime.capture import Captured
from rust_ort.runtime.dynamic_shapes import DynamicSize


class Names:
    """What the user calls the tensors of a captured forward."""

    def __init__(self, model: Any, leaves: Sequence[tuple[str, Tensor]], captured: Captured) -> None:
        self._captured = captured
        self._taken: Counter[str] = Counter()
        self._arguments: dict[str, Tensor] = {}
        for path, leaf in leaves:
            self._arguments[self._unique(identifier(path))] = leaf
        self._of = {id(leaf): name for name, leaf in reversed(self._arguments.items())}
        self._members: dict[int, str] = {}
        for kind in ("parameters", "buffers"):
            for name, tensor in named_members(model, kind):
                if id(tensor) not in self._of and id(tensor) not in self._members:
                    self._members[id(tensor)] = self._unique(name)
        self._constants: dict[int, str] = {}

    def _unique(self, name: str) -> str:
        self._taken[name] += 1
        return name if self._taken[name] == 1 else self._unique(f"{name}_{self._taken[name] - 1}")

    def of_tensor(self, tensor: Tensor, source: str) -> str:
        for known in (self._of, self._members, self._constants):
            if id(tensor) in known:
                return known[id(tensor)]
        name = parameter_name(source.replace("G[", "L[", 1) if source.startswith("G[") else source)
        name = name if re.fullmatch(r"[\w.]+", name) else identifier(name)
        return self._constants.setdefault(id(tensor), self._unique(name or "constant"))

    def is_argument(self, name: str) -> bool:
        return name in self._arguments

    def of_input(self, position: int) -> str:
        """An input of Dynamo's graph, in messages."""
        if not 0 <= position < len(self._captured.inputs):
            return "an argument"
        return self.of_tensor(self._captured.inputs[position], self._captured.sources[position])

    def assumptions(self) -> Assumptions:
        """What torch assumed of sizes, by the inputs' names."""
        names = {source: self.of_input(position) for position, source in enumerate(self._captured.sources)
                 if isinstance(self._captured.inputs[position], Tensor)}  # fmt: skip
        values = [node.meta.get("val") for node in self._captured.graph.graph.find_nodes(op="placeholder")]
        return assumptions(values, names)

    def inputs(
        self, forward: ForwardGraph, sizes: Sequence[DynamicSize], size_names: Mapping[str, str], *, as_inputs: bool
    ) -> list[ModelInput]:
        """Arguments first, then parameters, then what the program has from elsewhere."""
        read = {}
        tensors = []
        for value, position in forward.inputs.items():
            tensor, source = self._captured.inputs[position], self._captured.sources[position]
            name = self.of_tensor(tensor, source)
            if name not in self._arguments:
                tensors.append(_initializer(name, value, tensor, stays=as_inputs and isinstance(tensor, nn.Parameter)))
            read[name] = value
        tensors += [
            _initializer(self._unique(value), value, tensor, stays=False) for value, tensor in forward.constants.items()
        ]
        fakes = {node.name: node.meta.get("val") for node in forward.module.graph.find_nodes(op="placeholder")}
        found = []
        for name, tensor in self._arguments.items():
            used = read.get(name)
            shape = _shape(tensor, sizes) if used is None else _named_shape(fakes[used], size_names)
            found.append(ModelInput(name=name, value=used, dtype=tensor.dtype, shape=shape))
        known = {entry.name for entry in tensors}
        for _, leaf in named_values(self._captured.result):  # a parameter that is returned, and that nothing else reads
            name = self._members.get(id(leaf), "")
            if name and name not in known:
                tensors.append(_initializer(name, None, leaf, stays=as_inputs and isinstance(leaf, nn.Parameter)))
                known.add(name)
        return found + tensors

    def outputs(self, forward: ForwardGraph) -> list[ModelOutput]:
        """Every tensor in what the model returned, in its order."""
        made = {id(self._captured.outputs[position]): index for index, position in enumerate(forward.outputs)}
        found = []
        for step, leaf in named_values(self._captured.result):
            if not isinstance(leaf, Tensor):
                continue
            name = identifier(step)
            name = f"output_{name}" if name[:1].isdigit() else name or "output"
            value: int | str | None = made.get(id(leaf), self._of.get(id(leaf), self._members.get(id(leaf))))
            if value is None:
                raise ClientError(
                    f"to_onnx: output {name} is {arguments.shown(leaf)} that neither the graph computes nor the call "
                    "gives: compute something of it, or leave it out of what is returned",
                    code="UNSUPPORTED",
                )
            found.append(ModelOutput(name=self._unique(name), value=value))
        return found


def _initializer(name: str, value: str | None, tensor: Tensor, *, stays: bool) -> ModelInput:
    return ModelInput(
        name=name, value=value, dtype=tensor.dtype, shape=tuple(tensor.shape), tensor=None if stays else tensor
    )


def identifier(path: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_") if not path.isidentifier() else path


def in_words(size: DynamicSize) -> str:
    """As the model's inputs are named."""
    return size_text(identifier(size.where), size.axis)


def traced_as(captured: Captured, forward: ForwardGraph) -> dict[int, Tensor]:
    """{id of an input: what it was traced as}."""
    values = {node.name: node.meta.get("val") for node in forward.module.graph.find_nodes(op="placeholder")}
    return {id(captured.inputs[position]): values[value] for value, position in forward.inputs.items()}


def _shape(tensor: Tensor, sizes: Sequence[DynamicSize]) -> tuple[int | str, ...]:
    """Of an argument that nothing reads."""
    named = {size.axis: size.name or f"{identifier(size.where)}_{size.axis}" for size in sizes if size.tensor is tensor}
    return tuple(named.get(axis, length) for axis, length in enumerate(tensor.shape))


def _named_shape(fake: Tensor, size_names: Mapping[str, str]) -> tuple[int | str, ...]:
    return tuple(
        _with_names(size, size_names) if isinstance(size, torch.SymInt) and not size.node.expr.is_number else int(size)
        for size in fake.shape
    )


def _with_names(size: Any, size_names: Mapping[str, str]) -> str:
    return re.sub(r"\bs\d+\b", lambda symbol: size_names.get(symbol[0], symbol[0]), str(size.node.expr))


def names_of_sizes(
    captured: Captured, forward: ForwardGraph, sizes: Sequence[DynamicSize], assumed: Assumptions
) -> dict[str, str]:
    """{torch's symbol: the name of the size}. Errors: OptionError where the program makes two names one size."""
    fakes = traced_as(captured, forward)
    found: dict[str, str] = {}
    first: dict[str, DynamicSize] = {}
    expressions = [(size, str(fakes[id(size.tensor)].shape[size.axis])) for size in sizes if id(size.tensor) in fakes]
    for size, expression in expressions:
        if not re.fullmatch(r"s\d+", expression) or size.name is None:
            continue
        known = found.setdefault(expression, size.name)
        if known != size.name:
            raise _one_size(assumed, first[expression], size)
        first.setdefault(expression, size)
    for size, expression in expressions:
        if re.fullmatch(r"s\d+", expression):
            found.setdefault(expression, f"{identifier(size.where)}_{size.axis}")
    for size, expression in expressions:
        pinned = expression if expression.isdigit() else assumed.fixed.get(in_words(size))
        if size.strict and pinned is not None:
            raise OptionError(
                f"to_onnx dynamic_shapes: {size} is to be dynamic, but the program fixes it at {pinned}; take "
                f"it out, or leave it open with torch.export.Dim.AUTO{_reasons(assumed)}",
                code="FIXED_SIZE",
            )
        if expression.isdigit():
            continue
        if size.name is not None and not re.fullmatch(r"s\d+", expression):
            named = re.sub(r"\bs\d+\b", lambda symbol: found.get(symbol[0], symbol[0]), expression)
            raise OptionError(
                f"to_onnx dynamic_shapes: {size} is named {size.name!r}, but the program makes it {named}; "
                f"leave its name to us (torch.export.Dim.AUTO){_reasons(assumed)}",
                code="FIXED_SIZE",
            )
    return found


def _one_size(assumed: Assumptions, one: DynamicSize, other: DynamicSize) -> OptionError:
    return OptionError(
        f"to_onnx dynamic_shapes: {one} is named {one.name!r} and {other} {other.name!r}, but torch takes them for one "
        f"size; give both one name{_reasons(assumed)}",
        code="FIXED_SIZE",
    )


def _reasons(assumed: Assumptions) -> str:
    lines = [f"\n  {what}{f', asked for at {line}' if line else ''}" for what, line in assumed.lines().items()]
    return "".join(lines)
