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

from rust_ort.export.widen import widen_bfloat16


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
    module: nn.Module, inputs: tuple[Tensor, ...], path: Path, *, input_names: Sequence[str], opset: int,
    float32: bool = False,
) -> Path:  # fmt: skip
    """Writes the model that torch.onnx.export(..., dynamo=True) makes of `module(*inputs)` to `path`; returns it.

    float32: each bfloat16 node computes in float32 and rounds, for a runtime without bfloat16 arithmetic.
    """
    source: Any = module
    with _quiet():
        if float32:
            source = torch.export.export(module, inputs).run_decompositions({})
            widen_bfloat16(source.graph)
            source.graph_module.recompile()
        program = torch.onnx.export(
            source, () if float32 else inputs, dynamo=True, opset_version=opset, input_names=input_names, verbose=False
        )
        assert program is not None, "the dynamo exporter returns a program"
        program.save(str(path))
    return path


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
