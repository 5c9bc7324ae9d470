"""Steps of torch's optimizers, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import rust_ort

pytestmark = pytest.mark.usefixtures("served")

DECAYED = {"weight_decay": 0.1}
OPTIMIZERS: dict[str, list[dict[str, Any]]] = {
    "ASGD": [{}, DECAYED],
    "Adadelta": [{}, DECAYED],
    "Adagrad": [{}, {**DECAYED, "lr_decay": 0.1}],
    "Adam": [{}, {**DECAYED, "amsgrad": True}],
    "AdamW": [{}, {"amsgrad": True}],
    "Adamax": [{}, DECAYED],
    "Muon": [{}],
    "NAdam": [{}, {**DECAYED, "decoupled_weight_decay": True}],
    "RAdam": [{}, {**DECAYED, "decoupled_weight_decay": True}],
    "RMSprop": [{}, {**DECAYED, "centered": True, "momentum": 0.9}],
    "Rprop": [{}],
    "SGD": [{}, {"momentum": 0.9, "nesterov": True}, {**DECAYED, "momentum": 0.9, "dampening": 0.1}],
}
"""{optimizer: options that it is made with}. Adafactor is not compiled by Dynamo."""
OF_ALL_BUT_MUON: list[dict[str, Any]] = [{}, {"foreach": True}, {"maximize": True}]

CASES = [
    (name, {**options, **more})
    for name, given in OPTIMIZERS.items()
    for options in given
    for more in (OF_ALL_BUT_MUON if name != "Muon" else [{}])
]


@pytest.mark.parametrize("name, options", CASES)
def test_a_step_is_eagers_and_nothing_of_it_is_left(name: str, options: dict[str, Any]) -> None:
    def stepped(compiled: Callable[[Callable[[], None]], Callable[[], None]]) -> list[nn.Parameter]:
        weights = [
            nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3)),
            nn.Parameter(torch.linspace(2, 1, 8).view(4, 2)),
        ]
        optimizer = getattr(optim, name)(weights, **options)
        step = compiled(optimizer.step)
        for factor in (1, 2, 3):
            for weight in weights:
                weight.grad = torch.linspace(-2, 1, weight.numel()).reshape(weight.shape) * factor
            step()
        return weights

    torch._dynamo.reset()
    backend = rust_ort.Backend()
    made = stepped(lambda step: torch.compile(step, backend=backend))
    torch.testing.assert_close(made, stepped(lambda step: step))
    assert backend.graphs and not any(graph.eager for graph in backend.graphs)
