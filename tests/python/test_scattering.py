"""index_put that adds: ONNX Runtime's ScatterND loses summands, and what stands in its place adds them all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support import KNOWN_WRONG_IN, FakeClient, together, use_client
from torch import Tensor

import rust_ort

aten = torch.ops.aten
TIMES = 300


@pytest.fixture(autouse=True)
def _client(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    use_client(monkeypatch, FakeClient())


def wrong_sums(reduced: Callable[[Any], Any]) -> int:
    """How many of `TIMES` runs were wrong: 2048 rows of 512 added to 100. reduced: {inputs} -> result."""
    random = numpy.random.default_rng(0)
    places, rows = random.integers(0, 100, 2048), random.integers(0, 5, (2048, 512)).astype(numpy.float32)
    right = numpy.zeros((100, 512), numpy.float32)
    numpy.add.at(right, places, rows)
    return sum(not numpy.array_equal(reduced({"places": places[:, None], "rows": rows}), right) for _ in range(TIMES))


def test_adding_by_scatter_nd_still_loses_summands() -> None:
    node = helper.make_node("ScatterND", ["zeros", "places", "rows"], ["sums"], reduction="add")
    inputs = [
        helper.make_tensor_value_info("places", TensorProto.INT64, [2048, 1]),
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, [2048, 512]),
    ]
    zeros = numpy_helper.from_array(numpy.zeros((100, 512), numpy.float32), "zeros")
    output = helper.make_tensor_value_info("sums", TensorProto.FLOAT, [100, 512])
    graph = helper.make_graph([node], "g", inputs, [output], [zeros])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wrong = wrong_sums(lambda feeds: session.run(None, feeds)[0])
    if not wrong and onnxruntime.__version__ == KNOWN_WRONG_IN:
        pytest.skip(f"{TIMES} runs were right on this machine: its threads did not meet")
    assert wrong, f"onnxruntime {onnxruntime.__version__} adds every summand: index_put can be ScatterND"


def test_every_summand_of_an_index_that_comes_often_is_added() -> None:
    compiled = torch.compile(
        lambda places, rows: torch.zeros(100, 512).index_put((places,), rows, accumulate=True), backend="rust_ort"
    )
    wrong = wrong_sums(
        lambda feeds: compiled(torch.from_numpy(feeds["places"][:, 0]), torch.from_numpy(feeds["rows"])).numpy()
    )
    assert wrong == 0


PLACES = [
    ((7, 5), [torch.tensor([1, 1, 3, -1])]),
    ((7, 5), [None, torch.tensor([0, 0, -5, 4])]),
    ((7, 5), [torch.tensor([1, 1, 3]), torch.tensor([2, 2, 0])]),
    ((4, 3, 5), [torch.tensor([1, 1]), None, torch.tensor([2, 2])]),
    ((4, 3, 5), [None, torch.tensor([1, 1]), torch.tensor([2, 2])]),
    ((4, 3, 5), [torch.tensor([[0], [0]]), torch.tensor([1, 1, 2])]),
    ((4, 3, 5, 2), [None, torch.tensor([[0], [0]]), torch.tensor([1, 1, 2])]),
    ((4, 3, 5, 2), [torch.tensor([[0], [0]]), None, torch.tensor([1, 1, 2])]),
    ((6,), [torch.tensor(2)]),
    ((4, 3), [torch.tensor(1), None]),
    ((4, 3, 5), [None, torch.tensor([[0, 2], [2, -1]])]),
    ((4, 3, 5), [torch.tensor([[0, 2], [2, -1]], dtype=torch.int32)]),
]


@pytest.mark.parametrize("dynamic", [False, True])
def test_index_put_adds_at_the_places_that_torch_means(dynamic: bool) -> None:
    functions, given = {}, {}
    for number, (shape, indices) in enumerate(PLACES):
        into = torch.arange(math.prod(shape), dtype=torch.float32).sin().reshape(shape)
        values = into[tuple(slice(None) if index is None else index for index in indices)].cos()
        name = f"{number}, of {shape}"
        functions[name] = lambda x, y, indices=indices: aten.index_put(x, indices, y, True)
        given[name] = into, values
    every = together(functions)
    backend = rust_ort.Backend()
    compiled = torch.compile(every, backend=backend, dynamic=dynamic)
    torch.testing.assert_close(compiled(given), every(given))
    assert [graph.eager for graph in backend.graphs] == [[]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("sizes", [(), (5,), (2, 1), (3, 2, 5)])
def test_index_put_adds_values_that_spread(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    into, values = torch.arange(60).reshape(3, 4, 5).to(dtype), torch.full(sizes, 3).to(dtype)
    indices = [None, torch.tensor([1, 1])]
    made = rust_ort.Backend()
    compiled = torch.compile(lambda x, y: aten.index_put(x, indices, y, True), backend=made, dynamic=False)
    assert torch.equal(compiled(into, values), aten.index_put(into, indices, values, True))
    assert [graph.eager for graph in made.graphs] == [[]]


@pytest.mark.parametrize("indices", [[torch.tensor([7])], [torch.tensor([-8])], [None, torch.tensor([5])]])
def test_index_put_beyond_the_tensor_is_an_error(indices: list[Tensor | None]) -> None:
    compiled = torch.compile(lambda x, y: aten.index_put(x, indices, y, True), backend="rust_ort", dynamic=False)
    with pytest.raises(Exception, match="ScatterElements"):
        compiled(torch.zeros(7, 5), torch.ones(()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_index_put_adds_where_a_mask_says(dtype: torch.dtype) -> None:
    into = torch.arange(12, dtype=dtype).reshape(4, 3)
    mask, values = torch.tensor([True, False, True, False]), torch.full((2, 3), 0.5, dtype=dtype)
    known = len(rust_ort.graphs())
    compiled = torch.compile(lambda x: aten.index_put(x, [mask], values, True), backend="rust_ort", dynamic=False)
    torch.testing.assert_close(compiled(into), aten.index_put(into, [mask], values, True))
    assert [graph.eager for graph in rust_ort.graphs()[known:]] == [[]]


REDUCED = ("sum", "prod", "mean", "amax", "amin")
TO = torch.tensor([0, 2, 2, 1, 0, 2])


def reduced_values(dtype: torch.dtype, *, special: bool) -> tuple[Tensor, Tensor]:
    """[4, 3] and what is brought to its first three rows. special: with NaN and infinities."""
    torch.manual_seed(0)
    into, source = torch.randn(4, 3) * 4, torch.randn(6, 3) * 4
    if special:
        source[0, 0], source[1, 1], source[2, 1] = math.nan, math.inf, -math.inf
        into[3, 2], into[0, 1], source[0, 2], source[4, 2] = math.nan, -math.inf, -math.inf, -math.inf
    return into.to(dtype), source.to(dtype)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64], ids=str)
def test_whatever_is_reduced_at_a_place_runs_on_onnxruntime(
    dtype: torch.dtype, reduce: str, include_self: bool
) -> None:
    """Extremes of NaN and infinities, means of whole numbers, places that nothing comes to."""
    values = reduced_values(dtype, special=dtype.is_floating_point and reduce in ("amax", "amin"))

    def function(into: Tensor, source: Tensor) -> tuple[Tensor, ...]:
        places = TO[:, None].expand(source.shape)
        made = into.scatter_reduce(0, places, source, reduce, include_self=include_self)
        if reduce == "sum":
            return (made,)
        return made, into.index_reduce(0, TO, source, reduce, include_self=include_self)

    backend = rust_ort.backend()
    given = torch.compile(function, backend=backend)(*values)
    torch.testing.assert_close(given, function(*values), equal_nan=True)
    (graph,) = backend.graphs
    assert not graph.eager, graph.eager


@pytest.mark.parametrize("reduce", ["mean", "amax", "amin", "prod"])
def test_gradients_of_what_is_reduced_are_eagers(reduce: str) -> None:
    def run(function: Callable[..., Tensor]) -> list[Tensor]:
        into, source = (tensor.requires_grad_() for tensor in reduced_values(torch.float32, special=False))
        function(into, source).square().sum().backward()
        return [tensor.grad for tensor in (into, source) if tensor.grad is not None]

    def function(into: Tensor, source: Tensor) -> Tensor:
        return into.scatter_reduce(0, TO[:, None].expand(source.shape), source, reduce, include_self=False)

    torch.testing.assert_close(run(torch.compile(function, backend=rust_ort.backend())), run(function))


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 3), (5, 1, 2, 2)], ids=str)
def test_slices_named_by_one_number_each_are_rows(shape: tuple[int, ...]) -> None:
    """As graph networks write it: an index for each element, all of a slice alike. Zeros, and what is no zero."""
    torch.manual_seed(0)
    to = torch.tensor([4, 0, 0, 2, 4, 4, 1])
    source = torch.randn(7, *shape[1:])
    source[2] = math.nan
    into = torch.randn(shape)

    def function(into: Tensor, source: Tensor, to: Tensor) -> tuple[Tensor, ...]:
        places = to.view(-1, *[1] * (source.dim() - 1)).expand_as(source)
        zeros = source.new_zeros(into.shape)
        return (
            zeros.scatter_add(0, places, source),
            into.scatter_add(0, places, source),
            zeros.scatter_reduce(0, places, source, "amax", include_self=False),
            into.scatter_reduce(0, places, source, "amin", include_self=True),
            into.gather(0, places),
        )

    backend = rust_ort.backend()
    given = torch.compile(function, backend=backend)(into, source, to)
    torch.testing.assert_close(given, function(into, source, to), equal_nan=True)
    assert not backend.graphs[0].eager


def test_an_index_beyond_the_rows_is_refused_as_eager_refuses_it() -> None:
    def function(source: Tensor, to: Tensor) -> Tensor:
        return source.new_zeros(3, 2, 2).scatter_add(0, to.view(-1, 1, 1).expand_as(source), source)

    compiled = torch.compile(function, backend=rust_ort.backend())
    source = torch.ones(2, 2, 2)
    torch.testing.assert_close(compiled(source, torch.tensor([0, 2])), function(source, torch.tensor([0, 2])))
    for far in (3, -1):
        with pytest.raises(Exception, match="must be within"):
            compiled(source, torch.tensor([0, far]))
