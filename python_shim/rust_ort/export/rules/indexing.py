"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

from torch import fx

from rust_ort.export.rules.nodes import argument, of_rank_0
from rust_ort.export.rules.registry import in_eager, whole

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)
whole("aten.diagonal_scatter.default", why="decomposed to prims.copy_to, which is not functional")


def _reads_beyond(node: fx.Node) -> bool:
    """Whether an as_strided node reads elements of a storage that are not its tensor's, or another layout."""
    tensor = argument(node, "self").meta["val"]
    size, stride = argument(node, "size"), argument(node, "stride")
    offset = argument(node, "storage_offset")
    if not tensor.is_contiguous() or not all(isinstance(number, int) for number in (*size, *stride, tensor.numel())):
        return True
    first = tensor.storage_offset() if offset is None else offset
    last = first + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    own = range(tensor.storage_offset(), tensor.storage_offset() + tensor.numel())
    return tensor.storage_offset() != 0 or (0 not in size and (first not in own or last not in own))


in_eager(
    "aten.as_strided",
    why="it reads elements of a storage that its tensor does not show",
    silent=False,
    when=_reads_beyond,
)
in_eager("aten._embedding_bag", why="torchlib's embedding_bag gives offsets that make gradients wrong")
in_eager(
    "aten.scatter",
    "aten.scatter_add",
    why="torchlib's ScatterElements takes no rank 0",
    silent=False,
    when=of_rank_0,
)
in_eager(
    "aten.scatter_reduce",
    why="torchlib's scatter_reduce(mean) gives wrong values, its ScatterElements takes no rank 0",
    when=lambda node: argument(node, "reduce") == "mean" or of_rank_0(node),
)
