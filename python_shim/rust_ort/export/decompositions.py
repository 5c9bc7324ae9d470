"""The decomposition table given to AOTAutograd, made so that what remains is right when torchlib translates it.

torch's ONNX-friendly table is the base; `rules` say where it differs and why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rust_ort.export import exporter, rules
from rust_ort.export.aliases import UNDECLARED_VIEWS
from rust_ort.export.rules import How
from rust_ort.torch_private import outside_tracing, pytree, shares_memory, torchs_decompositions

Table = dict[Any, Callable[..., Any]]


def table(whole: frozenset[str] | None = None) -> Table:
    """{operator overload: decomposition}, made once a process.

    whole: `exporter.whole_operators()`. None asks for them, which loads the exporter and onnxscript.
    """
    return _table(exporter.whole_operators() if whole is None else whole, rules.masked())


@functools.cache
def _table(whole: frozenset[str], _: frozenset[str]) -> Table:
    table = _onnx_friendly(whole)
    for operator in _overloads(How.WHOLE):
        table.pop(operator, None)
    general = torchs_decompositions()
    for operator in _overloads(How.TORCHS_OWN):
        if operator in general:
            table[operator] = general[operator]
    for rule in rules.active(How.DECOMPOSED):
        assert rule.function is not None, f"{rule.operator}: a decomposition is a function"
        table.update(dict.fromkeys(rule.overloads, rule.function))
    return {operator: _as_declared(operator, function) for operator, function in table.items()}


def _as_declared(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, whose results are apart from its arguments in memory, as the operator's schema says, and have
    channels last where the operator's own have: users see both."""
    if getattr(operator, "is_view", False) or operator._schema.is_mutable:
        return function

    @functools.wraps(function)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        made = function(*args, **kwargs)
        if made is NotImplemented:
            return made
        results, sequence = pytree.tree_flatten(made)
        given = pytree.tree_leaves((args, kwargs))
        if operator not in UNDECLARED_VIEWS:
            results = [_apart(result, given) for result in results]
        if any(map(_has_channels_last, given)):
            with outside_tracing():
                eager = pytree.tree_leaves(operator(*args, **kwargs))  # a named tuple where `made` may be otherwise
            results = [_laid_out(result, own) for result, own in zip(results, eager, strict=False)]
        return pytree.tree_unflatten(results, sequence)

    return keeping


def _apart(made: Any, given: Sequence[Any]) -> Any:
    """A copy of a result that is a view of an argument."""
    if isinstance(made, torch.Tensor) and any(shares_memory(made, other) for other in given):
        return made.clone()
    return made


def _has_channels_last(value: object) -> bool:
    return _format(value) is not torch.contiguous_format


def _format(value: object) -> torch.memory_format:
    """Of an image that has one and is not contiguous as well."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.dim() in last:
        wanted = last[value.dim()]
        if value.is_contiguous(memory_format=wanted) and not value.is_contiguous():
            return wanted
    return torch.contiguous_format


def _laid_out(made: Any, eager: Any) -> Any:
    wanted = _format(eager)
    return made if wanted is torch.contiguous_format else made.contiguous(memory_format=wanted)


def _overloads(how: How) -> list[Any]:
    return [overload for rule in rules.active(how) for overload in rule.overloads]


def _onnx_friendly(whole: frozenset[str]) -> Table:
    """torch.onnx's create_onnx_friendly_decomposition_table, less the composite operators, which it lists slowly and
    which come apart without it."""
    return {
        operator: decomposition
        for operator, decomposition in torchs_decompositions().items()
        if str(operator) not in whole
    }
