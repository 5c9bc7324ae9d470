"""Fourier transforms of pairs of real numbers, as operators of ours: eager gives torch's own for them.

ONNX Runtime's DFT of float64 gives sizes that are powers of two as exactly as torch (4 times its error); of others it
loses two to three digits, which float32 does not see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rust_ort.export.rules.nodes import argument

aten = torch.ops.aten

_LIBRARY = torch.library.Library("rust_ort", "FRAGMENT")
_LIBRARY.define("fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor")
_LIBRARY.define("fft_c2c(Tensor self, int[] dim, int normalization, bool forward) -> Tensor")
_LIBRARY.define("fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor")


def _complex(pairs: Tensor) -> Tensor:
    return torch.view_as_complex(pairs.contiguous())


def _r2c(self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    return torch.view_as_real(aten._fft_r2c(self, dim, normalization, onesided)).contiguous()


def _c2c(self: Tensor, dim: Sequence[int], normalization: int, forward: bool) -> Tensor:
    return torch.view_as_real(aten._fft_c2c(_complex(self), dim, normalization, forward)).contiguous()


def _c2r(self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: Any) -> Tensor:
    made: Tensor = aten._fft_c2r(_complex(self), dim, normalization, last_dim_size).contiguous()
    return made


for _name, _function in (("fft_r2c", _r2c), ("fft_c2c", _c2c), ("fft_c2r", _c2r)):
    _LIBRARY.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"rust_ort::{_name}", _function, lib=_LIBRARY)

r2c = torch.ops.rust_ort.fft_r2c.default
"""Complex numbers as pairs (S + [2]) of real ones; dim: nonnegative, as for all of these."""
c2c = torch.ops.rust_ort.fft_c2c.default
"""Pairs of pairs."""
c2r = torch.ops.rust_ort.fft_c2r.default
"""Real numbers of pairs."""

OPERATORS = frozenset({r2c, c2c, c2r})

LESS_EXACT = "ONNX Runtime's DFT of float64 loses digits where a size is no power of two"
OF_THE_CPU = "ONNX Runtime's DFT has no kernel for CUDA"


def why_eager(node: fx.Node) -> str | None:
    """What there is against running a transform, one of OPERATORS, on ONNX Runtime."""
    value = argument(node, "self").meta["val"]
    if not value.is_cpu:
        return OF_THE_CPU
    if value.dtype is not torch.float64:
        return None
    lengths = [value.shape[at] for at in argument(node, "dim")]
    if node.target is c2r:
        lengths[-1] = argument(node, "last_dim_size")
    exact = all(type(length) is int and length & (length - 1) == 0 for length in lengths)
    return None if exact else LESS_EXACT
