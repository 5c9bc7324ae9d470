"""Rank-0 tensors in the place of numbers that only a call knows, and of results of these.

torch makes them of some when the graph is traced already (`tensorify_python_scalars`), and what it adds comes apart
here as AOTAutograd makes all others. What torch leaves, quotients and roots of sizes above all, is made here."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.arguments import is_of_numbers
from rust_ort.export.partition import give_constants_values
from rust_ort.export.rules.nodes import draws
from rust_ort.export.rules.promotion import kernel_dtype
from rust_ort.torch_private import OpOverload, no_modes, pytree, traced

aten = torch.ops.aten


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """As torch's kernel has it of a number: the roots are such, also of -inf and -0.0, but not in float16."""
    powers: Tensor = aten.pow.Tensor_Tensor(base, exponent)
    if base.dtype is torch.float16 or not base.is_floating_point():
        return powers
    roots = torch.where(exponent == -0.5, torch.rsqrt(base), powers)
    return torch.where(exponent == 0.5, torch.sqrt(base), roots)


OF_TENSORS: dict[Any, Any] = {
    **{of.Tensor: of.Tensor for of in (aten.add, aten.sub, aten.mul, aten.div)},
    **{of.Scalar: of.Tensor for of in (aten.add, aten.sub, aten.mul, aten.div)},
    aten.pow.Tensor_Scalar: power,
    aten.pow.Scalar: aten.pow.Tensor_Tensor,
    **{of.Scalar: of.Tensor for of in (aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge)},
}
"""{operator beside a number: the same beside a tensor}."""

OF_SIZES: dict[Any, Callable[..., Any]] = {
    torch.sym_float: lambda size: size,
    torch.sym_sqrt: torch.sqrt,
    **{of: of for of in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow)},
}
"""{what makes a number of sizes: the same of tensors of float64}."""

KEEPING = (aten.mul.Tensor, aten.div.Tensor)
"""Half precision beside a number: these do not round a number that is their second to it."""

COPIED = ("autograd_backward", "partitioner_tag", "stack_trace", "nn_module_stack", "seq_nr", "from_node")
"""What is known of a node that holds for each of those in its place, too."""


def decompose(gm: fx.GraphModule, table: Callable[[], Mapping[Any, Callable[..., Any]]]) -> None:
    """Puts other nodes in the place of those that torch has added, where the table has a decomposition, and of those
    beside numbers that only a call knows, and a constant in the place of those of numbers alone. table: asked for if
    there are any."""
    _give_results_of_numbers(gm)
    late = [node for node in gm.graph.nodes if _is_added(node) or _is_beside_a_number(node)]
    if late:
        known = table()
        give_constants_values(gm)
        for node in late:
            if node.target in known or _is_beside_a_number(node):
                _come_apart(gm, node, known)
    numbers = [node for node in gm.graph.nodes if node.target is aten.scalar_tensor.default and _is_float(node.args[0])]
    for node in numbers:
        _compute_of_sizes(gm, node, table())
    if late or numbers:
        gm.recompile()


def _give_results_of_numbers(gm: fx.GraphModule) -> None:
    for node in [node for node in gm.graph.nodes if isinstance(node.target, OpOverload) and _is_of_numbers(node)]:
        value = node.meta["val"]
        with no_modes():
            number = node.target(*node.args, **node.kwargs).item()
        node.target, node.args = aten.scalar_tensor.default, (number,)
        node.kwargs = {"dtype": value.dtype, "device": value.device}


def _is_of_numbers(node: fx.Node) -> bool:
    value, given = node.meta.get("val"), pytree.tree_leaves((node.args, node.kwargs))
    if not isinstance(value, Tensor) or value.dim() or value.is_complex() or draws(node) or node.all_input_nodes:
        return False
    return is_of_numbers(node.target, given)


def _compute_of_sizes(gm: fx.GraphModule, node: fx.Node, table: Mapping[Any, Callable[..., Any]]) -> None:
    """A number as a tensor, computed of sizes as tensors, where sizes are all that it is made of: sums, products and
    quotients of float64 are Python's."""
    steps = _made_of_sizes(node.args[0])
    if steps is None:
        return
    sizes = list(dict.fromkeys(source for step in steps for source in step.all_input_nodes if source not in steps))
    value = node.meta["val"]

    def run(*given: Any) -> Any:
        known = {
            size: aten.scalar_tensor.default(one, dtype=torch.float64) for size, one in zip(sizes, given, strict=True)
        }
        for step in steps:
            known[step] = OF_SIZES[step.target](*fx.map_arg(step.args, known.__getitem__))
        return known[steps[-1]].to(dtype=value.dtype, device=value.device)

    part = traced(run, [size.meta["val"] for size in sizes], table)
    node.replace_all_uses_with(inlined(gm, node, part, sizes)[0])
    gm.graph.erase_node(node)
    for step in reversed(steps):
        if not step.users:
            gm.graph.erase_node(step)


def _made_of_sizes(number: Any) -> list[fx.Node] | None:
    """The nodes, in their order, that make a number of sizes; None where it is made of others, or otherwise."""
    if not _is_float(number):
        return []
    if number.target not in OF_SIZES or number.kwargs:
        return None
    steps: list[fx.Node] = []
    for source in number.all_input_nodes:
        made = _made_of_sizes(source)
        if made is None:
            return None
        steps += [step for step in made if step not in steps]
    return [*steps, number]


def _is_added(node: fx.Node) -> bool:
    """Tracing notes the operator of the program with each node."""
    return isinstance(node.target, OpOverload) and "original_aten" not in node.meta and "val" in node.meta


def _is_beside_a_number(node: fx.Node) -> bool:
    return node.target in OF_TENSORS and any(_is_float(argument) for argument in node.args)


def _is_float(argument: Any) -> bool:
    return isinstance(argument, fx.Node) and isinstance(argument.meta.get("val"), torch.SymFloat)


def _come_apart(gm: fx.GraphModule, node: fx.Node, table: Mapping[Any, Callable[..., Any]]) -> None:
    given, structure = pytree.tree_flatten((node.args, node.kwargs))
    nodes = [leaf for leaf in given if isinstance(leaf, fx.Node)]
    result = node.meta["val"].dtype
    beside = _is_beside_a_number(node)
    called: Any = OF_TENSORS[node.target] if beside else node.target

    def run(*values: Any) -> Any:
        left = iter(values)
        leaves = [next(left) if isinstance(leaf, fx.Node) else leaf for leaf in given]
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        if beside:
            keeps = [position == 1 and called in KEEPING for position in range(len(args))]
            args = [_as_tensor(value, args, result, keep=keep) for value, keep in zip(args, keeps, strict=True)]
        made = table[called](*args, **kwargs) if called in table else NotImplemented
        made = called(*args, **kwargs) if made is NotImplemented else made
        return made.to(result) if beside else made

    part = traced(run, [leaf.meta["val"] for leaf in nodes], table)
    if [inner.target for inner in part.graph.nodes if inner.op == "call_function"] == [node.target]:
        return
    node.replace_all_uses_with(inlined(gm, node, part, nodes)[0])
    gm.graph.erase_node(node)


def _as_tensor(value: Any, operands: Sequence[Any], result: torch.dtype, *, keep: bool) -> Any:
    """A number as a tensor of rank 0, of the dtype that it has beside the tensor, or, kept, in which its kernel
    computes."""
    if not isinstance(value, torch.SymFloat):
        return value
    tensor = next((operand for operand in operands if isinstance(operand, Tensor)), None)
    dtype = torch.result_type(tensor, 1.0) if result is torch.bool and tensor is not None else result
    number: Tensor = aten.scalar_tensor.default(value, dtype=torch.float64)
    return number.to(kernel_dtype(dtype) if keep else dtype)


def inlined(gm: fx.GraphModule, node: fx.Node, part: fx.GraphModule, given: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """The values of a part whose placeholders are `given`; its nodes go before `node`."""
    placeholders = [inner for inner in part.graph.nodes if inner.op == "placeholder"]
    values: dict[fx.Node, fx.Node] = dict(zip(placeholders, given, strict=True))
    with gm.graph.inserting_before(node):
        for inner in part.graph.nodes:
            if inner.op == "output":
                results = inner.args[0] if isinstance(inner.args[0], (list, tuple)) else (inner.args[0],)
                return tuple(values[result] for result in results)
            if inner.op == "placeholder":
                continue
            made = values[inner] = gm.graph.node_copy(inner, values.__getitem__)
            made.meta = {**inner.meta, **{name: node.meta[name] for name in COPIED if name in node.meta}}
            if inner.op == "get_attr":
                made.target = f"_{made.name}"
                gm.register_buffer(made.target, getattr(part, str(inner.target)))
    raise AssertionError(f"{node.name}: a graph without an output")
