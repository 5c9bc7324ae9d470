"""Which sizes of the arguments are dynamic: `dynamic_shapes` in the forms that torch.export takes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.errors import OptionError
from rust_ort.observe.values import named_values
from rust_ort.options.arguments import shown
from rust_ort.runtime.assumptions import LEAST_TRACED, size_text
from rust_ort.torch_private import INT64

FORMS = "a name, torch.export.Dim(name), Dim.DYNAMIC or Dim.AUTO for a dynamic size, its number or None for a fixed one"


@dataclass(frozen=True, kw_only=True)
class DynamicSize:
    """One dynamic size of a tensor among the arguments. where: `x`, `cache[0]`. name: None: torch's own choice.
    bounds: None: any. strict: whether a program that fixes it is an error."""

    tensor: Tensor
    where: str
    axis: int
    name: str | None
    bounds: tuple[int, int] | None
    strict: bool

    @property
    def length(self) -> int:
        """The example's."""
        return self.tensor.shape[self.axis]

    def __str__(self) -> str:
        return size_text(self.where, self.axis)


def resize(sizes: Sequence[DynamicSize], length: int) -> None:
    """Gives tensors a length along dynamic axes in place: the first element again and again."""
    for size in sizes:
        first = size.tensor.detach().narrow(size.axis, 0, 1)
        shape = [length if axis == size.axis else -1 for axis in range(first.dim())]
        size.tensor.data = first.expand(shape).clone(memory_format=torch.contiguous_format)


def dynamic_sizes(dynamic_shapes: object, given: Mapping[str, Any]) -> list[DynamicSize]:
    """Every dynamic size, in the order of the arguments.

    dynamic_shapes: {argument: spec}, or specs by position. A spec is None, for a tensor {dimension: size} or a sequence
    of sizes, for a container one of specs, for another object one for each tensor in it; a size as FORMS says. given:
    {argument: value}. Errors: OptionError.
    """
    if dynamic_shapes is None:
        return []
    if isinstance(dynamic_shapes, Mapping):
        unknown = [name for name in dynamic_shapes if name not in given]
        if unknown:
            raise OptionError(
                f"to_onnx dynamic_shapes: the call gives no argument {unknown[0]!r}, but {', '.join(map(repr, given))}"
            )
        specs = dict(dynamic_shapes)
    elif isinstance(dynamic_shapes, list | tuple) and len(dynamic_shapes) == len(given):
        specs = dict(zip(given, dynamic_shapes, strict=True))
    else:
        raise OptionError(
            f"to_onnx dynamic_shapes: expected {{argument: sizes}}, or one spec for each of {', '.join(given)}, "
            f"got {shown(dynamic_shapes)}"
        )
    found = [size for name, value in given.items() for size in _of(specs.get(name), value, name)]
    first: dict[str, DynamicSize] = {}
    for size in found:
        known = first.setdefault(size.name, size) if size.name is not None else size
        if known.length != size.length:
            raise OptionError(
                f"to_onnx dynamic_shapes: {known} is {known.length} and {size} {size.length}, and both are named "
                f"{size.name!r}: one name is one size; give each its own"
            )
    return found


def _of(spec: Any, value: Any, where: str) -> Iterator[DynamicSize]:
    if spec is None:
        return
    if isinstance(value, Tensor):
        yield from _of_tensor(spec, value, where)
    elif isinstance(value, Mapping) and isinstance(spec, Mapping):
        for key, inner in spec.items():
            if key not in value:
                raise OptionError(f"to_onnx dynamic_shapes: {where} has no {key!r}")
            yield from _of(inner, value[key], f"{where}[{key!r}]")
    elif isinstance(value, list | tuple) and isinstance(spec, list | tuple) and len(spec) == len(value):
        for index, (inner, item) in enumerate(zip(spec, value, strict=True)):
            yield from _of(inner, item, f"{where}[{index}]")
    elif isinstance(spec, list | tuple) and len(spec) == len(leaves := _tensors(value)):
        for inner, (step, item) in zip(spec, leaves, strict=True):
            yield from _of(inner, item, f"{where}{step}")
    else:
        raise OptionError(
            f"to_onnx dynamic_shapes: {shown(spec)} does not fit {where}, {shown(value)}; expected None, or a spec for "
            f"each of {', '.join(where + step for step, _ in _tensors(value)) or 'its tensors, of which it has none'}"
        )


def _tensors(value: Any) -> list[tuple[str, Tensor]]:
    """(path, tensor) of what an object holds, as a cache its keys and values."""
    return [(step, leaf) for step, leaf in named_values(value) if isinstance(leaf, Tensor)]


def _of_tensor(spec: Any, tensor: Tensor, where: str) -> Iterator[DynamicSize]:
    if isinstance(spec, Mapping):
        sizes = list(spec.items())
    elif isinstance(spec, Sequence) and not isinstance(spec, str) and len(spec) == tensor.dim():
        sizes = list(enumerate(spec))
    else:
        raise OptionError(
            f"to_onnx dynamic_shapes: expected {{dimension: size}} or {tensor.dim()} sizes for {where}, "
            f"{shown(tensor)}, got {shown(spec)}"
        )
    for axis, size in sizes:
        if not isinstance(axis, int) or not -tensor.dim() <= axis < tensor.dim():
            raise OptionError(f"to_onnx dynamic_shapes: {where}, {shown(tensor)}, has no dimension {axis!r}")
        found = _size(size, tensor, where, axis % tensor.dim())
        if found is not None:
            yield found


def _size(size: Any, tensor: Tensor, where: str, axis: int) -> DynamicSize | None:
    hint = getattr(getattr(size, "type", None), "name", "")
    length = tensor.shape[axis]
    if size is None or hint == "STATIC":
        return None
    if isinstance(size, int) and not isinstance(size, bool):
        if size == length:
            return None
        raise OptionError(f"to_onnx dynamic_shapes: {size_text(where, axis)} is {length}, not {size}")
    name: str | None
    if isinstance(size, str):
        name = size
    elif isinstance(size, torch.export.Dim):
        name = str(getattr(size, "__name__", ""))
    elif hint in ("AUTO", "DYNAMIC"):
        name = None
    else:
        raise OptionError(f"to_onnx dynamic_shapes: {size_text(where, axis)}: expected {FORMS}, got {shown(size)}")
    if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise OptionError(
            f"to_onnx dynamic_shapes: {size_text(where, axis)}: expected a name such as 'batch', got {name!r}; what is "
            "computed of other sizes takes a name of its own, or Dim.AUTO"
        )
    return DynamicSize(tensor=tensor, where=where, axis=axis, name=name, bounds=_bounds(size), strict=hint != "AUTO")


def _bounds(size: Any) -> tuple[int, int] | None:
    least, most = (getattr(size, end, None) for end in ("min", "max"))
    if not (isinstance(most, int) and most < INT64.max) and not (isinstance(least, int) and least > LEAST_TRACED):
        return None
    most = most if isinstance(most, int) else INT64.max
    return max(least if isinstance(least, int) else 0, LEAST_TRACED), most
