"""Gradients of slices, and of squares: bit by bit eager's, without what ONNX Runtime is slow in."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx
import pytest
import torch
from support import FakeClient
from torch import Tensor

X = torch.arange(2 * 6 * 5, dtype=torch.float32).cos().reshape(2, 6, 5)
G = torch.tensor([-0.0, 0.0, math.nan, -math.nan, math.inf, -math.inf, 1e-42, 3.5, -1e38])


def operators(client: FakeClient) -> set[str]:
    models = [onnx.load_from_string(part.spec.model) for part in client.parts]
    return {node.op_type for model in models for node in model.graph.node}


def gradients(function: Callable[[Tensor], Tensor], compiled: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Eager's and ours, of values that are chosen one after the other."""
    found = []
    for call in (function, compiled):
        given = x.clone().requires_grad_()
        made = call(given)
        cotangent = G.to(x.dtype).repeat(made.numel() // len(G) + 1)[: made.numel()].reshape(made.shape)
        found += torch.autograd.grad(made, given, cotangent)
    return found


def assert_same_bits(reference: Tensor, candidate: Tensor) -> None:
    assert reference.stride() == candidate.stride()
    torch.testing.assert_close(candidate, reference, rtol=0, atol=0, equal_nan=True)
    zeros = reference == 0
    assert torch.equal(torch.signbit(reference)[zeros], torch.signbit(candidate)[zeros])


SLICES = [
    lambda x: x[:, 2:] * 1.0,
    lambda x: x[..., :3] * 1.0,
    lambda x: x[:, -2:] * 1.0,
    lambda x: x[:, 1:-1] * 1.0,
    lambda x: x[:, 1:100] * 1.0,
    lambda x: x[:, 4:2] * 1.0,
    lambda x: x[:, 100:] * 1.0,
    lambda x: x[:, :] * 1.0,
    lambda x: x[1] * 1.0,
    lambda x: x[:, -1] * 1.0,
    lambda x: x[..., 0] * 1.0,
    lambda x: (x.transpose(1, 2)[:, 1:3] * 1.0).transpose(0, 1),
    lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("function", SLICES)
def test_a_slices_gradient_is_padded(
    client: FakeClient, function: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    reference, candidate = gradients(function, torch.compile(function, backend="rust_ort"), X.to(dtype))
    assert_same_bits(reference, candidate)
    assert not operators(client) & {"ScatterND", "ScatterElements"}
    assert client.eager_nodes == 0 or function(X).numel() == 0


@pytest.mark.parametrize("function", SLICES)
@pytest.mark.parametrize("sizes", [[(2, 6, 5), (3, 7, 5), (3, 9, 8)], [(2, 2, 3), (4, 5, 6)]])
def test_a_slices_gradient_is_right_for_symbolic_sizes(
    client: FakeClient, function: Callable[[Tensor], Tensor], sizes: Sequence[tuple[int, ...]]
) -> None:
    compiled = torch.compile(function, backend="rust_ort", dynamic=True)
    for size in sizes:
        assert_same_bits(*gradients(function, compiled, torch.randn(size)))


def test_symbolic_sizes_that_tell_enough_are_padded(client: FakeClient) -> None:
    def halves(x: Tensor) -> Tensor:
        return torch.cat([-x[:, 1:], x[:, :1]], 1)

    compiled = torch.compile(halves, backend="rust_ort", dynamic=True)
    for size in ((2, 6), (3, 7), (5, 4)):
        assert_same_bits(*gradients(halves, compiled, torch.randn(size)))
    assert "Pad" in operators(client) and "ScatterND" not in operators(client)
    assert len(client.parts) == 2, "one graph each for forward and backward"


@pytest.mark.parametrize("step", [2, 3])
def test_a_gradient_that_is_spread_is_scattered(client: FakeClient, step: int) -> None:
    def spread(x: Tensor) -> Tensor:
        return x[:, 1::step] * 1.0

    assert_same_bits(*gradients(spread, torch.compile(spread, backend="rust_ort"), X))
    assert "ScatterND" in operators(client)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("size", "step"), [(4, 1), (3, 2), (2, 2), (1, 3), (6, 4), (33, 1)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_gradients_of_windows_are_added_in_few_steps(
    client: FakeClient, dim: int, size: int, step: int, dynamic: bool
) -> None:
    """torch adds by an index for each element of a window: 4,096 times behind an inverse Fourier transform."""

    def windows(x: Tensor) -> Tensor:
        return (x * 1.0).unfold(dim, size, step) * 1.0

    compiled = torch.compile(windows, backend="rust_ort", dynamic=dynamic)
    for length in (35, 41) if dynamic else (35,):
        shape = [2, 3, 4]
        shape[dim] = length
        x = torch.randn(shape)
        given = []
        for call in (windows, compiled):
            leaf = x.clone().requires_grad_()
            made = call(leaf)
            given += torch.autograd.grad(made, leaf, torch.arange(made.numel()).cos().view_as(made))
        torch.testing.assert_close(given[1], given[0], rtol=0, atol=0 if size <= 32 else 1e-5)
    counts = [len(onnx.load_from_string(part.spec.model).graph.node) for part in client.parts]
    assert max(counts) < 50 + 20 * min(-(-size // step), 4), counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_first_power_is_a_copy(client: FakeClient, dtype: torch.dtype) -> None:
    x = torch.cat([G, torch.tensor([2.0, -3.0])]).to(dtype)
    compiled = torch.compile(lambda x: x**1.0, backend="rust_ort")
    assert_same_bits(x**1.0, compiled(x))
    assert "Pow" not in operators(client)

    def square(x: Tensor) -> Tensor:
        return x.pow(2)

    reference, candidate = gradients(square, torch.compile(square, backend="rust_ort"), x)
    torch.testing.assert_close(candidate, reference, rtol=0, atol=0, equal_nan=True)
