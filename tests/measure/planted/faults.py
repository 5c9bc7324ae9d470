"""Kinds of faults. Each changes one node of a ModelProto to something that runs, has the same shapes and is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

PLANTED = "planted"

Apply = Callable[[Any, int], None]
"""Changes the node at this index of a graph."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a fault may be planted. model: which of the models that a run makes, in their order; node: its name."""

    kind: str
    model: int
    node: str
    op: str


def sites(model: int, proto: Any, *, more: bool = False) -> Iterator[Site]:
    """Every place of every kind. more: of those of MORE_KINDS, too."""
    shapes = _float_outputs(proto)
    kinds = {**KINDS, **MORE_KINDS} if more else KINDS
    for node in proto.graph.node:
        for kind, (fits, _) in kinds.items():
            if fits(node, shapes):
                yield Site(kind=kind, model=model, node=node.name, op=node.op_type)


def plant(proto: Any, site: Site) -> frozenset[str]:
    """Changes the model. Returns the values that its node gave: who reads them reads what is wrong."""
    index = next(index for index, node in enumerate(proto.graph.node) if node.name == site.node)
    outputs = frozenset(proto.graph.node[index].output)
    {**KINDS, **MORE_KINDS}[site.kind][1](proto.graph, index)
    return outputs


def behind(proto: Any, outputs: frozenset[str], names: frozenset[str]) -> frozenset[str]:
    """The nearest of `names` at or after the values: the nodes of which the changed one is a part. proto: unchanged."""
    found: set[str] = set()
    ahead, seen = list(outputs), set()
    while ahead:
        value = ahead.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in names:
            found.add(value)
        else:
            ahead += [output for node in proto.graph.node if value in node.input for output in node.output]
    return frozenset(found)


# --- What a node may be changed to -----------------------------------------------------------------------------------


def _float_outputs(proto: Any) -> dict[str, Any]:
    """{value: its type} of the float32 and bfloat16 values whose type the model tells."""
    typed = [*proto.graph.value_info, *proto.graph.output, *proto.graph.input]
    floats = (TensorProto.FLOAT, TensorProto.BFLOAT16)
    return {info.name: info.type.tensor_type for info in typed if info.type.tensor_type.elem_type in floats}


def _attribute(node: Any, name: str) -> Any:
    return next((attribute for attribute in node.attribute if attribute.name == name), None)


def _constant(node: Any, _types: dict[str, Any]) -> bool:
    value = _attribute(node, "value") if node.op_type == "Constant" else None
    if value is None or value.t.data_type != TensorProto.FLOAT:
        return False
    array = numpy_helper.to_array(value.t)
    return array.size > 0 and bool((np.abs(array) < 1e30).all()) and bool((array != 0).any())


def _off(graph: Any, index: int) -> None:
    tensor = _attribute(graph.node[index], "value").t
    made = numpy_helper.to_array(tensor) * np.float32(1.01)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(made, np.float32)))


def _swap(graph: Any, index: int) -> None:
    inputs = list(graph.node[index].input)
    inputs[-2], inputs[-1] = inputs[-1], inputs[-2]
    del graph.node[index].input[:]
    graph.node[index].input.extend(inputs)


def _axis(graph: Any, index: int) -> None:
    attribute = _attribute(graph.node[index], "axis")
    if attribute is None:
        graph.node[index].attribute.append(helper.make_attribute("axis", -2))
    else:
        attribute.i = -1 if attribute.i == -2 else -2


def _before(graph: Any, index: int, position: int, op: str, other: Any) -> None:
    """The input at `position` goes through `op` with a constant first."""
    node = graph.node[index]
    name = f"{PLANTED}_{position}"
    graph.initializer.append(numpy_helper.from_array(other, f"{name}_by"))
    made = helper.make_node(op, [node.input[position], f"{name}_by"], [name], name=f"{name}_node")
    node.input[position] = name
    graph.node.insert(index, made)


def _earlier_index(graph: Any, index: int) -> None:
    _before(graph, index, 1, "Sub", np.array(1, np.int64))


def _lost(graph: Any, index: int) -> None:
    node = graph.node[index]
    zero = helper.make_node("Sub", [node.input[1], node.input[1]], [PLANTED], name=f"{PLANTED}_node")
    node.input[1] = PLANTED
    graph.node.insert(index, zero)


def _as_sub(graph: Any, index: int) -> None:
    graph.node[index].op_type = "Sub"


def _after(graph: Any, index: int, *made: Any) -> None:
    """The node's first output goes through `made`, which read and give "planted_in" and "planted_out"."""
    output = graph.node[index].output[0]
    graph.node[index].output[0] = f"{PLANTED}_in"
    for offset, node in enumerate(made, 1):
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                names[position] = output if name == f"{PLANTED}_out" else name
        graph.node.insert(index + offset, node)


def _through_float16(graph: Any, index: int) -> None:
    name = PLANTED
    _after(
        graph, index,
        helper.make_node("Cast", [f"{name}_in"], [f"{name}_half"], to=TensorProto.FLOAT16, name=f"{name}_cast"),
        helper.make_node("Cast", [f"{name}_half"], [f"{name}_out"], to=TensorProto.FLOAT, name=f"{name}_back"),
    )  # fmt: skip


def _epsilon(node: Any, types: dict[str, Any]) -> bool:
    if not _constant(node, types):
        return False
    array = numpy_helper.to_array(_attribute(node, "value").t)
    return array.size == 1 and 0 < float(array.reshape(())) <= 1e-4


def _larger_epsilon(graph: Any, index: int) -> None:
    tensor = _attribute(graph.node[index], "value").t
    made = numpy_helper.to_array(tensor) * np.float32(1000)
    tensor.CopyFrom(numpy_helper.from_array(np.asarray(made, np.float32)))


def _operands_through_bfloat16(graph: Any, index: int) -> None:
    """What is added up is rounded before it is."""
    node = graph.node[index]
    names = [node.input[0], f"{PLANTED}_half", f"{PLANTED}_operand"]
    casts = [
        helper.make_node("Cast", [before], [after], to=to, name=f"{after}_cast")
        for before, after, to in zip(names[:2], names[1:], (TensorProto.BFLOAT16, TensorProto.FLOAT), strict=True)
    ]
    node.input[0] = names[2]
    for offset, cast in enumerate(casts):
        graph.node.insert(index + offset, cast)


def _sums(node: Any, types: dict[str, Any]) -> bool:
    made = types.get(node.output[0])
    ops = ("ReduceSum", "ReduceMean", "MatMul", "Gemm", "LayerNormalization")
    return made is not None and made.elem_type == TensorProto.FLOAT and node.op_type in ops


def _earlier_slice(graph: Any, index: int) -> None:
    _before(graph, index, 1, "Sub", np.array(1, np.int64))
    _before(graph, index + 1, 2, "Sub", np.array(1, np.int64))


def _to_bfloat16(node: Any, _types: dict[str, Any]) -> bool:
    to = _attribute(node, "to") if node.op_type == "Cast" else None
    return to is not None and to.i == TensorProto.BFLOAT16


def _dropped_cast(graph: Any, index: int) -> None:
    """Casts back to float32 of what was rounded here read what it was before."""
    rounded, before = graph.node[index].output[0], graph.node[index].input[0]
    for node in graph.node:
        to = _attribute(node, "to") if node.op_type == "Cast" else None
        if to is not None and to.i == TensorProto.FLOAT and rounded in node.input:
            node.input[0] = before


def _louder(graph: Any, index: int) -> None:
    name = PLANTED
    graph.initializer.append(numpy_helper.from_array(np.array(1.03, np.float32), f"{name}_by"))
    _after(
        graph, index,
        helper.make_node("CastLike", [f"{name}_by", f"{name}_in"], [f"{name}_like"], name=f"{name}_cast"),
        helper.make_node("Mul", [f"{name}_in", f"{name}_like"], [f"{name}_out"], name=f"{name}_mul"),
    )  # fmt: skip


def _op(*names: str, at_least: int = 0) -> Callable[[Any, dict[str, Any]], bool]:
    return lambda node, _: node.op_type in names and len(node.input) >= at_least


def _float_add(node: Any, types: dict[str, Any]) -> bool:
    return node.op_type == "Add" and node.output[0] in types


def _float32(node: Any, types: dict[str, Any]) -> bool:
    made = types.get(node.output[0])
    ops = (
        "Mul",
        "Add",
        "MatMul",
        "Gemm",
        "LayerNormalization",
        "Softmax",
        "ReduceSum",
        "ReduceMean",
        "Tanh",
        "Sigmoid",
    )
    return made is not None and made.elem_type == TensorProto.FLOAT and node.op_type in ops


KINDS: dict[str, tuple[Callable[[Any, dict[str, Any]], bool], Apply]] = {
    "swapped operands": (_op("Sub", "Div", "Where", "Pow"), _swap),
    "constant x 1.01": (_constant, _off),
    "wrong axis": (_op("Softmax", "LogSoftmax"), _axis),
    "through float16": (_float32, _through_float16),
    "index - 1": (_op("Gather"), _earlier_index),
    "Add as Sub": (_float_add, _as_sub),
    "lost summand": (_float_add, _lost),
    "x 1.03": (_op("MatMul", "Gemm", "Conv"), _louder),
}
"""{kind: (where it may be planted, how)}."""

MORE_KINDS: dict[str, tuple[Callable[[Any, dict[str, Any]], bool], Apply]] = {
    "epsilon x 1000": (_epsilon, _larger_epsilon),
    "sum of bfloat16": (_sums, _operands_through_bfloat16),
    "slice - 1": (_op("Slice", at_least=3), _earlier_slice),
    "dropped Cast": (_to_bfloat16, _dropped_cast),
}
"""Those that are rarer, or smaller than a comparison of nodes alone is asked to find."""
