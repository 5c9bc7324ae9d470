"""A size that is 0 in one call, of a graph made for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_what_eager_makes_of_nothing(name: str, dtype: torch.dtype) -> None:
    def function(n: int, x: Tensor) -> Any:
        return OPERATORS[name](x.new_ones(n % 5, 2) * x)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=rust_ort.Backend(), dynamic=True)
    x = torch.tensor([[0.5, -2.5]], dtype=dtype)
    for n in (4, 5, 7, 10):
        torch.testing.assert_close(compiled(n, x), function(n, x), equal_nan=True)
