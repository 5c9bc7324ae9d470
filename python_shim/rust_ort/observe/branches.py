"""Where a value that drifted takes another branch than eager's: a comparison, or a choice of indices, that rounding
turns. What is computed from there on differs by more than rounding, and no kernel is to blame."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.observe.choices import given
from rust_ort.observe.digits import significant

aten = torch.ops.aten

COMPARING = frozenset(
    getattr(getattr(aten, name), overload)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Tensor", "Scalar")
)
CHOOSING = frozenset({aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim,
                      aten.argmax.default, aten.argmin.default})  # fmt: skip
RECTIFYING = frozenset({aten.relu.default})
POOLING = frozenset({aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default})


def other_branch(node: fx.Node, candidate: Tensor, env: Mapping[fx.Node, Any]) -> str:
    """How many elements of a bool or an index are others than eager's, and by how much what decides them is apart;
    "" where none are. candidate: the node's value as it drifted; env: eager's values."""
    reference = env[node]
    if reference.dtype.is_floating_point or reference.is_complex() or candidate.shape != reference.shape:
        return ""
    other = candidate != reference
    n_other = int(other.sum())
    if not n_other:
        return ""
    try:
        apart = _apart(node, candidate, reference, env)
    except (RuntimeError, TypeError, IndexError):  # by how much is not known
        apart = None
    by = "" if apart is None else f", by {significant(float(apart[other].abs().max()), 2)}"
    return f"{n_other:,} of {reference.numel():,} elements of {node.name} took the other branch{by}"


def near_a_branch(node: fx.Node, env: Mapping[fx.Node, Any], bounds: Mapping[str, Mapping[str, Any]]) -> Tensor | None:
    """Where a comparison, or a rectifier, may come out otherwise for a difference that what it reads may have: inside
    tolerance, or as far as that drifted; None of any other node, and where that is not known. env: eager's values;
    bounds: {node: metrics of its verdict as it drifted}."""
    if node.target not in COMPARING | RECTIFYING:
        return None
    sides = [side for side in node.args[:2] if isinstance(side, fx.Node)]
    known = {side: bounds.get(computed(side).name) for side in sides}
    try:
        apart = env[sides[0]].double() if node.target in RECTIFYING else _apart(node, env[node], env[node], env)
    except (RuntimeError, TypeError, IndexError, KeyError):  # of no numbers
        return None
    if apart is None or not all(known.values()):
        return None
    allowed = torch.zeros((), dtype=torch.float64, device=env[node].device)
    for side, metrics in known.items():
        assert metrics is not None
        tolerance, value = metrics["tolerance"], env[side].double().abs()
        inside = tolerance["atol"] + tolerance["rtol"] * value + tolerance["scale"] * float(metrics["max_reference"])
        allowed = allowed + inside.clamp(min=float(metrics["max_abs"]))
    return apart.abs() <= allowed


def rectifier(node: fx.Node) -> fx.Node | None:
    """The rectifier of which a node asks where it is zero, as its backward does."""
    if node.target is not aten.le.Scalar or node.args[1] != 0:
        return None
    of = computed(node.args[0]) if isinstance(node.args[0], fx.Node) else None
    return of if of is not None and of.target in RECTIFYING else None


def computed(node: fx.Node) -> fx.Node:
    """The node whose value a chain of detached values has."""
    while node.target is aten.detach.default and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def _apart(node: fx.Node, candidate: Tensor, reference: Tensor, env: Mapping[fx.Node, Any]) -> Tensor | None:
    """What decides each element: how far the two sides of a comparison are apart, or the keys at two indices."""
    if node.target in COMPARING:
        sides: list[Any] = [env[side] if isinstance(side, fx.Node) else side for side in node.args[:2]]
        if any(isinstance(side, bool) or getattr(side, "dtype", None) is torch.bool for side in sides):
            return None
        first, second = (side.double() if isinstance(side, Tensor) else side for side in sides)
        apart: Tensor = first - second
        return apart.expand(reference.shape)
    source, result = node.args if node.target is operator.getitem else (node, 1)
    if not isinstance(source, fx.Node) or result != 1 or source.target not in CHOOSING | POOLING:
        return None
    keys: Any = env[source.args[0]].double()  # type: ignore[index]
    if source.target in POOLING:
        n_axes = 2 if source.target is aten.max_pool2d_with_indices.default else 3
        keys, flat = keys.flatten(-n_axes), (reference.flatten(-n_axes), candidate.flatten(-n_axes))
        pooled: Tensor = keys.gather(-1, flat[0]) - keys.gather(-1, flat[1])
        return pooled.reshape(reference.shape)
    dim = given(source, "dim", None)
    if dim is None or keys.dim() == 0:
        return None
    squeezed = reference.dim() < keys.dim()
    places = (indices.unsqueeze(dim) if squeezed else indices for indices in (reference, candidate))
    taken, other = (keys.gather(dim, indices) for indices in places)
    chosen: Tensor = taken - other
    return chosen.reshape(reference.shape)


def branch_behind(output: fx.Node, branches: Mapping[str, str]) -> str:
    """The text of the first of the branches that an output is computed from; "" where none is."""
    ahead, seen = [output], {output}
    found: set[str] = set()
    while ahead:
        node = ahead.pop()
        if node.name in branches:
            found.add(node.name)
        new = [source for source in node.all_input_nodes if source not in seen]
        seen.update(new)
        ahead += new
    return next((text for name, text in branches.items() if name in found), "")
