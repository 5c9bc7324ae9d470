"""One call of a function, and all that can be seen of it: values, strides, who shares memory, gradients, errors."""

from __future__ import annotations

import contextlib
import itertools
import linecache
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from measure.random_graphs.conditioning import wide_default
from measure.random_graphs.program import NAMESPACE, Text, Values, execute, widened

_NUMBER = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Layout:
    """strides: of the dimensions of more than one element. offset: in its storage. Both nothing of an empty tensor."""

    strides: tuple[int, ...]
    offset: int
    requires_grad: bool


@dataclass(kw_only=True)
class Seen:
    """What one call did. values: outputs `o0…`, memories and arguments after it, gradients, and the outputs after they
    were written to. groups: names of tensors with one storage. error: (where, what) of an exception. unsure: elements
    of values that may be either zero."""

    values: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    groups: list[list[str]] = field(default_factory=list)
    error: tuple[str, str] | None = None
    unsure: dict[str, torch.Tensor] = field(default_factory=dict)


def function_of(text: Text, *, wide: bool = False) -> Callable[..., tuple[Any, ...]]:
    """The function, made from its source anew: no code object and no name of a file is shared with an earlier one."""
    source = widened(text.graph) if wide else text.graph
    filename = f"<random {next(_NUMBER)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = dict(NAMESPACE)
    exec(compile(source, filename, "exec"), namespace)
    made: Callable[..., tuple[Any, ...]] = namespace["graph"]
    return made


def observe(text: Text, function: Callable[..., tuple[Any, ...]], call: int, *, wide: bool = False) -> Seen:
    """Calls `function` with the fresh arguments of a call. An exception is what was seen, too."""
    with wide_default() if wide else contextlib.nullcontext():
        return _observe(text, function, call, wide=wide)


def _observe(text: Text, function: Callable[..., tuple[Any, ...]], call: int, *, wide: bool) -> Seen:
    seen = Seen()
    made: Values = {}
    execute(text.calls[call], made, wide=wide)
    given = [made[name] for name in text.arguments]
    try:
        with grad_mode(text.mode):
            outputs = function(*given)
    except Exception as error:
        seen.error = ("forward", told(error))
        return seen
    named = {f"o{k}": value for k, value in enumerate(outputs)}
    tensors = {name: value for name, value in {**made, **named}.items() if isinstance(value, torch.Tensor)}
    seen.layouts = {name: _layout(value) for name, value in tensors.items()}
    seen.groups = _groups(tensors)
    seen.values = {name: _kept(value) for name, value in {**named, **made}.items()}
    if text.backward:
        try:
            seen.values.update(_gradients(made, named))
        except Exception as error:
            seen.error = ("backward", told(error))
            return seen
    for line in text.after:
        try:
            with grad_mode(text.mode):
                execute(line, named)
        except Exception as error:
            seen.error = (line, told(error))
            return seen
    if text.after:
        seen.values.update({f"{name} afterwards": _kept(value) for name, value in {**named, **made}.items()})
    return seen


@contextlib.contextmanager
def grad_mode(mode: str) -> Iterator[None]:
    with torch.inference_mode() if mode == "inference_mode" else torch.set_grad_enabled(mode == "grad"):
        yield


def told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:1500]


def _kept(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _layout(tensor: torch.Tensor) -> Layout:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    strides = tuple(stride for size, stride in pairs if size > 1) if tensor.numel() else ()
    offset = int(tensor.storage_offset()) if tensor.numel() else 0
    return Layout(strides=strides, offset=offset, requires_grad=tensor.requires_grad)


def _groups(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    return sorted(sorted(group) for group in groups.values() if len(group) > 1)


def _gradients(made: Values, outputs: Values) -> Values:
    leaves = {
        name: value for name, value in made.items()
        if isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf
    }  # fmt: skip
    ends = [value for value in outputs.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    if not leaves or not ends:
        return {}
    unique = {id(leaf): (name, leaf) for name, leaf in leaves.items()}.values()
    wanted = [leaf for _, leaf in unique]
    gradients = torch.autograd.grad(ends, wanted, [cotangent(end) for end in ends], allow_unused=True)
    pairs = zip(unique, gradients, strict=True)
    return {f"gradient of {name}": _kept(gradient) for (name, _), gradient in pairs if gradient is not None}


def cotangent(output: torch.Tensor) -> torch.Tensor:
    """Small multiples of 1/8, the same for every tensor of a shape."""
    count = math.prod(output.shape)
    return (((torch.arange(count) * 7 + 3) % 17 - 8) / 8).to(output.dtype).reshape(output.shape)
