"""A forward graph as one ONNX model of its own: no daemon, no parts, nothing left to eager."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from rust_ort import torch_private
from rust_ort.errors import ClientError
from rust_ort.export import partition, translate
from rust_ort.export.copies import copied_graph
from rust_ort.export.hash import attribute
from rust_ort.export.own_sizes import ask_own_tensors
from rust_ort.export.provenance import module_path, operator_name, source_line
from rust_ort.export.shapes import expression
from rust_ort.export.text import one_line
from rust_ort.torch_private import HigherOrderOperator, pytree

aten = torch.ops.aten

MOST_NAMED = 20
"""Nodes that an error lists."""

ADVICE = {
    partition.DRAWS_RANDOM_NUMBERS: "call model.eval() where random numbers are dropout's",
    partition.SYMBOLIC_NUMBER: "compute with dynamic sizes in integers (n // 2) or as tensors (torch.tensor(0.5) * n)",
    partition.SIZE_AT_RUN_TIME: "give results a size that the inputs' sizes decide (torch.where, not x[mask])",
    partition.AS_PAIRS: "return complex numbers as torch.view_as_real(...), pairs of real ones",
}
"""{reason of a node: what does without it}."""

UNTRANSLATED = (partition.COMPLEX, partition.SEVERAL_DEVICES, "it unpacks", "its result is not", "a value of type")
"""Beginnings of reasons of a node's values, for which no translation is asked."""


@dataclass(kw_only=True)
class ForwardGraph:
    """`module`: placeholders that are tensors, operators, one output of tensors. inputs: {placeholder: position among
    the inputs of Dynamo's graph}. constants: {placeholder: the tensor that the program has in its place}. outputs:
    positions among the outputs of Dynamo's graph, in the order of the module's."""

    module: fx.GraphModule
    inputs: dict[str, int]
    constants: dict[str, torch.Tensor]
    outputs: list[int]


def written_inputs(gm: fx.GraphModule) -> list[int]:
    """Positions, among the inputs of Dynamo's graph, of what an AOT inference graph writes into."""
    descs = pytree.tree_leaves(gm.graph.output_node().meta.get("desc") or (), is_leaf=lambda x: x is None)
    written = [desc.mutated_input for desc in descs if hasattr(desc, "mutated_input")]
    return [getattr(desc, "idx", -1) for desc in dict.fromkeys(written)]


def overwritten_inputs(gm: fx.GraphModule) -> list[int]:
    """Those of `written_inputs` that nothing reads, before the write or by it: they hold no state of the graph's."""
    unread = {
        getattr(node.meta.get("desc"), "idx", -1) for node in gm.graph.find_nodes(op="placeholder") if not node.users
    }
    return [position for position in written_inputs(gm) if position in unread - {-1}]


def forward_graph(gm: fx.GraphModule, *, own_sizes: bool = False) -> ForwardGraph:
    """A copy of an AOT inference graph, without what that writes into inputs; it asks tensors for sizes that were
    given, and has no assertions. own_sizes: each submodule asks its own tensors. Errors: ClientError."""
    partition.give_constants_values(gm)
    graph = copied_graph(gm.graph)
    wanted = _plain_outputs(graph)
    output = graph.output_node()
    output.args = (tuple(wanted.values()),)
    for node in reversed(graph.nodes):
        if not node.users and (node.target in partition.BOOKKEEPING or _is_free(node)):
            graph.erase_node(node)
    overwritten = set(overwritten_inputs(gm))
    for node in graph.find_nodes(op="placeholder"):
        if getattr(node.meta.get("desc"), "idx", None) in overwritten:
            graph.erase_node(node)
    _ask_for_sizes(graph)
    if own_sizes:
        ask_own_tensors(graph)
    inputs = {node.name: _position(node) for node in graph.find_nodes(op="placeholder")}
    constants = _constants_as_inputs(gm, graph)
    module = torch_private.make_graph_module(gm, graph)
    return ForwardGraph(module=module, inputs=inputs, constants=constants, outputs=list(wanted))


def _is_free(node: fx.Node) -> bool:
    return node.op == "call_function" and not partition.has_effect(node)


def _position(placeholder: fx.Node) -> int:
    """Of an AOT graph's input among Dynamo's."""
    position = getattr(placeholder.meta.get("desc"), "idx", None)
    if not isinstance(position, int):
        raise ClientError(
            f"to_onnx: {placeholder.name} is made of several arguments that share memory "
            f"({placeholder.meta.get('desc')}); pass copies",
            code="UNSUPPORTED",
        )
    return position


def _plain_outputs(graph: fx.Graph) -> dict[int, fx.Node]:
    """{position among Dynamo's outputs: the node}, of tensors."""
    output = graph.output_node()
    descs = pytree.tree_leaves(output.meta.get("desc") or (), is_leaf=lambda x: x is None)
    returned = pytree.tree_leaves(output.args[0], is_leaf=lambda x: x is None)
    wanted = {
        desc.idx: node for node, desc in zip(returned, descs, strict=True)
        if type(desc).__name__ == "PlainAOTOutput" and isinstance(node, fx.Node)
        and isinstance(node.meta.get("val"), torch.Tensor)
    }  # fmt: skip
    if not wanted:
        raise ClientError("to_onnx: the forward computes no tensor that it returns", code="NO_GRAPH")
    return wanted


def _ask_for_sizes(graph: fx.Graph) -> None:
    """Puts `sym_size(tensor, axis)` in the place of inputs that are sizes."""
    placeholders = graph.find_nodes(op="placeholder")
    asked: dict[Any, tuple[fx.Node, int]] = {}
    for node in placeholders:
        if isinstance(value := node.meta.get("val"), torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    asked.setdefault(expression(size), (node, axis))
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in placeholders:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            continue
        if node.users:
            if not isinstance(value, torch.SymInt) or expression(value) not in asked:
                raise ClientError(
                    f"to_onnx: {node.name} ({value}) is a number that no tensor's size tells; pass it as a tensor",
                    code="UNSUPPORTED",
                )
            with graph.inserting_before(first):
                size_node = graph.call_function(aten.sym_size.int, asked[expression(value)])
            size_node.meta = {**node.meta, "val": value}
            node.replace_all_uses_with(size_node)
        graph.erase_node(node)


def _constants_as_inputs(gm: fx.GraphModule, graph: fx.Graph) -> dict[str, torch.Tensor]:
    constants: dict[str, torch.Tensor] = {}
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="get_attr"):
        value = attribute(gm, str(node.target))
        if not isinstance(value, torch.Tensor):
            continue  # the body of a higher-order operator, which is refused
        with graph.inserting_before(first):
            given = graph.placeholder(node.name)
        given.meta = dict(node.meta)
        node.replace_all_uses_with(given)
        graph.erase_node(node)
        constants[given.name] = value
    return constants


def translated(
    forward: ForwardGraph, *, name: str, opset: int, custom: Mapping[Any, Callable[..., Any]]
) -> translate.Translated:
    """The graph in ONNX. Errors: ClientError that names each node which ONNX cannot express, and why."""
    graph = forward.module.graph
    support = partition.Support(custom=custom)
    # Numbers too: torchlib computes those that are no integers in float32, where Python has float64.
    asked = [node for node in graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    refused = {node: reason for node in asked if (reason := support.reason(node)) is not None}
    if refused:
        raise _unsupported(refused, custom)
    try:
        return translate.translate(forward.module, name=name, opset=opset, custom_translations=dict(custom))
    except translate.TranslationError as error:
        nodes = {node.name: node for node in graph.nodes}
        why = one_line(str(error))
        raise _unsupported({nodes[name]: why for name in error.node_names if name in nodes}, custom, why) from error


def _unsupported(refused: Mapping[fx.Node, str], custom: Mapping[Any, object], otherwise: str = "") -> ClientError:
    def line(node: fx.Node, reason: str) -> str:
        found = [source_line(node), (path := module_path(node)) and f"module {path}"]
        where = ", ".join(filter(None, found)) or "source unknown"
        return f"{node.name} ({operator_name(node)}), {where}: {reason}"

    lines = [line(node, reason) for node, reason in refused.items()] or [otherwise]
    if len(lines) > MOST_NAMED:
        lines = [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED} more"]
    return ClientError(
        f"to_onnx: {len(refused) or 'some'} node(s) have no place in an ONNX model:\n  " + "\n  ".join(lines) + "\n"
        f"To go on, {_advice(refused, custom)}change the lines named",
        code="UNSUPPORTED",
        node=next((node.name for node in refused), ""),
    )


def _advice(refused: Mapping[fx.Node, str], custom: Mapping[Any, object]) -> str:
    """What else may help than changing the program, of these nodes alone."""
    reasons = set(refused.values())
    parts = [advice for reason, advice in ADVICE.items() if any(given.startswith(reason) for given in reasons)]
    if any(isinstance(node.target, HigherOrderOperator) for node in refused):
        parts.append("compute both branches and choose by torch.where (control flow is not written)")
    settled = (*UNTRANSLATED, *ADVICE)
    translatable = {
        node.target for node, reason in refused.items()
        if isinstance(node.target, torch_private.OpOverload) and reason is not None
        and (reason == partition.DRAWS_RANDOM_NUMBERS or not reason.startswith(settled))
    }  # fmt: skip
    asked = {node.target for node in refused} & set(custom)
    if not refused or translatable - set(custom):
        parts.append("give operators an ONNX form by custom_translations")
    elif asked - translatable:
        names = ", ".join(sorted(map(str, asked - translatable)))
        parts.append(f"do without the custom translation of {names}, which is not asked for such values")
    return "".join(f"{part}, or " for part in parts)
