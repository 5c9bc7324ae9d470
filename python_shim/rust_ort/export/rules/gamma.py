"""The logarithm of the gamma function and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.nodes import argument, dtype
from rust_ort.export.rules.registry import decomposed, in_eager, op, translated

aten = torch.ops.aten

NO_FORM = "torchlib has no form"
NEAR_ZEROS = "float64's own digits beside its zeros take more than ONNX Runtime's elementary functions give"

SHIFT = 8
"""Below it a recurrence leads beyond it, where six terms of the asymptotic series are exact to 1e-14."""
PAIRS = (0.0, 6.0, 10.0, 12.0)
"""(a + k)(a + 7 - k) is a(a + 7) and one of these, for k from 0 to 3."""
LOG_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
"""Coefficients of the series in 1 / y², of Abramowitz and Stegun 6.1.40, 6.3.18 and 6.4.12."""


def _float64(value: float) -> Any:
    from onnxscript import ir

    return op.Constant(value=ir.tensor(value, dtype=ir.DataType.DOUBLE))


def _sum(terms: Sequence[Any]) -> Any:
    made = terms[0]
    for term in terms[1:]:
        made = op.Add(made, term)
    return made


def _series(squared: Any, coefficients: Sequence[float]) -> Any:
    made = _float64(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = op.Add(op.Mul(made, squared), _float64(coefficient))
    return made


class _Argument:
    """x in float64. size: |x|. beyond: `size`, `SHIFT` more where it is below that. rest: `size` less the nearest
    integer. products: those of `PAIRS`."""

    def __init__(self, self_: Any) -> None:
        from onnxscript import ir

        self.dtype = self_.dtype
        self.x = op.Cast(self_, to=ir.DataType.DOUBLE)
        self.zero = _float64(0.0)
        self.size = op.Abs(self.x)
        self.is_negative = op.Less(self.x, self.zero)
        self.is_small = op.Less(self.size, _float64(SHIFT))
        self.beyond = op.Where(self.is_small, op.Add(self.size, _float64(SHIFT)), self.size)
        self.inverse = op.Reciprocal(self.beyond)
        self.rest = op.Sub(self.size, op.Round(self.size))
        first = op.Mul(self.size, op.Add(self.size, _float64(SHIFT - 1)))
        self.products = [first, *(op.Add(first, _float64(more)) for more in PAIRS[1:])]

    def series(self, coefficients: Sequence[float]) -> Any:
        return _series(op.Mul(self.inverse, self.inverse), coefficients)

    def angle(self) -> Any:
        """π times `rest`: of it ONNX Runtime's Sin is exact to its last digits."""
        return op.Mul(self.rest, _float64(math.pi))

    def rounded(self, made: Any) -> Any:
        """Once, to the dtype that came."""
        return op.Cast(made, to=self.dtype)


@translated("aten.lgamma.default", why=NO_FORM)
def lgamma(self: Any) -> Any:
    """Stirling's series of |x| in float64; 0 at 1 and 2, infinite at the poles and at both infinities."""
    given = _Argument(self)
    first, second, third, fourth = given.products
    product = op.Mul(op.Mul(first, second), op.Mul(third, fourth))
    shifted = op.Log(op.Where(given.is_small, product, _float64(1.0)))
    y = given.beyond
    main = op.Sub(op.Mul(op.Sub(y, _float64(0.5)), op.Log(y)), y)
    tail = op.Add(op.Mul(given.inverse, given.series(LOG_GAMMA)), _float64(math.log(2 * math.pi) / 2))
    positive = op.Sub(op.Add(main, tail), shifted)
    sine = op.Mul(op.Abs(op.Sin(given.angle())), given.size)
    negative = op.Sub(op.Log(op.Div(_float64(math.pi), sine)), positive)
    made = op.Where(given.is_negative, negative, positive)
    is_zero = op.Equal(op.Abs(op.Sub(given.x, _float64(1.5))), _float64(0.5))
    infinity = _float64(math.inf)
    made = op.Where(op.Equal(given.size, infinity), infinity, made)
    return given.rounded(op.Where(is_zero, given.zero, made))


@translated("aten.digamma.default", why=NO_FORM)
def digamma(self: Any) -> Any:
    """As `lgamma`; NaN at the poles below 0, and at 0 infinite, with the sign of what comes from that side."""
    given = _Argument(self)
    size = given.size
    sums = _sum([op.Reciprocal(product) for product in given.products])
    steps = op.Mul(op.Add(op.Add(size, size), _float64(SHIFT - 1)), sums)
    half = op.Add(op.Mul(given.inverse, given.series(DIGAMMA)), _float64(0.5))
    main = op.Sub(op.Log(given.beyond), op.Mul(given.inverse, half))
    positive = op.Sub(main, op.Where(given.is_small, steps, given.zero))
    angle = given.angle()
    tangent = op.Div(op.Sin(angle), op.Cos(angle))
    mirrored = op.Add(op.Add(positive, op.Reciprocal(size)), op.Div(_float64(math.pi), tangent))
    negative = op.Where(op.Equal(given.rest, given.zero), _float64(math.nan), mirrored)
    made = op.Where(given.is_negative, negative, positive)
    at_zero = op.Neg(op.Reciprocal(given.x))
    return given.rounded(op.Where(op.Equal(size, given.zero), at_zero, made))


def _trigamma(self: Any) -> Any:
    """As `lgamma`; below 0 of π · x as rounded to float32, which torch's kernel takes: at the poles it is finite."""
    from onnxscript import ir

    given = _Argument(self)
    angle = op.Mul(op.Cast(self, to=ir.DataType.FLOAT), op.Constant(value_float=math.pi))
    inverses = [op.Reciprocal(product) for product in given.products]
    total = op.Add(op.Add(given.size, given.size), _float64(SHIFT - 1))
    squares = _sum([op.Mul(inverse, inverse) for inverse in inverses])
    sums = _sum(inverses)
    steps = op.Sub(op.Mul(op.Mul(total, total), squares), op.Add(sums, sums))
    inverse = given.inverse
    half = op.Add(op.Mul(inverse, given.series(TRIGAMMA)), _float64(0.5))
    main = op.Mul(inverse, op.Add(op.Mul(inverse, half), _float64(1.0)))
    positive = op.Add(main, op.Where(given.is_small, steps, given.zero))
    sine = op.Div(_float64(math.pi), op.Sin(op.Cast(angle, to=ir.DataType.DOUBLE)))
    of_size = op.Reciprocal(given.size)
    mirrored = op.Sub(op.Mul(sine, sine), op.Sub(positive, op.Mul(of_size, of_size)))
    made = op.Where(given.is_negative, mirrored, positive)
    return given.rounded(op.Where(op.Equal(given.size, given.zero), _float64(math.inf), made))


@decomposed("aten.polygamma.default", why=NO_FORM)
def polygamma(n: int, self: Tensor) -> Any:
    """The zeroth is digamma; integers as floats."""
    if n == 0:
        return aten.digamma.default(self)
    return _of_floats(self, lambda given: aten.polygamma.default(n, given))


@translated("aten.polygamma.default", why=NO_FORM)
def trigamma(n: int, self: Any) -> Any:
    """The first, all that is not left to eager."""
    return _trigamma(self)


def _of_floats(self: Tensor, operator: Callable[[Tensor], Tensor]) -> Any:
    return NotImplemented if self.dtype.is_floating_point else operator(self.to(torch.get_default_dtype()))


def _of_integers(operator: Any) -> Callable[..., Any]:
    def function(self: Tensor) -> Any:
        """Integers as floats."""
        return _of_floats(self, operator)

    return function


for _name in ("lgamma", "digamma"):
    decomposed(f"aten.{_name}.default", why=NO_FORM)(_of_integers(getattr(aten, _name).default))
    in_eager(
        f"aten.{_name}",
        why=NEAR_ZEROS,
        upstream="onnxruntime",
        silent=False,
        when=lambda node: dtype(node) is torch.float64,
    )

in_eager(
    "aten.polygamma",
    why="ONNX has no zeta function, and float64's digits take more than six terms of a series",
    upstream="onnxruntime",
    silent=False,
    when=lambda node: dtype(node) is torch.float64 or argument(node, "n") != 1,
)
