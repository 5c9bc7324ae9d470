"""Elements of an index tensor: what torch takes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import together
from torch import Tensor
from torch.nn import functional

import rust_ort

pytestmark = pytest.mark.usefixtures("served")
ROWS = torch.arange(20.0).reshape(5, 4)
REFUSES_NEGATIVE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda x, i: torch.gather(x, 0, i[:, None]),
    "index_select": lambda x, i: torch.index_select(x, 0, i),
    "scatter of a number": lambda x, i: torch.scatter(x, 0, i[:, None], 1.0),
    "scatter": lambda x, i: torch.scatter(x, 0, i[:, None], x[:1, :1]),
    "scatter_add": lambda x, i: torch.scatter_add(x, 0, i[:, None], x[:1, :1]),
    "scatter_reduce": lambda x, i: torch.scatter_reduce(x, 0, i[:, None], x[:1, :1], "prod"),
    "index_add": lambda x, i: torch.index_add(x, 0, i, x[:1]),
    "index_copy": lambda x, i: torch.index_copy(x, 0, i, x[:1]),
    "embedding": lambda x, i: functional.embedding(i, x),
    "nll_loss": lambda x, i: functional.nll_loss(x[:1, :].log_softmax(1), i),
    "cross_entropy": lambda x, i: functional.cross_entropy(x[:1, :], i),
}
COUNTS_FROM_THE_END: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda x, i: x[i],
    "take": torch.take,
    "index_fill": lambda x, i: torch.index_fill(x, 0, i, 1.0),
    "index_put": lambda x, i: torch.index_put(x, (i,), x[:1]),
    "index_put that adds": lambda x, i: torch.index_put(x, (i,), x[:1], accumulate=True),
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("name", REFUSES_NEGATIVE)
def test_what_eager_refuses_is_refused_and_named(name: str, requires_grad: bool) -> None:
    function = REFUSES_NEGATIVE[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="rust_ort", dynamic=False)
    for index in (-1, -3, 7, -100):
        if name in ("nll_loss", "cross_entropy") and index == -100:
            continue  # the class that these ignore
        given = torch.tensor([index])
        with pytest.raises((IndexError, RuntimeError)):
            function(ROWS, given)
        with pytest.raises(rust_ort.BadIndex) as caught:
            compiled(ROWS.clone().requires_grad_(requires_grad), given)
        assert caught.value.code == "BAD_INDEX" and isinstance(caught.value, IndexError | RuntimeError)
        # Where several indices name an element, or GatherElements refuses, nobody knows which it was.
        known = name not in ("gather", "nll_loss", "cross_entropy", "index_add")
        assert (f"index {index} is out of bounds" if known else "index is out of bounds") in str(caught.value)
        # The next call is none the worse.
        torch.testing.assert_close(compiled(ROWS, torch.tensor([2])), function(ROWS, torch.tensor([2])))


def test_what_eager_counts_from_the_end_is_counted_from_there() -> None:
    every = together(COUNTS_FROM_THE_END)
    compiled = torch.compile(every, backend="rust_ort", dynamic=False)
    for index in (-1, -5, 4):
        given = dict.fromkeys(COUNTS_FROM_THE_END, (ROWS, torch.tensor([index])))
        torch.testing.assert_close(
            compiled(given), every(given), rtol=0, atol=0, msg=lambda text, index=index: f"{index}: {text}"
        )


@pytest.mark.parametrize("name", COUNTS_FROM_THE_END)
def test_beyond_both_ends_is_refused(name: str) -> None:
    function = COUNTS_FROM_THE_END[name]
    for index in (-100, 100):
        with pytest.raises((IndexError, RuntimeError)):
            function(ROWS, torch.tensor([index]))
        with pytest.raises(rust_ort.BadIndex):
            torch.compile(function, backend="rust_ort", dynamic=False)(ROWS, torch.tensor([index]))


RANK_0: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gather": lambda x, i: x.gather(0, i),
    "scatter of a number": lambda x, i: x.scatter(0, i, 5.0),
    "scatter": lambda x, i: x.scatter(0, i, torch.tensor(5.0)),
    "scatter_add": lambda x, i: x.scatter_add(0, i, torch.tensor(5.0)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, torch.tensor(5.0), "prod"),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(1)),
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(1)),
}


@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("name", RANK_0)
def test_an_index_of_rank_0(name: str, shape: tuple[int, ...]) -> None:
    function, given = RANK_0[name], torch.tensor(0)
    if shape == () and name in ("index_add", "index_copy"):
        pytest.skip("torch takes a source of rank 0 there")
    results = []
    for run in (function, torch.compile(function, backend="rust_ort", dynamic=False)):
        torch._dynamo.reset()
        x = torch.ones(shape, requires_grad=True)
        made = run(x, given)
        made.sum().backward()
        results.append((made.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x.index_fill(0, i, 1.0),
        lambda x, i: x.index_fill(0, i, torch.tensor(1.0)),
        lambda x, i: x.index_copy(0, i, torch.ones(1)),
    ],
)
def test_an_index_of_a_dtype_that_torch_refuses_is_refused(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    given = torch.zeros(3), torch.tensor([1], dtype=torch.int32)
    for run in (function, torch.compile(function, backend="rust_ort", dynamic=False)):
        torch._dynamo.reset()
        with pytest.raises((IndexError, RuntimeError)):
            run(*given)


@pytest.mark.parametrize("offset", [0, 2, -1])
def test_a_diagonal_is_written_whatever_the_sizes(offset: int) -> None:
    def written(x: Tensor, y: Tensor) -> Tensor:
        return x.diagonal_scatter(y, offset, 0, 2) * 2

    torch.compiler.reset()
    function = torch.compile(written, backend=(backend := rust_ort.backend()), dynamic=True)
    for rows, columns in ((5, 7), (8, 6), (4, 9)):
        x = torch.randn(rows, 3, columns)
        x[1, 1, 1], x[0, 0, 2] = torch.nan, torch.inf
        y = torch.randn_like(x.diagonal(offset, 0, 2))
        made, expected = function(x.requires_grad_(), y.requires_grad_()), written(x, y)
        torch.testing.assert_close(made, expected, equal_nan=True)
        ours, eagers = (torch.autograd.grad(result.nan_to_num().sum(), (x, y)) for result in (made, expected))
        torch.testing.assert_close(ours, eagers)
    assert [node.reason for graph in backend.graphs for node in graph.eager] == []
