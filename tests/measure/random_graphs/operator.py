"""What an operator of the table is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from measure.random_graphs.draw import Draw

Made = str | list[str]
EXACT = ("view", "join", "index", "sort", "creation", "comparison", "in place", "memory", "data-dependent")
"""Families that compute nothing: their results are as exact as their operands."""
_EXACT_CALLS = """
    torch F abs neg positive clone to float double half long int bool detach contiguous type_as real add sub rsub
    mul div maximum minimum fmax fmin relu relu6 clamp clamp_min clamp_max where masked_fill floor ceil trunc round
    sign sgn copysign threshold hardtanh leaky_relu nan_to_num signbit isnan isinf isfinite eq ne lt le gt ge
    logical_not logical_and logical_or logical_xor bitwise_not bitwise_and bitwise_or bitwise_xor shape numel dim
    dtype flatten ravel unsqueeze squeeze transpose t mT movedim permute reshape view unflatten select narrow unfold
    diagonal as_strided expand broadcast_to repeat tile flip fliplr roll rot90 repeat_interleave tril triu
    diag_embed diag swapaxes atleast_2d stack cat hstack vstack dstack block_diag meshgrid cartesian_prod split
    chunk tensor_split unbind zeros_like ones_like full_like new_full new_zeros new_ones zeros ones full eye
    scalar_tensor tensor one_hot index_select gather take take_along_dim embedding scatter index_copy index_fill
    index_put masked_scatter select_scatter slice_scatter sort argsort msort topk kthvalue argmax argmin amax amin
    max min aminmax add_ sub_ mul_ fill_ zero_ copy_ clamp_ clamp_min_ masked_fill_ t_ unsqueeze_ squeeze_
    transpose_ neg_ abs_ pad no_grad enable_grad size stride storage_offset view_as new_empty empty empty_like
    channels_last contiguous_format nonzero masked_select item numpy argwhere all any count_nonzero len float32
    float64 float16 bfloat16 int64 int32 int16 int8 uint8 nan inf
"""
EXACT_CALLS = frozenset(_EXACT_CALLS.split())
"""Calls that data movement and IEEE 754 determine to the bit."""
_CALLED = re.compile(r"\.([A-Za-z_]\w*)")


@dataclass(frozen=True, kw_only=True)
class Operator:
    """make: an expression, or statements in which `@` is the target. writes: it changes an operand."""

    name: str
    family: str
    make: Callable[[Draw], Made]
    weight: float = 1.0
    writes: bool = False


Make = Callable[[Draw], Made]


class Adding(Protocol):
    """A decorator of functions that make operators."""

    def __call__(self, family: str, *, weight: float = 1.0) -> Callable[[Make], Make]: ...


def adding_to(operators: list[Operator]) -> Adding:
    """The decorator that adds an operator which needs more than a row of the table."""

    def function(family: str, *, weight: float = 1.0) -> Callable[[Make], Make]:
        def add(make: Make) -> Make:
            operators.append(Operator(name=make.__name__, family=family, make=make, weight=weight))
            return make

        return add

    return function


def exact(lines: Sequence[str]) -> bool:
    """Whether the result of these statements is determined to the bit."""
    text = "\n".join(lines)
    inexact = "**" in text or "@ " in text or "alpha" in text or "autocast" in text or "mode=" in text
    return not inexact and all(name in EXACT_CALLS for name in _CALLED.findall(text))
