"""Element by element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.nodes import argument, floating, integral_result
from rust_ort.export.rules.registry import decomposed, in_eager, torchs_own, whole

torchs_own("aten.hardtanh_backward.default", why="gives hardtanh and relu6 a gradient on their bounds", silent=True)
torchs_own("aten.logaddexp.default", "aten.logaddexp2.default", why="overflows", silent=True)
torchs_own(
    "aten.isinf.default",
    "aten.isposinf.default",
    "aten.isneginf.default",
    why="rounds float64 to float32 first",
    silent=True,
)
torchs_own("aten.xlogy.Tensor", why="0 where y is NaN", silent=True)

whole(
    "aten.copysign.Scalar",
    "aten.copysign.Tensor",
    why="decomposed to prims.signbit, whose fake dtype is wrong",
)

in_eager("aten.angle", why="torchlib's angle of NaN is 0")
in_eager("aten.atan2", why="torchlib's atan2 is wrong at y = 0 and for NaN and infinities")
DIVIDES_THEN_ROUNDS = "torchlib divides, then rounds: wrong next to an integer and for infinities"
in_eager(
    "aten.div",
    why=DIVIDES_THEN_ROUNDS,
    when=lambda node: argument(node, "rounding_mode") == "floor" and floating(node),
)
in_eager("aten.floor_divide", why=DIVIDES_THEN_ROUNDS, when=floating)
in_eager("aten.remainder", why="torchlib's remainder is wrong for infinities and large quotients", when=floating)
in_eager("aten.heaviside", why="torchlib's heaviside of NaN is 1", when=floating)
in_eager("aten.signbit", why="torchlib's signbit of -0.0 is False", when=floating)
in_eager("aten.special_erfcx", why="torchlib's erfcx gives wrong values")
in_eager(
    "aten.pow",
    why="ONNX Runtime computes integer powers in floating point",
    upstream="onnxruntime",
    when=integral_result,
)


@decomposed("aten.sign.default", why="Sign of NaN is NaN, torch's is 0", upstream="onnxruntime", silent=True)
def sign(tensor: Tensor) -> Any:
    """0 for NaN, where ONNX's Sign says NaN."""
    if not tensor.dtype.is_floating_point:
        return NotImplemented
    return (tensor > 0).to(tensor.dtype) - (tensor < 0).to(tensor.dtype)


@decomposed("aten.rsub.Scalar", why="a number as the first operand of sub has no type promotion", upstream="torch")
def rsub(tensor: Tensor, number: float, alpha: float = 1) -> Tensor:
    """number - alpha * tensor: to the digit what negation and addition give."""
    return torch.add(-tensor if alpha == 1 else tensor * -alpha, number)
