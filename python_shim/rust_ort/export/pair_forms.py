"""What ATen's operators do with complex numbers, said of pairs of real numbers: `FORMS`.

A complex tensor of shape S is a real tensor of shape S + [2]: `torch.view_as_real`'s. A form takes what the operator
was declared to give (`out`, a fake value, of which dtypes and ranks are read) and the operator's arguments, complex
tensors among them as `Pair`, and gives a Pair where the operator gives complex numbers. It is traced. NotImplemented:
these arguments have no such form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.export import fourier

aten = torch.ops.aten

REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
"""{dtype of complex numbers: that of their parts}."""

Part = Tensor | float
"""A real or an imaginary part: a tensor's, or a number's."""


@dataclass(frozen=True)
class Pair:
    """A complex tensor: `value` has its parts in a last dimension of 2."""

    value: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor]:
        """Real and imaginary part."""
        return self.value.select(-1, 0), self.value.select(-1, 1)

    @property
    def rank(self) -> int:
        """How many dimensions the complex tensor has."""
        return self.value.dim() - 1


def _parts(given: Any, dtype: torch.dtype) -> tuple[Part, Part]:
    """Parts of a Pair, a real tensor or a number, as the kernel takes them that computes in `dtype`."""
    if isinstance(given, Pair):
        real, imaginary = given.parts
        return real.to(dtype), imaginary.to(dtype)
    if isinstance(given, Tensor):
        return given.to(dtype), 0.0
    number = complex(given)
    return number.real, number.imag


def _joined(real: Part, imaginary: Part) -> Pair:
    tensors = [part for part in (real, imaginary) if isinstance(part, Tensor)]
    both = [part if isinstance(part, Tensor) else torch.full_like(tensors[0], part) for part in (real, imaginary)]
    return Pair(torch.stack([*torch.broadcast_tensors(*both)], -1))


def _as_pair(given: Any, dtype: torch.dtype, device: torch.device) -> Pair:
    """As a Pair whose parts have `dtype`."""
    if isinstance(given, Pair):
        return Pair(given.value.to(dtype))
    real, imaginary = _parts(given, dtype)
    if not isinstance(real, Tensor):
        real = torch.full([], real, dtype=dtype, device=device)
    return _joined(real, imaginary)


def _dtype(out: Any) -> torch.dtype:
    """That of the parts of what is given."""
    dtype: torch.dtype = out.dtype
    return REAL.get(dtype, dtype)


def _times(left: tuple[Part, Part], right: tuple[Part, Part]) -> tuple[Part, Part]:
    (a, b), (c, d) = left, right
    return a * c - b * d, a * d + b * c


def _mul(out: Tensor, self: Any, other: Any) -> Any:
    dtype = _dtype(out)
    return _joined(*_times(_parts(self, dtype), _parts(other, dtype)))


def _add(out: Tensor, self: Any, other: Any, alpha: Any = 1, *, sign: int = 1) -> Any:
    dtype = _dtype(out)
    one, (c, d) = _parts(self, dtype), _parts(other, dtype)
    if alpha != 1:
        c, d = _times((c, d), _parts(alpha, dtype))
    if alpha == 1 and isinstance(self, Pair) and isinstance(other, Pair):
        a, b = self.value.to(dtype), other.value.to(dtype)
        return Pair(a + b if sign > 0 else a - b)
    return _joined(*((x + y if sign > 0 else x - y) for x, y in zip(one, (c, d), strict=True)))


def _sub(out: Tensor, self: Any, other: Any, alpha: Any = 1) -> Any:
    return _add(out, self, other, alpha, sign=-1)


def _rsub(out: Tensor, self: Any, other: Any, alpha: Any = 1) -> Any:
    return _add(out, other, self, alpha, sign=-1)


def _div(out: Tensor, self: Any, other: Any) -> Any:
    """By the ratio of the divisor's smaller part to its larger one, as eager's kernel and NumPy's; by 0 each part."""
    dtype = _dtype(out)
    (a, b), (c, d) = _parts(self, dtype), _parts(other, dtype)
    if not (isinstance(c, Tensor) or isinstance(d, Tensor)):
        c = torch.full([], c, dtype=dtype, device=out.device)
    c, d = _joined(c, d).parts
    is_real = c.abs() >= d.abs()
    large, small = torch.where(is_real, c, d), torch.where(is_real, d, c)
    ratio = small / large
    scale = 1 / (large + small * ratio)
    real = torch.where(is_real, a + b * ratio, a * ratio + b) * scale
    imaginary = torch.where(is_real, b - a * ratio, b * ratio - a) * scale
    by_zero = large == 0
    return _joined(torch.where(by_zero, a / c.abs(), real), torch.where(by_zero, b / d.abs(), imaginary))


def _reciprocal(out: Tensor, self: Pair) -> Any:
    return _div(out, 1.0, self)


def _neg(_: Tensor, self: Pair) -> Any:
    return Pair(-self.value)


def _conj(out: Tensor, self: Any) -> Any:
    real, imaginary = _as_pair(self, _dtype(out), out.device).parts
    return _joined(real, -imaginary)


def _itself(out: Any, self: Any, *_: Any, **__: Any) -> Any:
    return self if isinstance(self, Pair) else _as_pair(self, _dtype(out), out.device)


def _copied(_: Any, self: Any, **__: Any) -> Any:
    return Pair(self.value.clone())


def _view_as_real(_: Tensor, self: Pair) -> Tensor:
    return self.value


def _view_as_complex(_: Tensor, self: Tensor) -> Any:
    return Pair(self)


def _complex(_: Tensor, real: Tensor, imag: Tensor) -> Any:
    return _joined(real, imag)


def _polar(_: Tensor, length: Tensor, angle: Tensor) -> Any:
    return _joined(length * angle.cos(), length * angle.sin())


def _abs(_: Tensor, self: Pair) -> Tensor:
    """Float32's by float64, where no square is too large; float64's of parts over the larger one."""
    real, imaginary = self.parts
    if self.value.dtype is torch.float32:
        wide = self.value.double()
        made = (wide * wide).sum(-1).sqrt().float()
    else:
        a, b = real.abs(), imaginary.abs()
        most, least = torch.maximum(a, b), torch.minimum(a, b)
        ratio = torch.where(most == 0, 0.0, least / most)
        made = most * (1 + ratio * ratio).sqrt()
    return torch.where(real.isinf() | imaginary.isinf(), torch.inf, made)


def _angle(_: Tensor, self: Pair) -> Tensor:
    real, imaginary = self.parts
    return torch.atan2(imaginary, real)


def _exp(_: Tensor, self: Pair) -> Any:
    """As C has it at its edges: no infinity is multiplied by the sine of 0, or by that of no number."""
    real, imaginary = self.parts
    size, none = real.exp(), ~imaginary.isfinite()
    cosine = torch.where(none & real.isinf(), size, size * imaginary.cos())
    sine = torch.where(imaginary == 0, imaginary, size * imaginary.sin())
    nothing = torch.where(imaginary < 0, -0.0, 0.0).to(real.dtype)
    return _joined(cosine, torch.where(none & (real == -torch.inf), nothing, sine))


def _eq(_: Tensor, self: Any, other: Any) -> Tensor:
    wide = any(isinstance(one, Tensor | Pair) and _is_double(one) for one in (self, other))
    dtype = torch.float64 if wide else torch.float32
    same: list[Any] = [one == another for one, another in zip(_parts(self, dtype), _parts(other, dtype), strict=True)]
    made: Tensor = same[0] & same[1]
    return made


def _is_double(given: Tensor | Pair) -> bool:
    return (given.value if isinstance(given, Pair) else given).dtype is torch.float64


def _ne(out: Tensor, self: Any, other: Any) -> Tensor:
    return ~_eq(out, self, other)


def _where(out: Tensor, condition: Tensor, self: Any, other: Any) -> Any:
    one, another = (_as_pair(given, _dtype(out), out.device).value for given in (self, other))
    return Pair(torch.where(condition.unsqueeze(-1), one, another))


def _masked_fill(out: Tensor, self: Pair, mask: Tensor, value: Any) -> Any:
    return _where(out, mask, value, self)


def _to_copy(out: Tensor, self: Any, dtype: Any = None, **_: Any) -> Any:
    if out.dtype.is_complex:
        made = _as_pair(self, REAL[out.dtype], out.device).value
        return Pair(made.clone() if isinstance(self, Pair) and made is self.value else made)
    if out.dtype is torch.bool:
        return (self.value != 0).any(-1)
    return self.parts[0].to(out.dtype)


def _sum(out: Tensor, self: Pair, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(torch.sum, out, self, dim, keepdim)


def _mean(out: Tensor, self: Pair, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduced(torch.mean, out, self, dim, keepdim)


def _reduced(reduce: Callable[..., Tensor], out: Tensor, self: Pair, dim: Any, keepdim: bool) -> Any:
    if not out.dtype.is_complex:
        return NotImplemented
    dims = _dims(self, dim if dim else range(self.rank))
    value = self.value.to(_dtype(out))
    return Pair(reduce(value, dims, keepdim) if dims else value.clone())


def _cumsum(out: Tensor, self: Pair, dim: int, dtype: Any = None) -> Any:
    return Pair(self.value.to(_dtype(out)).cumsum(_dim(self, dim))) if self.rank else NotImplemented


def _product(multiply: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def form(out: Tensor, self: Any, other: Any) -> Any:
        (a, b), (c, d) = (_as_pair(one, _dtype(out), out.device).parts for one in (self, other))
        return _joined(multiply(a, c) - multiply(b, d), multiply(a, d) + multiply(b, c))

    return form


def _dim(self: Pair, dim: int) -> int:
    return dim % max(self.rank, 1)


def _dims(self: Pair, dims: Any) -> list[int]:
    return [_dim(self, dim) for dim in ([dims] if isinstance(dims, int) else dims)]


def _along(operator: Any, default: int | None = 0) -> Callable[..., Any]:
    """Of an operator along one dimension of its first argument, `dim`, its second."""

    def form(_: Any, self: Pair, *rest: Any, **named: Any) -> Any:
        if not self.rank:
            return NotImplemented
        dim = named.pop("dim", rest[0] if rest else default)
        return _as_pairs(operator(self.value, _dim(self, dim), *rest[1:], **named))

    return form


def _as_pairs(made: Any) -> Any:
    return [*map(Pair, made)] if isinstance(made, (list, tuple)) else Pair(made)


def _split(operator: Any) -> Callable[..., Any]:
    """Of an operator whose second argument says into what it splits, along `dim`, its third."""

    def form(_: Any, self: Pair, sizes: Any, dim: int = 0) -> Any:
        return _as_pairs(operator(self.value, sizes, _dim(self, dim)))

    return form


def _viewed(_: Tensor, self: Pair, size: Any) -> Any:
    return Pair(self.value.reshape([*size, 2])) if not isinstance(size, torch.dtype) else NotImplemented


def _expanded(_: Tensor, self: Pair, size: Any, **__: Any) -> Any:
    return Pair(self.value.expand([*size, 2]))


def _repeated(_: Tensor, self: Pair, repeats: Any) -> Any:
    return Pair(self.value.repeat([*repeats, 1]))


def _permuted(_: Tensor, self: Pair, dims: Any) -> Any:
    return Pair(self.value.permute([*_dims(self, dims), self.rank]))


def _transposed(_: Tensor, self: Pair, dim0: int = 0, dim1: int = 1) -> Any:
    return Pair(self.value.transpose(*_dims(self, [dim0, dim1]))) if self.rank > 1 else self


def _unsqueezed(_: Tensor, self: Pair, dim: int) -> Any:
    return Pair(self.value.unsqueeze(dim % (self.rank + 1)))


def _squeezed(_: Tensor, self: Pair, dim: Any = None) -> Any:
    sizes = self.value.shape[:-1]
    dims = [at for at, size in enumerate(sizes) if size == 1] if dim is None else _dims(self, dim)
    return Pair(aten.squeeze.dims(self.value, dims)) if self.rank else self


def _flipped(_: Tensor, self: Pair, dims: Any) -> Any:
    return Pair(self.value.flip(_dims(self, dims)))


def _rolled(_: Tensor, self: Pair, shifts: Any, dims: Any = ()) -> Any:
    return Pair(self.value.roll(shifts, _dims(self, dims))) if dims else NotImplemented


def _joined_along(out: Tensor, tensors: Sequence[Any], dim: int = 0) -> Any:
    if any(isinstance(one, Tensor | Pair) and not _rank(one) for one in tensors):
        return NotImplemented
    pairs = [_as_pair(one, _dtype(out), out.device).value for one in tensors]
    return Pair(torch.cat(pairs, dim % out.dim()))


def _stacked(out: Tensor, tensors: Sequence[Any], dim: int = 0) -> Any:
    return Pair(torch.stack([_as_pair(one, _dtype(out), out.device).value for one in tensors], dim % out.dim()))


def _rank(given: Tensor | Pair) -> int:
    return given.rank if isinstance(given, Pair) else given.dim()


def _padded(_: Tensor, self: Pair, pad: Any, value: Any = 0) -> Any:
    return Pair(aten.constant_pad_nd.default(self.value, [0, 0, *pad], 0)) if value == 0 else NotImplemented


def _indexed(_: Tensor, self: Pair, indices: Any) -> Any:
    return Pair(aten.index.Tensor(self.value, indices))


def _put(out: Tensor, self: Pair, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return Pair(
        aten.index_put.default(self.value, indices, _as_pair(values, _dtype(out), out.device).value, accumulate)
    )


def _gathered(_: Tensor, self: Pair, dim: int, index: Tensor, **__: Any) -> Any:
    if not self.rank:
        return NotImplemented
    return Pair(self.value.gather(_dim(self, dim), index.unsqueeze(-1).expand([-1] * index.dim() + [2])))


def _added_at(_: Any, self: Pair, dim: int, index: Tensor, src: Pair) -> Any:
    if not self.rank:
        return NotImplemented
    places = index.unsqueeze(-1).expand([-1] * index.dim() + [2])
    return Pair(self.value.scatter_add(_dim(self, dim), places, src.value))


def _scattered(operator: Any) -> Callable[..., Any]:
    """Of slice_scatter and select_scatter."""

    def form(out: Tensor, self: Any, src: Any, dim: int = 0, *rest: Any, **named: Any) -> Any:
        one, another = (_as_pair(given, _dtype(out), out.device).value for given in (self, src))
        return Pair(operator(one, another, dim % out.dim(), *rest, **named))

    return form


def _sliced_backward(operator: Any) -> Callable[..., Any]:
    """Of slice_backward and select_backward."""

    def form(out: Tensor, grad_output: Pair, input_sizes: Any, dim: int, *rest: Any) -> Any:
        return Pair(operator(grad_output.value, [*input_sizes, 2], dim % out.dim(), *rest))

    return form


def _filled(number: complex, *, like: bool) -> Callable[..., Any]:
    """Of an operator that gives tensors of one number. like: whether it has the shape of its first argument."""

    def form(out: Tensor, given: Any, *_: Any, **__: Any) -> Any:
        return _full(out, given, number, like=like)

    return form


def _full(out: Tensor, given: Any, number: Any, *, like: bool) -> Any:
    if not out.dtype.is_complex:
        return torch.full_like(given.value.select(-1, 0), number, dtype=out.dtype)
    dtype = REAL[out.dtype]

    def part(value: float) -> Tensor:
        if not like:
            return torch.full(given, value, dtype=dtype, device=out.device)
        return torch.full_like(given.value.select(-1, 0) if isinstance(given, Pair) else given, value, dtype=dtype)

    real, imaginary = complex(number).real, complex(number).imag
    if real == imaginary and not like:
        return Pair(torch.full([*given, 2], real, dtype=dtype, device=out.device))
    return Pair(torch.stack([part(real), part(imaginary)], -1))


def _full_of(out: Tensor, size: Any, fill_value: Any, **_: Any) -> Any:
    return _full(out, size, fill_value, like=False)


def _full_like(out: Tensor, self: Any, fill_value: Any, **_: Any) -> Any:
    return _full(out, self, fill_value, like=True)


def _fill(out: Tensor, self: Pair, value: Any) -> Any:
    filled = _as_pair(value, _dtype(out), out.device).value
    return Pair(filled.expand_as(self.value).clone())


def _copied_into(out: Tensor, self: Any, src: Any, non_blocking: bool = False) -> Any:
    return _fill(out, self, src) if out.dtype.is_complex and isinstance(self, Pair) else NotImplemented


def _new_full(out: Tensor, _: Any, size: Any, fill_value: Any, **__: Any) -> Any:
    return _full(out, size, fill_value, like=False)


def _new(number: complex) -> Callable[..., Any]:
    def form(out: Tensor, _: Any, size: Any, **__: Any) -> Any:
        return _full(out, size, number, like=False)

    return form


def _scalar(out: Tensor, value: Any, **_: Any) -> Any:
    return _full(out, [], value, like=False)


def _fft_r2c(out: Tensor, self: Tensor, dim: Any, normalization: int, onesided: bool) -> Any:
    return Pair(fourier.r2c(self, [at % out.dim() for at in dim], normalization, onesided))


def _fft_c2c(out: Tensor, self: Pair, dim: Any, normalization: int, forward: bool) -> Any:
    return Pair(fourier.c2c(self.value, [at % out.dim() for at in dim], normalization, forward))


def _fft_c2r(out: Tensor, self: Pair, dim: Any, normalization: int, last_dim_size: Any) -> Any:
    return fourier.c2r(self.value, [at % out.dim() for at in dim], normalization, last_dim_size)


FORMS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _mul),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), _add),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), _sub),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), _rsub),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _div),
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), _eq),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), _ne),
    **dict.fromkeys((aten._conj.default, aten.conj_physical.default, aten._conj_physical.default), _conj),
    **dict.fromkeys((aten.resolve_conj.default, aten.resolve_neg.default, aten.alias.default), _itself),
    **dict.fromkeys((aten.detach.default, aten.positive.default), _itself),
    **dict.fromkeys((aten.clone.default, aten.lift_fresh_copy.default), _copied),
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten._unsafe_view.default), _viewed),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _squeezed),
    **dict.fromkeys((aten.transpose.int, aten.t.default), _transposed),
    **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), _masked_fill),
    **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _sum),
    **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean),
    aten._to_copy.default: _to_copy,
    **{operator: _product(operator) for operator in (aten.mm.default, aten.bmm.default, aten.mv.default)},
    aten.dot.default: _product(aten.dot.default),
    aten.reciprocal.default: _reciprocal,
    aten.neg.default: _neg,
    aten.view_as_real.default: _view_as_real,
    aten.view_as_complex.default: _view_as_complex,
    aten.complex.default: _complex,
    aten.polar.default: _polar,
    aten.abs.default: _abs,
    aten.angle.default: _angle,
    aten.exp.default: _exp,
    aten.where.self: _where,
    aten.cumsum.default: _cumsum,
    aten.expand.default: _expanded,
    aten.repeat.default: _repeated,
    aten.permute.default: _permuted,
    aten.unsqueeze.default: _unsqueezed,
    aten.flip.default: _flipped,
    aten.roll.default: _rolled,
    aten.cat.default: _joined_along,
    aten.stack.default: _stacked,
    aten.constant_pad_nd.default: _padded,
    aten.index.Tensor: _indexed,
    aten.index_put.default: _put,
    aten.gather.default: _gathered,
    aten.scatter_add.default: _added_at,
    aten.slice.Tensor: _along(aten.slice.Tensor),
    aten.select.int: _along(aten.select.int, None),
    aten.index_select.default: _along(aten.index_select.default, None),
    aten.unbind.int: _along(aten.unbind.int),
    aten.split.Tensor: _split(aten.split.Tensor),
    aten.split_with_sizes.default: _split(aten.split_with_sizes.default),
    aten.slice_scatter.default: _scattered(aten.slice_scatter.default),
    aten.select_scatter.default: _scattered(aten.select_scatter.default),
    aten.slice_backward.default: _sliced_backward(aten.slice_backward.default),
    aten.select_backward.default: _sliced_backward(aten.select_backward.default),
    **dict.fromkeys((aten.fill.Scalar, aten.fill.Tensor), _fill),
    aten.copy.default: _copied_into,
    aten.zeros.default: _filled(0, like=False),
    aten.ones.default: _filled(1, like=False),
    aten.zeros_like.default: _filled(0, like=True),
    aten.ones_like.default: _filled(1, like=True),
    aten.new_zeros.default: _new(0),
    aten.new_ones.default: _new(1),
    aten.new_full.default: _new_full,
    aten.full.default: _full_of,
    aten.full_like.default: _full_like,
    aten.scalar_tensor.default: _scalar,
    aten._fft_r2c.default: _fft_r2c,
    aten._fft_c2c.default: _fft_c2c,
    aten._fft_c2r.default: _fft_c2r,
}
"""{operator: its form}."""

OF_PRIMITIVES: dict[str, Callable[..., Any]] = {"prims.convert_element_type.default": _to_copy}
"""{name of one of torch's primitives: its form}."""


def form_of(operator: Any) -> Callable[..., Any] | None:
    """None: it has none."""
    return FORMS.get(operator) or OF_PRIMITIVES.get(str(operator))
