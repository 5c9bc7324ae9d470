"""What torch's own kernels refuse: they are asked, which is to say run, with smaller tensors.

Asked are those of the CPU, whatever the graph's device: one of CUDA that fails may take the process's context with it.
What the CPU alone has no kernel for runs in eager, as what it refuses does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.shapes import seen
from rust_ort.torch_private import bounds, no_modes, pytree

aten = torch.ops.aten

NO_KERNEL = "torch has no kernel for these dtypes"
OTHER_NUMBER = "torch refuses a number that is not positive"
OVERFLOW = "torch refuses a number that overflows the dtype"
MAY_OVERFLOW = "torch refuses a number that overflows the dtype, and this one is known only at run time"

REASONS = frozenset({NO_KERNEL, OTHER_NUMBER, OVERFLOW, MAY_OVERFLOW})
"""All that `why_refused` says."""

UNASKED = (aten.arange, aten.range, aten.var, aten.std, aten.var_mean, aten.std_mean)
"""Whose numbers are sizes, which asking makes; and what warns of few elements, where no filter of Python's is asked."""

OF_ONE_LIBRARY = ("mkldnn_", "mkl_", "cudnn_", "miopen_", "fbgemm_", "quantized_", "mps_", "xnnpack_")
"""Beginnings of operators that trust the sizes they are told: `mkldnn_rnn_layer` writes beyond its memory."""

SIZES = frozenset({"size", "repeats", "pad", "output_size", "steps"})
"""Arguments that say how large a result is."""

OTHER_DTYPES = (
    "implemented for", "with a bool tensor is not supported", "oolean", "can't be cast", "dtype", "scalar type",
)  # fmt: skip
"""What errors about dtypes say. (They speak of booleans and of Booleans.)"""

SYMBOLIC = (torch.SymInt, torch.SymFloat)

CPU = torch.device("cpu")

MANY = 4
"""More elements than these are as many to a kernel that is asked: it does not look at one element, or at none."""


def why_refused(operator: Any, given: Mapping[str, Any]) -> str | None:
    """None: it is not. operator: an ATen overload. given: its arguments by name, tensors with their shapes."""
    return _refused(operator, given) if _may_be_asked(operator) else None


def holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a finite number lies between the least and the largest of the dtype."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(info.min <= number <= info.max)


@functools.cache
def _may_be_asked(operator: Any) -> bool:
    """Whether to run it once more does nothing but take a little time. Internal operators trust lists of sizes; what is
    a gradient was asked for what it is the gradient of."""
    schema, name = operator._schema, operator.overloadpacket.__name__
    if operator.namespace != "aten" or schema.is_mutable or not schema.returns or operator.overloadpacket in UNASKED:
        return False
    if "_backward" in name or name.startswith(OF_ONE_LIBRARY):
        return False
    if name.startswith("_") and any("[]" in str(given.type) for given in schema.arguments):
        return False
    return torch.Tag.nondeterministic_seeded not in operator.tags


@functools.cache
def _numbers(operator: Any) -> list[str]:
    """Its arguments that a kernel converts to the dtype that it computes in."""
    types = {declared.name: str(declared.real_type) for declared in operator._schema.arguments}
    return [name for name, kind in types.items() if kind.removeprefix("Optional[").rstrip("]") in ("number", "float")]


def _refused(operator: Any, given: Mapping[str, Any]) -> str | None:
    leaves = pytree.tree_leaves(list(given.values()))
    tensors = [value for value in leaves if isinstance(value, Tensor)]
    dtypes = {*(tensor.dtype for tensor in tensors), given.get("dtype") or torch.get_default_dtype()}
    signs = tuple(_sign(given[name]) for name in _numbers(operator))
    signature = (operator, signs, *map(_kind, leaves))
    if signature not in _KERNELS:
        _KERNELS[signature] = _why_no_kernel(operator, given) if tensors else None
    if (reason := _KERNELS[signature]) is not None:
        return reason
    for name in _numbers(operator):
        for number in _limits(given[name]):
            if all(holds(dtype, number) for dtype in dtypes):
                continue
            if "without overflow" in _answer(operator, {**given, name: number}):
                return MAY_OVERFLOW if isinstance(given[name], SYMBOLIC) else OVERFLOW
    return None


_KERNELS: dict[tuple[Any, ...], str | None] = {}
"""{operator, and of which kind each argument is: why no kernel of torch takes them}."""


def _kind(value: Any) -> Any:
    """What of an argument decides on the kernel: of numbers, the type."""
    if isinstance(value, Tensor):
        return value.dtype, _shape(value)
    return type(value) if isinstance(value, (int, float, complex, *SYMBOLIC)) else value


def _sign(value: Any) -> int | None:
    return (value > 0) - (value < 0) if isinstance(value, (int, float)) else None


def _why_no_kernel(operator: Any, given: Mapping[str, Any]) -> str | None:
    """Of errors only what they say of dtypes is believed, and of numbers what goes away with 1 in their place: sizes of
    the smaller tensors are others."""
    answer = _answer(operator, given)
    if any(saying in answer for saying in OTHER_DTYPES):
        return NO_KERNEL
    if answer:
        not_positive = [name for name in _numbers(operator) if _sign(given[name]) in (-1, 0)]
        if any(not _answer(operator, {**given, name: 1}) for name in not_positive):
            return OTHER_NUMBER
    return None


def _limits(number: Any) -> Sequence[float]:
    """The least and the largest finite number that it may be."""
    if isinstance(number, SYMBOLIC):
        return bounds(number)
    return [number] if isinstance(number, (int, float)) and math.isfinite(number) else []


def _answer(operator: Any, given: Mapping[str, Any]) -> str:
    """What torch says to the arguments with smaller tensors: "" or an error."""
    with no_modes():
        try:
            small = pytree.tree_map(_small, dict(given))
            operator(**{name: _small_sizes(value) if name in SIZES else value for name, value in small.items()})
        except Exception as error:  # whatever the kernel raises: it is eager's to raise
            return str(error)
    return ""


def _small(value: Any) -> Any:
    """On the CPU: a tensor with smaller sizes, and sizes as they are seen when tracing."""
    if isinstance(value, torch.device):
        return CPU
    if not isinstance(value, Tensor):
        return seen(value)
    fill = torch.ones if value.dtype.is_floating_point or value.dtype is torch.bool else torch.zeros
    return fill(_shape(value), dtype=value.dtype, device=CPU)


def _small_sizes(sizes: Any) -> Any:
    return pytree.tree_map_only(int, lambda size: min(size, MANY), sizes)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """With every size of more than four as four."""
    return tuple(min(seen(size), MANY) for size in tensor.shape)
