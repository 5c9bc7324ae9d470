"""What an operator is given that makes eager the place for it: tensors without elements, and what torch refuses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export import kernels
from rust_ort.export.shapes import (
    SIZE_OPERATORS,
    Size,
    expression,
    has_no_elements,
    hint,
    is_symbolic,
    may_have_no_elements,
    seen,
)
from rust_ort.torch_private import OpOverload, keep_equal, keep_positive

aten = torch.ops.aten

NO_ELEMENTS = "it reads a tensor without elements"
MAYBE_NO_ELEMENTS = "it may read a tensor without elements"
OTHER_ARGUMENTS = "torch's kernel does not take these arguments as its fake tensors do"

MAY_NOT_HOLD = "torch refuses a value that overflows the dtype, and this one is known only at run time"

REASONS = kernels.REASONS | {NO_ELEMENTS, MAYBE_NO_ELEMENTS, OTHER_ARGUMENTS, MAY_NOT_HOLD}
"""All that `why_eager` says."""

RIGHT_WITHOUT_ELEMENTS = SIZE_OPERATORS | {aten.cat.default, aten.new_zeros.default, aten.new_ones.default}


HELD = frozenset({aten.index_fill.int_Tensor, aten.masked_fill.Tensor})
"""Whose last tensor, of one element, is converted to the dtype of the first, which refuses what overflows."""

DIVIDING = frozenset({aten.remainder, aten.fmod})
"""Pointwise, and refused where an integer divisor is zero, even if nothing is divided by it."""


def why_eager(
    operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, whole: bool = True, number: Any = None
) -> str | None:
    """None: nothing speaks against it. operator: an ATen overload. args, kwargs: values, tensors with their shapes.
    whole: as one node; else what it is made of may do without any tensor but the first. number: what the last tensor of
    an operator of HELD is, where the program has it."""
    given = dict(_named(operator, args, kwargs))
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    without = _without_elements(operator, tensors if whole else tensors[:1])
    if without is not None:
        return without
    if operator is aten.cat.default and all(map(has_no_elements, given["tensors"])):
        return NO_ELEMENTS  # torchlib takes empty ones for none
    if operator in TAKEN and not TAKEN[operator](**given):
        return OTHER_ARGUMENTS
    if operator in HELD and not _holds_all(given["self"].dtype, given["value"].dtype, number):
        return MAY_NOT_HOLD
    return kernels.why_refused(operator, given)


def is_of_numbers(operator: Any, given: Sequence[Any]) -> bool:
    """Whether numbers stand in the place of all its tensors, as in `torch.div(n, 2)`. Whole, torch knows the result,
    which the program may use as a size; of what it comes apart to torch does not. given: all that it is called with."""
    takes_tensors = any(isinstance(argument.type, torch.TensorType) for argument in operator._schema.arguments)
    return takes_tensors and not any(isinstance(value, Tensor) or is_symbolic(value) for value in given)


def _without_elements(operator: Any, tensors: Sequence[Tensor]) -> str | None:
    if _needs_elements(operator) or _divides_integers(operator, tensors):
        if any(map(has_no_elements, tensors)):
            return NO_ELEMENTS
        if any(map(may_have_no_elements, tensors)):
            return MAYBE_NO_ELEMENTS
    return None


def may_lack_elements(gm: fx.GraphModule) -> list[str]:
    """The nodes of a dynamic graph that read a tensor which may have no elements, and mind. What is not among them has
    some in every call of the graph: asking adds guards."""
    if not any(is_symbolic(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")):
        return []
    return [node.name for node in gm.graph.nodes if isinstance(node.target, OpOverload) and _may_lack(node)]


def _may_lack(node: fx.Node) -> bool:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: source.meta.get("val"))
    given = dict(_named(node.target, args, kwargs))
    return _without_elements(node.target, [value for value in given.values() if isinstance(value, Tensor)]) is not None


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


def _divides_integers(operator: Any, tensors: Sequence[Tensor]) -> bool:
    return operator.overloadpacket in DIVIDING and not any(tensor.dtype.is_floating_point for tensor in tensors)


def _meta(tensor: Tensor) -> Tensor:
    """Of the sizes seen while tracing, that asking for a view installs no guard."""
    return torch.empty([hint(size) for size in tensor.shape], device="meta")


def _fits_view(view: Any) -> Callable[..., bool]:
    """Whether `src` has the shape of a view of `self`."""

    def fits(self: Tensor, src: Tensor, **where: Any) -> bool:
        written = view(_meta(self), **{name: seen(number) for name, number in where.items()})
        return bool(written.shape == _meta(src).shape)

    return fits


def _same(size: Size, other: Size) -> bool:
    """Whether they are one in every call of the graph: if they are in the one that is traced, a guard says so."""
    if expression(size) == expression(other):
        return True
    return hint(size) == hint(other) and keep_equal(size, other)


def _rows_fit(self: Tensor, dim: int, index: Tensor, source: Tensor, **_: Any) -> bool:
    """Whether `source` has the shape of `self` but for the dimension."""
    if self.dim() == 0 or source.dim() == 0:
        return self.dim() == source.dim()
    if self.dim() != source.dim():
        return False
    pairs = list(zip(self.shape, source.shape, strict=True))
    del pairs[dim]
    return all(_same(*pair) for pair in pairs)


def _padding_fits(
    *, stride: Sequence[int], dilation: Sequence[int], output_padding: Sequence[int], transposed: bool, **_: Any
) -> bool:
    """Whether a transposed convolution pads its output by less than what lies between two places of its kernel."""
    return not transposed or all(
        padding < max(step, spread) for padding, step, spread in zip(output_padding, stride, dilation, strict=False)
    )


def _parameters_fit(input: Tensor, weight: Tensor | None, bias: Tensor | None, **_: Any) -> bool:
    """Whether they are all of one dtype, or float32 beside an input of half precision."""
    dtypes = {tensor.dtype for tensor in (weight, bias) if tensor is not None}
    return dtypes <= {input.dtype} or (input.dtype in (torch.float16, torch.bfloat16) and dtypes == {torch.float32})


def _masks_fit(self: Tensor, indices: Sequence[Tensor | None], **_: Any) -> bool:
    """Whether each mask has the sizes of the dimensions that it chooses from."""
    sizes, dim = self.shape, 0
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            dim += 1
            continue
        if len(sizes[dim:]) < index.dim() or not all(map(_same, sizes[dim:], index.shape)):
            return False
        dim += index.dim()
    return True


def _crops_fit(self: Tensor, pad: Sequence[int], **_: Any) -> bool:
    """Whether negative padding takes no more from a dimension than it has, before anything is added to it."""
    crops = [min(hint(size), 0) for size in pad]
    ends = zip(reversed(self.shape), crops[::2], crops[1::2], strict=False)
    left: list[Any] = [size + before + after + 1 for size, before, after in ends if before or after]
    return all(keep_positive(size) if is_symbolic(size) else hint(size) > 0 for size in left)


def _factor_fits(self: Any, other: Any, alpha: Any, **_: Any) -> bool:
    """Whether `alpha` is no float beside integers."""
    return not isinstance(alpha, (float, torch.SymFloat)) or torch.result_type(self, other).is_floating_point


def _holds_all(dtype: torch.dtype, given: torch.dtype, number: float | None) -> bool:
    """Whether `dtype` holds the number, or every one of the other dtype: else eager refuses it when it runs."""
    if dtype is torch.bool or dtype.is_complex or given is torch.bool:
        return True
    if given.is_floating_point and not dtype.is_floating_point:
        return False
    if number is not None:
        return not math.isfinite(number) or kernels.holds(dtype, number)
    info = torch.finfo(given) if given.is_floating_point else torch.iinfo(given)
    return kernels.holds(dtype, info.min) and kernels.holds(dtype, info.max)


TAKEN: dict[Any, Callable[..., bool]] = {
    aten.add.Tensor: _factor_fits,
    aten.sub.Tensor: _factor_fits,
    aten.constant_pad_nd.default: _crops_fit,
    aten.convolution.default: _padding_fits,
    aten.diagonal_scatter.default: _fits_view(aten.diagonal.default),
    aten.select_scatter.default: _fits_view(aten.select.int),
    aten.slice_scatter.default: _fits_view(aten.slice.Tensor),
    aten.huber_loss.default: lambda self, target, **_: self.dtype == target.dtype,  # of two, a kernel gives self's
    aten.index_add.default: _rows_fit,
    aten.index_put.default: _masks_fit,
    aten.index_select.default: lambda self, dim, index: index.dim() <= 1,
    aten.logsumexp.default: lambda self, dim, **_: bool(dim) or self.dim() == 0,
    aten.mvlgamma.default: lambda self, p: p > 0,
    aten.native_group_norm.default: _parameters_fit,
    **dict.fromkeys(
        (aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
        lambda grad_output, output, **_: _meta(grad_output).shape == _meta(output).shape,
    ),
    aten.put.default: lambda self, index, source, accumulate: _meta(index).numel() == _meta(source).numel(),
}
"""{operator: whether torch's kernel takes its arguments as fake tensors do}, where kernels are not asked: they tell
the sizes of the smaller tensors that they would be asked with, or take what is given and make another dtype of it."""
