"""torch.onnx.export, the other exporter that the studies look at."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Autocast(nn.Module):
    """A module inside an autocast region, so that the region's casts are exported."""

    def __init__(self, module: nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.device = device
        self.dtype = dtype

    def forward(self, *arguments: Tensor) -> Any:
        with torch.autocast(self.device, dtype=self.dtype):
            return self.module(*arguments)


def export(
    module: nn.Module, inputs: tuple[Tensor, ...], path: Path, *, input_names: Sequence[str], opset: int
) -> None:
    """Writes the model that torch.onnx.export(..., dynamo=True) makes of `module(*inputs)` to `path`."""
    with _quiet():
        program = torch.onnx.export(
            module, inputs, dynamo=True, opset_version=opset, input_names=input_names, verbose=False
        )
        assert program is not None, "the dynamo exporter returns a program"
        program.save(str(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's warnings: torchvision's absence, deprecations inside torch."""
    logger = logging.getLogger("torch.onnx._internal.exporter")
    level = logger.level
    logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            logger.setLevel(level)
