"""Resizing and padding of images."""

from __future__ import annotations

from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.registry import in_eager

in_eager(
    "aten._upsample_bicubic2d_aa",
    "aten._upsample_bilinear2d_aa",
    why="torchlib's antialiased upsampling gives wrong values with align_corners or a scale",
)
in_eager(
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
    why="ONNX Runtime's Pad takes no negative padding in this mode",
    upstream="onnxruntime",
    silent=False,
    when=lambda node: any(isinstance(pad, int) and pad < 0 for pad in argument(node, "padding")),
)
