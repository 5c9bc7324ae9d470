"""Fourier transforms of pairs of real numbers: `rust_ort.export.fourier` says which."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rust_ort.export.rules.registry import ints, op, translated

NO_COMPLEX = "ONNX has no complex numbers"


def _transformed(pairs: Any, at: int, rank: int, *, inverse: bool = False, onesided: bool = False) -> Any:
    """The transform along one dimension, the inverse one over its size. pairs: of a complex tensor of this rank, with
    one part where it is real."""
    order = [*(axis for axis in range(rank) if axis != at), at, rank]
    moved = op.Transpose(pairs, perm=order)
    flat = op.Reshape(moved, op.Concat(ints([-1]), op.Shape(moved, start=-2), axis=0))
    flat.dtype, flat.shape = _double(), _three_axes()
    made = op.DFT(flat, inverse=int(inverse), onesided=int(onesided))  # of three axes, 1 is each opset's default
    shape = op.Concat(op.Shape(moved, start=0, end=-2), op.Shape(made, start=1), axis=0)
    return op.Transpose(op.Reshape(made, shape), perm=[order.index(axis) for axis in range(rank + 1)])


def _size(value: Any, dims: Sequence[int]) -> Any:
    """The product of these sizes: an int, or a value of float64 of rank 0."""
    sizes = [value.shape[at] for at in dims]
    if all(isinstance(size, int) for size in sizes):
        return math.prod(sizes)
    return _as_float64(op.ReduceProd(op.Gather(op.Shape(value), ints(list(dims))), keepdims=0))


def _as_float64(value: Any) -> Any:
    return op.Cast(value, to=_double())


def _float64(number: float) -> Any:
    from onnxscript import ir

    return op.Constant(value=ir.tensor(number, dtype=ir.DataType.DOUBLE))


def _normalized(value: Any, size: Any, normalization: int, *, inverse: bool) -> Any:
    """Divided by the root of the size (1) or by the size (2), as `aten` numbers them; an inverse transform is divided
    by the size already."""
    if isinstance(size, int):
        factor = (
            size / (1, math.sqrt(size), size)[normalization] if inverse else (1, math.sqrt(size), size)[normalization]
        )
        if factor == 1:
            return value
        return op.Mul(value, _float64(factor)) if inverse else op.Div(value, _float64(factor))
    if normalization == 1:
        size = op.Sqrt(size)
    if normalization == (2 if inverse else 0):
        return value
    return op.Mul(value, size) if inverse else op.Div(value, size)


def _wide(self: Any) -> Any:
    from onnxscript import ir

    return self if self.dtype is ir.DataType.DOUBLE else _as_float64(self)


def _as_given(made: Any, self: Any) -> Any:
    from onnxscript import ir

    return made if self.dtype is ir.DataType.DOUBLE else op.Cast(made, to=self.dtype)


@translated("rust_ort.fft_r2c.default", why=NO_COMPLEX, upstream="torchlib")
def _r2c(self: Any, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    rank, *others = len(self.shape), *dim
    made = _transformed(op.Unsqueeze(_wide(self), ints([-1])), others.pop(), rank, onesided=onesided)
    for at in reversed(others):
        made = _transformed(made, at, rank)
    return _as_given(_normalized(made, _size(self, dim), normalization, inverse=False), self)


@translated("rust_ort.fft_c2c.default", why=NO_COMPLEX, upstream="torchlib")
def _c2c(self: Any, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    made = _wide(self)
    for at in reversed(dim):
        made = _transformed(made, at, len(self.shape) - 1, inverse=not forward)
    return _as_given(_normalized(made, _size(self, dim), normalization, inverse=not forward), self)


@translated("rust_ort.fft_c2r.default", why=NO_COMPLEX, upstream="torchlib")
def _c2r(self: Any, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Any:
    """Of half the numbers: the others are their conjugates, from the last to the first."""
    made, rank, *others = _wide(self), len(self.shape) - 1, *dim
    last = others.pop()
    for at in reversed(others):
        made = _transformed(made, at, rank, inverse=True)
    if isinstance(last_dim_size, int):
        size, first = _size(self, others), ints([(last_dim_size - 1) // 2])
        length: Any = last_dim_size if isinstance(size, int) else _float64(float(last_dim_size))
    else:
        length = op.Reshape(last_dim_size, ints([1]))
        first = op.Div(op.Sub(length, ints([1])), ints([2]))
        length = _as_float64(op.Squeeze(length, ints([0])))
        size = _size(self, others)
        size = _float64(float(size)) if isinstance(size, int) else size
    mirrored = op.Slice(made, first, ints([0]), ints([last]), ints([-1]))
    mirrored = op.Mul(mirrored, op.Cast(ints([1, -1]), to=_double()))
    made = _transformed(op.Concat(made, mirrored, axis=last), last, rank, inverse=True)
    made = op.Gather(made, ints(0), axis=-1)
    size = size * length if isinstance(size, int) else op.Mul(size, length)
    return _as_given(_normalized(made, size, normalization, inverse=True), self)


def _three_axes() -> Any:
    from onnxscript import ir

    return ir.Shape([None, None, None])


def _double() -> Any:
    from onnxscript import ir

    return ir.DataType.DOUBLE
