"""The decomposition table given to AOTAutograd, made so that what remains is right when torchlib translates it.

torch's ONNX-friendly table is the base; `rules` say where it differs and why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from rust_ort.export import exporter, rules
from rust_ort.export.rules import How
from rust_ort.torch_private import torchs_decompositions

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
    return table


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
