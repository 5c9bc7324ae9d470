"""Rows of packages whose models classify images: a factory, and the image that it is made for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from measure.zoo.model import Call, Subject, floats, sgd

BATCH, SIDE, CLASSES = 2, 224, 1000


def classifier(module: Any, *shape: int) -> Subject:
    """Images of a shape, channels first, with a class each."""
    call = Call(args=(torch.randn(BATCH, *shape),))
    labels = torch.randint(0, CLASSES, (BATCH,))
    return Subject(module=module, evaluated=call, trained=call, loss=entropy(labels), optimizer=sgd)


def entropy(labels: Tensor) -> Callable[[Any], Tensor]:
    """Cross entropy of logits, (rows, classes), and of auxiliary ones where a model gives such in training."""

    def loss(output: Any) -> Tensor:
        return torch.stack([cross_entropy(one, labels) for one in floats(output) if one.dim() == 2]).sum()

    return loss
