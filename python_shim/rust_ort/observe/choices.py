"""Choices that torch leaves open: which of equal keys is taken, which of two writes stays, in what order elements come.

The CPU's `sort` and `topk` are std::sort, nth_element and partial_sort, whose choice among equals follows from all that
was swapped before; no ONNX operator has it. ONNX Runtime's TopK takes the first. Both are right, and an index apart is
no fault. A node alone is judged on eager's inputs, so that the choosing node is the only one that such a verdict is
about: what reads its indices is given eager's. As values drift they follow the other choice: from an open node on, a
cumulative verdict says how far the two choices lead apart, and accuses nobody.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, fx

aten = torch.ops.aten

Open = Literal["", "tie", "open order"]

CHOOSING = {
    aten.sort.default: 1,
    aten.sort.stable: 2,
    aten.topk.default: 2,
    aten.kthvalue.default: 2,
    aten.median.dim: 1,
    aten.nanmedian.dim: 1,
    aten.mode.default: 1,
}
"""{operator that gives (values, indices): position of its axis}; which of equal keys it takes is open."""

WRITING = {
    aten.index_put.default: "values",
    aten._unsafe_index_put.default: "values",
    aten.scatter.src: "src",
}
"""{operator that writes: its values}; which of several writes to one place stays is open."""

WHY_OPEN: dict[Open, str] = {
    "tie": "of equals others were chosen, which torch leaves open",
    "open order": "the same elements come in another order, which torch leaves open",
}


def why_open(
    node: fx.Node, candidate: Tensor, env: Mapping[fx.Node, Any], beside: Mapping[int, Tensor] | None = None
) -> Open:
    """What of `candidate`, which is not eager's value, is as right as it: "tie", other ones of equal keys, each once,
    or of several writes to one place; "open order", the same elements where none is promised; "" for a fault.

    node: a result of an operator; candidate: its value on eager's inputs; env: eager's values of it and its inputs;
    beside: {position: the candidate's other results}, as far as they are known. Values and indices are judged together:
    those of one order beside these of another are a fault.
    """
    if node.target in WRITING:
        return "tie" if _another_write(node, candidate, env) else ""
    source, result = node.args if node.target is operator.getitem else (node, None)
    if not isinstance(source, fx.Node) or source.target not in CHOOSING or result not in (0, 1):
        return ""
    keys, (values, indices) = env[source.args[0]], env[source]  # type: ignore[index]
    dim = given(source, "dim", -1)
    if keys.dim() and values.dim() < keys.dim():
        values, indices, candidate = (tensor.unsqueeze(dim) for tensor in (values, indices, candidate))
        beside = {position: tensor.unsqueeze(dim) for position, tensor in (beside or {}).items()}
    if candidate.shape != indices.shape:
        return ""
    results: dict[Any, Tensor] = {**(beside or {}), result: candidate}
    if len(results) == 2 and not _belong_together(keys, results[0], results[1], dim):
        return ""
    has_order = source.target is not aten.topk.default or given(source, "sorted", True)
    if result == 0:
        return (
            "open order" if not has_order and bool(_same(_ordered(candidate, dim), _ordered(values, dim)).all()) else ""
        )
    if given(source, "stable", False) or not _is_choice(candidate, keys, dim):
        return ""
    if not has_order and torch.equal(_ordered(candidate, dim), _ordered(indices, dim)):
        return "open order"
    taken = keys.gather(dim, candidate) if keys.dim() else keys
    if not has_order:
        taken, values = _ordered(taken, dim), _ordered(values, dim)
    return "tie" if bool(_same(taken, values).all()) else ""


def given(node: fx.Node, name: str, default: Any) -> Any:
    """An argument of a node, by position or name."""
    if name in node.kwargs:
        return node.kwargs[name]
    declared = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    place = declared.index(name) if name in declared else len(node.args)
    return node.args[place] if place < len(node.args) else default


def _belong_together(keys: Tensor, values: Tensor, indices: Tensor, dim: int) -> bool:
    """Whether the indices are places of these values among the keys."""
    if values.shape != indices.shape or not _is_choice(indices, keys, dim):
        return False
    return bool(_same(keys.gather(dim, indices) if keys.dim() else keys, values).all())


def _is_choice(indices: Tensor, keys: Tensor, dim: int) -> bool:
    """Whether they are places of keys, none taken twice."""
    size = keys.shape[dim] if keys.dim() else 1
    if not bool(((indices >= 0) & (indices < size)).all()):
        return False
    return not keys.dim() or bool((_ordered(indices, dim).diff(dim=dim) != 0).all())


def _another_write(node: fx.Node, candidate: Tensor, env: Mapping[fx.Node, Any]) -> bool:
    """Whether, wherever it is not eager's value, it is one of those that are written there."""
    target: Any = node.target
    names = ("dim", "index", "indices", "accumulate", WRITING[target])
    args: Any = fx.map_arg({name: given(node, name, False) for name in names}, lambda source: env[source])
    reference, values = env[node], args[WRITING[target]]
    if args["accumulate"] or candidate.shape != reference.shape:
        return False
    places = torch.arange(reference.numel(), device=reference.device).reshape(reference.shape)
    if target is aten.scatter.src:
        places = places.gather(args["dim"], args["index"])
        values = values[tuple(slice(size) for size in places.shape)]
    else:
        places = aten.index.Tensor(places, args["indices"])
        values = values.expand(places.shape)
    written = _same(values, candidate.flatten()[places])
    known = _same(candidate, reference).flatten()
    known[places[written]] = True
    return bool(known.all())


def _ordered(tensor: Tensor, dim: int) -> Tensor:
    return tensor.sort(dim).values if tensor.dim() else tensor


def _same(some: Tensor, others: Tensor) -> Tensor:
    """Where they are equal, or both NaN."""
    return (some == others) | ((some != some) & (others != others))
