"""Functions of one operator, forward and backward, and what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class Place:
    """A node of a function's graphs: of those of `op`, as the report has it, the one with most elements. backward: of
    which graph; shapes: of the function's arguments."""

    name: str
    op: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    backward: bool = False

    def arguments(self, dtype: torch.dtype, seed: int, size: float) -> list[Tensor]:
        """Normal numbers times `size`, that take gradients where the node is of the backward."""
        draw = torch.Generator().manual_seed(seed)
        made = [(size * torch.randn(shape, generator=draw)).to(dtype) for shape in self.shapes]
        return [tensor.requires_grad_(self.backward) for tensor in made]


def _norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def _loss(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Gradients that are no constants."""
    return lambda *args: function(*args).float().square().mean() * 64


MATRIX = (96, 128)
LINEAR = (MATRIX, (64, 128), (64,))
NORM = (MATRIX, (128,), (128,))
IMAGE = ((4, 8, 16, 16), (12, 8, 3, 3), (12,))
HEADS = ((2, 4, 32, 16),) * 3
ROUNDED = "aten._to_copy.default"
"""Where the operator is decomposed to float32: the node that rounds what comes of it."""
attention = functional.scaled_dot_product_attention


PLACES = (
    Place(name="matmul", op="aten.mm.default", function=torch.mm, shapes=(MATRIX, (128, 64))),
    Place(name="linear", op="aten.addmm.default", function=functional.linear, shapes=LINEAR),
    Place(name="bmm", op="aten.bmm.default", function=torch.bmm, shapes=((4, 48, 32), (4, 32, 40))),
    Place(name="softmax", op="aten._softmax.default", function=lambda x: x.softmax(-1), shapes=(MATRIX,)),
    Place(name="log_softmax", op="aten._log_softmax.default", function=lambda x: x.log_softmax(-1), shapes=(MATRIX,)),
    Place(name="layer_norm", op=ROUNDED, function=_norm, shapes=NORM),
    Place(name="gelu", op="aten.gelu.default", function=functional.gelu, shapes=(MATRIX,)),
    Place(name="silu", op=ROUNDED, function=functional.silu, shapes=(MATRIX,)),
    Place(name="tanh", op="aten.tanh.default", function=torch.tanh, shapes=(MATRIX,)),
    Place(name="sigmoid", op="aten.sigmoid.default", function=torch.sigmoid, shapes=(MATRIX,)),
    Place(name="mul", op="aten.mul.Tensor", function=torch.mul, shapes=(MATRIX, MATRIX)),
    Place(name="sum", op="aten.sum.dim_IntList", function=lambda x: x.sum(1), shapes=((64, 48, 32),)),
    Place(name="mean", op="aten.mean.dim", function=lambda x: x.mean(-1), shapes=((64, 32, 48),)),
    Place(name="div", op="aten.div.Tensor", function=lambda x, y: x / (1 + y.abs()), shapes=(MATRIX, MATRIX)),
    Place(name="attention", op="aten._scaled_dot_product_flash_attention_for_cpu.default", function=attention,
          shapes=HEADS),
    Place(name="conv", op="aten.convolution.default", function=functional.conv2d, shapes=IMAGE),
    Place(name="matmul", op="aten.mm.default", function=_loss(torch.mm), shapes=(MATRIX, (128, 64)), backward=True),
    Place(name="bmm", op="aten.bmm.default", function=_loss(torch.bmm), shapes=((4, 48, 32), (4, 32, 40)),
          backward=True),
    Place(name="silu", op=ROUNDED, function=_loss(functional.silu), shapes=(MATRIX,), backward=True),
    Place(name="softmax", op=ROUNDED, function=_loss(lambda x: x.softmax(-1)), shapes=(MATRIX,), backward=True),
    Place(name="layer_norm", op=ROUNDED, function=_loss(_norm), shapes=NORM, backward=True),
    Place(name="gelu", op=ROUNDED, function=_loss(functional.gelu), shapes=(MATRIX,), backward=True),
    Place(name="conv", op="aten.convolution.default", function=_loss(functional.conv2d), shapes=IMAGE, backward=True),
    Place(name="attention", op="aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
          function=_loss(attention), shapes=HEADS, backward=True),
)  # fmt: skip
"""Twenty-four; of some eager's own kernel rounds in the middle."""
