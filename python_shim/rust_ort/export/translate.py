"""FX graph to ONNX model.

The AOT graph is walked once, never traced again: FX names stay ONNX value names and parameters stay inputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from rust_ort import torch_private
from rust_ort.export import attention, exporter, rounding
from rust_ort.export.copies import copied_graph
from rust_ort.export.custom import root_message
from rust_ort.export.exporter import TORCHLIB_OPSET
from rust_ort.export.opset import OpsetError, keep_versions, raise_nodes, with_bodies
from rust_ort.export.rules.strided import by_memory

MODEL_IR_VERSION = 10
_FX_NAME = "rust_ort.fx_name"
PROMOTED_SUFFIX = "__promoted"


class TranslationError(RuntimeError):
    """FX nodes could not be written as ONNX. `node_names`: theirs, empty when unknown."""

    def __init__(self, message: str, *node_names: str) -> None:
        super().__init__(message)
        self.node_names = node_names


@dataclass(frozen=True, kw_only=True)
class Translated:
    """One part as ONNX.

    `input_names`: the model's inputs, a subset of the part's placeholders in their order. `output_names[i]`: value
    that holds output node i of the part. `fx_values`: {FX compute node: value its ONNX nodes produce}. `onnx_nodes`:
    {ONNX node name: FX node name}. `named_values`: every value, inputs excluded, that carries an FX node's name.
    """

    model: bytes
    input_names: list[str]
    output_names: list[str]
    fx_values: dict[str, str]
    onnx_nodes: dict[str, str]
    named_values: list[str]


def translate(
    part: fx.GraphModule,
    *,
    name: str,
    opset: int = TORCHLIB_OPSET,
    custom_translations: dict[Any, Callable[..., Any]] | None = None,
    keep_inputs: frozenset[str] = frozenset(),
) -> Translated:
    """Writes `part` as ONNX; `part` is left as it is.

    part: placeholders, call_function nodes and one output node holding a tuple of nodes; every value has
    `meta["val"]`. Inputs that nothing uses are pruned but for `keep_inputs`. Raises TranslationError.
    """
    import onnx_ir as ir

    source = torch_private.make_graph_module(part, copied_graph(part.graph))
    for node in source.graph.nodes:  # the exporter would write these into every ONNX node; provenance.json has them
        node.meta["nn_module_stack"] = {}
        node.meta.pop("stack_trace", None)
    by_memory(source.graph)
    _promote(source)
    _keep_names_of_promoted(part.graph, source.graph)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": TORCHLIB_OPSET}, name=name)
    model = ir.Model(graph, ir_version=MODEL_IR_VERSION, producer_name="rust_ort")
    try:
        values = exporter.write(source.graph, model, graph, custom_translations)
    except exporter.ConversionError as error:
        raise TranslationError(str(error), *_failing_nodes(source.graph, error.whole)) from error

    placeholders = [node.name for node in source.graph.nodes if node.op == "placeholder"]
    for value, placeholder in zip(graph.inputs, placeholders, strict=True):
        value.name = placeholder
    produced = _own_names(ir, graph, values, source.graph)
    wanted = [node.name for node in _output_nodes(source.graph)]
    graph.outputs.clear()
    graph.outputs.extend(produced[output] for output in wanted)
    _inline_functions(ir, model)
    _refuse_rounded(graph, source.graph)
    used = _drop_dead(ir, graph, {str(value.name) for value in produced.values()})
    nodes = list(with_bodies(graph))
    _raise_opset(nodes, opset)
    _add_functions(model, nodes, opset)
    onnx_nodes = _strip_metadata(model)
    _import_opsets(graph, nodes, opset)
    kept = [value for value in graph.inputs if value.name in used or value.name in keep_inputs]
    graph.inputs.clear()
    graph.inputs.extend(kept)
    computed = {node.name for node in part.graph.nodes if node.op == "call_function"}
    # No ONNX sequence, which no node can be fed with alone: what unpacks it begins where it begins.
    several = {node.name for node in part.graph.nodes if isinstance(node.meta.get("val"), tuple | list)}
    named = computed - several
    return Translated(
        model=ir.serde.serialize_model(model).SerializeToString(deterministic=True),
        input_names=[str(value.name) for value in kept],
        output_names=[str(produced[output].name) for output in wanted],
        fx_values={fx_name: str(value.name) for fx_name, value in produced.items() if fx_name in computed},
        onnx_nodes=onnx_nodes,
        named_values=[fx_name for fx_name, value in produced.items() if fx_name in named and value.name == fx_name],
    )


def _promote(source: fx.GraphModule) -> None:
    """Writes type promotion into the graph as casts. Raises TranslationError."""
    try:
        exporter.promote(source)
    except Exception as error:  # it calls the operators with fake tensors: they raise what they like
        node = re.search(r"While executing %(\w+)", str(error))
        raise TranslationError(f"no type promotion: {root_message(error)}", *(node.groups() if node else ())) from error


def _keep_names_of_promoted(graph: fx.Graph, promoted: fx.Graph) -> None:
    """Where type promotion widened a node and cast its result back, the name goes to what has the node's own dtype."""
    dtypes = {node.name: getattr(node.meta.get("val"), "dtype", None) for node in graph.nodes}
    for cast in promoted.nodes:
        (wide, *others) = cast.all_input_nodes or (None,)
        if cast.name in dtypes or others or wide is None or wide.name not in dtypes:
            continue
        name, own = wide.name, dtypes[wide.name]
        if getattr(wide.meta.get("val"), "dtype", None) != own and getattr(cast.meta.get("val"), "dtype", None) == own:
            wide.meta["fx_name"] = cast.meta["fx_name"] = name
            wide.name, cast.name = name + PROMOTED_SUFFIX, name


def _own_names(ir: Any, graph: Any, values: dict[str, Any], source: fx.Graph) -> dict[str, Any]:
    """{FX name: the ONNX value of that name}.

    torchlib functions that do nothing return their input (or a constant another node made), and the exporter renames
    it, graph inputs too. The first FX node keeps such a value and its name; each later one gets an Identity.
    """
    owner: dict[int, str] = {id(value): str(value.name) for value in graph.inputs}
    produced: dict[str, Any] = {}
    for node in source.nodes:
        if node.op == "output" or node.name not in values:
            continue
        value = values[node.name]
        if isinstance(value, Sequence):  # several outputs: getitem nodes name them; any one stands for the node
            first = next((item for item in value if item is not None and item.producer() is not None), None)
            if first is not None:
                produced[node.name] = first
            continue
        first_owner = owner.setdefault(id(value), node.name)
        if first_owner == node.name or node.op == "placeholder":
            value.name = node.name
            produced[node.name] = value
            continue
        value.name = first_owner
        identity = ir.node("Identity", [value], name=f"node_{node.name}")
        identity.outputs[0].name = node.name
        identity.outputs[0].dtype = value.dtype
        identity.outputs[0].shape = value.shape
        identity.meta["node"] = node
        graph.append(identity)
        produced[node.name] = identity.outputs[0]
    return produced


def _output_nodes(graph: fx.Graph) -> list[fx.Node]:
    outputs = graph.output_node().args[0]
    return [outputs] if isinstance(outputs, fx.Node) else list(outputs)  # type: ignore[arg-type]


def _inline_functions(ir: Any, model: Any) -> None:
    """torchlib's local functions become plain nodes: any runtime and any tool reads the model then."""
    if not model.functions:
        return
    from onnx_ir.passes.common import InlinePass

    keep_versions(model)

    for node in model.graph:
        if node.op_identifier() in model.functions and node.meta.get("node") is not None:
            node.metadata_props[_FX_NAME] = node.meta["node"].name  # the pass hands it to the nodes of the body
    before = {id(value): value.name for value in model.graph.outputs}
    try:
        InlinePass()(model)
    except (ValueError, ir.passes.PassError) as error:  # functions of a custom translation that do not fit together
        raise TranslationError(f"its functions cannot be put in place: {error}") from error
    for value in model.graph.outputs:
        value.name = before.get(id(value), value.name)
    model.functions.clear()


def _refuse_rounded(graph: Any, source: fx.Graph) -> None:
    rounded = rounding.rounded(graph, source, _fx_name)
    if rounded:
        raise TranslationError("; ".join(dict.fromkeys(rounded.values())), *rounded)


def _fx_name(node: Any) -> str | None:
    """Name of the FX node behind an ONNX node; None of the exporter's own."""
    fx_node = node.meta.get("node")
    name: str | None = fx_node.name if fx_node is not None else node.metadata_props.get(_FX_NAME)
    return name


def _drop_dead(ir: Any, graph: Any, fx_names: set[str]) -> set[str]:
    """Removes helper constants nothing uses, keeps every FX value. Returns the names of used values."""
    used = {str(value.name) for value in graph.outputs}
    dead: list[Any] = []  # each removal goes over the graph's outputs
    for node in reversed(list(graph)):
        names = [str(value.name) for value in node.outputs]
        if used.isdisjoint(names) and fx_names.isdisjoint(names):
            dead.append(node)
            continue
        used.update(str(value.name) for value in node.inputs if value is not None)
        if _has_subgraph(ir, node):
            graph.remove(dead)
            dead.clear()
            for inner in ir.traversal.RecursiveGraphIterator(graph):
                used.update(str(value.name) for value in inner.inputs if value is not None)
    graph.remove(dead)
    for initializer in [name for name in graph.initializers if name not in used]:
        del graph.initializers[initializer]
    return used


def _has_subgraph(ir: Any, node: Any) -> bool:
    bodies = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
    return any(attribute.type in bodies for attribute in node.attributes.values())


def _raise_opset(nodes: Sequence[Any], opset: int) -> None:
    try:
        raise_nodes(nodes, opset)
    except OpsetError as error:
        raise TranslationError(str(error), *filter(None, [_fx_name(error.node)])) from error


def _add_functions(model: Any, nodes: Sequence[Any], opset: int) -> None:
    """Those of ours that are called: one kernel each where the executor has one, their nodes anywhere else."""
    called = {node.op_type for node in nodes if node.domain == attention.DOMAIN}
    for name in sorted(called.intersection(attention.NAMES)):
        function = attention.function(name, opset)
        model.functions[function.identifier()] = function


def _strip_metadata(model: Any) -> dict[str, str]:
    """{ONNX node: FX node}; the metadata itself, 96 % of the proto, goes."""
    onnx_nodes: dict[str, str] = {}
    names: set[str] = set()
    for index, node in enumerate(model.graph):
        if not node.name or node.name in names:  # a renamed value renamed its producer too
            node.name = f"{node.name or 'node'}_n{index}"
        names.add(node.name)
        fx_name = _fx_name(node)
        if fx_name is not None:
            onnx_nodes[node.name] = fx_name
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
    for value in model.graph.inputs:
        value.metadata_props.clear()
    model.graph.metadata_props.clear()
    model.metadata_props.clear()
    return onnx_nodes


def _import_opsets(graph: Any, nodes: Sequence[Any], opset: int) -> None:
    graph.opset_imports[""] = opset
    for node in nodes:
        if node.domain:
            graph.opset_imports.setdefault(node.domain, node.version or 1)


def _failing_nodes(graph: fx.Graph, message: str) -> list[str]:
    return [node.name for node in graph.nodes if str(node.format_node()) in message][:1]
