"""Shape expressions of a dynamic graph as Python integer code, made once at compile time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch

from rust_ort.torch_private import keep_positive, python_printer

Size = int | torch.SymInt


class UnboundSymbol(ValueError):
    """A size depends on a symbol that no input of the part determines."""


def is_symbolic(value: object) -> bool:
    """Whether `value` (a size, tensor, or sequence of them) has a symbolic size."""
    if isinstance(value, torch.Tensor):
        return any(is_symbolic(size) for size in (*value.shape, *value.stride()))
    if isinstance(value, (list, tuple)):
        return any(is_symbolic(item) for item in value)
    return isinstance(value, torch.SymInt) and not value.node.expr.is_number


def plain(size: Size) -> int:
    """A size that is not symbolic as int."""
    return int(size.node.expr) if isinstance(size, torch.SymInt) else int(size)


def expression(size: Size) -> Any:
    """What sizes are compared and computed with: as SymInts they would add guards."""
    return size.node.expr if isinstance(size, torch.SymInt) else size


def seen(number: Any) -> Any:
    """What a number is in the call that is traced, without a guard."""
    return float(number.node.hint or 0) if isinstance(number, torch.SymFloat) else hint(number)


SIZE_OPERATORS = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_storage_offset.default,
    }
)
"""What asks a tensor for its layout, and for no element."""


def hint(size: Size) -> int:
    """What a size is in the call that is traced, without a guard; 0: only the runtime knows."""
    return int(size.node.hint or 0) if isinstance(size, torch.SymInt) else size


def has_no_elements(tensor: torch.Tensor) -> bool:
    """Whether a size is known to be 0."""
    return any(isinstance(size, int) and size == 0 for size in tensor.shape)


def may_have_no_elements(tensor: torch.Tensor) -> bool:
    """Whether a size may be 0 in a call of the graph that is made."""
    symbolic: list[Any] = [size for size in tensor.shape if is_symbolic(size)]
    return not all(map(keep_positive, symbolic))


def fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor in memory of its own with these strides looks the same: it begins where its storage does, and
    ends there. Overlapping elements are others' concern."""
    if expression(tensor.storage_offset()) != 0:
        return False
    layout = [
        (expression(size), expression(stride)) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    last = 0 if any(size == 0 for size, _ in layout) else 1 + sum((size - 1) * stride for size, stride in layout)
    beyond = expression(tensor.untyped_storage().nbytes()) - last * tensor.itemsize
    return bool(beyond == 0 or sympy.expand(beyond) == 0)


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements share a place, as an expanded tensor's do, with the sizes seen while tracing: what writes to one
    writes to several. A symbolic size with stride 0 counts as more than 1."""
    layout = [pair for pair in zip(tensor.shape, tensor.stride(), strict=True) if expression(pair[0]) != 1]
    if any(expression(stride) == 0 for _, stride in layout):
        return True
    reach = 0
    for stride, size in sorted((hint(stride), hint(size)) for size, stride in layout):
        if size > 1 and 0 < stride <= reach:
            return True
        reach += max(size - 1, 0) * stride
    return False


def row_major(tensor: torch.Tensor, order: Sequence[int]) -> bool:
    """Whether the strides are those of a contiguous tensor with the dimensions in this order."""
    step: Any = 1
    for axis in reversed(order):
        if _nonzero(expression(tensor.stride(axis))) != step:
            return False
        size = _nonzero(expression(tensor.shape[axis]))
        step = step if size == 0 else step * size
    return True


def _nonzero(size: Any) -> Any:
    """Without the max(1, n) that strides have for a size n, which may be 0."""
    if isinstance(size, int):
        return size
    return size.replace(lambda part: part.func.__name__ == "Max" and 1 in part.args, lambda part: sympy.Mul(*part.args))


def _terms(expr: sympy.Expr) -> set[sympy.Expr]:
    """What a polynomial is of: symbols, and functions such as Max and FloorDiv whole."""
    if isinstance(expr, (sympy.Add, sympy.Mul)) or (expr.is_Pow and expr.exp.is_Integer and expr.exp > 0):
        return set().union(*map(_terms, expr.args))
    return set() if expr.is_number else {expr}


class Binder:
    """Where the values of symbols, and of sizes that are computed from them, are found among a part's inputs.

    Inputs are given as (position, meta value) in the order of the call.
    """

    def __init__(self, inputs: Sequence[object]) -> None:
        self._known: dict[sympy.Expr, sympy.Symbol] = {}
        self._codes: dict[sympy.Symbol, str] = {}
        sums: list[tuple[sympy.Expr, str]] = []
        for position, value in enumerate(inputs):
            if isinstance(value, torch.SymInt):
                self._bind(value, f"a[{position}]", sums)
            elif isinstance(value, torch.Tensor):
                for axis, size in enumerate(value.shape):
                    self._bind(size, f"a[{position}].shape[{axis}]", sums)
        while any([self._solve(expr, source) for expr, source in sums]):
            pass

    def _bind(self, size: Size, source: str, sums: list[tuple[sympy.Expr, str]]) -> None:
        if not is_symbolic(size):
            return
        expr = size.node.expr  # type: ignore[union-attr]
        if expr not in self._known:
            self._learn(expr, source)
            if not expr.is_Symbol:
                sums.append((expr, source))

    def _learn(self, expr: sympy.Expr, code: str) -> None:
        self._known[expr] = expr if expr.is_Symbol else sympy.Dummy(integer=True)
        self._codes[self._known[expr]] = code

    def _solve(self, expr: sympy.Expr, source: str) -> bool:
        """`2*s0 + 1` alone among the inputs still tells s0, and `2*(s0//4) + 1` tells s0//4."""
        expr = sympy.expand(expr.func(*map(self._bound, expr.args)))  # it is itself known
        unknown = [term for term in _terms(expr) if self._unbound(term)]
        if len(unknown) != 1:
            return False
        term = sympy.Dummy(integer=True)
        expr = expr.xreplace({unknown[0]: term})
        slope = expr.coeff(term, 1)
        rest = sympy.expand(expr - slope * term)
        if slope == 0 or not slope.is_Integer or term in rest.free_symbols or self._unbound(rest):
            return False
        self._learn(unknown[0], f"(({source} - ({self._code(rest)})) // {slope})")
        return True

    def code(self, size: Size) -> str:
        """`size` as a Python expression over the call's inputs `a`. Raises UnboundSymbol."""
        return self._code(size.node.expr) if isinstance(size, torch.SymInt) else str(int(size))

    def _code(self, expr: sympy.Expr) -> str:
        if expr in self._known:
            return self._codes[self._known[expr]]
        if unbound := self._unbound(expr):
            raise UnboundSymbol(f"size {expr} depends on {', '.join(unbound)}, which no input of the part determines")
        codes = self._codes

        class Printer(python_printer()):  # type: ignore[misc]
            def _print_Symbol(self, symbol: sympy.Symbol) -> str:
                return codes[symbol]

            _print_Dummy = _print_Symbol

        return f"({Printer().doprint(self._bound(expr))})"

    def missing(self, sizes: Iterable[torch.SymInt]) -> frozenset[str]:
        """Symbols without which some of `sizes` cannot be computed."""
        return frozenset(symbol for size in sizes for symbol in self._unbound(size.node.expr))

    def _unbound(self, expr: sympy.Expr) -> list[str]:
        """Names of the symbols of `expr` that no known part of it has."""
        return sorted(str(symbol) for symbol in self._bound(expr).free_symbols if symbol not in self._codes)

    def _bound(self, expr: sympy.Expr) -> sympy.Expr:
        """`expr` with a symbol for each largest part that is known."""
        if expr in self._known:
            return self._known[expr]
        if all(symbol in self._codes for symbol in expr.free_symbols):
            return expr
        return expr.func(*map(self._bound, expr.args)) if expr.args else expr

    def codes(self, sizes: Sequence[Size]) -> str:
        return "(" + "".join(f"{self.code(size)}, " for size in sizes) + ")"


def compile_expression(code: str, names: dict[str, Any] | None = None) -> Callable[[Sequence[object]], Any]:
    """A function of the call's inputs `a` that returns the value of `code`."""
    import math

    function: Callable[[Sequence[object]], Any] = eval(
        f"lambda a: {code}", {"math": math, "torch": torch, **(names or {})}
    )
    return function
