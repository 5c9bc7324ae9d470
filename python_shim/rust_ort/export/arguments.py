"""What an operator is given that makes eager the place for it: tensors without elements, and what torch refuses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.shapes import SIZE_OPERATORS, has_no_elements, hint

aten = torch.ops.aten

NO_ELEMENTS = "it reads a tensor without elements"
OVERFLOW = "torch refuses a number that overflows the dtype"
OTHER_SHAPE = "torch refuses a tensor of this shape"

RIGHT_WITHOUT_ELEMENTS = SIZE_OPERATORS | {aten.cat.default, aten.new_zeros.default, aten.new_ones.default}

NUMBERS = {
    "alpha": (
        aten.add.Tensor,
        aten.add.Scalar,
        aten.sub.Tensor,
        aten.sub.Scalar,
        aten.rsub.Tensor,
        aten.rsub.Scalar,
        aten.addbmm.default,
        aten.addmm.default,
        aten.addmv.default,
        aten.addr.default,
        aten.baddbmm.default,
        aten.celu.default,
        aten.elu.default,
        aten.elu_backward.default,
        aten.index_add.default,
    ),
    "beta": (
        aten.addbmm.default,
        aten.addmm.default,
        aten.addmv.default,
        aten.addr.default,
        aten.baddbmm.default,
        aten.softplus.default,
        aten.softplus_backward.default,
    ),
    "end": (aten.linspace.default, aten.logspace.default),
    "eps": (aten.logit.default, aten.logit_backward.default),
    "exponent": (aten.pow.Tensor_Scalar,),
    "fill_value": (aten.full.default, aten.full_like.default, aten.new_full.default),
    "input_scale": (aten.elu.default, aten.elu_backward.default),
    "lambd": (aten.hardshrink.default,),
    "max": (aten.clamp.default, aten.clamp_max.default),
    "max_val": (aten.hardtanh.default, aten.hardtanh_backward.default),
    "min": (aten.clamp.default, aten.clamp_min.default),
    "min_val": (aten.hardtanh.default, aten.hardtanh_backward.default),
    "negative_slope": (aten.leaky_relu.default, aten.leaky_relu_backward.default),
    "s": (aten.scalar_tensor.default,),
    "scale": (aten.elu.default, aten.elu_backward.default),
    "start": (aten.linspace.default, aten.logspace.default),
    "threshold": (
        aten.softplus.default,
        aten.softplus_backward.default,
        aten.threshold.default,
        aten.threshold_backward.default,
    ),
    "value": (
        aten.addcdiv.default,
        aten.addcmul.default,
        aten.constant_pad_nd.default,
        aten.fill.Scalar,
        aten.index_fill.int_Scalar,
        aten.masked_fill.Scalar,
        aten.scatter.value,
        aten.threshold.default,
    ),
    "weight": (aten.lerp.Scalar,),
}
"""{argument: operators that refuse a finite number there, of which their dtype makes infinity or another number}."""

NUMBERS_OF = {
    operator: [name for name, refusing in NUMBERS.items() if operator in refusing]
    for operator in itertools.chain.from_iterable(NUMBERS.values())
}
"""The same by operator: it is asked of every node."""


def why_eager(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool = True) -> str | None:
    """None: nothing speaks against it. operator: an ATen overload. args, kwargs: values, tensors with their shapes.
    whole: as one node; else what it is made of may do without any tensor but the first."""
    given = dict(_named(operator, args, kwargs))
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    if _reads_nothing(operator, tensors if whole else tensors[:1]):
        return NO_ELEMENTS
    if any(_overflows(given, name) for name in NUMBERS_OF.get(operator, ())):
        return OVERFLOW
    if operator in SHAPES and not SHAPES[operator](**given):
        return OTHER_SHAPE
    return None


def _named(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for position, declared in enumerate(operator._schema.arguments):
        if position < len(args):
            yield declared.name, args[position]
        else:
            yield declared.name, kwargs.get(declared.name, declared.default_value)


def _reads_nothing(operator: Any, tensors: Sequence[Tensor]) -> bool:
    """ONNX Runtime's kernels are at their worst without elements: reductions, products, pools and scatters are wrong
    or fail when they run. Nothing is lost in eager."""
    if torch.Tag.pointwise in operator.tags or operator in RIGHT_WITHOUT_ELEMENTS:
        return False
    return any(map(has_no_elements, tensors))


def _overflows(given: Mapping[str, Any], name: str) -> bool:
    number = given.get(name)
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        return False
    dtypes = [value.dtype for value in given.values() if isinstance(value, Tensor)]
    if isinstance(given.get("dtype"), torch.dtype):
        dtypes = [given["dtype"]]
    return not all(holds(dtype, number) for dtype in dtypes or [torch.get_default_dtype()])


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
    return hint(number) if isinstance(number, torch.SymInt) else number


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
