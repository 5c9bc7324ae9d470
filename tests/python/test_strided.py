"""Outputs that are not row-major have eager's strides and values, whole and in parts."""

from __future__ import annotations

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import numpy_helper
from structures import Compile, check, run, same
from torch import Tensor, nn

import rust_ort

PERMUTATIONS = [order for order in permutations(range(4)) if order != (0, 1, 2, 3)]


def numbered(shape: tuple[int, ...]) -> Tensor:
    """No two elements alike."""
    return torch.arange(float(math.prod(shape))).reshape(shape)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dynamic", [False, True])
def test_an_output_has_the_strides_of_its_permutation(dynamic: bool) -> None:
    """Sizes of 1 among them, of which torch's fake tensors have strides of their own."""

    def every(x: Tensor, y: Tensor) -> list[Tensor]:
        return [(z + 1).permute(order) * 2 for z in (x, y) for order in PERMUTATIONS]

    def program(compiled: Compile) -> Any:
        call = compiled(every)
        shapes = [((8, 9, 10, 3), (9, 1, 8, 1)), ((8, 12, 9, 3), (8, 1, 9, 1))]
        return [call(*map(numbered, pair)) for pair in shapes]

    check(program, dynamic=dynamic)


class Images(nn.Module):
    """Layers of their own graphs: what one gives, images with channels last, the next one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.second = nn.Conv2d(16, 8, 3, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.second(self.first(x))
        return made


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("apart", [False, True])
def test_training_with_channels_last_is_eagers(apart: bool) -> None:
    def program(compiled: Compile) -> Any:
        model: nn.Module = Images().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if apart:
            model.first, model.second = compiled(model.first), compiled(model.second)
        call = model if apart else compiled(model)
        made = []
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(4, 3, 12, 14).to(memory_format=torch.channels_last).requires_grad_()
            y = call(x)
            y.square().mean().backward()
            grads = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            made.append((y.detach(), y.stride(), x.grad, [(grad, grad.stride()) for grad in grads]))
            optimizer.step()
        return made

    check(program, tol=1e-4)


@pytest.mark.usefixtures("served")
def test_heads_that_are_transposed_are_eagers() -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.keys, self.values = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = (layer(x).view(2, 10, 4, 8).transpose(1, 2) for layer in (self.keys, self.values))
            return keys, values * 2

    def program(compiled: Compile) -> Any:
        model = Heads()
        keys, values = compiled(model)(torch.randn(2, 10, 32))
        (keys @ values.mT).sum().backward()
        assert (keys.stride(), values.stride()) == ((320, 8, 32, 1), (320, 8, 32, 1))
        return keys.detach(), values.detach(), [parameter.grad for parameter in model.parameters()]

    check(program, tol=1e-4)


def images(n: int) -> Tensor:
    return torch.randn(2, 8, 9, 10, generator=torch.Generator().manual_seed(n)).to(memory_format=torch.channels_last)


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("compare", ["outputs", "nodes"])
def test_what_is_compared_has_eagers_strides(compare: str) -> None:
    def program(compiled: Compile) -> Any:
        made = compiled(lambda x: torch.relu(x.permute(0, 1, 3, 2) - 0.5))(images(0))
        return made, made.stride()

    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    got = program(lambda f: torch.compile(f, backend="rust_ort", options={"compare": compare}))
    (info,) = rust_ort.graphs()[known:]
    assert info.parts and [verdict.kind for _, verdict in info.verdicts] == ["match"], info.verdicts
    same(got, run(program, "aot_eager"), tol=0)


@pytest.mark.usefixtures("served")
def test_a_dump_has_the_graphs_values_row_major(tmp_path: Path) -> None:
    torch._dynamo.reset()
    with rust_ort.dump("strided", folder=tmp_path, clean=True) as folder:
        made = torch.compile(lambda x: x * 2 + 1, backend="rust_ort")(images(0))
    (data,) = Path(folder).rglob("test_data_set_0")
    model = onnx.load(data.parent / "model.onnx")
    (output,) = model.graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [2, 8, 9, 10]
    for name, expected in (("input_0", images(0)), ("actual_0", images(0) * 2 + 1)):
        stored = numpy_helper.to_array(onnx.load_tensor(data / f"{name}.pb"))
        assert torch.equal(torch.from_numpy(stored.copy()), expected)
    assert made.stride() == images(0).stride()
