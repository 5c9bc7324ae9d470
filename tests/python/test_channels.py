"""Layers that keep channels apart: depthwise convolutions and batch norm, whose kernels on the CPU are ours."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from conftest import Daemon
from torch import Tensor, nn

import rust_ort

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "margin": (lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6), (2, 6, 13, 11)),
    "stride": (lambda: nn.Conv2d(6, 6, 5, stride=2, padding=2, groups=6), (2, 6, 14, 15)),
    "stride that leaves rows": (lambda: nn.Conv2d(6, 6, 2, stride=3, groups=6), (2, 6, 13, 10)),
    "dilation": (lambda: nn.Conv2d(6, 6, 3, padding=2, dilation=(2, 1), groups=6, bias=False), (3, 6, 9, 9)),
    "no square": (lambda: nn.Conv2d(6, 6, (7, 1), padding=(3, 0), stride=(1, 2), groups=6), (1, 6, 9, 20)),
    "kernel over the plane": (lambda: nn.Conv2d(6, 6, 7, padding=3, groups=6), (2, 6, 4, 3)),
    "one axis": (lambda: nn.Conv1d(6, 6, 4, padding=3, groups=6), (2, 6, 30)),
}
"""{case: (layer, shape of its input)}."""


def passes(folder: Path) -> dict[str, int]:
    """{pass: places} of all parts of a dump."""
    found: dict[str, int] = {}
    for path in folder.glob("*/part_*/model.ort.onnx"):
        for entry in onnx.load(path).metadata_props:
            for name, count in re.findall(r"([a-z-]+) (\d+)", entry.value if entry.key == "rust_ort.passes" else ""):
                found[name] = found.get(name, 0) + int(count)
    return found


def step(module: nn.Module, function: Callable[..., Tensor], x: Tensor) -> dict[str, Tensor]:
    """The output and every gradient of a training step."""
    module.zero_grad(set_to_none=True)
    x = x.clone().requires_grad_()
    output = function(x)
    output.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    made = {"output": output.detach(), "input": x.grad, **gradients}
    return {name: tensor.clone() for name, tensor in made.items() if tensor is not None}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("case", LAYERS)
def test_a_depthwise_convolution_and_its_gradients_are_ours(
    case: str, dynamic: bool, daemon: Daemon, tmp_path: Path
) -> None:
    make, shape = LAYERS[case]
    module, x = make(), torch.randn(shape)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="rust_ort", dynamic=dynamic)
    with rust_ort.dump("depthwise", folder=tmp_path):
        found = step(module, compiled, x)
    expected = step(module.double(), module, x.double())
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor.float(), atol=2e-5, rtol=2e-5, msg=lambda why, name=name: f"{name}: {why}"
        )
    assert passes(tmp_path / "depthwise").get("channel-convolutions") == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(4, 4, 3, stride=2, groups=4),
        lambda: nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=4),
    ],
    ids=["plain", "transposed"],
)
def test_of_float64_every_node_runs_on_onnxruntime(make: Callable[[], nn.Module], daemon: Daemon) -> None:
    module, x = make().double(), torch.randn(2, 4, 7, 6).double()
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    found = step(module, torch.compile(module, backend="rust_ort"), x)
    for name, tensor in step(module, module, x).items():
        torch.testing.assert_close(found[name], tensor)
    assert [info.eager for info in rust_ort.graphs()[known:]] == [[], []]


@pytest.mark.parametrize("where", ["weight", "input"])
@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_what_is_not_finite_reaches_what_it_reaches_in_eager(where: str, number: float, daemon: Daemon) -> None:
    module, x = nn.Conv2d(3, 3, 3, padding=1, groups=3), torch.randn(2, 3, 6, 5)
    with torch.no_grad():
        (module.weight if where == "weight" else x).view(-1)[0] = number
    torch._dynamo.reset()
    found = step(module, torch.compile(module, backend="rust_ort"), x)
    for name, tensor in step(module, module, x).items():
        assert torch.equal(found[name].isnan(), tensor.isnan()), name
        assert torch.equal(found[name].isinf(), tensor.isinf()), name


def test_of_frozen_parameters_convolutions_stay_the_runtimes(daemon: Daemon, tmp_path: Path) -> None:
    module, x = nn.Conv2d(6, 6, 3, padding=1, groups=6).eval(), torch.randn(2, 6, 13, 11)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="rust_ort", options={"freeze_parameters": True})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(64, 5), (4, 5, 30), (3, 5, 17, 19), (2, 5, 6, 7, 8)])
def test_what_batch_norm_adds_up_it_adds_up_in_float64(shape: tuple[int, ...], daemon: Daemon, tmp_path: Path) -> None:
    layers = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    module = layers[len(shape)](5)
    x = torch.randn(shape) + 100
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="rust_ort")
    with rust_ort.dump("norm", folder=tmp_path):
        found = step(module, compiled, x)
    assert passes(tmp_path / "norm").get("wide-sums") == 4
    statistics = {name: buffer.clone() for name, buffer in module.named_buffers()}
    double, single = layers[len(shape)](5).double(), layers[len(shape)](5)
    exact, eager = step(double, double, x.double()), step(single, single, x)
    for name, buffer in double.named_buffers():
        torch.testing.assert_close(statistics[name], buffer.to(statistics[name].dtype), atol=0, rtol=1e-6)

    def error(of: Tensor, name: str) -> float:
        return float((of - exact[name]).square().mean().sqrt())

    for name, tensor in exact.items():
        assert error(found[name], name) <= 2 * error(eager[name], name) + 1e-6 * float(tensor.abs().max()), name


def test_the_mean_of_equal_values_is_that_value(daemon: Daemon) -> None:
    """1 / sqrt(eps) makes of one rounding of it 300."""
    module = nn.BatchNorm2d(4)
    x = torch.tensor([0.1, 1.7, -33.3, 1e5]).reshape(1, 4, 1, 1).expand(2, 4, 33, 47).contiguous()
    torch._dynamo.reset()
    found = step(module, torch.compile(module, backend="rust_ort"), x)
    assert not found["output"].any(), found["output"].abs().amax((0, 2, 3))
