"""Writing to places that an index names, and adding to them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.indexing import NEGATIVE, in_range, line_of, long_indices, of_rank_1
from rust_ort.export.rules.nodes import argument, dtype, of_rank_0
from rust_ort.export.rules.promotion import is_half, widened
from rust_ort.export.rules.registry import decomposed, in_eager, ints, op, translated
from rust_ort.export.rules.sizes import steps
from rust_ort.export.shapes import expression, hint

aten = torch.ops.aten

in_eager(
    "aten.scatter",
    "aten.scatter_add",
    why="torchlib's ScatterElements takes no rank 0",
    silent=False,
    when=of_rank_0,
)


def _not_reduced(node: fx.Node) -> bool:
    return of_rank_0(node) or dtype(node) is torch.bool


in_eager(
    "aten.scatter_reduce",
    why="ONNX Runtime reduces nothing of rank 0, and no booleans",
    upstream="onnxruntime",
    silent=False,
    when=_not_reduced,
)

UPDATES = "ONNX's updates have the shape of the indices, torch's source may be larger; no kernel adds half precision"


@decomposed("aten.scatter.src", why=UPDATES)
def scatter(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """With as much of the source as there are indices."""
    return NotImplemented if _fits(src, index) else aten.scatter.src(self, dim, index, _cut(src, index))


@decomposed("aten.scatter_add.default", why=UPDATES, upstream="onnxruntime")
def scatter_add(self: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    """In float32, rounded once, with as much of the source as there are indices."""
    if not is_half(self) and _fits(src, index):
        return NotImplemented
    total, source = widened(self), widened(_cut(src, index))
    return aten.scatter_add.default(total, dim, index, source).to(self.dtype)


@decomposed("aten.scatter_reduce.two", why=UPDATES, upstream="onnxruntime")
def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """In float32, rounded once, with as much of the source as there are indices; a mean as its sum and its count."""
    source = _cut(src, index)
    if reduce == "sum" and include_self and self.dim():
        return aten.scatter_add.default(self, dim, index, source)
    if reduce == "mean" and self.dim():
        total = aten.scatter_reduce.two(self, dim, index, source, "sum", include_self=include_self)
        counted = widened(self) if self.is_floating_point() else self
        alone = torch.ones_like(counted) if include_self else torch.zeros_like(counted)
        ones = torch.ones(index.shape, dtype=counted.dtype, device=counted.device)
        count = aten.scatter_add.default(alone, dim, index, ones).clamp(min=1).to(self.dtype)
        return total / count if self.is_floating_point() else torch.div(total, count, rounding_mode="floor")
    if reduce == "mean" or (_fits(src, index) and not is_half(self)):
        return NotImplemented
    total = aten.scatter_reduce.two(widened(self), dim, index, widened(source), reduce, include_self=include_self)
    return total.to(self.dtype)


@decomposed("aten.index_reduce.default", why="torchlib has no form")
def index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    """scatter_reduce, with the index repeated for every element of a slice."""
    if not self.dim():
        return NotImplemented
    view = [1] * source.dim()
    view[dim] = -1
    places = index.to(torch.int64).reshape(view).expand(source.shape)
    return aten.scatter_reduce.two(self, dim, places, source, reduce, include_self=include_self)


@translated("aten.scatter.src", why=NEGATIVE, silent=True)
def onnx_scatter(self: Any, dim: int, index: Any, src: Any) -> Any:
    """ScatterElements."""
    return op.ScatterElements(self, in_range(of_rank_1(index)), of_rank_1(src), axis=dim)


@translated("aten.scatter.value", why=NEGATIVE, silent=True)
def onnx_scatter_value(self: Any, dim: int, index: Any, value: float) -> Any:
    """ScatterElements of the number as the tensor's dtype has it."""
    from onnxscript import ir

    index = of_rank_1(index)
    source = op.ConstantOfShape(op.Shape(index), value=ir.tensor([value], dtype=self.dtype))
    return op.ScatterElements(self, in_range(index), source, axis=dim)


@translated("aten.scatter_reduce.two", why=NEGATIVE, silent=True)
def onnx_scatter_reduce(self: Any, dim: int, index: Any, src: Any, reduce: str, include_self: bool = True) -> Any:
    """torchlib's but for extremes in floating point, which it has wrong for NaN and infinities."""
    from onnxscript.function_libs.torch_lib.ops import core

    is_extreme = reduce in EXTREMES and self.dtype.is_floating_point()
    line = line_of(index, self, dim) if is_extreme else None
    if line is not None:
        return _extreme_rows(_Rows(self, line, src), reduce, include_self)
    index, source = in_range(of_rank_1(index)), of_rank_1(src)
    if is_extreme:
        return _extreme(self, dim, index, source, reduce, include_self)
    return core.aten_scatter_reduce(self, dim, index, source, reduce, include_self)


EXTREMES = {"amax": ("max", -math.inf), "amin": ("min", math.inf)}
"""{torch's reduction: (ONNX's, what anything is more extreme than)}."""


def _extreme(self: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool) -> Any:
    """ScatterElements of what is a number; NaN where any of what comes to a place is NaN."""
    from onnxscript import ir

    reduction, least = EXTREMES[reduce]
    low, nan = (op.Constant(value=ir.tensor(value, dtype=self.dtype)) for value in (least, math.nan))
    if not include_self:
        everywhere = op.Expand(low, op.Shape(source))
        self = op.ScatterElements(self, index, everywhere, axis=dim)
    numbers = [op.Where(op.IsNaN(value), low, value) for value in (self, source)]
    most = op.ScatterElements(numbers[0], index, numbers[1], axis=dim, reduction=reduction)
    nans = [op.Cast(op.IsNaN(value), to=ir.DataType.INT32) for value in (self, source)]
    count = op.ScatterElements(nans[0], index, nans[1], axis=dim, reduction="max")
    return op.Where(op.Cast(count, to=ir.DataType.BOOL), nan, most)


class _Rows:
    """Slices of a tensor as rows of a matrix, for which there are kernels. line: the row of each slice of `src`."""

    def __init__(self, into: Any, line: Any, src: Any) -> None:
        self.into, self._line, self.src = into, line, src
        self.columns = math.prod(into.shape[1:])
        self.source = self.matrix(src)

    def matrix(self, value: Any) -> Any:
        return _known_to_be(op.Reshape(value, ints([-1, self.columns])), value.dtype, [value.shape[0], self.columns])

    def zeros(self, columns: int) -> Any:
        """As many rows as there are in the end, as what sums rows up wants to see them."""
        made = op.ConstantOfShape(_shape(self.into, columns))
        return _known_to_be(made, _float32(), [self.into.shape[0], columns])

    def places(self, columns: int) -> Any:
        """The row of each element of a source of as many columns."""
        sizes = [self.src.shape[0], columns]
        column = _known_to_be(op.Reshape(self._line, ints([-1, 1])), self._line.dtype, [sizes[0], 1])
        spread = op.Expand(column, _shape(column, columns))
        return in_range(_known_to_be(spread, self._line.dtype, sizes))

    def scattered(self, into: Any, source: Any, columns: int, reduction: str) -> Any:
        made = op.ScatterElements(into, self.places(columns), source, axis=0, reduction=reduction)
        return _known_to_be(made, source.dtype, [self.into.shape[0], columns])

    def back(self, matrix: Any) -> Any:
        """In the shape that it comes from."""
        return op.Reshape(matrix, op.Shape(self.into))


def _extreme_rows(rows: _Rows, reduce: str, include_self: bool) -> Any:
    """The same of whole rows. Places that something comes to, and those that NaN comes to, are counted by sums."""
    from onnxscript import ir

    reduction, least = EXTREMES[reduce]
    dtype, into = rows.into.dtype, rows.matrix(rows.into)
    low, nan = (op.Constant(value=ir.tensor(value, dtype=dtype)) for value in (least, math.nan))
    zero = op.Constant(value=ir.tensor(0.0, dtype=_float32()))
    shape, of_source = [rows.into.shape[0], rows.columns], [rows.src.shape[0], rows.columns]
    is_nan = op.IsNaN(rows.source)
    nans = _known_to_be(op.Cast(is_nan, to=_float32()), _float32(), of_source)
    brought = op.Greater(rows.scattered(rows.zeros(rows.columns), nans, rows.columns, "add"), zero)
    start = op.ConstantOfShape(_shape(rows.into, rows.columns), value=ir.tensor([least], dtype=dtype))
    source = _known_to_be(op.Where(is_nan, low, rows.source), dtype, of_source)
    most = rows.scattered(_known_to_be(start, dtype, shape), source, rows.columns, reduction)
    if include_self:
        more = op.Max if reduction == "max" else op.Min
        into_is_nan = op.IsNaN(into)
        most = more(op.Where(into_is_nan, low, into), most)
        brought = op.Or(into_is_nan, brought)
    else:
        one = op.Expand(op.Constant(value_float=1.0), _shape(rows.src, 1))
        ones = _known_to_be(one, _float32(), [rows.src.shape[0], 1])
        most = op.Where(op.Greater(rows.scattered(rows.zeros(1), ones, 1, "add"), zero), most, into)
    return rows.back(op.Where(brought, nan, most))


def _shape(value: Any, columns: int) -> Any:
    """Of a matrix of as many rows as `value` has."""
    rows = value.shape[0]
    if isinstance(rows, int):
        return ints([rows, columns])
    return op.Concat(op.Shape(value, start=0, end=1), ints([columns]), axis=0)


def _float32() -> Any:
    from onnxscript import ir

    return ir.DataType.FLOAT


def _known_to_be(value: Any, dtype: Any, sizes: Sequence[Any]) -> Any:
    """With dtype and shape, which what rewrites the model asks for."""
    from onnxscript import ir

    value.dtype, value.shape = dtype, ir.Shape(sizes)
    return value


@translated("aten.scatter_add.default", why=NEGATIVE, silent=True)
def onnx_scatter_add(self: Any, dim: int, index: Any, src: Any) -> Any:
    """ScatterElements that adds; whole slices as rows of a matrix."""
    line = line_of(index, self, dim) if len(self.shape) > 2 else None
    if line is None:
        axis = dim % max(len(self.shape), 1)
        return op.ScatterElements(self, in_range(of_rank_1(index)), of_rank_1(src), axis=axis, reduction="add")
    rows = _Rows(self, line, src)
    into = rows.zeros(rows.columns) if _is_zero(self) else rows.matrix(self)
    return rows.back(rows.scattered(into, rows.source, rows.columns, "add"))


def _is_zero(value: Any) -> bool:
    """Whether it is made of zeros of float32, cast or not."""
    from onnxscript import ir

    made = value.producer()
    if made is not None and made.op_type in ("Cast", "CastLike"):
        made = made.inputs[0].producer()
    if made is None or made.op_type != "ConstantOfShape" or value.dtype != ir.DataType.FLOAT:
        return False
    number = made.attributes.get("value")
    return number is None or not number.value.numpy().any()


REDUCTIONS = {"add": "sum", "multiply": "prod"}


@decomposed("aten.scatter.reduce", why="torchlib has no form")
def scatter_by(self: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Any:
    """Under its newer name."""
    return aten.scatter_reduce.two(self, dim, index, src, REDUCTIONS[reduce])


@decomposed("aten.scatter.value_reduce", why="torchlib has no form")
def scatter_value_by(self: Tensor, dim: int, index: Tensor, value: float, *, reduce: str) -> Any:
    """Of a tensor of the number."""
    source = aten.full(index.shape, value, dtype=self.dtype, device=self.device)
    return aten.scatter_reduce.two(self, dim, index, source, REDUCTIONS[reduce])


def _index_put(operator: Any, *, checked: bool) -> Callable[..., Any]:
    def function(
        self: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
    ) -> Any:
        if accumulate and self.dtype is not torch.bool and _may_repeat(indices):
            named = [(axis, index) for axis, index in enumerate(indices) if index is not None]
            if len(named) == 1:
                return _added_along(self, *named[0], values, checked=checked)
            places = _places(self.shape, indices, checked=checked)
            return _added(self, places, values) if _spreads(values.shape, places.shape) else NotImplemented
        long = long_indices(indices)
        adds_half = accumulate and is_half(self)
        if long is None and not adds_half:
            return NotImplemented
        total, source = (widened(self), widened(values)) if adds_half else (self, values)
        return operator(total, indices if long is None else long, source, accumulate).to(self.dtype)

    return function


def _may_repeat(indices: Sequence[Tensor | None]) -> bool:
    """Whether an element may be named twice: not by a mask, nor by no index at all."""
    named = [index for index in indices if index is not None]
    masks = any(index.dtype in (torch.bool, torch.uint8) for index in named)
    return bool(named) and not masks and not any(0 in index.shape for index in named)


def _adds_at_repeated_places(node: fx.Node) -> bool:
    indices = fx.map_arg(argument(node, "indices"), lambda index: index.meta["val"])
    return bool(argument(node, "accumulate")) and dtype(node) is not torch.bool and _may_repeat(indices)


in_eager(
    "aten.index_put",
    "aten._unsafe_index_put",
    why="whether a size of the values is that of the places is not known",
    when=_adds_at_repeated_places,
)


def _spreads(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Whether tensors of these sizes spread to the others without asking whether a symbol is a number."""
    pairs = zip(reversed(sizes), reversed(others), strict=False)
    return all(hint(size) == 1 or expression(size) == expression(other) for size, other in pairs)


def _added(self: Tensor, places: Tensor, values: Tensor) -> Any:
    """One element after the other, in float32 for half precision."""
    source = widened(values).expand(places.shape).reshape(-1)
    total = aten.scatter_add.default(widened(self).reshape(-1), 0, places.reshape(-1), source)
    return total.reshape(self.shape).to(self.dtype)


def _added_along(self: Tensor, axis: int, index: Tensor, values: Tensor, *, checked: bool) -> Any:
    """The same where one index names slices along one axis: nothing is laid flat, and the result is no reshaped one."""
    before, after = self.shape[:axis], self.shape[axis + 1 :]
    if not _spreads(values.shape, [*before, *index.shape, *after]):
        return NotImplemented
    line = _from_the_beginning(index, self.shape[axis], FAR if checked else None).reshape(-1)
    source = widened(values).expand([*before, *index.shape, *after]).reshape([*before, -1, *after])
    places = line.reshape([-1] + [1] * len(after)).expand(source.shape)
    return aten.scatter_add.default(widened(self), axis, places, source).to(self.dtype)


FAR = 2**58
"""Beyond every tensor: what refuses it cannot know which index it was."""


def _places(shape: Sequence[int], indices: Sequence[Tensor | None], *, checked: bool) -> Tensor:
    """Of the elements that indices name, in the flat tensor; checked: beyond it where an index is out of bounds."""
    every = [*indices, *[None] * (len(shape) - len(indices))]
    named = [axis for axis, index in enumerate(every) if index is not None]
    whole = [axis for axis, index in enumerate(every) if index is None]
    tensors = [index for index in every if index is not None]
    rank = max(index.dim() for index in tensors)
    adjacent = named[-1] - named[0] + 1 == len(named)
    n_before = sum(axis < named[0] for axis in whole) if adjacent else 0
    parts = []
    for axis, (size, step, index) in enumerate(zip(shape, steps(shape), every, strict=True)):
        if index is None:
            at = whole.index(axis)
            line, view = torch.arange(size, device=tensors[0].device), [1] * (rank + len(whole))
            view[at if at < n_before else at + rank] = size
        else:
            line = _from_the_beginning(index, size, FAR // step if checked else None)
            view = [1] * (n_before + rank - index.dim()) + list(index.shape) + [1] * (len(whole) - n_before)
        parts.append(line.reshape(view) * step)
    total: Tensor = functools.reduce(torch.add, parts)
    return total


def _from_the_beginning(index: Tensor, size: int, far: int | None) -> Tensor:
    """Places along an axis of `size`, none of them negative; `far` in the place of one out of bounds, unless None."""
    line = index.to(torch.int64)
    line = torch.where(line < 0, line + size, line)
    return line if far is None else torch.where((line < 0) | (line >= size), far, line)


RACE = "ScatterND adds in several threads: where an index comes twice, a summand is lost by chance"
for _name, _checked in (("index_put", True), ("_unsafe_index_put", False)):
    decomposed(f"aten.{_name}.default", why=RACE, upstream="onnxruntime", silent=True)(
        _index_put(getattr(aten, _name).default, checked=_checked)
    )


@decomposed("aten.put.default", why="torchlib has no form")
def put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """index_put of the flat tensor."""
    flat = aten.index_put.default(self.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)


def _fits(src: Tensor, index: Tensor) -> bool:
    return tuple(src.shape) == tuple(index.shape)


def _cut(src: Tensor, index: Tensor) -> Tensor:
    return src[tuple(slice(length) for length in index.shape)]
