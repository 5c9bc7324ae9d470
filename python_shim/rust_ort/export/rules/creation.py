"""Constants, and what is spread."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import EXACT_IN_FLOAT32, Number, as_held
from rust_ort.export.rules.registry import decomposed, in_eager, ints, op, translated
from rust_ort.export.shapes import fills_its_storage, has_no_elements, is_symbolic
from rust_ort.torch_private import free_unbacked_symbols, outside_tracing, torchs_decompositions

aten = torch.ops.aten
SPREAD = "torchlib gives the source alone: a smaller one is not spread over what it is copied into"


def full_like(
    tensor: Tensor,
    fill_value: float | bool,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Any:
    """A constant of a static, contiguous tensor's shape: else the tensor would be sent for its shape alone."""
    static = all(isinstance(size, int) for size in tensor.shape)
    if not static or not tensor.is_contiguous() or memory_format not in (None, torch.preserve_format):
        return NotImplemented
    fill_value = as_held(fill_value, dtype or tensor.dtype)
    return aten.full(tensor.shape, fill_value, dtype=dtype or tensor.dtype, device=device or tensor.device)


@decomposed("aten.full.default", why="a float is converted to integers through float32", silent=True)
def full(size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Of integers, with an integer."""
    held = fill_value if dtype is None else as_held(fill_value, dtype)
    return NotImplemented if held is fill_value else aten.full.default(size, held, dtype=dtype, **options)


@decomposed("aten.new_full.default", why="a float is converted to integers through float32", silent=True)
def new_full(
    self: Tensor, size: Sequence[int], fill_value: Number, *, dtype: torch.dtype | None = None, **options: Any
) -> Any:
    """Of integers, with an integer."""
    held = as_held(fill_value, dtype or self.dtype)
    return NotImplemented if held is fill_value else aten.new_full.default(self, size, held, dtype=dtype, **options)


LIKE = "the tensor would be sent for its shape alone"
decomposed("aten.full_like.default", why=LIKE)(full_like)
decomposed("aten.zeros_like.default", why=LIKE)(functools.partial(full_like, fill_value=0))
decomposed("aten.ones_like.default", why=LIKE)(functools.partial(full_like, fill_value=1))


def _empty(operator: Any) -> Callable[..., Any]:
    def function(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Of memory nobody knows more than its layout."""
        with outside_tracing():
            like = operator(tensor, *args, **kwargs)
        if not fills_its_storage(like):
            return NotImplemented
        return aten.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)

    return function


for _name in ("empty_like", "new_empty"):
    decomposed(f"aten.{_name}.default", why=LIKE)(_empty(getattr(aten, _name).default))


@translated(
    "aten._efficientzerotensor.default",
    why="no ONNX form: gradients of round, floor and the like",
)
def zeros(size: Sequence[Any], dtype: Any, layout: str = "", device: str = "", pin_memory: bool = False) -> Any:
    """In memory; not before: while torch traces, sums and products leave such zeros out, as eager does."""
    from onnxscript import ir

    zero = op.Constant(value=ir.tensor(0, dtype=dtype))
    if all(isinstance(n, int) for n in size):
        return op.Expand(zero, ints(list(size)))
    return op.Expand(
        zero, op.Concat(*(ints([n]) if isinstance(n, int) else op.Reshape(n, ints([1])) for n in size), axis=0)
    )


ROUNDS_NUMBERS = "torchlib rounds start, end and step to float32, and Range adds up steps"


@decomposed("aten.arange.start_step", why=ROUNDS_NUMBERS, silent=True)
def arange(
    start: Number,
    end: Number,
    step: Number = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Any:
    """start + step * i in float64 as torch computes it, or in int64; numbers below 2**24 as they are. Of integers, the
    numbers lose their fractions, but as many are made as with them."""
    whole = all(isinstance(number, int | torch.SymInt) for number in (start, end, step))
    made = dtype or (torch.int64 if whole else torch.get_default_dtype())
    if whole and made.is_floating_point:
        return aten.arange.start_step(start, end, step, dtype=torch.int64, device=device).to(made)
    static = all(isinstance(number, int | float) for number in (start, end, step))
    if not static:
        return NotImplemented
    if whole and ((start, step) == (0, 1) or max(abs(start), abs(end), abs(step)) < EXACT_IN_FLOAT32):
        return NotImplemented
    n = -((start - end) // step) if whole else math.ceil((end - start) / step)
    if not whole and not made.is_floating_point:
        if made is torch.int64 and int(step) == 0:
            return NotImplemented  # which torch refuses
        start, end, step, whole = int(start), int(end), int(step), True
        n = math.ceil((end - start) / step) if made is torch.int64 else n
    index = aten.arange.start_step(0, n, 1, dtype=torch.int64, device=device)
    return (index if whole else index.to(torch.float64)).mul(step).add(start).to(made)


@decomposed("aten.arange.start", why="torchlib takes large integers through float32, and declares another length")
def arange_from(start: Number, end: Number, **options: Any) -> Any:
    """By 1."""
    return arange(start, end, **options)


def _linspace(operator: Any) -> Callable[..., Any]:
    def function(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
        """Of integers, between ends that have lost their fractions."""
        own: Any = torchs_decompositions()[operator]
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            start, end = (value.to(dtype) if isinstance(value, Tensor) else int(value) for value in (start, end))
        return own(start, end, steps, dtype=dtype, **options)

    return function


for _overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"):
    decomposed(f"aten.linspace.{_overload}", why="integers between ends with fractions", upstream="torch", silent=True)(
        _linspace(getattr(aten.linspace, _overload))
    )


in_eager(
    "aten.expand",
    why="ONNX Runtime's ExpandElimination leaves out an Expand to no elements",
    upstream="onnxruntime",
    silent=False,
    when=lambda node: has_no_elements(node.meta["val"]),
)


@translated("aten.copy.default", why=SPREAD, silent=True)
def copied(self: Any, src: Any, non_blocking: bool = False) -> Any:
    """What is not decomposed."""
    return op.Expand(op.CastLike(src, self), op.Shape(self))


@decomposed(
    "aten.copy.default",
    why=SPREAD,
    silent=True,
)
def copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    """The source's values in the dtype, shape and strides of `self`. Of symbolic sizes and less than its storage, it
    stays whole: where the result is shown its place in the storage is, too."""
    if free_unbacked_symbols(self) or (is_symbolic(self) and not fills_its_storage(self)):
        return NotImplemented
    spread = src.to(device=self.device, dtype=self.dtype).expand(self.shape)
    if self.is_contiguous():
        return spread.contiguous()
    order = sorted(range(self.dim()), key=self.stride().__getitem__, reverse=True)
    return spread.permute(order).contiguous().permute([order.index(axis) for axis in range(self.dim())])


def _window(operator: Any) -> Any:
    def function(window_length: int, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        if window_length != 1:
            return NotImplemented
        return aten.full([1], 1, dtype=dtype or torch.get_default_dtype(), device=kwargs.get("device"))

    return function


for _name in ("hann_window", "hamming_window", "blackman_window"):
    decomposed(f"aten.{_name}", why="a window of one element is 0 instead of 1", silent=True)(_window(_name))
