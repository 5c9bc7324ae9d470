"""Faults of a part of a step, planted in the ONNX node of a value: no larger than what rounding does to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

PLANTED = "planted"
STEPS = {TensorProto.BFLOAT16: 2.0**-7, TensorProto.FLOAT16: 2.0**-10}
"""From 1 to the next number."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """kind: of KINDS; part: how large, as a part of `error`, the largest that rounding alone makes of the value."""

    kind: str
    part: float
    error: float
    seed: int


def plant(proto: Any, value: str, fault: Fault) -> None:
    """Has the node that gives `value` give what is off. Errors: StopIteration where no node gives it."""
    graph = proto.graph
    index = next(index for index, node in enumerate(graph.node) if value in node.output)
    node = graph.node[index]
    position = list(node.output).index(value)
    before = f"{PLANTED}_in"
    node.output[position] = before
    for offset, made in enumerate(KINDS[fault.kind](graph, before, value, fault), 1):
        graph.node.insert(index + offset, made)


def _number(graph: Any, name: str, values: Any) -> str:
    graph.initializer.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
    return name


def _wide(name: str, given: str) -> Any:
    return helper.make_node("Cast", [given], [name], name=f"{name}_cast", to=TensorProto.FLOAT)


def _in_float32(graph: Any, before: str, after: str, op: str, values: Any) -> list[Any]:
    """`op` with a constant before the value is rounded."""
    by = _number(graph, f"{PLANTED}_by", values)
    narrow = _type_of(graph, after).elem_type
    return [
        _wide(f"{PLANTED}_wide", before),
        helper.make_node(op, [f"{PLANTED}_wide", by], [f"{PLANTED}_off"], name=f"{PLANTED}_{op}"),
        helper.make_node("Cast", [f"{PLANTED}_off"], [after], name=f"{PLANTED}_back", to=narrow),
    ]


def _type_of(graph: Any, value: str) -> Any:
    infos = [*graph.value_info, *graph.output]
    return next(info.type.tensor_type for info in infos if info.name == value)


def _bias(graph: Any, before: str, after: str, fault: Fault) -> list[Any]:
    return _in_float32(graph, before, after, "Add", fault.part * fault.error)


def _lost_summand(graph: Any, before: str, after: str, fault: Fault) -> list[Any]:
    """One along the last axis, of either sign."""
    width = _type_of(graph, after).shape.dim[-1].dim_value
    draw = np.random.default_rng(fault.seed)
    summand = draw.choice([-1.0, 1.0], width) * draw.uniform(0.5, 1.5, width)
    return _in_float32(graph, before, after, "Sub", fault.part * fault.error * summand)


def _factor(graph: Any, before: str, after: str, fault: Fault) -> list[Any]:
    step = STEPS[_type_of(graph, after).elem_type]
    sign = random.Random(fault.seed).choice([-1, 1])
    return _in_float32(graph, before, after, "Mul", 1 + sign * fault.part * step)


def _once_more(graph: Any, before: str, after: str, fault: Fault) -> list[Any]:
    """Rounded in the middle, as where a kernel keeps a product in half precision."""
    third = 1 + random.Random(fault.seed).random()
    narrow = _type_of(graph, after).elem_type
    names = [f"{PLANTED}_{name}" for name in ("wide", "scaled", "rounded", "again", "off")]
    return [
        _wide(names[0], before),
        helper.make_node("Mul", [names[0], _number(graph, f"{PLANTED}_by", third)], [names[1]], name=f"{names[1]}_mul"),
        helper.make_node("Cast", [names[1]], [names[2]], name=f"{names[2]}_cast", to=narrow),
        _wide(names[3], names[2]),
        helper.make_node("Div", [names[3], f"{PLANTED}_by"], [names[4]], name=f"{names[4]}_div"),
        helper.make_node("Cast", [names[4]], [after], name=f"{PLANTED}_back", to=narrow),
    ]


KINDS: dict[str, Callable[[Any, str, str, Fault], list[Any]]] = {
    "rounded once more": _once_more,
    "bias off": _bias,
    "lost summand": _lost_summand,
    "factor off": _factor,
}
"""{kind: the nodes that are put after the value's own}."""
