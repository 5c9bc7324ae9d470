"""A model of the zoo as one side of a comparison has it: a copy, called in one way."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from measure.zoo.judge import leaves
from measure.zoo.model import SEED, Subject, default_loss

Values = dict[str, Any]

KEPT_WORDS = 400


def seeded(seed: int) -> None:
    """Models draw by each of these."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


class Side:
    """A copy of the subject's module that is called in one way. compiled: of a module, what is called instead."""

    def __init__(self, subject: Subject, compiled: Callable[[nn.Module], Any], *, train: bool) -> None:
        self.subject, self.train = subject, train
        self.module = copy.deepcopy(subject.module).train(train)
        self.called = compiled(self.module)
        parameters = [one for one in self.module.parameters() if one.requires_grad]
        self.optimizer = subject.optimizer(parameters) if train else None
        self.call = subject.trained if train and subject.trained else subject.evaluated

    def run(self) -> Any:
        """One call in eval mode, or one training step; the output, or the loss."""
        call = copy.deepcopy(self.call)
        if self.optimizer is None:
            with torch.no_grad():
                return self.called(*call.args, **call.kwargs)
        self.optimizer.zero_grad(set_to_none=True)
        loss = (self.subject.loss or default_loss)(self.called(*call.args, **call.kwargs))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def values(self) -> Values:
        """What a first call leaves: outputs; or of two training steps both losses, and the gradients and buffers after
        the first. A loss that does not know what the optimizer did is wrong in the second."""
        seeded(SEED)
        found = dict(leaves(self.run(), "loss" if self.train else "output"))
        if self.train:
            for name, parameter in self.module.named_parameters():
                if parameter.grad is not None:
                    found[f"grad of {name}"] = parameter.grad.detach().clone()
            for name, buffer in self.module.named_buffers():
                found[f"buffer {name}"] = buffer.detach().clone()
            seeded(SEED + 1)
            found |= leaves(self.run(), "loss of the second step")
        return {name: one.detach().clone() if isinstance(one, Tensor) else one for name, one in found.items()}


def as_it_is(module: nn.Module) -> Any:
    return module


def words(error: BaseException) -> str:
    return clipped(f"{type(error).__name__}: {error}")


def clipped(text: str) -> str:
    """In one line, of at most KEPT_WORDS characters."""
    text = " ".join(text.split())
    return text if len(text) <= KEPT_WORDS else f"{text[:KEPT_WORDS]} …"
