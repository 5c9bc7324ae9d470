"""Layers that go over their input few times: eager's values, by few nodes."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from support import FakeClient
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import rust_ort

SPECIAL = torch.tensor(
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        0.0,
        3.0,
        -3.0,
        2.9999998,
        -2.9999998,
        3.0000002,
        -3.0000002,
        1e38,
        -1e38,
        0.5,
    ]
)
ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Where", "Less", "Greater", "Min", "Max", "Clip"}


def operators(client: FakeClient) -> Counter[str]:
    models = [onnx.load_from_string(part.spec.model) for part in client.parts]
    return Counter(node.op_type for model in models for node in model.graph.node)


def statistics(dtype: torch.dtype, channels: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(mean, variance, weight, bias)."""
    of = torch.arange(1, channels + 1, dtype=torch.float64)
    return of.cos().to(dtype), (0.1 * of).to(dtype), of.sin().to(dtype), (of - 3).to(dtype)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("of_parameters", [None, torch.float32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_batch_norm_in_evaluation_is_eagers(
    dtype: torch.dtype, of_parameters: torch.dtype | None, dynamic: bool
) -> None:
    if dtype is torch.float64 and of_parameters is not None:
        pytest.skip("eager has no such kernel")
    mean, variance, weight, bias = statistics(of_parameters or dtype)

    def every(x: Tensor) -> list[Tensor]:
        given = [(weight, bias), (None, None)]
        flat = x.reshape(x.shape[0], 5, -1)
        images = [x, x.to(memory_format=torch.channels_last), flat, flat[..., 0].contiguous()]
        if dtype.itemsize > 2:  # eager rounds after each step where half precision is not contiguous
            images.append(x.transpose(2, 3))
        return [functional.batch_norm(one, mean, variance, w, b) for w, b in given for one in images]

    compiled = torch.compile(every, backend="rust_ort", dynamic=dynamic)
    x = torch.linspace(-4, 4, 3 * 5 * 4 * 6).reshape(3, 5, 4, 6).to(dtype)
    torch.testing.assert_close(compiled(x), every(x))
    for made, expected in zip(compiled(x), every(x), strict=True):
        assert made.stride() == expected.stride() and made.dtype == expected.dtype


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(5), nn.BatchNorm1d(5, affine=False)])
def test_gradients_of_batch_norm_in_evaluation_are_eagers(layer: nn.BatchNorm1d) -> None:
    layer.running_mean, layer.running_var = statistics(torch.float32)[:2]
    layer.eval()
    found = []
    for call in (layer, torch.compile(layer, backend="rust_ort")):
        x = torch.linspace(-2, 2, 60).reshape(4, 5, 3).requires_grad_()
        made = call(x)
        found.append([made, *torch.autograd.grad(made, [x, *layer.parameters()], made.detach().cos())])
    torch.testing.assert_close(found[1], found[0])


def test_nothing_that_is_not_finite_is_lost_by_batch_norm() -> None:
    x = torch.stack([SPECIAL, SPECIAL], 1)
    of_two = torch.tensor([0.5, -1e3]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1e2]), torch.tensor([0.0, 1.0])

    def function(x: Tensor) -> Tensor:
        mean, variance, weight, bias = of_two
        return functional.batch_norm(x, mean, variance, weight, bias, eps=1e-5)

    compiled = torch.compile(function, backend="rust_ort")
    torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


def test_batch_norm_in_evaluation_is_one_product_and_one_sum(client: FakeClient) -> None:
    layer = nn.BatchNorm2d(5).eval()
    with torch.no_grad():
        torch.compile(layer, backend="rust_ort")(torch.rand(2, 5, 4, 4))
    (model,) = (onnx.load_from_string(part.spec.model) for part in client.parts)
    (whole,) = (value.name for value in model.graph.input if len(value.type.tensor_type.shape.dim) == 4)
    over_all = []
    for node in model.graph.node:
        if whole in node.input:
            over_all.append(node.op_type)
            (whole,) = node.output
    assert over_all == ["Mul", "Add"]


@pytest.mark.parametrize(("name", "nodes"), [("hardswish", 4), ("hardsigmoid", 3)])
def test_hard_activations_are_few_nodes(name: str, nodes: int, client: FakeClient) -> None:
    torch.compile(getattr(functional, name), backend="rust_ort")(SPECIAL)
    counts = operators(client)
    assert sum(count for operator, count in counts.items() if operator in ELEMENTWISE) == nodes, counts


@pytest.mark.parametrize("name", ["hardswish", "hardsigmoid"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_activations_are_eagers_at_their_bounds(name: str, dtype: torch.dtype) -> None:
    function = getattr(functional, name)
    x = torch.cat([SPECIAL, torch.linspace(-3.5, 3.5, 50)]).to(dtype)
    made, expected = torch.compile(function, backend="rust_ort")(x), function(x)
    torch.testing.assert_close(made, expected, rtol=1e-7, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(made)[expected == 0], torch.signbit(expected)[expected == 0])


def test_batch_norm_in_training_is_one_node_each_way(client: FakeClient) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2))
    backend = rust_ort.backend()
    torch.compile(model, backend=backend)(torch.randn(2, 3, 12, 12)).square().sum().backward()
    forward, backward = ([*graph.operators.values()] for graph in backend.graphs)
    assert forward.count("aten._native_batch_norm_legit_functional.default") == 2
    assert backward.count("aten.native_batch_norm_backward.default") == 2
    assert backward.count("aten.convolution_backward.default") == 2
    assert len(forward) + len(backward) < 30, (forward, backward)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dims", [0, 1, 2, 3])
def test_batch_norm_in_training_is_eagers(dims: int, dynamic: bool, affine: bool) -> None:
    """Outputs, statistics that run, every gradient; NaN in one channel stays there."""
    torch.manual_seed(0)
    kind: Any = nn.BatchNorm1d if dims < 2 else {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    eager = kind(3, eps=1e-3, momentum=0.3, affine=affine)
    ours = copy.deepcopy(eager)
    x = torch.randn(6, 3, *[5] * dims) * 3 + 2
    x[1, 2] = math.nan

    def run(module: nn.Module, called: Callable[..., Tensor]) -> list[Any]:
        given = x.clone().requires_grad_()
        out = called(given)
        (out * torch.arange(out.numel()).view(out.shape)).sum().backward()
        return [out, given.grad, *(p.grad for p in module.parameters()), *module.buffers()]

    compiled = torch.compile(ours, backend=rust_ort.backend(), dynamic=dynamic)
    torch.testing.assert_close(run(ours, compiled), run(eager, eager), equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("budget", [None, 0.0, 0.5])
def test_batch_norm_that_is_computed_once_more_reads_no_statistics_that_were_written(budget: float | None) -> None:
    """Under a checkpoint, and where memory has a budget. As aot_eager: eager's checkpoint updates statistics twice."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()) for _ in range(3)]
            self.layers = nn.Sequential(*layers)

        def forward(self, x: Tensor) -> Any:
            return self.layers(x) if budget is not None else checkpoint(self.layers, x, use_reentrant=False)

    torch.manual_seed(0)
    model, x = Checkpointed(), torch.randn(4, 3, 8, 8)

    def run(backend: Any) -> list[Any]:
        module, given = copy.deepcopy(model), x.clone().requires_grad_()
        torch.compiler.reset()
        out = torch.compile(module, backend=backend)(given)
        out.square().sum().backward()
        return [out, given.grad, *(p.grad for p in module.parameters()), *module.buffers()]

    with functorch_config.patch(activation_memory_budget=1.0 if budget is None else budget):
        torch.testing.assert_close(run(rust_ort.backend()), run("aot_eager"), rtol=1e-4, atol=1e-4)
