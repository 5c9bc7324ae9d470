"""Finds the float64 nodes whose numbers torchlib wrote as float32: they would be silently less exact than eager's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from rust_ort.export.rules.nodes import holds

SHORT_BITS = 12
"""A float32 number with more significant bits than this is taken for a rounded float64."""

CASTS = frozenset({"Cast", "CastLike"})

INEXACT_DEFAULTS = frozenset({"Selu", "HardSwish"})
"""ONNX operators whose attributes' defaults are no short numbers."""


def rounded(graph: Any, source: fx.Graph, fx_name_of: Callable[[Any], str | None]) -> dict[str, str]:
    """{FX node: what is rounded} of an onnx_ir graph without functions, which `source` was written as. fx_name_of: the
    FX node's name behind an ONNX node."""
    found: dict[str, str] = {}
    constants: set[int] = set()
    of_float64 = {node.name for node in source.nodes if holds(torch.float64, node)}
    for node in graph if of_float64 else ():
        name = fx_name_of(node)
        if name is None or name in found or name not in of_float64:
            continue
        numbers = list(_numbers(node))
        number = next((number for number in numbers if not _is_short(number)), None)
        if number is not None:
            found[name] = f"torchlib writes {number!r} beside float64 as float32"
        elif node.inputs and node.op_type not in CASTS and all(id(value) in constants for value in node.inputs):
            found[name] = f"torchlib computes {node.op_type} beside float64 in float32"
        elif node.op_type == "Constant" and numbers:
            constants.add(id(node.outputs[0]))
    return found


def _numbers(node: Any) -> Iterator[float]:
    """The float32 numbers that an ONNX node holds."""
    from onnx_ir import AttributeType, DataType

    for attribute in node.attributes.values():
        if attribute.type == AttributeType.FLOAT:
            yield float(attribute.value)
        elif attribute.type == AttributeType.FLOATS:
            yield from map(float, attribute.value)
        elif attribute.type == AttributeType.TENSOR and attribute.value.dtype == DataType.FLOAT:
            yield from map(float, attribute.value.numpy().reshape(-1))
    if node.op_type in INEXACT_DEFAULTS:
        yield math.pi


def _is_short(number: float) -> bool:
    if not math.isfinite(number):
        return True
    mantissa, _ = math.frexp(number)
    return (mantissa * 2.0**SHORT_BITS).is_integer()
