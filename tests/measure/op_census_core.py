"""What becomes of an operator by the rules, the decomposition table and torchlib's registry alone: no model runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from measure.op_census_exceptions import MISSING, category
from rust_ort.export import decompositions, exporter, rules
from rust_ort.export.partition import BOOKKEEPING, DRAWS_RANDOM_NUMBERS, SIZE_AT_RUN_TIME
from rust_ort.export.rules import How, Rule
from rust_ort.torch_private import OpOverload, operator_schemas


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """runs: whether a node of the operator, or what it is decomposed to, may run on ONNX Runtime. how: by what, or the
    category of the exception, or "missing". why: a rule's reason."""

    runs: bool
    how: str
    why: str = ""


@functools.cache
def core_operators() -> tuple[OpOverload, ...]:
    """Every overload of Core ATen, sorted; without those that write to an argument."""
    schemas = (schema for schema in operator_schemas() if schema.name.startswith("aten::"))
    names = {f"{schema.name.replace('::', '.')}.{schema.overload_name or 'default'}" for schema in schemas}
    overloads = filter(None, map(overload, sorted(names)))
    return tuple(found for found in overloads if torch.Tag.core in found.tags and not found._schema.is_mutable)


def overload(name: str) -> Any:
    """The operator of a name such as "aten.mm.default"; None where this torch has none."""
    found: Any = torch.ops
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            return None
    return found


def judge(operator: Any) -> Verdict:
    """Of an overload, by its tags, the rules and the registry. Where a rule holds for some nodes only, the rest counts
    and `why` says when."""
    refused = _always_refused(operator)
    if refused:
        how = category(str(operator), refused)
        return Verdict(runs=False, how=how, why=refused)
    why = "; ".join(f"in eager where {rule.why}" for rule in _rules(How.EAGER, operator))
    if operator in BOOKKEEPING or operator is torch.ops.aten.sym_is_contiguous.default:
        return Verdict(runs=True, how="arithmetic on sizes", why=why)
    decomposed = operator in decompositions.table()
    ours = _rules(How.DECOMPOSED, operator)
    if decomposed and not ours:
        return Verdict(runs=True, how="decomposed by torch", why=why)
    if _rules(How.TRANSLATED, operator):
        return Verdict(runs=True, how="translated by our ONNX form", why=why)
    if _has_function(operator):
        how = "translated by torchlib" + (", some of it decomposed by our rule" if ours else "")
        return Verdict(runs=True, how=how, why=why)
    if ours:
        return Verdict(runs=True, how="decomposed by our rule", why=why)
    if operator._can_decompose():
        return Verdict(runs=True, how="composite: comes apart by itself", why=why)
    missing = exporter.without_form(operator)
    return Verdict(runs=False, how=category(str(operator), missing), why=missing)


def _always_refused(operator: Any) -> str:
    # By default one that drops out drops nothing: see `rules.nodes.draws`.
    drops_out = any(argument.name == "dropout_p" for argument in operator._schema.arguments)
    if torch.Tag.nondeterministic_seeded in operator.tags and not drops_out:
        return DRAWS_RANDOM_NUMBERS
    if torch.Tag.data_dependent_output in operator.tags or _size_from_values(operator):
        return SIZE_AT_RUN_TIME
    return next((rule.why for rule in _rules(How.EAGER, operator) if rule.unconditional), "")


def _size_from_values(operator: Any) -> bool:
    """aten.index is tagged too, for its boolean indices."""
    return torch.Tag.dynamic_output_shape in operator.tags and operator is not torch.ops.aten.index.Tensor


def _rules(how: How, operator: Any) -> list[Rule]:
    return [rule for rule in rules.active(how) if operator in rule.overloads]


def _has_function(operator: Any) -> bool:
    return any(not found.is_complex for found in exporter.registry().get_decomps(operator))


__all__ = ["MISSING", "Verdict", "core_operators", "judge", "overload"]
