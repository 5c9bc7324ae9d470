"""What names elements by their place in memory, which ONNX does not know, and what torch has no right strides for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.aliases import root_of
from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.registry import decomposed, in_eager, torchs_own
from rust_ort.export.shapes import expression
from rust_ort.torch_private import traced_node

aten = torch.ops.aten

Sizes = list[int]
BY_LOGICAL_ORDER = "torchlib takes a tensor's elements in logical order, not in that of its memory"


def _order(tensor: Tensor) -> Sizes:
    """The dimensions, the one that is farthest apart in memory first."""
    return sorted(range(tensor.dim()), key=lambda d: -tensor.stride()[d] if tensor.shape[d] != 1 else 0)


def _fills_its_memory(tensor: Tensor) -> bool:
    """Whether some order of its dimensions is row-major. Sizes and strides: known."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != step:
            return False
        step *= max(size, 1)
    return True


def _start(tensor: Tensor, size: Sizes, stride: Sizes, offset: int | None) -> int | None:
    """Where in the tensor's own elements the strided view begins; None: unknown, or it goes beyond them."""
    layout = (*tensor.shape, *tensor.stride(), tensor.storage_offset(), *size, *stride, offset or 0)
    if not all(isinstance(number, int) for number in layout) or min((*size, *tensor.shape), default=1) == 0:
        return None
    if not _fills_its_memory(tensor):
        return None
    start = 0 if offset is None else offset - tensor.storage_offset()
    last = start + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    return int(start) if start >= 0 and last < tensor.numel() else None


def _of_an_input(tensor: Tensor) -> bool:
    """Whether the tensor being traced is an input's memory: where that begins in its storage, each call says."""
    node = traced_node(tensor)
    return node is not None and root_of(node).op == "placeholder"


def by_memory(graph: fx.Graph) -> None:
    """Makes each as_strided that ONNX may compute read its tensor's elements in the order of their memory, as one row,
    which torchlib takes them for. Not before: as a view of that tensor it may be left to eager."""
    for node in graph.find_nodes(op="call_function", target=aten.as_strided.default):
        source, size, stride = (argument(node, name) for name in ("self", "size", "stride"))
        tensor = source.meta["val"]
        start = _start(tensor, size, stride, argument(node, "storage_offset"))
        if start is None and _changes_nothing(node):
            node.target, node.args, node.kwargs = aten.alias.default, (source,), {}
        if start is None or _begins_its_memory(tensor):
            continue
        with graph.inserting_before(node):
            ordered = graph.call_function(aten.permute.default, (source, _order(tensor)))
            ordered.meta["val"] = tensor.permute(_order(tensor))
            row = graph.call_function(aten.reshape.default, (ordered, [-1]))
            row.meta["val"] = ordered.meta["val"].reshape(-1)
        node.args, node.kwargs = (row, size, stride, start), {}


def _changes_nothing(node: fx.Node) -> bool:
    """Whether an as_strided node gives its tensor as it is: strides of sizes that are 1 say nothing. Also of dynamic
    sizes: torch's own `adaptive_avg_pool2d` to one element asks so for channels last."""
    tensor = argument(node, "self").meta["val"]
    sizes, strides = ([_expression(one) for one in argument(node, name)] for name in ("size", "stride"))
    own = [_expression(one) for one in tensor.shape], [_expression(one) for one in tensor.stride()]
    if argument(node, "storage_offset") is not None or sizes != own[0]:
        return False
    return all(one == other or size == 1 for size, one, other in zip(sizes, strides, own[1], strict=True))


def _expression(size: Any) -> Any:
    """Of a size, or of a node that is one."""
    return expression(size.meta["val"] if isinstance(size, fx.Node) else size)


def _begins_its_memory(tensor: Tensor) -> bool:
    """Whether its elements are in logical order from the start of its storage."""
    return tensor.is_contiguous() and tensor.storage_offset() == 0


@decomposed("aten.as_strided_scatter.default", why="decomposed to a prim without ONNX form", upstream="torch")
def as_strided_scatter(
    tensor: Tensor, source: Tensor, size: Sizes, stride: Sizes, storage_offset: int | None = None
) -> Any:
    """A scatter into the tensor's elements in the order of its memory. What goes beyond them, or writes one twice, and
    an input's memory: left whole."""
    start = None if _of_an_input(tensor) else _start(tensor, size, stride, storage_offset)
    if start is None or not _distinct(size, stride):
        return NotImplemented
    order = _order(tensor)
    places = torch.full((1,) * len(size), start, device=tensor.device)
    for d, (length, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(length, device=tensor.device) * step
        places = places + along.reshape([-1 if other == d else 1 for other in range(len(size))])
    memory = tensor.permute(order)
    filled = memory.reshape(-1).scatter(0, places.reshape(-1), source.reshape(-1))
    return filled.reshape(memory.shape).permute([order.index(d) for d in range(len(order))])


def _distinct(size: Sizes, stride: Sizes) -> bool:
    """Whether no two elements share their place, as far as the layout shows: each step goes over what is inside it."""
    reach = 0
    for step, length in sorted((step, length) for step, length in zip(stride, size, strict=True) if length != 1):
        if step <= reach:
            return False
        reach += step * (length - 1)
    return True


def _reads_beyond(node: fx.Node) -> bool:
    """Whether an as_strided node reads elements of a storage that are not its tensor's, or a layout not known."""
    tensor = argument(node, "self").meta["val"]
    size, stride = argument(node, "size"), argument(node, "stride")
    return _start(tensor, size, stride, argument(node, "storage_offset")) is None and not _changes_nothing(node)


in_eager("aten.as_strided", why=BY_LOGICAL_ORDER, when=_reads_beyond)

torchs_own(
    "aten.roll.default",
    why="torch's fake tensor is row-major; of channels last, eager's result has channels last",
    upstream="torch",
)
