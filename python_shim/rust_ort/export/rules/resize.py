"""Resizing of images: antialiased upsampling, padding, patches, shuffled pixels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rust_ort.export.rules.promotion import widened
from rust_ort.export.rules.registry import decomposed, in_eager
from rust_ort.export.rules.sizes import known
from rust_ort.export.rules.taps import Taps, applied
from rust_ort.export.shapes import row_major
from rust_ort.torch_private import torchs_decompositions

aten = torch.ops.aten

Filter = Callable[[float], float]
"""Weight of an input by its distance from the output's centre, in outputs where they are fewer, else in inputs."""


def _triangle(distance: float) -> float:
    return max(1 - abs(distance), 0.0)


def _cubic(distance: float) -> float:
    a, x = -0.5, abs(distance)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def _lanczos(distance: float) -> float:
    if not -3 <= distance < 3:
        return 0.0
    return math.prod(math.sin(x) / x if x else 1.0 for x in (math.pi * distance, math.pi * distance / 3))


FILTERS: dict[str, tuple[Filter, float]] = {
    "bilinear": (_triangle, 1.0),
    "bicubic": (_cubic, 2.0),
    "lanczos": (_lanczos, 3.0),
}
"""{mode: (filter, how far it reaches)}."""


def upsample_aa(mode: str, self: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None) -> Any:
    """One dimension after the other, in the dtype torch's kernels compute in."""
    sizes = self.shape[2:]
    if not self.dtype.is_floating_point or not known([*sizes, *output_size]):
        return NotImplemented
    maps = _antialiased(mode, sizes, output_size, align_corners, scales)
    return applied(maps, widened(self)).to(self.dtype)


def upsample_aa_backward(
    mode: str,
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Any:
    """To every input its weighted share of the outputs it is in."""
    if not known([*input_size[2:], *output_size]):
        return NotImplemented
    maps = _antialiased(mode, input_size[2:], output_size, align_corners, scales)
    return applied([line.transposed() for line in maps], widened(grad_output)).to(grad_output.dtype)


def _antialiased(
    mode: str, sizes: Sequence[int], output_size: Sequence[int], align_corners: bool, scales: Sequence[float | None]
) -> list[Taps]:
    weight, reach = FILTERS[mode]
    steps = zip(sizes, output_size, [*scales, None, None], strict=False)
    return [
        _filtered(weight, reach, size, n_outputs, _step(size, n_outputs, align_corners, scale))
        for size, n_outputs, scale in steps
    ]


def _step(size: int, n_outputs: int, align_corners: bool, scale: float | None) -> float:
    """Inputs from one output's centre to the next one's."""
    if align_corners:
        return (size - 1) / (n_outputs - 1) if n_outputs > 1 else 0.0
    return 1.0 / scale if scale is not None and scale > 0 else size / n_outputs


def _filtered(weight: Filter, reach: float, size: int, n_outputs: int, step: float) -> Taps:
    """step: inputs from one output's centre to the next one's."""
    width = max(step, 1.0)
    rows = []
    for i in range(n_outputs):
        centre = step * (i + 0.5)
        first = max(int(centre - reach * width + 0.5), 0)
        last = min(int(centre + reach * width + 0.5), size)
        weights = [weight((j - centre + 0.5) / width) for j in range(first, last)]
        total = sum(weights) or 1.0
        rows.append([(j, w / total) for j, w in enumerate(weights, first)])
    return Taps(n_inputs=size, rows=rows)


for _mode in FILTERS:
    decomposed(
        f"aten._upsample_{_mode}2d_aa.default",
        why="torchlib's antialiased upsampling is wrong with align_corners or a scale, or missing",
    )(functools.partial(upsample_aa, _mode))
    decomposed(f"aten._upsample_{_mode}2d_aa_backward.default", why="no ONNX form")(
        functools.partial(upsample_aa_backward, _mode)
    )

in_eager(
    "aten._upsample_bicubic2d_aa",
    "aten._upsample_bilinear2d_aa",
    why="torchlib's antialiased upsampling gives wrong values with align_corners or a scale",
)


def pad_by_index(reflected: bool, self: Tensor, padding: Sequence[int]) -> Any:
    """Elements taken by index where some are cut off; else it is left to ONNX Runtime's Pad."""
    if known(padding) and min(padding) >= 0:
        return NotImplemented
    for axis, (before, after) in _sides(self, padding).items():
        last = self.shape[axis] - 1
        places = torch.arange(-before, last + 1 + after, device=self.device)
        if reflected:
            places = last - (last - places.abs()).abs()
        else:
            places = torch.clamp(torch.where(places > last, last, places), min=0)
        self = self.index_select(axis, places)
    return self


def replication_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Any:
    """The first and the last element get what was made of them too."""
    total = widened(grad_output)
    for axis, (before, after) in _sides(self, padding).items():
        size = self.shape[axis]
        if not isinstance(size, int) or not known([before, after]):
            return NotImplemented
        cut = [max(-before, 0), max(-after, 0)]
        total = torch.constant_pad_nd(total, [0, 0] * (self.dim() - axis - 1) + cut)
        before, after = max(before, 0), max(after, 0)
        if size == 1:
            total = total.sum(axis, keepdim=True)
        elif before or after:
            parts = total.split([before + 1, size - 2, after + 1], axis)
            total = torch.cat([parts[0].sum(axis, True), parts[1], parts[2].sum(axis, True)], axis)
    return total.to(self.dtype)


def _sides(tensor: Tensor, padding: Sequence[int]) -> dict[int, tuple[int, int]]:
    """{axis: (before, after)} of those that change, of ATen's list, whose first pair is the last axis."""
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return {tensor.dim() - 1 - i: pair for i, pair in enumerate(pairs) if not known(pair) or pair != (0, 0)}


for _spatial in (1, 2, 3):
    for _mode in ("replication", "reflection"):
        decomposed(
            f"aten.{_mode}_pad{_spatial}d.default",
            why="ONNX Runtime's Pad refuses negative padding in this mode, some of it only when it runs",
            upstream="onnxruntime",
        )(functools.partial(pad_by_index, _mode == "reflection"))
    decomposed(f"aten.replication_pad{_spatial}d_backward.default", why="no ONNX form")(replication_pad_backward)


@decomposed("aten.pixel_shuffle.default", why="DepthToSpace has no kernel for most dtypes", upstream="onnxruntime")
def pixel_shuffle(self: Tensor, upscale_factor: int) -> Tensor:
    """[..., C * r * r, H, W] to [..., C, H * r, W * r]."""
    *batch, channels, height, width = self.shape
    r = upscale_factor
    split = self.reshape(*batch, channels // (r * r), r, r, height, width)
    n = len(batch)
    order = [*range(n + 1), n + 3, n + 1, n + 4, n + 2]
    return split.permute(order).reshape(*batch, channels // (r * r), height * r, width * r)


@decomposed(
    "aten.im2col.default",
    why="torchlib's form takes no image without a batch; torch's fake tensor is laid out as the image",
)
def im2col(self: Tensor, *rest: Any) -> Any:
    """As a batch of one, of a row-major image."""
    if self.dim() == 3:
        return aten.im2col(self.unsqueeze(0), *rest).squeeze(0)
    if row_major(self, range(self.dim())):
        return NotImplemented
    return aten.im2col(self.clone(memory_format=torch.contiguous_format), *rest)


@decomposed(
    "aten.col2im.default", why="Col2Im has no float64 kernel and takes no image without a batch", upstream="onnxruntime"
)
def col2im(self: Tensor, *rest: Any) -> Any:
    """torch's own in float64, else as a batch of one."""
    if self.dtype is torch.float64:
        return torchs_decompositions()[aten.col2im.default](self, *rest)
    return aten.col2im(self.unsqueeze(0), *rest).squeeze(0) if self.dim() == 2 else NotImplemented


@decomposed("aten.constant_pad_nd.default", why="of padding by nothing, the layout is the input's", upstream="torch")
def constant_pad(self: Tensor, pad: Sequence[int], value: float = 0) -> Any:
    """Where sizes decide how much, whether it is nothing is guarded, if that can be seen."""
    if known(pad) or row_major(self, range(self.dim())):
        return NotImplemented
    return self.clone() if all(size == 0 for size in pad) else NotImplemented
