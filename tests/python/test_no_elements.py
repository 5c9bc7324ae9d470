"""What computes nothing, of tensors that have no elements, needs no kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort.export.arguments import NO_ELEMENTS

pytestmark = pytest.mark.usefixtures("client")


def nothing_written(x: Tensor) -> Tensor:
    y = x * 2
    y[:, :0] = 3.0
    y[:0, 1:] = x[:0, 1:]
    return y + 1


def nothing_filled(x: Tensor) -> Tensor:
    y = x * 2
    y[:, 4:][:, :0][:1].fill_(5.0)
    return y


def nothing_read(x: Tensor) -> Tensor:
    return torch.cat([x[:, :0], x], 1) * 2


@pytest.mark.parametrize("function", [nothing_written, nothing_filled, nothing_read])
def test_nothing_is_left_to_eager(function: Callable[..., Any]) -> None:
    backend = rust_ort.backend()
    results = []
    for called in (torch.compile(function, backend=backend), function):
        x = torch.arange(12.0).reshape(3, 4).requires_grad_()
        out = called(x)
        (gradient,) = torch.autograd.grad(out, x, torch.arange(float(out.numel())).view(out.shape))
        results.append((out.detach(), gradient))
    for candidate, reference in zip(*results, strict=True):
        assert torch.equal(candidate, reference) and candidate.stride() == reference.stride()
    assert [(node.op, node.reason) for graph in backend.graphs for node in graph.eager] == []


def test_a_cat_of_nothing_says_why_it_stays() -> None:
    backend = rust_ort.backend()
    compiled = torch.compile(lambda x: (torch.cat([x[:0], x[:, :2][:0].repeat(1, 2)]), x + 1), backend=backend)
    nothing, more = compiled(torch.ones(3, 4))
    assert nothing.shape == (0, 4) and torch.equal(more, torch.full((3, 4), 2.0))
    assert {node.reason for graph in backend.graphs for node in graph.eager if node.op == "aten.cat.default"} == {
        NO_ELEMENTS
    }
