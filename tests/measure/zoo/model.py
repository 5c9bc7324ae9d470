"""A model of the zoo: how it is built, what it is called with, and which optimizer trains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

SEED = 0
"""Of parameters and inputs. The same in every process."""

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Transformers and diffusion models are trained with it."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Convolutional networks are trained with it."""
    return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=1e-4)


def adam(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Graph networks and audio models are trained with it."""
    return torch.optim.Adam(parameters, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments of one call of a module."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A module in the mode that its class leaves it in. evaluated, trained: what it is called with in each mode; where
    trained is None the model is not trained. loss: scalar of an output; None: `default_loss`. generated: arguments of
    its `generate()`, None where it has none."""

    module: nn.Module
    evaluated: Call
    trained: Call | None
    loss: Callable[[Any], Tensor] | None = None
    optimizer: Optimizer = adamw
    generated: Call | None = None


@dataclass(frozen=True, kw_only=True)
class Model:
    """name: unique in the zoo. package: distribution that it comes from. source: dotted path of its class or factory.
    smaller: what was made smaller than its default, in words; "" where nothing was. build: makes it; whoever calls it
    seeds torch."""

    name: str
    package: str
    source: str
    smaller: str
    build: Callable[[], Subject]


def floats(output: Any) -> list[Tensor]:
    """Floating point tensors in an output, depth first, each tensor once."""
    found: dict[int, Tensor] = {}

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                found.setdefault(id(value), value)
        elif isinstance(value, Mapping):
            for one in value.values():
                walk(one)
        elif isinstance(value, list | tuple):
            for one in value:
                walk(one)
        elif hasattr(value, "__dataclass_fields__"):
            for name in value.__dataclass_fields__:
                walk(getattr(value, name))

    walk(output)
    return list(found.values())


def default_loss(output: Any) -> Tensor:
    """`output.loss` where the model gives one, the sum of a dictionary of losses, or the mean square of what it gives
    in floating point."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss if loss.dim() == 0 else loss.mean()
    if isinstance(output, Mapping) and output and all("loss" in name for name in output):
        return torch.stack([one.mean() for one in floats(output)]).sum()
    trained = [one for one in floats(output) if one.requires_grad]
    return torch.stack([one.float().square().mean() for one in trained]).sum()
