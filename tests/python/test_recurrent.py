"""What eager has oneDNN compute of an LSTM is known in float64, so that its noise is measured."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort.observe.wide import in_wide


def values(model: nn.LSTM, x: Tensor) -> Mapping[str, Tensor]:
    model.zero_grad()
    x = x.detach().requires_grad_()
    output, (state, cell) = model(x)
    (output.square().sum() + 3 * state.sum() + cell.exp().sum()).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert x.grad is not None
    return {"output": output, "state": state, "cell": cell, "x": x.grad, **gradients}


@pytest.mark.parametrize(
    ("layers", "both", "bias", "first"), itertools.product((1, 2), (False, True), (False, True), (False, True))
)
def test_it_is_what_the_model_gives_in_float64(layers: int, both: bool, bias: bool, first: bool) -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 5, layers, bidirectional=both, bias=bias, batch_first=first)
    x = torch.randn(4, 6, 3)
    wide = in_wide(lambda: values(model, x))
    expected = values(model.double(), x.double())
    assert wide.keys() == expected.keys()
    for name, value in expected.items():
        found = wide[name]
        assert found is not None, name
        torch.testing.assert_close(found, value, rtol=1e-12, atol=1e-14)


class Block(nn.Module):
    def __init__(self, width: int, to: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, to)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Between(nn.Module):
    """Dynamo leaves the LSTM and its frame to eager, and compiles the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm, self.last = Block(8, 8), nn.LSTM(8, 16, batch_first=True), Block(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.lstm(self.first(x))[0])
        return found


@pytest.mark.usefixtures("daemon")
def test_the_noise_of_what_lies_behind_it_is_measured() -> None:
    torch.manual_seed(0)
    report = rust_ort.compare(Between(), torch.randn(2, 5, 8), options={"compare_float64": "all"})
    judged = {verdict.name: verdict.noise for verdict in report.verdicts if verdict.kind == "match"}
    assert report.ok and {"output", "loss", "grad of first.linear.weight", "grad of lstm.weight_hh_l0"} <= judged.keys()
    assert all(noise is not None for noise in judged.values()), judged
