"""Tensors as shared memory holds them: ONNX dtypes, row-major strides, sizes of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rust_ort._native import block_bytes, dtypes
from rust_ort.errors import ClientError

ONNX_CODE: dict[torch.dtype, int] = {getattr(torch, name): code for name, code in dtypes()}
"""{dtype: ONNX TensorProto.DataType}. Every torch that this runs with has them all."""


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements, as torch gives them: a dimension of size 0 counts as 1."""
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Layout:
    """An output to be: how much memory it needs and which tensor it becomes.

    stride: None for row-major, else the strides that the tensor handed to the user must have.
    """

    __slots__ = ("block", "code", "count", "dense", "dtype", "in_block", "shape", "stride")

    def __init__(self, dtype: torch.dtype, shape: Sequence[int], stride: Sequence[int] | None) -> None:
        if dtype not in ONNX_CODE:
            raise ClientError(f"dtype {dtype} does not exist in ONNX; leave the node to eager")
        self.dtype = dtype
        self.code = ONNX_CODE[dtype]
        self.shape = tuple(map(int, shape))
        self.count = 1
        for size in self.shape:
            self.count *= size
        own = contiguous_strides(self.shape)
        self.stride = own if stride is None else tuple(map(int, stride))
        self.dense = self.count == 0 or all(
            size == 1 or wanted == given for size, wanted, given in zip(self.shape, own, self.stride, strict=True)
        )
        self.in_block = self.stride if self.dense else own
        self.block = block_bytes(self.count * dtype.itemsize)

    def without_elements(self) -> torch.Tensor:
        """The tensor of a layout that has no elements, and so no block."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="cpu")
