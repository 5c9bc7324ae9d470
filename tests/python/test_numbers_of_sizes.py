"""Numbers in floating point that are computed from dynamic sizes run on ONNX Runtime, as eager computes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")


def deviation(x: Tensor) -> Tensor:
    return x.std(0) + x.var(1, keepdim=True).sum()


def halved(x: Tensor) -> Tensor:
    return (x - x.mean()) / (x.shape[0] / 2)


def root(x: Tensor) -> Tensor:
    return x * math.sqrt(x.shape[0]) + x.shape[0] ** 0.25


def group_norm(x: Tensor) -> Tensor:
    return nn.functional.group_norm(x[None].transpose(1, 2), 1)


def less(x: Tensor) -> Tensor:
    return torch.where(x > 1 / x.shape[0], x, -(x.shape[0] + 0.5) * x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", [deviation, halved, root, group_norm, less])
def test_nothing_is_left_to_eager(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    compiled = torch.compile(function, backend="rust_ort", dynamic=True)
    for n in (21, 34, 53):
        x, same = (torch.linspace(-1, 1, n * 3).reshape(n, 3).to(dtype).requires_grad_() for _ in range(2))
        expected, given = function(x), compiled(same)
        torch.testing.assert_close(given, expected)
        expected.sum().backward()
        given.sum().backward()
        torch.testing.assert_close(same.grad, x.grad)
    explained = rust_ort.explain(compiled, torch.ones(22, 3, dtype=dtype, requires_grad=True))
    assert [node for graph in explained.graphs for node in graph.eager] == []


def test_a_number_that_only_a_call_knows_stays_in_eager() -> None:
    def scaled(x: Tensor, factor: float) -> Tensor:
        return x * (factor / x.shape[0])

    compiled = torch.compile(scaled, backend="rust_ort", dynamic=True)
    x = torch.ones(7, 3)
    for factor in (2.0, 3.5):
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor))
