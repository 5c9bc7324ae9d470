"""Operators over lists of tensors, of which optimizers are made (`foreach=True`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import Number
from rust_ort.export.rules.registry import decomposed

aten = torch.ops.aten


def _of_numbers(least: Any, of_tensors: Any) -> Callable[[Tensor, Tensor | Number], Tensor]:
    """maximum or minimum, which have no overload for numbers."""
    return lambda tensor, other: (of_tensors if isinstance(other, Tensor) else least)(tensor, other)


def _norm(tensor: Tensor, ord: Number = 2, dtype: torch.dtype | None = None) -> Any:
    return aten.linalg_vector_norm(tensor, ord, dtype=dtype)


def _added(operator: Any) -> Callable[[Tensor, Tensor, Tensor, Number], Tensor]:
    """addcmul or addcdiv, whose number is a keyword."""

    def added(tensor: Tensor, first: Tensor, second: Tensor, value: Number = 1) -> Any:
        return operator(tensor, first, second, value=value)

    return added


EACH: dict[str, Callable[..., Any]] = {
    **{
        name: getattr(aten, name)
        for name in ("abs", "add", "clamp_max", "clamp_min", "clone", "copy", "div", "exp", "lerp", "mul", "neg", "pow",
                     "reciprocal", "rsqrt", "sign", "sqrt", "sub")
    },
    "addcdiv": _added(aten.addcdiv),
    "addcmul": _added(aten.addcmul),
    "maximum": _of_numbers(aten.clamp_min, aten.maximum),
    "minimum": _of_numbers(aten.clamp_max, aten.minimum),
    "norm": _norm,
    "zero": aten.zeros_like,
}  # fmt: skip
"""{name after _foreach_: what is done with each tensor}."""


def _one_by_one(each: Callable[..., Any]) -> Callable[..., Any]:
    """The operator over lists: torch's own loops, too, where a device has no kernel for many tensors at once."""

    def over_lists(*args: Any, **kwargs: Any) -> Any:
        length = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
        if len(args) == 4 and isinstance(args[3], Tensor):  # addcmul and addcdiv: one number for each, in a tensor
            return NotImplemented
        return [
            each(*(arg[place] if isinstance(arg, (list, tuple)) else arg for arg in args), **kwargs)
            for place in range(length)
        ]

    return over_lists


for _name, _each in EACH.items():
    decomposed(f"aten._foreach_{_name}", why="torchlib has no function for lists of tensors")(_one_by_one(_each))
