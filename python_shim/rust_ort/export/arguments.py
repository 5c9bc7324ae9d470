"""What an operator is given that makes eager the place for it: tensors without elements, and what torch refuses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.shapes import SIZE_OPERATORS, has_no_elements, hint, may_have_no_elements
from rust_ort.torch_private import no_modes, pytree

aten = torch.ops.aten

NO_ELEMENTS = "it reads a tensor without elements"
FEW_ELEMENTS = "it may read a tensor without elements"
NO_KERNEL = "torch has no kernel for these dtypes"
OVERFLOW = "torch refuses a number that overflows the dtype"
MAY_OVERFLOW = "torch refuses a number that overflows the dtype, and this one is known only at run time"
OTHER_SHAPE = "torch refuses a tensor of this shape"

KERNELS_REFUSE = frozenset({NO_KERNEL, OVERFLOW, MAY_OVERFLOW})
"""What the kernel of the operator itself finds: another one, that it is decomposed to, may be used otherwise."""

REASONS = KERNELS_REFUSE | {NO_ELEMENTS, FEW_ELEMENTS, OTHER_SHAPE}
"""All that `why_eager` says."""

RIGHT_WITHOUT_ELEMENTS = SIZE_OPERATORS | {aten.cat.default, aten.new_zeros.default, aten.new_ones.default}

UNASKED = (aten.arange, aten.range)
"""Whose numbers are sizes: asking makes what they say."""

SIZES = frozenset({"size", "repeats", "pad", "output_size", "steps"})
"""Arguments that say how large a result is."""

OTHER_DTYPES = ("not implemented for", "with a bool tensor is not supported", "oolean", "can't be cast to")
"""What errors about dtypes say."""

SYMBOLIC = (torch.SymInt, torch.SymFloat)

SIZE_LIMITS = (-(2**63), 2**63 - 1)
"""Between which a size is, and what is computed of sizes."""


def why_eager(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool = True) -> str | None:
    """None: nothing speaks against it. operator: an ATen overload. args, kwargs: values, tensors with their shapes.
    whole: as one node; else what it is made of may do without any tensor but the first."""
    given = dict(_named(operator, args, kwargs))
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    if _needs_elements(operator):
        read = tensors if whole else tensors[:1]
        if any(map(has_no_elements, read)):
            return NO_ELEMENTS
        if any(map(may_have_no_elements, read)):
            return FEW_ELEMENTS
    if operator in SHAPES and not SHAPES[operator](**given):
        return OTHER_SHAPE
    return _refused(operator, given) if _may_be_asked(operator) else None


def _named(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for position, declared in enumerate(operator._schema.arguments):
        if position < len(args):
            yield declared.name, args[position]
        else:
            yield declared.name, kwargs.get(declared.name, declared.default_value)


def _needs_elements(operator: Any) -> bool:
    """ONNX Runtime's kernels are at their worst without elements: reductions, products, pools and scatters are wrong
    or fail when they run. Nothing is lost in eager."""
    return torch.Tag.pointwise not in operator.tags and operator not in RIGHT_WITHOUT_ELEMENTS


@functools.cache
def _may_be_asked(operator: Any) -> bool:
    """Whether to run it once more does nothing but take time."""
    schema = operator._schema
    if operator.namespace != "aten" or schema.is_mutable or not schema.returns or operator.overloadpacket in UNASKED:
        return False
    return torch.Tag.nondeterministic_seeded not in operator.tags


@functools.cache
def _numbers(operator: Any) -> list[str]:
    """Its arguments that a kernel converts to the dtype that it computes in."""
    types = {declared.name: str(declared.real_type) for declared in operator._schema.arguments}
    return [name for name, kind in types.items() if kind.removeprefix("Optional[").rstrip("]") in ("number", "float")]


def _refused(operator: Any, given: Mapping[str, Any]) -> str | None:
    tensors = [value for value in pytree.tree_leaves(list(given.values())) if isinstance(value, Tensor)]
    dtypes = {*(tensor.dtype for tensor in tensors), given.get("dtype") or torch.get_default_dtype()}
    signature = (operator, given.get("dtype"), *((tensor.dtype, _shape(tensor), tensor.device) for tensor in tensors))
    if signature not in _KERNELS:
        answer = _answer(operator, given) if tensors else ""
        _KERNELS[signature] = not any(saying in answer for saying in OTHER_DTYPES)
    if not _KERNELS[signature]:
        return NO_KERNEL
    for name in _numbers(operator):
        for number in _bounds(given[name]):
            if all(holds(dtype, number) for dtype in dtypes):
                continue
            if "without overflow" in _answer(operator, {**given, name: number}):
                return MAY_OVERFLOW if isinstance(given[name], SYMBOLIC) else OVERFLOW
    return None


_KERNELS: dict[tuple[Any, ...], bool] = {}
"""{operator, dtypes, small shapes and devices: whether torch has a kernel}."""


def _bounds(number: Any) -> Sequence[float]:
    """The least and the largest that it may be, as far as it can be refused."""
    if isinstance(number, SYMBOLIC):
        return SIZE_LIMITS
    return [number] if isinstance(number, (int, float)) and math.isfinite(number) else []


def _answer(operator: Any, given: Mapping[str, Any]) -> str:
    """What torch says to the arguments with smaller tensors: "" or an error."""
    with no_modes():
        small = pytree.tree_map(_small, dict(given))
        try:
            operator(**{name: _small_sizes(value) if name in SIZES else value for name, value in small.items()})
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            return str(error)
    return ""


def _small(value: Any) -> Any:
    """A tensor with smaller sizes, and sizes as they are seen when tracing."""
    if not isinstance(value, Tensor):
        return _seen(value)
    fill = torch.ones if value.dtype.is_floating_point or value.dtype is torch.bool else torch.zeros
    return fill(_shape(value), dtype=value.dtype, device=value.device)


def _small_sizes(sizes: Any) -> Any:
    return pytree.tree_map_only(int, lambda size: min(size, 4), sizes)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """With every size of more than four as four: kernels do not look at one element, or at none."""
    return tuple(min(_seen(size), 4) for size in tensor.shape)


def holds(dtype: torch.dtype, number: float) -> bool:
    """Whether a finite number lies between the least and the largest of the dtype."""
    if dtype is torch.bool or dtype.is_complex:
        return True
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(info.min <= number <= info.max)


def _meta(tensor: Tensor) -> Tensor:
    """Of the sizes seen while tracing, that asking for a view installs no guard."""
    return torch.empty([hint(size) for size in tensor.shape], device="meta")


def _seen(number: Any) -> Any:
    """What it is in the call that is traced: torch would guard on it."""
    return float(number.node.hint or 0) if isinstance(number, torch.SymFloat) else hint(number)


def _fits_view(view: Any) -> Callable[..., bool]:
    """Whether `src` has the shape of a view of `self`."""

    def fits(self: Tensor, src: Tensor, **where: Any) -> bool:
        written = view(_meta(self), **{name: _seen(number) for name, number in where.items()})
        return bool(written.shape == _meta(src).shape)

    return fits


def _rows_fit(self: Tensor, dim: int, index: Tensor, source: Tensor, **_: Any) -> bool:
    """Whether `source` has the shape of `self` but for the dimension."""
    if self.dim() == 0 or source.dim() == 0:
        return self.dim() == source.dim()
    shapes = [[hint(size) for size in tensor.shape] for tensor in (self, source)]
    for shape in shapes:
        shape[dim] = 0
    return shapes[0] == shapes[1]


SHAPES: dict[Any, Callable[..., bool]] = {
    aten.diagonal_scatter.default: _fits_view(aten.diagonal.default),
    aten.select_scatter.default: _fits_view(aten.select.int),
    aten.slice_scatter.default: _fits_view(aten.slice.Tensor),
    aten.index_add.default: _rows_fit,
    aten.index_select.default: lambda self, dim, index: index.dim() <= 1,
    aten.put.default: lambda self, index, source, accumulate: _meta(index).numel() == _meta(source).numel(),
}
"""{operator: whether torch takes its tensors}, where fake tensors do not ask."""
