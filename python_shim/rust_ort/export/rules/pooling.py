"""Pooling and unpooling."""

from __future__ import annotations

from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.registry import in_eager, whole

in_eager(
    "aten.avg_pool2d",
    why="torchlib ignores divisor_override",
    when=lambda node: argument(node, "divisor_override") is not None,
)
in_eager("aten.avg_pool3d", why="torchlib's avg_pool3d gives wrong values")

whole(
    "aten.max_unpool2d.default",
    "aten.max_unpool3d.default",
    why="where indices repeat, which element is written last is chance, in eager too: left to torch's own kernel",
)
