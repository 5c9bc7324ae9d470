"""A cast of a cast rounds, wraps around and overflows twice, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

EDGES = [
    4.99878, 255.9999, 1 + 2**-11 + 2**-24, 1 + 2**-8 + 2**-17, 65519.99, 2.0**24 + 1, 2049.0, 257.0, 300.7, 70000.0,
    1e-9, -300.2, 32769.0, 2.0**33 + 5,
]  # fmt: skip

f16, bf16, f32, f64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
u8, i8, i16, i32, i64 = torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64


@pytest.mark.parametrize(("first", "second", "third"), [
    (f32, f16, u8), (f32, f16, i8), (f32, bf16, u8), (f64, f32, f16), (f64, f32, bf16), (f64, f32, u8), (f64, f32, i16),
    (f64, f16, i8), (f16, bf16, u8), (bf16, f16, i8),
    (i64, f32, f16), (i64, f32, bf16), (i64, f32, u8), (i64, f16, u8), (i64, f64, f32), (i32, f16, u8), (i32, f32, f16),
    (f64, i64, i32), (f32, i64, i32), (f32, i64, u8), (f32, i32, u8), (f32, i16, u8), (i32, i16, u8),
])  # fmt: skip
def test_two_casts_are_two(first: torch.dtype, second: torch.dtype, third: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(second).to(third), (-x).to(second)[1:].to(third)

    x = torch.tensor(EDGES, dtype=f64).to(first)
    torch._dynamo.reset()
    made = torch.compile(function, backend=rust_ort.Backend(), dynamic=False)(x)
    for ours, eager in zip(made, function(x), strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("move", [
    lambda x: x.clone(), lambda x: x.t().t(), lambda x: x.t(), lambda x: x[:, 0:100], lambda x: torch.cat([x]),
    lambda x: torch.nn.Dropout().eval()(x), lambda x: x.reshape(-1), lambda x: x[None].squeeze(0),
    lambda x: x.expand(1, 14), lambda x: x.repeat(1, 1), lambda x: x.split(14, 1)[0],
])  # fmt: skip
def test_what_lies_between_two_casts_makes_no_difference(move: Callable[[Tensor], Tensor]) -> None:
    """ONNX Runtime leaves it out first, and then the cast."""
    x = torch.tensor([EDGES])
    for between in (f16, bf16, i32):

        def function(x: Tensor, between: torch.dtype = between) -> Tensor:
            return move(x.to(between)).to(u8)

        torch._dynamo.reset()
        made = torch.compile(function, backend=rust_ort.Backend(), dynamic=False)(x)
        torch.testing.assert_close(made, function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("last", [u8, i8])
def test_half_precision_is_rounded_before_it_is_cast(dtype: torch.dtype, last: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 15).to(last)

    x = torch.tensor([-1 / 3, 1 / 3], dtype=dtype)
    torch._dynamo.reset()
    made = torch.compile(function, backend=rust_ort.Backend(), dynamic=False)(x)
    torch.testing.assert_close(made, function(x), rtol=0, atol=0)
