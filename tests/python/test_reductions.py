"""Reductions of tensors of rank 0, over no dimensions, and means of rows whose terms are nearly equal."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort.torch_private import pytree

pytestmark = pytest.mark.usefixtures("served")

Reduction = Callable[..., Any]

NAMES = (
    "sum", "nansum", "mean", "nanmean", "prod", "var", "std", "var_mean", "std_mean", "amax", "amin", "aminmax",
    "argmax", "argmin", "max", "min", "logsumexp", "all", "any", "count_nonzero", "norm", "cumsum", "cumprod",
    "softmax", "log_softmax", "sort", "argsort", "flip",
)  # fmt: skip
REDUCTIONS: dict[str, Reduction] = {
    **{name: getattr(torch, name) for name in NAMES},
    "vector_norm": lambda x, dim=None, **options: torch.linalg.vector_norm(x, 2, dim, **options),
    "topk": lambda x, dim=-1, **options: torch.topk(x, 1, dim, **options),
    "population": lambda x, *dim, **options: torch.var(x, *dim, correction=0, **options),
}
DIMS: list[tuple[Any, ...]] = [(), (None,), ((),), (0,), (-1,), ((0,),)]
RANK_0 = torch.tensor(1.5), torch.tensor(3), torch.tensor(True)
ROW = torch.tensor([1.5, -2.5, 3.0])
IN_EAGER = {
    "products of integers": "aten.prod",
    "the gradient of a choice": "aten.scatter.src",
    "over no dimensions, which are kept": "aten.logsumexp.default",
}
"""{what rules leave to eager: its operator}."""


@contextlib.contextmanager
def few_elements() -> Iterator[None]:
    """Inside, torch does not warn of a deviation of one number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*degrees of freedom")
        yield


def taken(x: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    """{name: a reduction of `x`} of all that eager takes."""
    calls: dict[str, Callable[[Tensor], Any]] = {}
    for (name, reduction), dim, options in itertools.product(REDUCTIONS.items(), DIMS, ({}, {"keepdim": True})):

        def call(x: Tensor, one: Reduction = reduction, dim: Any = dim, options: Any = options) -> Any:
            made = one(x, *dim, **options)
            return tuple(made) if isinstance(made, tuple) else made

        with contextlib.suppress(RuntimeError, TypeError, IndexError), few_elements():
            call(x)
            calls[f"{name} {dim} {options}"] = call
    return calls


@pytest.mark.parametrize("x", [*RANK_0, ROW], ids=lambda x: f"{x.dtype}, rank {x.dim()}".removeprefix("torch."))
def test_reductions_of_rank_0_and_over_no_dimensions(x: Tensor) -> None:
    """Forward and backward; a gradient from each."""
    calls = taken(x)
    assert len(calls) > 50

    def every(given: dict[str, Tensor]) -> dict[str, Any]:
        return {name: call(given[name]) for name, call in calls.items()}

    def results(function: Callable[[dict[str, Tensor]], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
        given = {name: x.clone().requires_grad_(x.is_floating_point()) for name in calls}
        made = function(given)
        summed = [one.float().sum() for value in made.values() for one in pytree.tree_leaves(value) if one.grad_fn]
        if summed:
            sum(summed).backward()
        return made, {name: one.grad for name, one in given.items() if one.grad is not None}

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    with few_elements():
        made = results(torch.compile(every, backend=backend, dynamic=False, fullgraph=True))
        torch.testing.assert_close(made, results(every), equal_nan=True)
    left = {node.op for graph in backend.graphs for node in graph.eager}
    assert all(operator.startswith(tuple(IN_EAGER.values())) for operator in left), left


@pytest.mark.parametrize("length", [256, 512, 1024, 4096, 8192])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_mean_of_terms_that_are_nearly_equal_is_no_further_off_than_rounding(length: int, dynamic: bool) -> None:
    """What is added up in few lanes is off by the same at each step; from a mean, little may be left."""
    torch.manual_seed(0)
    x = 0.07 + 1e-4 * torch.randn(64, 8, length // 8)
    mean = torch.compile(lambda x: x.mean((1, 2)), backend="rust_ort", dynamic=dynamic)(x)
    exact = x.double().mean((1, 2))
    roundings = (mean - exact).abs() / (torch.finfo(torch.float32).eps / 2 * x.double().abs().mean((1, 2)))
    assert roundings.max() <= 16, f"{float(roundings.max()):.1f} roundings"


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [128, 514, 2048, 8191])
def test_a_sum_over_rows_is_no_further_off_than_eagers(rows: int, dynamic: bool) -> None:
    """A bias' gradient, of rows that are equal: one after the other they are off by the same at each step."""
    torch.manual_seed(0)
    x = (torch.randn(256) / 256).expand(2, rows // 2, 256).contiguous()

    def sums(x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 1.0).sum((0, 1)), x.mean((0, 1), keepdim=True)

    torch._dynamo.reset()
    made = torch.compile(sums, backend="rust_ort", dynamic=dynamic)(x)
    for candidate, exact in zip(made, sums(x.double()), strict=True):
        assert candidate.dtype is torch.float32 and candidate.shape == exact.shape
        assert ((candidate - exact).abs() <= torch.finfo(torch.float32).eps * exact.abs()).all()
