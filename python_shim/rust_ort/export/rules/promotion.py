"""In which dtypes torch's kernels compute."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.kernels import holds
from rust_ort.torch_private import no_modes

aten = torch.ops.aten
Number = float | int | bool
EXACT_IN_FLOAT32 = 2**24
"""Integers up to it are float32's, too."""
WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def kernel_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, `dtype` otherwise."""
    return WIDER.get(dtype, dtype)


def widened(tensor: Tensor) -> Tensor:
    """In `kernel_dtype`."""
    return tensor.to(kernel_dtype(tensor.dtype))


def as_dtype(value: Tensor | Number, dtype: torch.dtype, like: Tensor | Number) -> Any:
    """`value` as a tensor of `dtype`: a number as one of rank 0, infinite or wrapped around where it overflows, on the
    device of `like`, or on the CPU where that is a number, too."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    if isinstance(value, int | float) and math.isfinite(value) and not holds(dtype, value):
        with no_modes():
            value = torch.tensor(value).to(dtype).item()
    return aten.full([], value, dtype=dtype, device=like.device if isinstance(like, Tensor) else "cpu")


def pair(first: Tensor | Number, second: Tensor | Number, *, wide: bool = True) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both as tensors of their common dtype, which is the third; wide: half precision as float32."""
    dtype = torch.result_type(first, second)
    computed = kernel_dtype(dtype) if wide else dtype
    like = first if isinstance(first, Tensor) else second
    return as_dtype(first, computed, like), as_dtype(second, computed, like), dtype


def is_half(first: Tensor | Number, second: Tensor | Number = 0) -> bool:
    return torch.result_type(first, second) in (torch.float16, torch.bfloat16)


def is_floating(first: Tensor | Number, second: Tensor | Number) -> bool:
    return torch.result_type(first, second).is_floating_point


def computed(tensor: Tensor) -> tuple[Tensor, torch.dtype]:
    """As torch's kernels compute it, and the dtype of their result."""
    dtype = tensor.dtype if tensor.dtype.is_floating_point else torch.get_default_dtype()
    return tensor.to(kernel_dtype(dtype)), dtype


def rounded(number: Number, dtype: torch.dtype) -> Number:
    """As `dtype` has it."""
    with no_modes():
        return torch.tensor(number, dtype=torch.float64).to(dtype).item()


def as_held(number: Number, dtype: torch.dtype) -> Number:
    """Without its fraction for an integer `dtype`, which ONNX forms would reach through float32."""
    whole = isinstance(number, float) and math.isfinite(number) and not dtype.is_floating_point
    return int(number) if whole and not dtype.is_complex and dtype is not torch.bool else number


def as_half(number: Number, dtype: torch.dtype) -> Number:
    """As a half-precision `dtype` has it; `number` itself where that is no change, no number yet, or not finite."""
    if dtype not in (torch.float16, torch.bfloat16) or not isinstance(number, (int, float)):
        return number
    if not math.isfinite(number):
        return number
    half = rounded(number, dtype)
    return number if half == number or math.isinf(half) else half
