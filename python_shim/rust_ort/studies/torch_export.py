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


def export(source: Any, inputs: tuple[Tensor, ...], path: Path, *, input_names: Sequence[str], opset: int) -> Any:
    """Writes the model that torch.onnx.export(..., dynamo=True) makes of `source(*inputs)` to `path`.

    source: a module, or an ExportedProgram, for which inputs are (). Returns the exporter's ONNXProgram.
    """
    with _quiet():
        program = torch.onnx.export(
            source, inputs, dynamo=True, opset_version=opset, input_names=input_names, verbose=False
        )
        assert program is not None, "the dynamo exporter returns a program"
        program.save(str(path))
    return program


def export_float32(program: Any, path: Path, *, input_names: Sequence[str], opset: int) -> None:
    """Writes the model of `export` again, each bfloat16 node computing in float32 and rounding its result.

    For a runtime without bfloat16 arithmetic. `program`, what `export` returned, is changed.
    """
    source = program.exported_program
    widen_bfloat16(source.graph)
    source.graph_module.recompile()
    export(source, (), path, input_names=input_names, opset=opset)


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
