"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.registry import decomposed, in_eager, torchs_own

torchs_own("aten.baddbmm.default", why="`beta=0` lets NaN of the ignored input through", silent=True)

in_eager(
    "aten.addmm",
    why="ONNX Runtime's Gemm ignores beta when nothing is multiplied",
    upstream="onnxruntime",
    when=lambda node: argument(node, "beta") != 1 and argument(node, "mat1").meta["val"].shape[1] == 0,
)


@decomposed(
    "aten.mv.default",
    why="MatmulTransposeFusion of `Transpose → MatMul(·, 1-D)` gives wrong values",
    upstream="onnxruntime",
    silent=True,
)
def mv(matrix: Tensor, vector: Tensor) -> Tensor:
    """A matrix-vector product as a matrix product."""
    return torch.mm(matrix, vector.unsqueeze(1)).squeeze(1)
