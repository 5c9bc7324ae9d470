"""What torch assumed of the sizes of a graph, as one reads it: equal sizes as equalities, bounds as one number each."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from rust_ort import torch_private
from rust_ort.export.provenance import parameter_name

_SIZE_SOURCE = re.compile(r"(.*)\.size\(\)\[(\d+)\]$")

LEAST_TRACED = 2
"""torch traces sizes of 0 and 1 apart from all others."""

MOST_SEARCHED = 1 << 40
"""A bound beyond it stays what torch asked for."""


def size_text(tensor: str, axis: int) -> str:
    """A size in words: `x.shape[0]`."""
    return f"{tensor}.shape[{axis}]"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Least and greatest length of sizes that are equal. sizes: in words; the first stands for all. most: None: any.
    least_line, most_line: the user's line that asked, or ""."""

    sizes: tuple[str, ...]
    least: int
    least_line: str
    most: int | None
    most_line: str

    @property
    def open_to_one(self) -> bool:
        """Whether nobody but torch, which traces 0 and 1 apart, wants 2 or more."""
        return self.least == LEAST_TRACED and not self.least_line


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What torch assumed of the sizes of a graph. relations: {relation, in words: the user's line that asked, or ""}.
    fixed: {size: its number}. holds: whether the relations hold of lengths {size: number}; of others nothing is known.
    """

    relations: dict[str, str]
    bounds: list[Bounds]
    fixed: dict[str, int]
    holds: Callable[[Mapping[str, int]], bool]

    def lines(self, right_at_one: Collection[str] = ()) -> dict[str, str]:
        """{what was assumed, in words: the user's line that asked, or ""}. right_at_one: sizes of which 1 was tried."""
        found = dict(self.relations)
        for bounds in self.bounds:
            one = bounds.open_to_one and not set(right_at_one).isdisjoint(bounds.sizes)
            if (least := 1 if one else bounds.least) > 0:
                found.setdefault(f"{bounds.sizes[0]} >= {least}", bounds.least_line)
            if bounds.most is not None:
                found.setdefault(f"{bounds.sizes[0]} <= {bounds.most}", bounds.most_line)
        return found


def assumptions(values: Sequence[object], names: Mapping[str, str]) -> Assumptions:
    """What torch assumed of the sizes of a graph; what others imply is left out.

    values: the graph's fake inputs. names: {what Dynamo calls an input, as `sources` has it: its name}.
    """
    known = torch_private.sizes_of(values)
    words = {symbol: _in_words(source, names) for symbol, source in known.sources.items()}
    facts = _Facts()
    for symbol, least, most in known.ranges:
        if str(symbol) in words:
            facts.least[symbol], facts.most[symbol] = (least, ""), (most, "")
    for expression, line in known.guards:
        facts.add(expression, line)
    facts.settle()

    def told(text: str) -> str:
        return re.sub(r"\bs\d+\b", lambda symbol: words.get(symbol[0], symbol[0]), text)

    bounds = []
    for symbol, (least, line) in facts.least.items():
        if facts.number(symbol) is not None or facts.stands_for(symbol) is not symbol:
            continue
        alike = [words[str(other)] for other in facts.least if facts.stands_for(other) is symbol]
        sizes = tuple(dict.fromkeys([words[str(symbol)], *alike]))
        most, line_of_most = facts.most[symbol]
        bounds.append(Bounds(sizes=sizes, least=least, least_line=line, most=most, most_line=line_of_most))
    numbers = {words[str(symbol)]: facts.number(symbol) for symbol in facts.least}

    def holds(lengths: Mapping[str, int]) -> bool:
        known = {symbol: lengths[words[str(symbol)]] for symbol in facts.least if words[str(symbol)] in lengths}
        return all(fact.holds(known) for fact in facts.facts if fact.symbols <= known.keys())

    return Assumptions(
        holds=holds,
        relations={told(fact.text): fact.line for fact in facts.facts},
        bounds=bounds,
        fixed={size: number for size, number in numbers.items() if number is not None},
    )


def _in_words(source: str, names: Mapping[str, str]) -> str:
    """Dynamo's `L['x'].size()[0]`."""
    match = _SIZE_SOURCE.match(source)
    if match is None:
        return source
    tensor = parameter_name(match[1])
    return size_text(names.get(tensor, tensor), int(match[2]))


@dataclass(frozen=True)
class _Fact:
    """`difference` is zero, not zero, or at least zero: relation "==", "!=", ">=". A relation of another kind: None."""

    difference: Any
    relation: str
    line: str
    expression: Any = None

    @property
    def symbols(self) -> set[Any]:
        return set((self.difference if self.expression is None else self.expression).free_symbols)

    def holds(self, sizes: Mapping[Any, int]) -> bool:
        """Whether it holds of these sizes, which are all of its own."""
        if self.expression is not None:
            return bool(self.expression.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()}))
        difference = _at(self.difference, sizes)
        return {"==": difference == 0, "!=": difference != 0, ">=": difference >= 0}[self.relation]

    @property
    def text(self) -> str:
        if self.expression is not None:
            return str(torch_private.python_printer()().doprint(self.expression))
        terms = self.difference.as_coefficients_dict()
        left = [(term, number) for term, number in terms.items() if number > 0]
        right = [(term, -number) for term, number in terms.items() if number < 0]
        if not any(term.free_symbols for term, _ in left):
            left, right = right, left
            relation = {">=": "<="}.get(self.relation, self.relation)
        else:
            relation = self.relation
        return f"{_sum(left)} {relation} {_sum(right)}"


class _Facts:
    """least, most: {symbol: (bound, the line that asked for it)}."""

    def __init__(self) -> None:
        self.facts: list[_Fact] = []
        self.least: dict[Any, tuple[int, str]] = {}
        self.most: dict[Any, tuple[int | None, str]] = {}
        self._same: dict[Any, Any] = {}

    def stands_for(self, symbol: Any) -> Any:
        """The first of the sizes that are equal to one."""
        while symbol in self._same:
            symbol = self._same[symbol]
        return symbol

    def number(self, symbol: Any) -> int | None:
        """What a fact fixes the size at; None: nothing does."""
        for fact in self.facts:
            terms = dict(fact.difference.as_coefficients_dict())
            factor, rest = terms.pop(symbol, 0), terms.pop(sympy.Integer(1), 0)
            if fact.relation == "==" and factor and not terms and rest % factor == 0:
                return int(-rest // factor)
        return None

    def add(self, expression: Any, line: str) -> None:
        fact = _normal(expression, line)
        if fact is None:
            self.facts.append(_Fact(sympy.Integer(0), "", line, expression))
            return
        if fact.relation == ">=":
            opposite = _Fact(-fact.difference, ">=", line)
            known = next(
                (other for other in self.facts if other.relation == ">=" and other.difference == opposite.difference),
                None,
            )
            if known is not None:
                self.facts.remove(known)
                fact = _Fact(known.difference, "==", line or known.line)
        if any((fact.relation, fact.difference) == (other.relation, other.difference) for other in self.facts):
            return
        self.facts.append(fact)

    def settle(self) -> None:
        """Turns facts of one size into its bounds, and drops what the bounds imply."""
        before = -1
        while before != len(self.facts):
            before = len(self.facts)
            self.facts = [fact for fact in self.facts if not self._is_bound(fact) and not self._is_implied(fact)]
        for fact in self.facts:
            one, other = self._equal_symbols(fact)
            one, other = self.stands_for(one), self.stands_for(other)
            if one is not other:
                self._same[other] = one
                self.least[one] = max(self.least[one], self.least[other])
                self.most[one] = min(
                    self.most[one], self.most[other], key=lambda end: math.inf if end[0] is None else end[0]
                )
        self.facts = [fact for fact in self.facts if not self._is_of_equal_sizes(fact)]

    def _is_of_equal_sizes(self, fact: _Fact) -> bool:
        """Whether a fact holds since sizes in it are equal, and is not what makes them so."""
        if fact.relation not in ("==", ">=") or self._equal_symbols(fact)[0] is not None:
            return False
        same = {symbol: self.stands_for(symbol) for symbol in fact.difference.free_symbols}
        return bool(sympy.expand(fact.difference.xreplace(same)) == 0)

    def _equal_symbols(self, fact: _Fact) -> tuple[Any, Any]:
        terms = fact.difference.as_coefficients_dict() if fact.relation == "==" else {}
        if len(terms) == 2 and sorted(terms.values()) == [-1, 1] and all(term in self.least for term in terms):
            first, second = sorted(terms, key=[*self.least].index)
            return first, second
        return None, None

    def _is_bound(self, fact: _Fact) -> bool:
        """Whether a fact of one size says no more than a bound, which it is from now on."""
        symbols = list(fact.difference.free_symbols)
        if len(symbols) != 1 or fact.relation not in (">=", "!=") or symbols[0] not in self.least:
            return False
        (symbol,) = symbols
        least, most = self.least[symbol][0], self.most[symbol][0]

        def at(size: int) -> int:
            return int(fact.difference.xreplace({symbol: sympy.Integer(size)}).doit())

        if _grows(fact.difference, {symbol: least}):
            passes = 0 if fact.relation == ">=" else 1
            if fact.relation == "!=" and at(least) < 0:
                return False
            if (bound := _first(lambda size: at(size) >= passes, least)) is None:
                return False
            self.least[symbol] = max((least, self.least[symbol][1]), (bound, fact.line), key=lambda end: end[0])
            return True
        if fact.relation == ">=" and _grows(-fact.difference, {symbol: least}):
            if (beyond := _first(lambda size: at(size) < 0, least)) is None:
                return False
            if most is None or beyond - 1 < most:
                self.most[symbol] = (beyond - 1, fact.line)
            return True
        return False

    def _is_implied(self, fact: _Fact) -> bool:
        """Whether a fact of several sizes holds at their least, and so for all."""
        corner = {symbol: self.least[symbol][0] for symbol in fact.difference.free_symbols if symbol in self.least}
        if len(corner) != len(fact.difference.free_symbols) or fact.relation not in (">=", "!="):
            return False
        if not _grows(fact.difference, corner):
            return False
        return _at(fact.difference, corner) >= (0 if fact.relation == ">=" else 1)


def _first(holds: Any, least: int) -> int | None:
    """The first size from `least` on for which it holds, which it does for all that follow."""
    step = 1
    while not holds(least + step - 1):
        step *= 2
        if step > MOST_SEARCHED:
            return None
    low, high = least, least + step - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _at(expression: Any, sizes: Mapping[Any, int]) -> int:
    return int(expression.xreplace({symbol: sympy.Integer(size) for symbol, size in sizes.items()}).doit())


def _grows(expression: Any, least: Mapping[Any, int]) -> bool:
    """Whether an expression of sizes is never less for a greater size. least: of each size."""
    if expression.is_Integer or expression.is_Symbol:
        return True
    if expression.is_Add:
        return all(_grows(part, least) for part in expression.args)
    if expression.is_Mul:
        return all(_grows(part, least) and _at(part, least) >= 0 for part in expression.args)
    if type(expression).__name__ == "FloorDiv":
        number, divisor = expression.args
        return bool(divisor.is_Integer and divisor > 0) and _grows(number, least)
    return False


def _normal(expression: Any, line: str) -> _Fact | None:
    kinds = {sympy.Eq: "==", sympy.Ne: "!=", sympy.Ge: ">=", sympy.Gt: ">", sympy.Le: "<=", sympy.Lt: "<"}
    relation = next((sign for kind, sign in kinds.items() if type(expression) is kind), "")
    if not relation or not all(symbol.is_integer for symbol in expression.free_symbols):
        return None
    left, right = expression.args
    if relation in ("<", "<="):
        left, right, relation = right, left, {"<": ">", "<=": ">="}[relation]
    difference = sympy.expand(left - right)
    if relation == ">":
        difference, relation = difference - 1, ">="
    terms = difference.as_coefficients_dict()
    if not difference.free_symbols or not all(number.is_Integer for number in terms.values()):
        return None
    if relation in ("==", "!="):
        factor = math.gcd(*(int(number) for number in terms.values()))
        difference = sympy.expand(difference / factor)
    return _Fact(difference, relation, line)


def _sum(terms: Sequence[tuple[Any, Any]]) -> str:
    """Of (term, how often)."""
    ordered = sorted(terms, key=lambda pair: (not pair[0].free_symbols, str(pair[0])))
    texts = []
    for term, number in ordered:
        if not term.free_symbols:
            texts.append(str(number * term))
        else:
            texts.append(_text(term) if number == 1 else f"{number} * {_factor(term)}")
    return " + ".join(texts) or "0"


def _text(term: Any) -> str:
    """As Python code, without parentheses that nobody needs."""
    if term.is_Add:
        terms = term.as_coefficients_dict()
        plus = _sum([(part, number) for part, number in terms.items() if number > 0])
        minus = [(part, -number) for part, number in terms.items() if number < 0]
        return f"({plus}{''.join(f' - {_sum([pair])}' for pair in minus)})"
    if term.is_Mul:
        return " * ".join(map(_factor, term.args))
    if type(term).__name__ in QUOTIENTS:
        divisor = f"({_text(term.args[1])})" if term.args[1].is_Mul else _factor(term.args[1])
        return f"{_text(term.args[0])} {QUOTIENTS[type(term).__name__]} {divisor}"
    return str(torch_private.python_printer()().doprint(term))


QUOTIENTS = {"FloorDiv": "//", "Mod": "%", "PythonMod": "%"}
"""{torch's function of sizes: Python's sign of it, which binds as `*` does}."""


def _factor(term: Any) -> str:
    """Behind a `*`."""
    return f"({_text(term)})" if type(term).__name__ in QUOTIENTS else _text(term)
