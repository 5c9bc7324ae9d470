"""What an optimized forward has no need to compute: nodes of buffers alone, transposed weights, pairs of reshapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

EXACT = {
    "And", "Equal", "Gather", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Reshape", "Slice",
    "Squeeze", "Transpose", "Unsqueeze", "Where", "Xor",
}  # fmt: skip
"""Operators that round nothing: every runtime gives the same bits."""

POINTWISE = {
    "Abs", "Cast", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Tanh",
}  # fmt: skip
"""Operators of one input, of each element alone."""

SMALL_BYTES = 4096
"""A folded value may take so much beside a buffer that stays."""


def transposes_into_products(graph: Any) -> None:
    """A Gemm reads what a Transpose of its operand reads."""
    for node in _nodes(graph, {"Gemm"}):
        for place, name in enumerate(("transA", "transB")):
            made = node.inputs[place].producer()
            if made is None or not _is(made, {"Transpose"}) or _order(made, 2) != (1, 0):
                continue
            node.replace_input_with(place, made.inputs[0])
            _set_int(node, name, 1 - node.attributes.get_int(name, 0))


def reshapes_around_pointwise(graph: Any) -> None:
    """A pointwise node between two Reshapes reads what the first reads, where the second gives that shape again."""
    for last in _nodes(graph, {"Reshape"}):
        middle = last.inputs[0].producer()
        if middle is None or not _is(middle, POINTWISE) or not _read_once(middle.outputs[0]):
            continue
        first = middle.inputs[0].producer()
        if first is None or not _is(first, {"Reshape"}) or not _same_shape(first.inputs[0], last.outputs[0]):
            continue
        if last.outputs[0].is_graph_output():
            continue
        middle.replace_input_with(0, first.inputs[0])
        middle.outputs[0].shape = last.outputs[0].shape
        last.outputs[0].replace_all_uses_with(middle.outputs[0])
        graph.remove(last, safe=True)


def fold(ir: Any, graph: Any, parameters: Collection[str], kept: Collection[str]) -> set[str]:
    """Nodes whose inputs are initializers become initializers, where the model grows by no more than SMALL_BYTES each:
    of buffers and constants what EXACT nodes make; of a parameter its Transpose alone, `weight.T`, where nothing else
    reads it. kept: initializers that stay, whoever reads them. Returns the names of what is of parameters."""
    found = set()
    for node in _nodes(graph, EXACT):
        if len(node.outputs) != 1 or not all(value is None or _is_constant(graph, value) for value in node.inputs):
            continue
        read = [value for value in node.inputs if value is not None]
        of = [value for value in read if value.name in parameters]
        if of and not (_is(node, {"Transpose"}) and _read_once(of[0]) and of[0].name not in kept):
            continue
        freed = sum(value.const_value.nbytes for value in set(read) if _read_once(value) and value.name not in kept)
        made = _transposed(ir, node) if of else _computed(ir, node)
        if made is None or made.nbytes > freed + SMALL_BYTES:
            continue
        name = _replace(ir, graph, node, made, name=f"{of[0].name}.T" if of else "")
        if of:
            found.add(name)
        for value in set(read):
            if not value.uses() and value.name not in kept:
                graph.initializers.pop(value.name)
    return found


def share_initializers(ir: Any, graph: Any, kept: Collection[str]) -> None:
    """Equal small initializers that no user knows by name are one."""
    known: dict[tuple[Any, ...], Any] = {}
    for value in list(graph.initializers.values()):
        if value.name in kept or value.const_value.nbytes > SMALL_BYTES:
            continue
        array = value.const_value.numpy()
        first = known.setdefault((str(value.dtype), array.shape, array.tobytes()), value)
        if first is not value:
            value.replace_all_uses_with(first, replace_graph_outputs=True)
            graph.initializers.pop(value.name)


def _nodes(graph: Any, operators: set[str]) -> Iterator[Any]:
    return (node for node in list(graph) if _is(node, operators))


def _is(node: Any, operators: set[str]) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in operators


def _read_once(value: Any) -> bool:
    """By one node, and no output of a graph."""
    return len(value.uses()) == 1 and not value.is_graph_output()


def _is_constant(graph: Any, value: Any) -> bool:
    return value.const_value is not None and graph.initializers.get(value.name) is value


def _same_shape(value: Any, other: Any) -> bool:
    """Whether both shapes are known and equal, sizes with names among them."""
    shapes = [
        None if of.shape is None else [getattr(size, "value", size) for size in of.shape] for of in (value, other)
    ]
    return shapes[0] is not None and None not in shapes[0] and shapes[0] == shapes[1]


def _set_int(node: Any, name: str, number: int) -> None:
    import onnx_ir as ir

    node.attributes[name] = ir.AttrInt64(name, number)


def _order(node: Any, rank: int) -> tuple[int, ...]:
    """Of a Transpose."""
    return tuple(node.attributes.get_ints("perm", range(rank - 1, -1, -1)))


def _transposed(ir: Any, node: Any) -> Any:
    """The parameter transposed, which is made when it is written: one at a time is held beside the model's own."""
    from onnx_ir import tensor_adapters

    given = node.inputs[0].const_value
    order = _order(node, len(given.shape))
    return ir.LazyTensor(
        lambda: tensor_adapters.TorchTensor(given.raw.permute(*order).contiguous()),
        dtype=given.dtype,
        shape=ir.Shape([given.shape[axis] for axis in order]),
    )


def _computed(ir: Any, node: Any) -> Any | None:
    """What onnx.reference gives for the node; None where it refuses it, which is the runtime's to tell."""
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    given = {value.name: value.const_value.numpy() for value in node.inputs if value is not None}
    entries = [onnx.ValueInfoProto(name=name) for name in given]
    output = onnx.ValueInfoProto(name=node.outputs[0].name)
    graph = helper.make_graph([ir.to_proto(node)], "folded", entries, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", node.graph.opset_imports[""])])
    try:
        (made,) = ReferenceEvaluator(model).run(None, given)
    except Exception:  # NumPy's, and onnx.reference's own
        return None
    return ir.tensor(np.array(made, order="C"), dtype=node.outputs[0].dtype)


def _replace(ir: Any, graph: Any, node: Any, tensor: Any, *, name: str) -> str:
    """The initializer's name."""
    value = node.outputs[0]
    wanted = name if name and not _taken(graph, name) else str(value.name)
    tensor.name = wanted
    kind, shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
    initializer = ir.Value(name=wanted, const_value=tensor, type=kind, shape=shape)
    value.replace_all_uses_with(initializer, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    graph.register_initializer(initializer)
    return wanted


def _taken(graph: Any, name: str) -> bool:
    names = {str(value.name) for value in graph.inputs} | set(graph.initializers)
    return name in names or any(value.name == name for node in graph for value in node.outputs)


Step = Callable[[Any], None]
PASSES: tuple[Step, ...] = (transposes_into_products, reshapes_around_pointwise)
"""Of any graph, before its parameters are initializers."""
