"""The opset of a model: torchlib's functions are written at 18; their nodes are raised to the opset that is wanted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rust_ort.options import LOWEST_OPSET


class OpsetError(ValueError):
    """A node that cannot be said at the wanted opset. `node`: the ONNX node."""

    def __init__(self, message: str, node: Any) -> None:
        super().__init__(message)
        self.node = node


def _grid_sample(node: Any) -> None:
    """The modes were renamed."""
    import onnx_ir as ir

    mode = node.attributes.get_string("mode", "bilinear")
    renamed = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    node.attributes["mode"] = ir.AttrString("mode", renamed)


def _dft(node: Any) -> None:
    """Its axis was an attribute and is an input; of three axes both leave out the second one."""
    shape = node.inputs[0].shape
    if node.attributes.get_int("axis", 1) != 1 or shape is None or len(shape) != 3:
        raise OpsetError(
            "it is written with DFT of opset 17, which means something else from opset 20 on; write it with opset 20 "
            "or later",
            node,
        )
    node.attributes.pop("axis", None)


CHANGED: dict[str, tuple[int, Callable[[Any], None] | None]] = {
    "DFT": (20, _dft),
    "GridSample": (20, _grid_sample),
    "GroupNormalization": (21, None),  # scale and bias were one a group and are one a channel
}
"""{operator: (opset from which the same node means something else, what makes it mean the same again)}, 18 to 26.

All other revisions in between only add types, inputs and attributes.
"""


def keep_versions(model: Any) -> None:
    """Writes into the nodes of the model's functions what opset they are of: inlined, they may lie in another."""
    import onnx_ir as ir

    for function in model.functions.values():
        for node in ir.traversal.RecursiveGraphIterator(function.graph):
            node.version = node.version or function.opset_imports.get(node.domain)
        if "" in function.opset_imports:
            function.opset_imports[""] = model.graph.opset_imports[""]


def with_bodies(graph: Any) -> Iterator[Any]:
    """The nodes of an onnx_ir graph, each followed by those of its bodies, as RecursiveGraphIterator has them, which
    asks more of each."""
    for node in graph:
        yield node
        for body in bodies(node):
            yield from with_bodies(body)


def bodies(node: Any) -> Iterator[Any]:
    """The graphs inside an onnx_ir node."""
    from onnx_ir import AttributeType

    for attribute in list(node.attributes.values()):
        if attribute.type is AttributeType.GRAPH:
            yield attribute.value
        elif attribute.type is AttributeType.GRAPHS:
            yield from attribute.value


def raise_nodes(nodes: Iterable[Any], opset: int) -> None:
    """Makes each node mean at `opset` what it meant at the opset it was written at. Names stay. Raises OpsetError."""
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            _raise_node(node, opset)


def _raise_node(node: Any, opset: int) -> None:
    written = _since(node)
    if written > opset:
        raise OpsetError(
            f"it is written with {node.op_type} of opset {written}, the model has opset {opset}; "
            f"set option opset to {written} or more, or write it with opset {opset}",
            node,
        )
    changed, adapt = CHANGED.get(node.op_type, (0, None))
    if written < changed <= opset:
        if adapt is None:
            raise OpsetError(
                f"it is written with {node.op_type} of opset {written}, which means something else from opset "
                f"{changed} on; write it with opset {changed} or later",
                node,
            )
        adapt(node)
    node.version = opset


def _since(node: Any) -> int:
    """The opset that the node's operator is of, as it was written."""
    return _first(node.op_type, node.version or LOWEST_OPSET)


@functools.cache
def _first(op_type: str, written: int) -> int:
    import onnx

    try:
        return int(onnx.defs.get_schema(op_type, written).since_version)
    except onnx.defs.SchemaError:
        return int(written)
