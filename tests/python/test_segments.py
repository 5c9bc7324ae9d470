"""Reductions of segments and the rows of compressed sparse tensors run on ONNX Runtime as eager has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import FakeClient, together, use_client
from torch import Tensor

import rust_ort

aten = torch.ops.aten
nan, inf = math.nan, math.inf


@pytest.fixture(autouse=True)
def _client(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    use_client(monkeypatch, FakeClient())


REDUCTIONS = ("sum", "mean", "max", "min", "prod")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LENGTHS: list[tuple[tuple[int, ...], Tensor]] = [
    ((6,), torch.tensor([2, 0, 3, 1])),
    ((6, 3), torch.tensor([0, 2, 4])),
    ((4, 2, 3), torch.tensor([3, 1], dtype=torch.int32)),
    ((2, 5, 3), torch.tensor([[2, 3, 0], [0, 1, 4]])),
]
"""Shapes of data, and lengths of the segments along the last dimension that these have."""
EDGES = torch.tensor(
    [[nan, 1.0, -0.0], [1.0, inf, 0.0], [2.0, -inf, 2.0], [-2.0, 0.5, 0.0], [nan, 0.5, 1.0], [0.0, -1.0, 1.0]]
)
OUTSIDE = torch.tensor([1, 1, 4, 5])
"""Offsets that leave out the first element and the last, with an empty segment."""


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers whose sums half precision has exactly, some of them equal."""
    generator = torch.Generator().manual_seed(len(shape))
    return (torch.randint(-4, 5, shape, generator=generator) / 4).to(dtype)


def results(every: Callable[..., dict[str, Tensor]], given: dict[str, tuple[Tensor, ...]]) -> dict[str, Any]:
    """{name: (what is reduced, its gradient)}; gradients of both signs are given."""
    leaves = {name: (data.clone().requires_grad_(), *rest) for name, (data, *rest) in given.items()}
    made = every(leaves)
    weights = [torch.arange(1, out.numel() + 1).reshape(out.shape).cos().to(out.dtype) for out in made.values()]
    gradients = torch.autograd.grad([*made.values()], [leaves[name][0] for name in made], weights)
    return {name: (out.detach(), grad) for (name, out), grad in zip(made.items(), gradients, strict=True)}


@pytest.mark.parametrize(
    ("dtype", "reduce", "dynamic"),
    [
        *((dtype, reduce, False) for dtype in FLOATS for reduce in REDUCTIONS),
        *((torch.float32, reduce, True) for reduce in ("mean", "max", "prod")),
    ],
    ids=str,
)
def test_segments_and_their_gradients_are_eagers(dtype: torch.dtype, reduce: str, dynamic: bool) -> None:
    edges = EDGES.to(dtype)
    functions: dict[str, Callable[..., Tensor]] = {
        "edges": lambda x, y: by_lengths(x, y, reduce=reduce),
        "initial": lambda x, y: by_lengths(x, y, reduce=reduce, initial=0 if dynamic else 0.5),
        "outside": lambda x, y: by_offsets(x, y, reduce=reduce),
        "unsafe": lambda x, y: by_lengths(x, y, reduce=reduce, unsafe=True),
    }
    given: dict[str, tuple[Tensor, ...]] = dict.fromkeys(functions, (edges, torch.tensor([2, 1, 0, 3])))
    given |= {"outside": (edges, OUTSIDE), "unsafe": (edges, torch.tensor([2, 0, 3]))}
    for shape, lengths in LENGTHS:
        offsets = torch.cat([torch.zeros_like(lengths[..., :1]), lengths.cumsum(-1)], -1).to(lengths.dtype)
        for call, places in ((by_lengths, lengths), (by_offsets, offsets)):
            if call is by_offsets and (dynamic or dtype is not torch.float32):
                continue
            options = {"reduce": reduce, "axis": lengths.dim() - 1}
            name = f"{call.__name__} {shape}"
            functions[name] = lambda x, y, call=call, options=options: call(x, y, **options)
            given[name] = drawn(shape, dtype), places
    every = together(functions)
    backend = rust_ort.Backend()
    candidate = results(torch.compile(every, backend=backend, dynamic=dynamic), given)
    torch.testing.assert_close(candidate, results(every, given), equal_nan=True)
    assert [graph.eager for graph in backend.graphs] == [[], []]


def by_lengths(data: Tensor, lengths: Tensor, **options: Any) -> Tensor:
    return torch.segment_reduce(data, lengths=lengths, **options)


def by_offsets(data: Tensor, offsets: Tensor, **options: Any) -> Tensor:
    return torch.segment_reduce(data, offsets=offsets, **options)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)], ids=["rows", "along columns"])
@pytest.mark.parametrize("lengths", [[1, 2], [3, 2], [-1, 5], [6, -2]], ids=str)
def test_lengths_that_do_not_fill_the_axis_are_refused(lengths: list[int], shape: tuple[int, ...]) -> None:
    axis = shape.index(4)
    data, right = torch.ones(shape), torch.tensor([1, 3]).expand(*shape[:axis], 2).contiguous()
    wrong = torch.tensor(lengths).expand_as(right).contiguous()

    def function(data: Tensor, lengths: Tensor) -> Tensor:
        return by_lengths(data, lengths, reduce="sum", axis=axis)

    compiled = torch.compile(function, backend=rust_ort.Backend())
    torch.testing.assert_close(compiled(data, right), function(data, right))
    with pytest.raises(RuntimeError):
        function(data, wrong)
    with pytest.raises(Exception, match="indices element out of data bounds"):
        compiled(data, wrong)


def test_offsets_that_go_back_are_refused() -> None:
    data, wrong = torch.ones(6, 2), torch.tensor([0, 4, 2, 6])
    compiled = torch.compile(lambda x, y: by_offsets(x, y, reduce="max"), backend=rust_ort.Backend())
    with pytest.raises(RuntimeError):
        by_offsets(data, wrong, reduce="max")
    with pytest.raises(Exception, match="indices element out of data bounds"):
        compiled(data, wrong)


@pytest.mark.parametrize("reduce", ["sum", "max"])
def test_segments_without_elements_stay_in_eager(reduce: str) -> None:
    data, lengths = torch.ones(0, 2), torch.tensor([0, 0])
    backend = rust_ort.Backend()
    made = torch.compile(by_lengths, backend=backend)(data, lengths, reduce=reduce)
    torch.testing.assert_close(made, by_lengths(data, lengths, reduce=reduce))
    assert [node.op for graph in backend.graphs for node in graph.eager] == ["aten.segment_reduce.default"]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("out_int32", [False, True], ids=["int64", "int32"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_indices_of_compressed_rows_are_eagers(dtype: torch.dtype, out_int32: bool, dynamic: bool) -> None:
    of_rows = torch.tensor([0, 0, 2, 2, 2, 5], dtype=dtype)
    begins = torch.tensor([0, 2, 2, 5, 6, 6], dtype=dtype)
    batches = torch.tensor([[[0, 1, 3], [0, 3, 3]], [[0, 0, 3], [0, 2, 3]]], dtype=dtype)
    columns = torch.arange(12, dtype=dtype).reshape(2, 2, 3)
    given = {"compressed": (of_rows,), "few rows": (of_rows[:2] + 1,)}
    functions: dict[str, Callable[..., Tensor]] = dict.fromkeys(
        given, lambda rows: aten._convert_indices_from_coo_to_csr(rows, 7, out_int32=out_int32)
    )
    for transpose in (False, True) if not dynamic else ():  # torch's fake tensors do not take symbolic sizes there

        def expanded(begins: Tensor, columns: Tensor, transpose: bool = transpose) -> Tensor:
            return aten._convert_indices_from_csr_to_coo(begins, columns, out_int32=out_int32, transpose=transpose)

        for name, rows in (("expanded", (begins, of_rows)), ("batches", (batches, columns))):
            functions[f"{name} {transpose}"], given[f"{name} {transpose}"] = expanded, rows
    every = together(functions)
    backend = rust_ort.Backend()
    made, wanted = torch.compile(every, backend=backend, dynamic=dynamic)(given), every(given)
    for name, eager in wanted.items():
        assert made[name].dtype is eager.dtype and torch.equal(made[name], eager), name
    assert [graph.eager for graph in backend.graphs] == [[]]
