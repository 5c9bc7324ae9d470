"""Complex numbers of an AOT graph as pairs of real ones, which ONNX has kernels for.

Complex values that nodes connect are one piece. A piece is written as pairs where every node of it has a form
(`pair_forms`), else it stays as it is, and each of its nodes says which operator had none. Inputs stay complex, and so
do outputs, with the views on their way: what makes pairs of the ones and of pairs the others is a view, which computes
nothing."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.decompositions import laid_out
from rust_ort.export.hash import attribute
from rust_ort.export.pair_forms import REAL, Pair, form_of
from rust_ort.export.partition import BETWEEN_PAIRS, NO_PAIRS, give_constants_values
from rust_ort.export.rules.nodes import tensors
from rust_ort.export.scalars import COPIED, inlined
from rust_ort.torch_private import OpOverload, free_unbacked_symbols, no_modes, outside_tracing, pytree, traced

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]


class _NoForm(Exception):
    """Why a node cannot be written as pairs."""


def as_pairs(gm: fx.GraphModule, table: Callable[[], Table]) -> None:
    """Writes what of a graph can be written so. table: decompositions, asked for if there are complex numbers."""
    complex_nodes = [node for node in gm.graph.nodes if _touches(node)]
    if not any(node.op == "call_function" for node in complex_nodes):
        return
    known = table()
    give_constants_values(gm)
    changed = False
    for piece in _pieces(gm.graph, complex_nodes):
        try:
            made = piece.written(gm, known)
        except _NoForm as error:
            for node in piece.nodes:
                node.meta[NO_PAIRS] = str(error)
            continue
        if made:
            piece.put(gm, made, known)
            changed = True
    if changed:
        gm.recompile()


def _is_complex(node: Any) -> bool:
    """Whether a node gives complex numbers."""
    return isinstance(node, fx.Node) and any(value.is_complex() for value in tensors(node.meta.get("val")))


def _touches(node: fx.Node) -> bool:
    """Whether it gives complex numbers, or an operator takes some, and not their shape alone."""
    if node.op == "output" or node.target is aten.sym_size.int:
        return False
    return _is_complex(node) or any(map(_is_complex, node.all_input_nodes))


@dataclass(kw_only=True)
class _Written:
    """A node as pairs: the graph that takes its place, whose placeholders are `given`. results: how many values it
    gives, None where it is one that is not in a list."""

    part: fx.GraphModule
    given: list[fx.Node]
    results: int | None


@dataclass(kw_only=True)
class _Piece:
    """nodes: operators, in the graph's order. ends: complex values of inputs and constants that they read. outputs:
    complex values that the graph's output reads, or views on the way there."""

    nodes: list[fx.Node]
    ends: list[fx.Node] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)

    def written(self, gm: fx.GraphModule, table: Table) -> dict[fx.Node, _Written]:
        """Each node of the piece; empty: there is nothing to compute. Nothing is changed. Errors: _NoForm."""
        if all(_is_view(node) and _is_complex(node) and _is_complex(node.args[0]) for node in self.nodes):
            return {}
        for node in (*self.ends, *self.nodes):
            for value in tensors(node.meta.get("val")):
                if value.is_complex() and value.dtype not in REAL:
                    raise _NoForm(f"{value.dtype} is no pair of numbers here")
                if free_unbacked_symbols(value):
                    raise _NoForm("a size is known only at run time")
        pairs: dict[fx.Node, Any] = {end: _value_of_pairs(end.meta["val"]) for end in self.ends}
        made: dict[fx.Node, _Written] = {}
        for node in self.nodes:
            if node.target is operator.getitem:
                pairs[node] = pairs[node.args[0]][node.args[1]]  # type: ignore[index]
                continue
            made[node] = _as_pairs(node, pairs, table)
            result = _results(made[node])
            pairs[node] = result[0] if made[node].results is None else result
        return made

    def put(self, gm: fx.GraphModule, made: Mapping[fx.Node, _Written], table: Table) -> None:
        """Takes the piece out of the graph and puts `made` there."""
        pairs: dict[fx.Node, Any] = {end: _end_as_pairs(gm, end) for end in self.ends}
        before = set(gm.graph.nodes)
        for node in self.nodes:
            if node.target is operator.getitem:
                pairs[node] = pairs[node.args[0]][node.args[1]]  # type: ignore[index]
                continue
            written = made[node]
            given = [pairs.get(source, source) for source in written.given]
            results = inlined(gm, node, written.part, given)
            pairs[node] = results[0] if written.results is None else list(results)
            if not _is_complex(node) and written.results is None:
                node.replace_all_uses_with(results[0])
        own = {node: made for node, made in pairs.items() if isinstance(made, fx.Node) and made not in before}
        for value in self.outputs:
            _give_complex(gm, value, pairs[value], table)
        self._take_out(gm, pairs)
        names = {node.name for node in gm.graph.nodes}
        for node in self.nodes:  # the first of those that are the same pairs
            if node in own and node.name not in names:
                own[node].name = node.name
                names.add(node.name)
                own = {other: made for other, made in own.items() if made is not own[node]}

    def _take_out(self, gm: fx.GraphModule, pairs: Mapping[fx.Node, Any]) -> None:
        for node in reversed(self.nodes):
            for user in [user for user in node.users if user.target is aten.sym_size.int]:
                size = user.args[1] % node.meta["val"].dim()
                user.args = (pairs[node], size)
            gm.graph.erase_node(node)


def _pieces(graph: fx.Graph, nodes: Sequence[fx.Node]) -> list[_Piece]:
    """Connected by complex values. Views of which nothing is read but outputs are on the way there, not in a piece."""
    after: set[fx.Node] = set()
    for node in reversed(nodes):
        ends = all(user.op == "output" or user in after or user.target is aten.sym_size.int for user in node.users)
        if ends and node.users and _is_view(node) and _is_complex(node) and _is_complex(node.args[0]):
            after.add(node)
    for node in after:
        node.meta[BETWEEN_PAIRS] = True
    leader: dict[fx.Node, fx.Node] = {}

    def lead(node: fx.Node) -> fx.Node:
        while leader.setdefault(node, node) is not node:
            node = leader[node]
        return node

    within = [node for node in nodes if node.op == "call_function" and node not in after]
    for node in within:
        for source in node.all_input_nodes:
            if _is_complex(source):
                leader[lead(node)] = lead(source)
    found: dict[fx.Node, _Piece] = {}
    for node in nodes:
        if node in after:
            continue
        piece = found.setdefault(lead(node), _Piece(nodes=[]))
        (piece.nodes if node.op == "call_function" else piece.ends).append(node)
        is_read = any(user.op == "output" or user in after for user in node.users)
        if node.op == "call_function" and _is_complex(node) and is_read:
            piece.outputs.append(node)
    return [piece for piece in found.values() if piece.nodes]


def _is_view(node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(node.target, OpOverload) and node.target.is_view


def _value_of_pairs(value: Any) -> Any:
    """The fake value of pairs in the memory of complex numbers."""
    if not isinstance(value, Tensor):
        return [*map(_value_of_pairs, value)]
    with outside_tracing(), value.fake_mode if hasattr(value, "fake_mode") else no_modes():
        return torch.view_as_real(aten._conj(value) if value.is_conj() else value)


def _as_pairs(node: fx.Node, pairs: Mapping[fx.Node, Any], table: Table) -> _Written:
    """Errors: _NoForm."""
    form = form_of(node.target)
    if form is None:
        raise _NoForm(f"{node.target} has no form of pairs")
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
    out = node.meta["val"]
    listed: list[int | None] = [None]

    def run(*values: Any) -> Any:
        left = iter(values)
        filled = [_filled(leaf, left) for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, structure)
        made = form(out, *args, **kwargs)
        if made is NotImplemented:
            raise _NoForm(f"{node.target} has no form of pairs for these arguments")
        listed[0] = len(made) if isinstance(made, (list, tuple)) else None
        results, outs = ([made], [out]) if listed[0] is None else (made, out)
        return tuple(_as_eager(result, eager) for result, eager in zip(results, outs, strict=True))

    values = [pairs[leaf] if _is_complex(leaf) else leaf.meta["val"] for leaf in given]
    try:
        part = traced(run, values, table)
    except _NoForm:
        raise
    except Exception as error:  # whatever torch says of such arguments: the piece runs in eager, as it did
        raise _NoForm(f"{node.target} as pairs: {type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    return _Written(part=part, given=given, results=listed[0])


def _filled(leaf: Any, left: Any) -> Any:
    if not isinstance(leaf, fx.Node):
        return leaf
    return Pair(next(left)) if _is_complex(leaf) else next(left)


def _as_eager(made: Any, eager: Tensor) -> Tensor:
    """What a form gives, with the strides of what the operator gives."""
    if not isinstance(made, Pair):
        result: Tensor = laid_out(made, eager)
        return result
    with outside_tracing():
        told = torch.empty_strided(
            (*eager.shape, 2), (*(2 * stride for stride in eager.stride()), 1), dtype=made.value.dtype,
            device=made.value.device,
        )  # fmt: skip
    result = laid_out(made.value, told)
    return result


def _results(written: _Written) -> tuple[Any, ...]:
    """The fake values that the part gives."""
    output = written.part.graph.output_node().args[0]
    return tuple(node.meta["val"] for node in output)  # type: ignore[union-attr]


def _end_as_pairs(gm: fx.GraphModule, end: fx.Node) -> fx.Node:
    """A node of an input's pairs, or of a constant's."""
    value = _value_of_pairs(end.meta["val"])
    if end.op == "get_attr":
        with no_modes():
            numbers: Any = attribute(gm, str(end.target))
            constant = torch.view_as_real(numbers.resolve_conj()).clone()
        name = f"_{end.name}_as_pairs"
        gm.register_buffer(name, constant)
        with gm.graph.inserting_after(end):
            made = gm.graph.get_attr(name)
        made.meta["val"] = value
        return made
    last = [node for node in gm.graph.nodes if node.op == "placeholder"][-1] if end.op == "placeholder" else end
    with gm.graph.inserting_after(last):
        resolved = gm.graph.call_function(aten.resolve_conj.default, (end,))
    with gm.graph.inserting_after(resolved):
        made = gm.graph.call_function(aten.view_as_real.default, (resolved,), name=f"{end.name}_as_real")
    resolved.meta = {"val": end.meta["val"], BETWEEN_PAIRS: True}
    made.meta = {"val": value, BETWEEN_PAIRS: True}
    return made


def _give_complex(gm: fx.GraphModule, value: fx.Node, pairs: fx.Node, table: Table) -> None:
    """Makes the graph's output, and the views before it, read complex numbers that are a view of `pairs`."""
    fake, graph = value.meta["val"], gm.graph
    known = {name: value.meta[name] for name in (*COPIED, "original_aten") if name in value.meta}
    readers = [user for user in value.users if user.op == "output" or user.meta.get(BETWEEN_PAIRS)]
    if fake.is_conj():
        (pairs,) = inlined(gm, value, traced(_conjugates, [pairs.meta["val"]], table), [pairs])
    with graph.inserting_after(pairs if pairs.op == "call_function" else value):
        made = graph.call_function(aten.view_as_complex.default, (pairs,), name=f"{value.name}_as_complex")
    with no_modes(), fake.fake_mode:
        made.meta = {**known, "val": torch.view_as_complex(pairs.meta["val"]), BETWEEN_PAIRS: True}
    if fake.is_conj():
        plain = made
        with graph.inserting_after(plain):
            made = graph.call_function(aten._conj.default, (plain,))
        made.meta = {**known, "val": fake, BETWEEN_PAIRS: True}
    for reader in readers:
        reader.replace_input_with(value, made)


def _conjugates(pairs: Tensor) -> Tensor:
    real, imaginary = pairs.unbind(-1)
    return torch.stack([real, -imaginary], -1)
