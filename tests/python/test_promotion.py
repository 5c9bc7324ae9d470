"""Integers beside tensors of floats: each node of a kind is written as the first one is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")

X = torch.linspace(-3.3, 4.1, 24).reshape(4, 6)
OPERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 3,
    "add with alpha": lambda x: torch.add(x, 3, alpha=2),
    "sub with alpha": lambda x: torch.sub(x, 3, alpha=2),
    "rsub": lambda x: torch.rsub(x, 3, alpha=2),
    "mul": lambda x: x * 5,
    "div": lambda x: x / 7,
    "rounding division": lambda x: torch.div(x, 2, rounding_mode="floor"),
    "divided by": lambda x: 7 / (x + 10),
    "pow": lambda x: x**3,
    "power of": lambda x: 2**x,
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp from below": lambda x: x.clamp(min=1),
    "le": lambda x: (x <= 1) * x,
    "eq": lambda x: (x == 2) * x,
    "where": lambda x: torch.where(x > 0, x, 4),
    "remainder": lambda x: torch.remainder(x, 2),
    "fmod": lambda x: torch.fmod(x, 2),
    "xlogy": lambda x: torch.xlogy(3, x.abs() + 1),
    "lerp": lambda x: torch.lerp(x, x * 2, 1),
    "hardtanh": lambda x: functional.hardtanh(x, -1, 1),
    "threshold": lambda x: functional.threshold(x, 1, 20),
    "fill": lambda x: x.masked_fill(x > 1, 9),
    "more than float32 has": lambda x: x + (2**24 + 1),
    "more than float32 has, compared": lambda x: (x * 2**24 > 2**24 + 1) * x,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("name", OPERATORS)
def test_two_nodes_of_a_kind_in_one_graph(name: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    if name == "lerp" and not dtype.is_floating_point:
        pytest.skip("skipped: eager has no lerp of integers")

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return operator(x), operator(y), operator(x.neg() * 2)

    x = X.to(dtype)
    torch._dynamo.reset()
    backend = rust_ort.backend()
    made = torch.compile(function, backend=backend)(x, x.flip(0))
    for one, other in zip(made, function(x, x.flip(0)), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)
    left = [node for graph in backend.graphs for node in graph.eager]
    assert not [node for node in left if "refused" in node.reason or "failed" in node.reason]


def test_gradients_of_integers_beside_floats() -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.stack([operator(x).float().square().mean() for operator in OPERATORS.values()]).sum()

    found = []
    for call in (loss, torch.compile(loss, backend=rust_ort.backend(on_unsupported="error"))):
        given = X.clone().requires_grad_()
        call(given).backward()
        found.append(given.grad)
    torch.testing.assert_close(found[1], found[0])
