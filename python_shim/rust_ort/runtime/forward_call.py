"""A call of a model that becomes one ONNX model: its arguments by their names, and which of their sizes are dynamic."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.errors import OptionError
from rust_ort.observe.state import Copies, is_plain
from rust_ort.observe.values import named_values
from rust_ort.options import arguments
from rust_ort.runtime.assumptions import LEAST_TRACED
from rust_ort.runtime.dynamic_shapes import DynamicSize, dynamic_sizes
from rust_ort.torch_private import pytree


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of the model, with copies of the arguments. leaves: (path, tensor) of every tensor among them before it:
    a cache holds others afterwards. own_sizes: whether submodules are to ask their own tensors for sizes."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    leaves: list[tuple[str, Tensor]]
    sizes: list[DynamicSize]
    own_sizes: bool

    def small(self, *, least: int = 0) -> list[DynamicSize]:
        """Sizes that are to be dynamic, and that torch traces apart in this call."""
        return [size for size in self.sizes if size.strict and least <= size.length < LEAST_TRACED]


def call_of(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: object, *, own_sizes: bool
) -> Call:
    copies = Copies(model)
    args, kwargs = _apart(model, copies.of(args), copies.of(kwargs))
    given = _bound(model, args, kwargs)
    shapes = _keywords_apart(model, dynamic_shapes, given)
    return Call(
        args=args, kwargs=kwargs, leaves=_tensors(given), sizes=dynamic_sizes(shapes, given), own_sizes=own_sizes
    )


def _apart(model: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments, each tensor of them an object of its own, and none of the model's: torch would take two that are
    one for one input, and the other one's name would be nobody's. Each lies in memory as an ONNX tensor does, or torch
    would assume something of its strides."""
    members = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    met = {id(tensor) for tensor in members}

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) in met:
            leaf = leaf.detach().clone()
        elif is_plain(leaf) and (not leaf.is_contiguous() or leaf.storage_offset()):
            leaf.data = leaf.detach().clone(memory_format=torch.contiguous_format)
        met.add(id(leaf))
        kept.append(leaf)
        return leaf

    kept: list[Tensor] = []  # alive, so that no address is met twice
    made: tuple[Any, Any] = pytree.tree_map(own, (args, kwargs))
    return made


def _bound(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """{argument: value}, as the forward names them. Errors: OptionError for a call that does not fit, for arrays."""
    function = function_of(model)
    try:
        bound = inspect.signature(function).bind(*args, **kwargs).arguments
    except ValueError:  # a builtin, which has no signature
        bound = {f"input_{index}": value for index, value in enumerate(args)} | dict(kwargs)
    except TypeError as error:
        is_file = any(isinstance(value, str | os.PathLike) and str(value).endswith(".onnx") for value in args)
        hint = "; a file to write to is given as path=..." if is_file else ""
        raise OptionError(f"to_onnx: the model does not take these arguments: {error}{hint}") from error
    kinds = {entry.name: entry.kind for entry in parameters_of(function)}
    given: dict[str, Any] = {}
    for name, value in bound.items():
        given |= value if kinds.get(name) is inspect.Parameter.VAR_KEYWORD else {name: value}
    for name, value in given.items():
        for leaf in pytree.tree_leaves(value):
            if type(leaf).__module__.partition(".")[0] == "numpy":
                raise OptionError(
                    f"to_onnx: {name} has {arguments.shown(leaf)}, which would be a constant; give a tensor"
                )
    return given


def _keywords_apart(model: Any, dynamic_shapes: object, given: Mapping[str, Any]) -> object:
    """{argument: spec} where torch.export's form has those of a `**keywords` together: {"keywords": {"x": spec}}."""
    named = {entry.name: entry.kind for entry in parameters_of(function_of(model))}
    keyword = next((name for name, kind in named.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
    own = [name for name in given if name in named]
    if keyword is None or keyword in given:
        return dynamic_shapes
    if isinstance(dynamic_shapes, list | tuple) and len(dynamic_shapes) == len(own) + 1:
        together = dynamic_shapes[-1]
        if isinstance(together, Mapping) and all(isinstance(name, str) for name in together):
            dynamic_shapes = dict(zip([*own, keyword], dynamic_shapes, strict=True))
    if isinstance(dynamic_shapes, Mapping) and isinstance(dynamic_shapes.get(keyword, 0), Mapping | None):
        rest = {name: spec for name, spec in dynamic_shapes.items() if name != keyword}
        return {**rest, **(dynamic_shapes[keyword] or {})}
    return dynamic_shapes


def _tensors(given: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """(path, tensor) of every tensor among the arguments."""
    named = [(name + step, leaf) for name, value in given.items() for step, leaf in named_values(value)]
    return [(path, leaf) for path, leaf in named if isinstance(leaf, Tensor)]


def function_of(model: Any) -> Any:
    return model.forward if isinstance(model, nn.Module) else model


def parameters_of(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []
