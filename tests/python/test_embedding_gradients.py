"""An embedding's gradient: rows added up by index, by one kernel of ours where the graph is optimized."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.export import rules

pytestmark = pytest.mark.usefixtures("daemon")


def gradients(embedding: nn.Embedding, places: Tensor, grad: Tensor, **options: object) -> tuple[Tensor, Tensor]:
    """(eager's, the backend's)."""
    found = []
    for call in (embedding, torch.compile(embedding, backend=rust_ort.backend(**options))):
        embedding.zero_grad()
        call(places).backward(grad)
        assert embedding.weight.grad is not None
        found.append(embedding.weight.grad.clone())
    return found[0], found[1]


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize("optimization", ["all", "disable"])
@pytest.mark.parametrize(("rows", "columns", "n"), [(50, 16, 300), (5000, 64, 7), (1, 3, 4), (30_000, 40, 1)])
def test_every_row_is_added_to_its_place(
    rows: int, columns: int, n: int, optimization: str, padding: int | None
) -> None:
    if padding is not None and padding >= rows:
        padding = 0
    embedding = nn.Embedding(rows, columns, padding_idx=padding)
    places = torch.randint(0, rows, (n,))
    expected, got = gradients(embedding, places, torch.randn(n, columns), ort_optimization=optimization)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    embedding = nn.Embedding(6, 2)
    grad = torch.tensor([[1.0, torch.nan], [torch.inf, -0.0], [-torch.inf, 2.0], [-0.0, -0.0]])
    expected, got = gradients(embedding, torch.tensor([1, 3, 3, 5]), grad)
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def test_no_places_give_zeros_and_sizes_may_vary() -> None:
    embedding = nn.Embedding(9, 4)
    compiled = torch.compile(embedding, backend="rust_ort", dynamic=True)
    for n in (5, 3, 8, 2):
        places, grad = torch.randint(0, 9, (n, 2)), torch.randn(n, 2, 4)
        embedding.zero_grad()
        embedding(places).backward(grad)
        expected = embedding.weight.grad
        embedding.zero_grad()
        compiled(places).backward(grad)
        torch.testing.assert_close(embedding.weight.grad, expected)
    expected, got = gradients(nn.Embedding(9, 4), torch.empty(0, dtype=torch.int64), torch.empty(0, 4))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("index", [9, -1, -6])
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_index_that_eager_refuses_is_refused_as_before(index: int, dynamic: bool) -> None:
    def added(places: Tensor, rows: Tensor) -> Tensor:
        zeros = rows.new_zeros((5, 3))
        return zeros.scatter_add(0, places.unsqueeze(1).expand(-1, 3), torch.where(rows > 0, rows, 0.5)).sin()

    compiled = torch.compile(added, backend="rust_ort", dynamic=dynamic)
    rows = torch.randn(3, 3)
    torch.testing.assert_close(compiled(torch.tensor([0, 4, 0]), rows), added(torch.tensor([0, 4, 0]), rows))
    with pytest.raises(RuntimeError):
        added(torch.tensor([0, 1, index]), rows)
    with pytest.raises(rust_ort.errors.BadIndex, match=str(index)) as raised:
        compiled(torch.tensor([0, 1, index]), rows)
    assert isinstance(raised.value, IndexError | RuntimeError)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_it_is_one_node_without_zeros_as_many(tmp_path: Path, autocast: torch.dtype | None) -> None:
    model = nn.Sequential(nn.Embedding(3000, 32), nn.Linear(32, 4))
    places = torch.randint(0, 3000, (2, 70))
    with rust_ort.dump("d", folder=tmp_path):
        report = rust_ort.compare(model, places, autocast=autocast)
    report.check()
    (found,) = tmp_path.glob("d/*-backward/part_0/model.ort.onnx")
    graph = onnx.load(found).graph
    assert [node.op_type for node in graph.node if node.op_type in ("AddRows", "ScatterElements")] == ["AddRows"]
    assert max((len(weight.raw_data) for weight in graph.initializer), default=0) < 3000


IDS = torch.tensor([[1, 2, 2, 0], [3, 3, 3, 1]])
WEIGHT = torch.arange(5 * 3, dtype=torch.float32).cos().reshape(5, 3)


@pytest.mark.parametrize("ids", [IDS, IDS.int(), IDS[0, 0], IDS[:0], IDS[:, :, None].expand(2, 4, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [{}, {"padding_idx": 2}, {"padding_idx": -2}, {"scale_grad_by_freq": True}])
def test_every_shape_of_indices_and_dtype(ids: Tensor, dtype: torch.dtype, asked: dict[str, object]) -> None:
    """Beside eager's in float64: its own in half precision rounds each sum."""
    embedding = nn.Embedding.from_pretrained(WEIGHT.to(dtype), freeze=False, **asked)  # type: ignore[arg-type]
    grad = torch.randn(*ids.shape, 3).to(dtype)
    _, got = gradients(embedding, ids, grad)
    expected, _ = gradients(embedding.double(), ids, grad.double())
    torch.testing.assert_close(got, expected.to(dtype))


def test_it_takes_few_nodes() -> None:
    def nodes() -> int:
        torch._dynamo.reset()
        backend = rust_ort.backend()
        torch.compile(nn.Embedding(5, 3), backend=backend)(IDS).sum().backward()
        return sum(graph.compute_nodes for graph in backend.graphs if graph.direction == "backward")

    few = nodes()
    with rules.without("aten.embedding_dense_backward.default"):
        many = nodes()
    assert few <= 14 < 20 < many


def test_indices_that_are_no_rows_are_left_out() -> None:
    """By whoever asks for the gradient alone: a forward refuses them."""

    def gradient(grad: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, index, 5, -1, False)

    given = torch.randn(4, 3), torch.tensor([1, -1, 7, 1])
    torch.testing.assert_close(torch.compile(gradient, backend="rust_ort")(*given), gradient(*given))

    def of_no_rows(grad: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(grad, index, 0, -1, False)

    assert torch.compile(of_no_rows, backend="rust_ort")(*given).shape == (0, 3)
