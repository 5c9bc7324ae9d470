"""What a rule is, and the words that make one."""

from __future__ import annotations

import contextlib
import enum
import functools
import operator as python_operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rust_ort.torch_private import primitive

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]
Condition = Callable[[fx.Node], bool]


class How(enum.Enum):
    """What is done with an operator, as the documentation says it."""

    DECOMPOSED = "our decomposition"
    TORCHS_OWN = "torch's own decomposition"
    TRANSLATED = "our ONNX form"
    EAGER = "in eager"
    WHOLE = "not decomposed"


def _always(_: fx.Node) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is done with an operator in the place of what torch and torchlib would do.

    operator: an overload, "aten.mv.default", or all of them, "aten.angle", one of torch's primitives,
    "prims.fma.default", a library's, or what Python does with sizes, "operator.floordiv".
    why: what is wrong or missing otherwise, in `upstream`: "torch", "torchlib" (of onnxscript) or "onnxruntime".
    silent: without the rule a result would be wrong and nothing would say so. function: the decomposition or ONNX form.
    when: which nodes are left to eager.
    """

    operator: str
    how: How
    why: str
    upstream: str
    silent: bool = False
    function: Function | None = None
    when: Condition = _always

    @property
    def unconditional(self) -> bool:
        """Whether it holds for every node of the operator."""
        return self.when is _always

    @property
    def overloads(self) -> list[Any]:
        """Those of `operator` that are there: what nodes have as their target. A library's may come later."""
        found = self._found or self._look_up()
        self._found.extend(found[len(self._found) :])
        return self._found

    @functools.cached_property
    def _found(self) -> list[Any]:
        return []

    def _look_up(self) -> list[Any]:
        of_python = self.operator.removeprefix("operator.")
        if of_python != self.operator:
            return [getattr(python_operator, of_python)]
        namespace, packet_name, *rest = self.operator.split(".")
        of_namespace = getattr(torch.ops, namespace)
        packet = primitive(packet_name) if namespace == "prims" else getattr(of_namespace, packet_name, None)
        overload = ".".join(rest)
        if packet is None:
            return []
        names = [overload] if overload else packet.overloads()
        return [getattr(packet, name) for name in names if hasattr(packet, name)]


RULES: list[Rule] = []
_masked: frozenset[str] = frozenset()


def masked() -> frozenset[str]:
    """Operators whose rules do not count now: part of the key of whatever is made from the rules."""
    return _masked


def active(how: How) -> list[Rule]:
    """The rules of one kind, in the order of their registration."""
    return [rule for rule in RULES if rule.how is how and rule.operator not in _masked]


@contextlib.contextmanager
def without(*operators: str) -> Iterator[None]:
    """Inside, the rules of these operators do not count: to show that a rule is needed. One thread at a time."""
    global _masked
    unknown = set(operators) - {rule.operator for rule in RULES}
    if unknown:
        raise KeyError(f"no rule for {', '.join(sorted(unknown))}")
    before, _masked = _masked, _masked | frozenset(operators)
    try:
        yield
    finally:
        _masked = before


def _register(operators: tuple[str, ...], **rule: Any) -> None:
    for operator in operators:
        made = Rule(operator=operator, **rule)
        if any(known.operator == operator and known.how is made.how for known in RULES):
            raise ValueError(f"two rules of the same kind for {operator}: {made.how.value}")
        RULES.append(made)


def decomposed(*operators: str, why: str, upstream: str = "torchlib", silent: bool = False) -> Decorator:
    """The decorated function, in ATen operators, is traced in the place of the operator by AOTAutograd.

    It has the operator's signature and may return NotImplemented: then the node stays whole.
    """

    def register(function: Function) -> Function:
        _register(operators, how=How.DECOMPOSED, why=why, upstream=upstream, silent=silent, function=function)
        return function

    return register


def translated(*operators: str, why: str, upstream: str = "torchlib", silent: bool = False) -> Decorator:
    """The decorated function writes the operator in ONNX, by `op`, in the place of torchlib's. Overloads only.

    It has the operator's signature. Tensors are symbolic values with dtype and shape; None, numbers and lists of
    numbers come as they are, a symbolic size as a value of rank 0.
    """

    def register(function: Function) -> Function:
        _register(operators, how=How.TRANSLATED, why=why, upstream=upstream, silent=silent, function=function)
        return function

    return register


def torchs_own(*operators: str, why: str, upstream: str = "torchlib", silent: bool = False) -> None:
    """torch's general decomposition is used although torchlib has a function for the operator."""
    _register(operators, how=How.TORCHS_OWN, why=why, upstream=upstream, silent=silent)


def in_eager(
    *operators: str, why: str, upstream: str = "torchlib", silent: bool = True, when: Condition = _always
) -> None:
    """Nodes for which `when` holds stay in eager, and `why` is what the user is told."""
    _register(operators, how=How.EAGER, why=why, upstream=upstream, silent=silent, when=when)


def whole(*operators: str, why: str, upstream: str = "torch", silent: bool = False) -> None:
    """The operator is not decomposed; torchlib translates it, or it stays in eager."""
    _register(operators, how=How.WHOLE, why=why, upstream=upstream, silent=silent)


def why_eager(node: fx.Node) -> str | None:
    """What the rules say against running `node`, of an ATen operator, on ONNX Runtime."""
    for rule in _eager(_masked).get(node.target._schema.name, ()):  # type: ignore[union-attr]
        if node.target in rule.overloads and rule.when(node):
            return rule.why
    return None


@functools.cache
def _eager(_: frozenset[str]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in active(How.EAGER):
        found.setdefault("::".join(rule.operator.split(".")[:2]), []).append(rule)
    return found


class _Opset:
    """onnxscript's operators, loaded when the first is written."""

    def __getattr__(self, name: str) -> Any:
        from onnxscript import opset18

        return getattr(opset18, name)


op = _Opset()
"""ONNX operators for the functions of `translated`."""


def ints(values: Sequence[int] | int) -> Any:
    """A constant for such a function: int64, of rank 1, of a number of rank 0."""
    from onnxscript import ir

    return op.Constant(value=ir.tensor(values, dtype=ir.DataType.INT64))


def unread(count: int) -> list[Any]:
    """In the places of results that no tensor is: nothing, and sizes."""
    return [op.Constant(value_int=0) for _ in range(count)]
