"""Images read where a grid says, of 2 and 3 spatial dimensions, and the gradients."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, ints, op, translated
from rust_ort.export.rules.sizes import known, steps
from rust_ort.export.shapes import has_no_elements

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One input along one dimension for every point: its index, 0 where it is not `inside`, and its weight.

    All [batch, 1, points]. slope: the weight's derivative by the grid's coordinate.
    """

    index: Tensor
    inside: Tensor
    weight: Tensor
    slope: Tensor


@dataclass(frozen=True, kw_only=True)
class How:
    """interpolation: BILINEAR, NEAREST, BICUBIC. padding: ZEROS, BORDER, REFLECTION. spatial: 2 or 3 dimensions."""

    interpolation: int
    padding: int
    align_corners: bool
    spatial: int


def grid_sampler(input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """The weighted sum of the inputs around every point."""
    if not _full(input, grid):
        return NotImplemented
    how = How(
        interpolation=interpolation_mode, padding=padding_mode, align_corners=align_corners, spatial=input.dim() - 2
    )
    image = widened(input).flatten(2)
    total: Any = 0
    for corner, index in _corners(input, grid, how):
        weight = _product([reading.weight for reading in corner])
        total = total + _counted(_read(image, index), weight, _all_inside(corner), how)
    return total.reshape(*input.shape[:2], *grid.shape[1:-1]).to(input.dtype)


def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,
    grid: Tensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> Any:
    """(grad_input, None where output_mask says so; grad_grid)."""
    if not _full(input, grid):
        return NotImplemented
    how = How(
        interpolation=interpolation_mode, padding=padding_mode, align_corners=align_corners, spatial=input.dim() - 2
    )
    image, shares = widened(input).flatten(2), widened(grad_output).flatten(2)
    grad_image = torch.zeros_like(image)
    slopes: list[Any] = [0] * (input.dim() - 2)
    for corner, index in _corners(input, grid, how):
        weights, inside = [reading.weight for reading in corner], _all_inside(corner)
        if output_mask[0]:
            share = torch.where(inside, shares * _product(weights), 0)
            grad_image = grad_image.scatter_add(2, index.expand(share.shape), share)
        if interpolation_mode != NEAREST:
            change = (_read(image, index) * shares).sum(1, keepdim=True)
            for axis, reading in enumerate(corner):
                factors = [reading.slope, *weights[:axis], *weights[axis + 1 :]]
                slopes[axis] = slopes[axis] + _counted(change, _product(factors), inside, how)
    grad_input = grad_image.reshape(input.shape).to(input.dtype) if output_mask[0] else None
    if interpolation_mode == NEAREST:
        return grad_input, torch.zeros_like(grid)
    grad_grid = torch.stack([slope.squeeze(1) for slope in reversed(slopes)], -1)
    return grad_input, grad_grid.reshape(grid.shape).to(grid.dtype)


@decomposed(
    "aten.grid_sampler_2d.default",
    why="GridSample has no float64 kernel; at borders and by reflection it reads infinities that have no weight",
    upstream="onnxruntime",
    silent=True,
)
def grid_sampler_2d(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Left to GridSample where zeros are outside, but in float64."""
    if input.dtype is not torch.float64 and padding_mode == ZEROS:
        return NotImplemented
    return grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners)


OUTSIDE = 16.0
"""A coordinate beyond everything that is read for a point of any image: 1 is its border."""


@translated(
    "aten.grid_sampler_2d.default",
    why="GridSample reads anywhere for a coordinate that no int64 holds, NaN and infinity too",
    upstream="onnxruntime",
    silent=True,
)
def onnx_grid_sampler_2d(input: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Any:
    """GridSample, of coordinates that are near; NaN where a coordinate is not finite, but of the nearest input."""
    from onnxscript import ir

    def number(value: float) -> Any:
        return op.Constant(value=ir.tensor(value, dtype=grid.dtype))

    infinite = op.Equal(op.Abs(grid), number(math.inf))
    lost = op.Or(op.IsNaN(grid), infinite)
    near = op.Max(op.Min(grid, number(OUTSIDE)), number(-OUTSIDE))
    read = op.GridSample(
        input,
        op.Where(lost, number(OUTSIDE), near),
        mode=("bilinear", "nearest", "bicubic")[interpolation_mode],
        padding_mode=("zeros", "border", "reflection")[padding_mode],
        align_corners=int(align_corners),
    )
    if interpolation_mode == NEAREST:
        return read
    of_points = op.ReduceMax(op.Cast(lost, to=ir.DataType.INT32), ints([-1]), keepdims=0)
    lost_points = op.Unsqueeze(op.Cast(of_points, to=ir.DataType.BOOL), ints([1]))
    return op.Where(lost_points, op.Constant(value=ir.tensor(math.nan, dtype=input.dtype)), read)


decomposed("aten.grid_sampler_3d.default", why="no ONNX form")(grid_sampler)
for _spatial in (2, 3):
    decomposed(f"aten.grid_sampler_{_spatial}d_backward.default", why="no ONNX form")(grid_sampler_backward)


def _full(input: Tensor, grid: Tensor) -> bool:
    """Whether the image's sizes are known and there is something to read."""
    return known(input.shape[2:]) and not has_no_elements(input) and not has_no_elements(grid)


def _corners(input: Tensor, grid: Tensor, how: How) -> Iterator[tuple[tuple[Reading, ...], Tensor]]:
    """Every input that is read for a point: how along each dimension, and its index in the flat image."""
    sizes = input.shape[2:]
    points = widened(grid).reshape(grid.shape[0], 1, -1, len(sizes))
    lines = [
        _readings(points[..., len(sizes) - 1 - axis], size, how) for axis, size in enumerate(sizes)
    ]  # the grid's first coordinate is of the last dimension
    for corner in itertools.product(*lines):
        places = [reading.index * step for reading, step in zip(corner, steps(sizes), strict=True)]
        yield corner, functools.reduce(torch.add, places)


def _readings(coordinate: Tensor, size: int, how: How) -> list[Reading]:
    """Along one dimension. coordinate: of the grid, -1 to 1."""
    scale = ((size - 1) if how.align_corners else size) / 2
    place = _place(coordinate + 1, size, scale, how)
    ones = torch.ones_like(place)
    if how.interpolation == BICUBIC:
        low = place.floor()
        weights = _cubic(place - low)
        return [
            _reading(_within(low + k, size, how)[0], size, weight, slope * scale)
            for k, (weight, slope) in enumerate(weights, -1)
        ]
    place, turned = _within(place, size, how)
    if how.interpolation == NEAREST:
        return [_reading(place.round(), size, ones, torch.zeros_like(place))]
    low = place.floor()
    part, slope = place - low, turned * scale
    return [_reading(low, size, 1 - part, -slope), _reading(low + 1, size, part, slope)]


def _place(from_border: Tensor, size: int, scale: float, how: How) -> Tensor:
    """In the steps of torch's kernels: beside a whole number, a rounding decides which inputs are read."""
    if how.spatial == 2:
        return from_border * scale if how.align_corners else from_border * scale - 0.5
    return from_border / 2 * (size - 1) if how.align_corners else (from_border * size - 1) / 2


def _reading(place: Tensor, size: int, weight: Tensor, slope: Tensor) -> Reading:
    inside = (place >= 0) & (place < size)
    index = torch.where(inside, place, 0).to(torch.int64)
    return Reading(index=index, inside=inside, weight=weight, slope=slope)


def _within(place: Tensor, size: int, how: How) -> tuple[Tensor, Tensor]:
    """(what the padding makes of it, and the derivative of that)."""
    turned = torch.ones_like(place)
    if how.padding == ZEROS:
        return place, turned
    if how.padding == REFLECTION:
        low, span = (0.0, size - 1) if how.align_corners else (-0.5, size)
        if span == 0:
            return torch.zeros_like(place), torch.zeros_like(place)
        away = place - low
        extra = away.abs() - (away.abs() / (2 * span)).floor() * (2 * span)
        turned = torch.where((away < 0) ^ (extra > span), -turned, turned)
        place = torch.minimum(extra, 2 * span - extra) + low
    inside = (place > 0) & (place < size - 1)
    of_nan = 0 if how.spatial == 2 else size - 1  # as torch's kernels clamp it
    return torch.where(place != place, of_nan, place.clamp(0, size - 1)), torch.where(inside, turned, 0)


def _cubic(part: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(weight, slope) of the four inputs around a point that is `part` behind the second."""
    a = -0.75

    def near(x: Tensor) -> tuple[Tensor, Tensor]:
        return ((a + 2) * x - (a + 3)) * x * x + 1, (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Tensor) -> tuple[Tensor, Tensor]:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a, (3 * a * x - 10 * a) * x + 8 * a

    behind = [near(1 - part), far(2 - part)]
    return [far(part + 1), near(part), *((weight, -slope) for weight, slope in behind)]


def _read(image: Tensor, index: Tensor) -> Tensor:
    """[batch, channels, points]"""
    return image.gather(2, index.expand(-1, image.shape[1], -1))


def _counted(read: Tensor, weight: Tensor, inside: Tensor, how: How) -> Tensor:
    """The product, 0 outside: torch's kernels of images multiply a 0 read there, which a NaN weight shows; those of
    volumes do not multiply."""
    if how.spatial == 2:
        return torch.where(inside, read, 0) * weight
    return torch.where(inside, read * weight, 0)


def _all_inside(corner: Sequence[Reading]) -> Tensor:
    return functools.reduce(torch.logical_and, [reading.inside for reading in corner])


def _product(factors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.mul, factors)
