"""Dropout: what is drawn is eager's, and no part of a graph ends where it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import rust_ort
from rust_ort.export import decompositions, rules

aten = torch.ops.aten
IMAGE = torch.arange(2 * 4 * 6 * 5, dtype=torch.float32).cos().reshape(2, 4, 6, 5)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
    "a slice": lambda x: x[:, 1:, ::2],
    "expanded": lambda x: x[:, :1].expand(2, 4, 6, 5),
    "a number": lambda x: x.sum(),
    "no elements": lambda x: x[:0],
}

pytestmark = pytest.mark.usefixtures("daemon")


def step(function: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """What a function gives, its gradient and the generator's state afterwards."""
    torch.manual_seed(7)
    given = x.clone(memory_format=torch.preserve_format).requires_grad_()
    made = function(given)
    (gradient,) = torch.autograd.grad(made.float().square().sum(), given)
    return [made, gradient, torch.get_rng_state()]


def compiled(function: Callable[..., Any], **options: Any) -> tuple[Callable[..., Any], rust_ort.Backend]:
    torch._dynamo.reset()
    backend = rust_ort.backend()
    return torch.compile(function, backend=backend, **options), backend


def assert_alike(made: list[Tensor], expected: list[Tensor]) -> None:
    """Of float16, but for a rounding."""
    for one, other in zip(made, expected, strict=True):
        loose = {"rtol": 2e-3, "atol": 1e-5} if one.dtype is torch.float16 else {}
        torch.testing.assert_close(one, other, **loose)
    assert made[0].stride() == expected[0].stride()


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_dropped_is_what_torchs_own_kernel_drops(layout: str, dtype: torch.dtype, dynamic: bool) -> None:
    """aot_eager's: it runs `native_dropout` on the tensor. Eager itself draws in the tensor's own dtype."""

    def function(x: Tensor) -> Tensor:
        return functional.dropout(LAYOUTS[layout](x), 0.3) * 2

    x = IMAGE.to(dtype)
    expected = step(torch.compile(function, backend="aot_eager", dynamic=dynamic), x)
    call, _ = compiled(function, dynamic=dynamic)
    assert_alike(step(call, x), expected)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("train", [True, False, None])
def test_a_probability_and_a_mode(p: float, train: bool | None) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        dropped, mask = torch.native_dropout(x, p, train)
        return dropped, mask

    call, _ = compiled(function)
    x = IMAGE.clone()
    x[0, 0, 0, 0], x[0, 0, 0, 1] = torch.nan, torch.inf
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    for one, other in zip(call(x), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


class Decoder(nn.Module):
    """Three layers that drop, in place too."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.drops = nn.ModuleList([nn.Dropout(0.1), nn.Dropout(0.2, inplace=True), nn.AlphaDropout(0.3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer, drop in zip(self.layers, self.drops, strict=True):
            x = drop(layer(x)).relu()
        return x


@pytest.fixture
def without_the_rules() -> Iterator[None]:
    with rules.without("aten.native_dropout.default", "aten.empty_like.default"):
        yield


def parts(backend: rust_ort.Backend) -> list[int]:
    return [len(graph.parts) for graph in backend.graphs]


def test_a_graph_that_drops_between_its_layers_is_one_part() -> None:
    call, backend = compiled(Decoder())
    step(call, torch.ones(5, 8))
    assert parts(backend) == [1, 1]
    drawn = {"aten.empty_strided.default", "aten.bernoulli.p"}
    assert {node.op for graph in backend.graphs for node in graph.eager} == drawn


@pytest.mark.usefixtures("without_the_rules")
def test_without_the_rules_it_is_a_part_a_layer() -> None:
    call, backend = compiled(Decoder())
    step(call, torch.ones(5, 8))
    assert parts(backend) == [4, 1]


def test_new_memory_of_a_tensors_kind_does_not_wait_for_the_tensor() -> None:
    def function(x: Tensor) -> Tensor:
        kept = (x * 2).new_empty(2, 1, 1, 1).bernoulli_(0.7)
        return x.sin() * kept

    call, backend = compiled(function)
    assert_alike(step(call, IMAGE), step(function, IMAGE))
    assert parts(backend) == [1, 1]


def test_every_node_of_what_drops_is_compared() -> None:
    report = rust_ort.compare(Decoder(), torch.randn(5, 8), options={"compare": "nodes"}).check()
    others = {node.op for _, node in report.nodes if node.local.kind != "match"}
    assert others == {"aten.empty_strided.default", "aten.bernoulli.p"}


@pytest.mark.parametrize("layout", ["rows", "channels last"])
def test_a_gpus_kernel_draws_for_memory_of_the_tensors_layout_and_dtype(layout: str) -> None:
    """Which draws by both. Traced with fake tensors: no GPU is there."""
    with FakeTensorMode():
        x = LAYOUTS[layout](torch.empty(2, 4, 6, 5, dtype=torch.float16, device="cuda"))
        traced = make_fx(lambda x: aten.native_dropout(x.sin(), 0.3, True), decompositions.table())(x)
    (drawn,) = traced.graph.find_nodes(op="call_function", target=aten.native_dropout.default)
    (memory,) = drawn.all_input_nodes
    value = memory.meta["val"]
    assert memory.target is aten.empty_strided.default
    assert (value.stride(), value.dtype, value.device.type) == (x.stride(), torch.float16, "cuda")
    assert not traced.graph.find_nodes(op="call_function", target=aten.bernoulli.p)
