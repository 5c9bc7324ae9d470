"""What settles a local mismatch: the node in float64, and whether an unstable choice is as right as eager's."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.observe.sums import added_up
from rust_ort.torch_private import pytree

log = logging.getLogger("rust_ort")
aten = torch.ops.aten

CHOOSING = {
    aten.sort.default: 1,
    aten.sort.stable: 1,
    aten.topk.default: 2,
    aten.kthvalue.default: 2,
    aten.median.dim: 1,
    aten.nanmedian.dim: 1,
    aten.mode.default: 1,
}
"""{operator that gives (values, indices): position of its axis}; which of equal keys it takes is open."""

ANOTHER_CHOICE = "of equal keys others were chosen, which torch leaves open"


def in_float64(node: fx.Node, env: Mapping[fx.Node, Any]) -> tuple[Tensor | None, Tensor | None]:
    """(what `node` makes of eager's values, Σ|terms| of it) in float64; None where the operator cannot, or is not known
    to add up."""
    source, index = node.args if node.target is operator.getitem else (node, None)
    assert isinstance(source, fx.Node)
    target: Any = source.target
    args, kwargs = pytree.tree_map(_wide, fx.map_arg((source.args, source.kwargs), lambda n: env[n]))
    try:
        exact = _result(target(*args, **kwargs), index)
    except (RuntimeError, TypeError, ValueError) as error:
        log.debug("%s has no float64 opinion: %s", node.name, error)
        return None, None
    return exact, None if exact is None else _result(added_up(target, args, kwargs), index)


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype.is_floating_point:
        return value.double()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _result(made: Any, index: Any) -> Tensor | None:
    if isinstance(index, int):
        made = made[index] if isinstance(made, tuple | list) else None
    return made if isinstance(made, Tensor) and made.dtype is torch.float64 else None


def another_choice(node: fx.Node, indices: Tensor, env: Mapping[fx.Node, Any]) -> bool:
    """Whether `indices` choose the same keys as eager's do: equal keys in another order, no key twice."""
    source = node.args[0] if node.target is operator.getitem and node.args[1] == 1 else None
    if not isinstance(source, fx.Node) or source.target not in CHOOSING or source.kwargs.get("stable"):
        return False
    keys, chosen = env[source.args[0]], env[source][0]  # type: ignore[index]
    position = CHOOSING[source.target]
    dim: Any = source.kwargs.get("dim", source.args[position] if len(source.args) > position else -1)
    if keys.dim() == 0:
        return bool((indices == 0).all())
    if indices.dim() < keys.dim():
        indices, chosen = indices.unsqueeze(dim), chosen.unsqueeze(dim)
    if not bool(((indices >= 0) & (indices < keys.shape[dim])).all()):
        return False
    taken = keys.gather(dim, indices)
    ordered = indices.sort(dim).values
    distinct = bool((ordered.diff(dim=dim) != 0).all())
    return distinct and bool(((taken == chosen) | ((taken != taken) & (chosen != chosen))).all())
