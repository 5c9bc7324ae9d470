"""Reductions of segments that follow one another along an axis, and the rows of compressed sparse tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number, kernel_dtype, rounded, widened
from rust_ort.export.rules.registry import decomposed
from rust_ort.export.shapes import expression

aten = torch.ops.aten

NO_FORM = "torchlib has no form"
REFUSED = -1
"""An end that no scatter takes: ONNX Runtime refuses it in the call, as torch does."""
COUNTED_IN_FLOAT32 = 2**24
"""As many elements float32 counts exactly; there are kernels that add rows of it."""


def _ends_passed(ends: Tensor, length: int) -> Tensor:
    """[..., length] of [..., n] places from 0 to `length`: how many of them are at or before each place. Linear, not a
    search for each place."""
    counts = torch.zeros([*ends.shape[:-1], length + 1], dtype=torch.int64, device=ends.device)
    ones = torch.ones(ends.shape, dtype=torch.int64, device=ends.device)
    return counts.scatter_add(-1, ends, ones).cumsum(-1)[..., :length]


@dataclass(frozen=True, kw_only=True)
class _Segments:
    """Segments along `axis` of a tensor of shape `sizes`. lengths: [..., n], int64. rows: which of a matrix' rows each
    place along the axis belongs to, flat. The matrix has `before` + n + `after` rows for each index of the dimensions
    before the axis: those at the margins are of places outside every segment."""

    sizes: tuple[int, ...]
    axis: int
    lengths: Tensor
    rows: Tensor
    before: int
    after: int

    @property
    def _outer(self) -> list[int]:
        return list(self.sizes[: self.axis])

    @property
    def _inner(self) -> list[int]:
        return list(self.sizes[self.axis + 1 :])

    @property
    def _n_rows(self) -> int:
        return self.before + self.lengths.shape[-1] + self.after

    def start(self, value: Number, like: Tensor) -> Any:
        """A matrix of rows that hold a number as the dtype of `like` has it."""
        sizes, dtype = [math.prod(self._outer) * self._n_rows, *self._inner], kernel_dtype(like.dtype)
        held = rounded(value, like.dtype) if isinstance(value, int | float) else value
        if isinstance(held, int | float) and held == 0 and math.copysign(1, held) > 0:
            return aten.new_zeros.default(like, sizes, dtype=dtype)  # of which there is a kernel that adds rows
        return aten.full(sizes, held, dtype=dtype, device=like.device)

    def reduced(self, start: Tensor, data: Tensor, reduce: str) -> Any:
        """What `data` makes of `start`, [*outer, n, *inner]. reduce: as scatter_reduce has it."""
        source = data.reshape([-1, *self._inner]) if self.axis else data
        places = self.rows.reshape([-1, *[1] * len(self._inner)]).expand(source.shape)
        made = aten.scatter_reduce.two(start, 0, places, source, reduce, include_self=True)
        made = made.reshape([*self._outer, self._n_rows, *self._inner])
        return made.narrow(self.axis, self.before, self.lengths.shape[-1])

    def spread(self, values: Tensor) -> Tensor:
        """[*outer, n, *inner] as each place along the axis has it; 0 outside every segment."""
        margins = [0, 0] * len(self._inner) + [self.before, self.after]
        rows = aten.constant_pad_nd.default(values, margins, 0) if any(margins) else values
        rows = rows.reshape([-1, *self._inner]) if self.axis else rows
        return rows.index_select(0, self.rows).reshape(self.sizes)

    def each(self, values: Tensor) -> Tensor:
        """[*outer, n] to stand beside [*outer, n, *inner]."""
        return values.reshape([*values.shape, *[1] * len(self._inner)])


def _segments(
    data: Tensor, lengths: Tensor | None, offsets: Tensor | None, axis: int, *, checked: bool = False
) -> _Segments | None:
    """Segments as torch takes them; None where it reads beyond what there is. checked: lengths must fill the axis."""
    given = lengths if offsets is None else offsets
    axis = axis % data.dim()
    if given is None or given.dim() != axis + 1 or not _is_same(given.shape[:-1], data.shape[:axis]):
        return None
    length, number = data.shape[axis], given.shape[-1]
    ends = given.to(torch.int64)
    if offsets is None:
        wanted, before, after = ends, 0, 0 if checked else 1
        ends = wanted.cumsum(-1)
        marked = torch.where(wanted < 0, REFUSED, ends)
    else:
        if isinstance(number, int) and number < 2:
            return None
        wanted, before, after = ends[..., 1:] - ends[..., :-1], 1, 1
        marked = torch.cat([ends[..., :1], torch.where(wanted < 0, REFUSED, ends[..., 1:])], -1)
    rows = _ends_passed(marked, length)
    if axis:
        n_rows = before + wanted.shape[-1] + after
        outer = math.prod(data.shape[:axis])
        first = (torch.arange(outer, device=data.device) * n_rows).reshape([*data.shape[:axis], 1])
        # One row too far is another's first.
        rows = torch.where(rows < n_rows, rows + first, REFUSED)
    return _Segments(
        sizes=tuple(data.shape), axis=axis, lengths=wanted, rows=rows.reshape(-1), before=before, after=after
    )


def _is_same(sizes: torch.Size, others: torch.Size) -> bool:
    return [*map(expression, sizes)] == [*map(expression, others)]


START: dict[str, tuple[str, float]] = {
    "sum": ("sum", 0.0),
    "mean": ("sum", 0.0),
    "max": ("amax", -math.inf),
    "min": ("amin", math.inf),
    "prod": ("prod", 1.0),
}
"""{torch's reduction of segments: (that of scatter_reduce, what it begins with)}."""


@decomposed("aten.segment_reduce.default", why=NO_FORM)
def segment_reduce(
    data: Tensor, reduce: str, *, lengths: Tensor | None = None, indices: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, unsafe: bool = False, initial: Number | None = None,
) -> Any:  # fmt: skip
    """scatter_reduce of rows, in their order; half precision in float32, rounded once."""
    segments = _segments(data, lengths, offsets, axis, checked=not unsafe)
    if segments is None or indices is not None:
        return NotImplemented
    reduction, first = START[reduce]
    start = segments.start(first if initial is None else initial, data)
    made = segments.reduced(start, widened(data), reduction)
    if reduce == "mean":
        number = segments.each(segments.lengths)
        made = made / number.clamp(min=1).to(made.dtype)
        made = torch.where(number == 0, math.nan, made) if initial is None else made
    return made.to(data.dtype)


@decomposed("aten._segment_reduce_backward.default", why=NO_FORM)
def segment_reduce_backward(
    grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Tensor | None = None,
    offsets: Tensor | None = None, axis: int = 0, initial: Number | None = None,
) -> Any:  # fmt: skip
    """Rows of what each segment gives to its elements."""
    segments = _segments(data, lengths, offsets, axis)
    if segments is None:
        return NotImplemented
    each, source = widened(grad), widened(data)
    if reduce in ("max", "min"):
        made = _of_extremes(segments, each, widened(output), source)
    elif reduce == "prod":
        product = widened((each * widened(output)).to(data.dtype))
        start = segments.start(1 if initial is None else initial, data)
        made = _of_products(segments, each, product, source, start)
    else:
        made = segments.spread(each / segments.each(segments.lengths).to(each.dtype) if reduce == "mean" else each)
    return made.to(data.dtype)


def _counted(segments: _Segments, chosen: Tensor) -> Any:
    """How many elements of each segment are chosen, as floats."""
    number = math.prod(segments.sizes)
    is_exact = isinstance(number, int) and number <= COUNTED_IN_FLOAT32
    ones = chosen.to(torch.float32 if is_exact else torch.float64)
    return segments.reduced(segments.start(0, ones), ones, "sum")


def _of_extremes(segments: _Segments, grad: Tensor, output: Tensor, data: Tensor) -> Any:
    """NaN and what is equal to the extreme have a gradient: equal shares of it where it is positive, as torch's kernel
    has it, the whole of it where it is not."""
    chosen = (data != data) | (data == segments.spread(output))
    share = torch.where(grad > 0, grad / _counted(segments, chosen).to(grad.dtype), grad)
    return torch.where(chosen, segments.spread(share), 0)


def _of_products(segments: _Segments, grad: Tensor, product: Tensor, data: Tensor, start: Tensor) -> Any:
    """The product, times its gradient, over the element; where that is 0 or NaN, the product of the others, of which
    there may be such, too."""
    is_nan, is_zero = data != data, data == 0
    is_plain = ~(is_nan | is_zero)
    n_nan, n_zero = (segments.spread(_counted(segments, each)) for each in (is_nan, is_zero))
    others = segments.spread(segments.reduced(start, torch.where(is_plain, data, 1), "prod"))
    others = torch.where(n_zero > is_zero.to(n_zero.dtype), others * 0, others)
    others = torch.where(n_nan > is_nan.to(n_nan.dtype), math.nan, others)
    return torch.where(is_plain, segments.spread(product) / data, segments.spread(grad) * others)


@decomposed("aten._convert_indices_from_coo_to_csr.default", why=NO_FORM)
def coo_to_csr(self: Tensor, size: int, *, out_int32: bool = False) -> Any:
    """Where each row begins: how many elements are of rows before it."""
    counts = torch.zeros([size + 1], dtype=torch.int64, device=self.device)
    ones = torch.ones(self.shape, dtype=torch.int64, device=self.device)
    return counts.scatter_add(0, self.to(torch.int64) + 1, ones).cumsum(0).to(_index_dtype(out_int32))


@decomposed("aten._convert_indices_from_csr_to_coo.default", why=NO_FORM)
def csr_to_coo(crow_indices: Tensor, col_indices: Tensor, *, out_int32: bool = False, transpose: bool = False) -> Any:
    """The row of each element: how many rows end before it. Above them the indices of the batches."""
    sizes = list(col_indices.shape)
    rows = _ends_passed(crow_indices.to(torch.int64)[..., 1:], sizes[-1])
    lines = [col_indices, rows] if transpose else [rows, col_indices]
    for axis, size in reversed([*enumerate(sizes[:-1])]):
        view = [size if other == axis else 1 for other in range(len(sizes))]
        lines.insert(0, torch.arange(size, device=col_indices.device).reshape(view).expand(sizes))
    dtype = _index_dtype(out_int32)
    return torch.stack([line.reshape(-1).to(dtype) for line in lines])


def _index_dtype(out_int32: bool) -> torch.dtype:
    return torch.int32 if out_int32 else torch.int64
