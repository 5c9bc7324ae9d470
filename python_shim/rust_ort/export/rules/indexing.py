"""Gathering, scattering, embeddings, and views that are written to."""

from __future__ import annotations

from rust_ort.export.rules.nodes import argument, of_rank_0
from rust_ort.export.rules.registry import in_eager, whole

whole(
    "aten.lift_fresh.default",
    why="AOTAutograd's functionalization needs to see it: without, what writes to a new tensor fails when traced",
)
whole("aten.diagonal_scatter.default", why="decomposed to prims.copy_to, which is not functional")

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
