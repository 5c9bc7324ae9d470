"""A size that is 0 in one call, of a graph made for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import rust_ort
from rust_ort.export.arguments import MAYBE_NO_ELEMENTS

pytestmark = pytest.mark.usefixtures("served")

DTYPES = (torch.float32, torch.float64, torch.float16)
OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "mean": lambda x: x.mean(),
    "mean of columns": lambda x: x.mean(0),
    "mean of rows": lambda x: x.mean(1),
    "nanmean": lambda x: x.nanmean(0),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x, 0, correction=0),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "norm": lambda x: x.norm(),
    "any": lambda x: (x > 0).any(),
    "any of columns": lambda x: (x > 0).any(0),
    "all": lambda x: (x < 0).all(),
    "cumsum": lambda x: x.cumsum(0),
    "product": lambda x: x.mT @ x,
    "glu": lambda x: functional.glu(x, 1),
    "glu of columns": lambda x: functional.glu(torch.cat([x, x]), 0),
    "layer_norm": lambda x: functional.layer_norm(x.mT, x.mT.shape[-1:]),
    "softmax": lambda x: x.softmax(0),
    "largest": lambda x: x.amax(1),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x),
    "l1_loss": lambda x: functional.l1_loss(x, 2 * x),
    "mse_loss": lambda x: functional.mse_loss(x, 2 * x),
    "mse_loss, summed": lambda x: functional.mse_loss(x, 2 * x, reduction="sum"),
    "binary_cross_entropy": lambda x: functional.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "cosine_embedding_loss": lambda x: functional.cosine_embedding_loss(x, x, torch.ones(x.shape[0])),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_what_eager_makes_of_nothing(name: str) -> None:
    """Each operator in a graph of its own, whose guards are its own, and there in all dtypes."""
    xs = {f"{dtype}": torch.tensor([[0.5, -2.5]], dtype=dtype) for dtype in DTYPES}

    def function(n: int, xs: dict[str, Tensor]) -> dict[str, Any]:
        return {dtype: OPERATORS[name](x.new_ones(n % 5, 2) * x) for dtype, x in xs.items()}

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=rust_ort.Backend(), dynamic=True)
    for n in (4, 5, 7, 10):
        torch.testing.assert_close(
            compiled(n, xs), function(n, xs), equal_nan=True, msg=lambda text, n=n: f"n = {n}: {text}"
        )


def _windows(x: Tensor) -> Tensor:
    """As Swin's attention sees them."""
    b, h, w, c = x.shape
    rows = x.view(b, h // 8, 8, w // 8, 8, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)
    return (rows @ rows.mT).softmax(-1).view(b, -1, 64, 64)


def _patches(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    rows = x.reshape(b, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 1, 3, 5).reshape(b, -1, c * 16)
    return functional.layer_norm(rows, (48,))


@pytest.mark.parametrize(("function", "shapes"), [
    (_windows, [(2, 16, 24, 5), (3, 32, 40, 5), (2, 64, 16, 5)]), (_patches, [(2, 3, 16, 24), (4, 3, 32, 8)]),
    (lambda x: x.view(x.shape[0], -1, 2).mean(-1), [(3, 8), (5, 4)]),
    (lambda x: x[:, : x.shape[0]].softmax(1), [(3, 8), (5, 9)]),
    (lambda x: x.unfold(1, 4, 2).amax(-1).softmax(1), [(3, 8), (5, 12)]),
])  # fmt: skip
def test_what_has_elements_in_the_call_that_is_traced_stays(
    function: Callable[[Tensor], Tensor], shapes: list[tuple[int, ...]]
) -> None:
    """Sizes that the guards do not know to be positive: one more says so, and no node runs in eager for them."""
    torch._dynamo.reset()
    backend = rust_ort.Backend()
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for shape in shapes:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert len(backend.graphs) == 1
    assert MAYBE_NO_ELEMENTS not in [node.reason for node in backend.graphs[0].eager]


def test_the_plan_of_a_graph_without_elements_is_its_own() -> None:
    """What runs with elements is kept; the same graph without them is another, and a kept one is guarded as well."""
    kernel = torch.ones(1, 1, 3)

    def function(x: Tensor) -> Tensor:
        halved = functional.conv1d(functional.conv1d(x, kernel, stride=2, padding=1), kernel, stride=2, padding=1)
        return halved[..., 1:].mean(-1)

    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="rust_ort", dynamic=True)
        for n in (9, 3, 12, 2):
            x = torch.linspace(0, 1, 2 * n).reshape(2, 1, n)
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


@pytest.mark.parametrize("out_int32", [False, True])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_without_boundaries_everything_is_in_the_first_bucket(shape: tuple[int, ...], out_int32: bool) -> None:
    x, boundaries = torch.ones(shape), torch.empty(0)
    torch._dynamo.reset()
    compiled = torch.compile(torch.bucketize, backend="rust_ort")
    expected = torch.bucketize(x, boundaries, out_int32=out_int32)
    torch.testing.assert_close(compiled(x, boundaries, out_int32=out_int32), expected)
