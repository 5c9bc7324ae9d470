"""Pooling and unpooling, of 1 to 3 spatial dimensions, adaptive or not, and the gradients."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument
from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, in_eager, op, translated, whole
from rust_ort.export.rules.sizes import each, known, least, steps
from rust_ort.export.rules.taps import Taps, applied, constant

aten = torch.ops.aten

Window = tuple[int, int]
"""First input and the one after the last; padding counts, the first input of all is 0."""


def avg_pool(
    spatial: int,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Sums of windows over divisors known now; what AveragePool computes as torch does is left to it."""
    sizes = input.shape[-spatial:]
    if not input.dtype.is_floating_point or not known(sizes):
        return NotImplemented
    windows = _windows(sizes, kernel_size, stride, padding, ceil_mode)
    if input.dtype is not torch.float64 and divisor_override is None:
        if not ceil_mode:
            return NotImplemented
        if windows == _windows(sizes, kernel_size, stride, padding, False):
            return (aten.avg_pool2d if spatial == 2 else aten.avg_pool3d)(
                input, kernel_size, stride, padding, False, count_include_pad
            )
    sums = applied(_sums(windows, sizes), widened(input))
    return _divided(sums, windows, sizes, count_include_pad, divisor_override).to(input.dtype)


def avg_pool_backward(
    spatial: int,
    grad_output: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """To every input the shares of the windows it is in."""
    sizes = input.shape[-spatial:]
    if not input.dtype.is_floating_point or not known(sizes):
        return NotImplemented
    windows = _windows(sizes, kernel_size, stride, padding, ceil_mode)
    shares = _divided(widened(grad_output), windows, sizes, count_include_pad, divisor_override)
    return applied([sums.transposed() for sums in _sums(windows, sizes)], shares).to(input.dtype)


def adaptive_avg_pool(spatial: int, input: Tensor, output_size: Sequence[int]) -> Any:
    """Means of windows of several sizes."""
    sizes = input.shape[-spatial:]
    if not input.dtype.is_floating_point or not known([*sizes, *output_size]):
        return NotImplemented
    if 0 in output_size:
        return input.new_zeros([*input.shape[:-spatial], *output_size])
    windows = _adaptive(sizes, output_size)
    if all(size == 1 for size in output_size):
        return widened(input).mean(list(range(-spatial, 0)), keepdim=True).to(input.dtype)
    return _divided(applied(_sums(windows, sizes), widened(input)), windows, sizes, True, None).to(input.dtype)


def adaptive_avg_pool_backward(spatial: int, grad_output: Tensor, input: Tensor) -> Any:
    """To every input the shares of the windows it is in."""
    sizes = input.shape[-spatial:]
    if not input.dtype.is_floating_point or not known([*sizes, *grad_output.shape[-spatial:]]):
        return NotImplemented
    windows = _adaptive(sizes, grad_output.shape[-spatial:])
    shares = _divided(widened(grad_output), windows, sizes, True, None)
    return applied([sums.transposed() for sums in _sums(windows, sizes)], shares).to(input.dtype)


for _spatial in (2, 3):
    decomposed(
        f"aten.avg_pool{_spatial}d.default",
        why="with divisor_override or ceil_mode it would be wrong; ONNX Runtime has no float64 AveragePool",
    )(functools.partial(avg_pool, _spatial))
    decomposed(f"aten.avg_pool{_spatial}d_backward.default", why="no ONNX form")(
        functools.partial(avg_pool_backward, _spatial)
    )
    decomposed(f"aten._adaptive_avg_pool{_spatial}d_backward.default", why="no ONNX form")(
        functools.partial(adaptive_avg_pool_backward, _spatial)
    )

decomposed("aten._adaptive_avg_pool2d.default", why="torch's own fails of outputs without elements", upstream="torch")(
    functools.partial(adaptive_avg_pool, 2)
)
decomposed("aten._adaptive_avg_pool3d.default", why="no ONNX form")(functools.partial(adaptive_avg_pool, 3))

in_eager(
    "aten.avg_pool2d",
    "aten.avg_pool3d",
    why="torchlib ignores divisor_override and divides by a wrong number in ceil_mode",
    when=lambda node: argument(node, "divisor_override") is not None or bool(argument(node, "ceil_mode")),
)


def adaptive_max_pool(spatial: int, input: Tensor, output_size: Sequence[int]) -> Any:
    """(maxima, indices): windows made as long as the longest by their last input, laid side by side."""
    sizes = input.shape[-spatial:]
    if not input.dtype.is_floating_point or not known([*sizes, *output_size]):
        return NotImplemented
    if 0 in (*input.shape, *output_size):
        empty = input.new_zeros([*input.shape[:-spatial], *output_size])
        return empty, empty.to(torch.int64)
    lines, kernel = [], []
    for windows in _adaptive(sizes, output_size):
        longest = max(end - start for start, end in windows)
        lines.append([min(start + k, end - 1) for start, end in windows for k in range(longest)])
        kernel.append(longest)
    spread = input
    for axis, line in enumerate(lines, input.dim() - spatial):
        if line != list(range(input.shape[axis])):
            spread = spread.index_select(axis, constant(line, torch.int64, input.device))
    pool = aten.max_pool2d_with_indices if spatial == 2 else aten.max_pool3d_with_indices
    maxima, found = pool(spread, kernel)
    if spread is input:
        return maxima, found
    places = [sum(i * step for i, step in zip(index, steps(sizes), strict=True)) for index in itertools.product(*lines)]
    indices = constant(places, torch.int64, input.device).index_select(0, found.flatten()).reshape(found.shape)
    return maxima, indices


def max_pool_backward(spatial: int, grad_output: Tensor, input: Tensor, *rest: Any) -> Any:
    """Every share added where its maximum was. The indices are the last argument."""
    indices: Tensor = rest[-1]
    front = input.shape[:-spatial]
    zeros = widened(input.new_zeros([*front, math.prod(input.shape[-spatial:])]))
    shares, places = widened(grad_output).flatten(-spatial), indices.flatten(-spatial)
    return zeros.scatter_add(-1, places, shares).reshape(input.shape).to(input.dtype)


for _spatial in (2, 3):
    decomposed(f"aten.adaptive_max_pool{_spatial}d.default", why="no ONNX form")(
        functools.partial(adaptive_max_pool, _spatial)
    )
    decomposed(f"aten.adaptive_max_pool{_spatial}d_backward.default", why="no ONNX form")(
        functools.partial(max_pool_backward, _spatial)
    )
decomposed("aten.max_pool3d_with_indices_backward.default", why="no ONNX form")(functools.partial(max_pool_backward, 3))

PASSES_NAN = "MaxPool passes NaN over, and has the lowest finite number for negative infinity"


@translated("aten.max_pool2d_with_indices.default", why=PASSES_NAN, upstream="onnxruntime", silent=True)
def max_pool2d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """(maxima, indices); the last NaN of a window is its maximum."""
    return _max_pool(2, self, kernel_size, stride, padding, dilation, ceil_mode)


@translated("aten.max_pool3d_with_indices.default", why=PASSES_NAN, upstream="onnxruntime", silent=True)
def max_pool3d(
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """(maxima, indices); the last NaN of a window is its maximum."""
    return _max_pool(3, self, kernel_size, stride, padding, dilation, ceil_mode)


def _max_pool(
    spatial: int,
    self: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Any:
    from onnxscript import ir

    kernel, pads = each(kernel_size, spatial), each(padding, spatial)
    strides, dilations = each(stride, spatial) or kernel, each(dilation, spatial)
    how = {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "dilations": dilations}
    if ceil_mode:
        how |= _rounded_up([*zip(self.shape[-spatial:], kernel, pads, strides, dilations, strict=True)])
    batched = len(self.shape) == spatial + 2
    front = op.Constant(value=ir.tensor([0], dtype=ir.DataType.INT64))
    input = self if batched else op.Unsqueeze(self, front)
    sizes = op.Shape(input, start=2)
    n_places = op.ReduceProd(sizes, keepdims=False)
    maxima = _maxima(input, how)
    indices = op.Mod(op.MaxPool(input, **how)[1], n_places)
    if self.dtype.is_floating_point():
        zero, one = (op.Constant(value=ir.tensor(number, dtype=ir.DataType.INT64)) for number in (0, 1))
        exact = ir.DataType.FLOAT if _fits_float32(self.shape[-spatial:]) else ir.DataType.DOUBLE
        places = op.Reshape(op.Cast(op.Range(zero, n_places, one), to=exact), sizes)
        nowhere, below = (op.Constant(value=ir.tensor(number, dtype=exact)) for number in (-1.0, -2.0))
        nan, lowest = (op.Constant(value=ir.tensor(number, dtype=self.dtype)) for number in (math.nan, -math.inf))
        others = op.Where(op.Equal(input, lowest), below, nowhere)
        last_nan = _maxima(op.Where(op.IsNaN(input), places, others), how)
        found = op.Greater(last_nan, nowhere)
        maxima = op.Where(found, nan, op.Where(op.Less(last_nan, nowhere), lowest, maxima))
        indices = op.Where(found, op.Cast(last_nan, to=ir.DataType.INT64), indices)
    return (maxima, indices) if batched else (op.Squeeze(maxima, front), op.Squeeze(indices, front))


def _rounded_up(dimensions: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """MaxPool's attributes for the windows of torch's ceil_mode. Of one that begins behind the image, ONNX Runtime's
    kernel makes an output where its shape inference does not: the padding that the last window needs does without
    ceil_mode, but has to be less than a window; beside it, nothing may be left behind the last window."""
    pads = [padding for _, _, padding, _, _ in dimensions]
    needed = []
    for size, kernel, padding, stride, dilation in dimensions:
        count = _n_windows(size, kernel, padding, stride, dilation, ceil_mode=True)
        needed.append((count - 1) * stride + dilation * (kernel - 1) + 1 - size - padding)
    if min(needed) >= 0 and any(end >= kernel for end, (_, kernel, *_) in zip(needed, dimensions, strict=True)):
        return {"ceil_mode": 1, "pads": [*pads, *map(min, pads, needed)]}
    return {"pads": [*pads, *map(max, pads, needed)]}


def _maxima(input: Any, how: dict[str, Any]) -> Any:
    """By a MaxPool without the second output: with it, ONNX Runtime's kernel is 50 times slower."""
    maxima, _ = op.MaxPool(input, **how)
    maxima.producer().resize_outputs(1)
    return maxima


def _fits_float32(sizes: Sequence[Any]) -> bool:
    return known(sizes) and math.prod(sizes) <= 2**24


def _is_between_taps(node: fx.Node) -> bool:
    """Whether an image may lie between two taps of a dilated window: eager has indices of nothing for such."""
    spatial = 2 if "2d" in str(node.target) else 3
    dilations = each(argument(node, "dilation"), spatial)
    sizes = argument(node, "self").meta["val"].shape[-spatial:]
    return not known(dilations) or any(map(operator.gt, dilations, map(least, sizes)))


in_eager(
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
    why="windows of padding alone, and, of unknown size, windows of ceil_mode that begin behind the image",
    upstream="onnxruntime",
    silent=False,
    when=lambda node: (
        _is_between_taps(node)
        or (argument(node, "ceil_mode") and not known(argument(node, "self").meta["val"].shape[1:]))
    ),
)

whole(
    "aten.max_unpool2d.default",
    "aten.max_unpool3d.default",
    why="where indices repeat, which element is written last is chance, in eager too: left to torch's own kernel",
)


def _windows(
    sizes: Sequence[int], kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool
) -> list[list[Window]]:
    """Of each dimension; a window may begin and end in the padding, not behind it."""
    spatial = len(sizes)
    kernel = each(kernel_size, spatial)
    found = []
    for size, k, s, p in zip(sizes, kernel, each(stride, spatial) or kernel, each(padding, spatial), strict=True):
        n_outputs = _n_windows(size, k, p, s, 1, ceil_mode)
        found.append([(i * s - p, min(i * s - p + k, size + p)) for i in range(n_outputs)])
    return found


def _n_windows(size: int, kernel: int, padding: int, stride: int, dilation: int, ceil_mode: bool) -> int:
    """Of one dimension, as torch counts them: none begins in the padding behind the image."""
    rest = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (rest + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _adaptive(sizes: Sequence[int], output_size: Sequence[int]) -> list[list[Window]]:
    return [
        [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)] for size, n in zip(sizes, output_size, strict=True)
    ]


def _sums(windows: Sequence[list[Window]], sizes: Sequence[int]) -> list[Taps]:
    return [
        Taps(n_inputs=size, rows=[[(i, 1.0) for i in range(max(start, 0), min(end, size))] for start, end in line])
        for line, size in zip(windows, sizes, strict=True)
    ]


def _divided(
    tensor: Tensor, windows: Sequence[list[Window]], sizes: Sequence[int], with_padding: bool, override: int | None
) -> Tensor:
    """Sums of windows, or gradients of their means, by how many they are of."""
    if override is not None:
        return tensor / override
    lengths = [
        [end - start if with_padding else min(end, size) - max(start, 0) for start, end in line]
        for line, size in zip(windows, sizes, strict=True)
    ]
    products = [math.prod(index) for index in itertools.product(*lengths)]
    if len(set(products)) == 1:
        return tensor / products[0]
    shape = [len(line) for line in lengths]
    return tensor / constant(products, tensor.dtype, tensor.device).reshape(shape)
