"""Repeated layers are translated once, what is not alike is not taken for it, and the model is the same as without."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from onnxscript import opset18
from test_export_parts import aot_graphs
from torch import Tensor, fx, nn

from rust_ort.export import exporter
from rust_ort.export.plan import make_plan
from rust_ort.export.translation_cache import TranslationCache

X = torch.arange(12, dtype=torch.float32).reshape(3, 4).sin()
Program = Callable[[Tensor], Any]


class Counted:
    """How often a function was called whose nodes are kept, and how often what it wrote was written again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read = self.again = 0
        read, again = TranslationCache._read, TranslationCache._again

        def reading(once: TranslationCache, *args: Any) -> Any:
            self.read += 1
            return read(once, *args)

        def writing(once: TranslationCache, *args: Any) -> Any:
            self.again += 1
            return again(once, *args)

        monkeypatch.setattr(TranslationCache, "_read", reading)
        monkeypatch.setattr(TranslationCache, "_again", writing)


def models(gm: fx.GraphModule, **options: Any) -> list[bytes]:
    return [part.translated.model for part in make_plan(gm, name="graph", **options).parts]


def called_each_time(monkeypatch: pytest.MonkeyPatch, gm: fx.GraphModule) -> list[bytes]:
    with monkeypatch.context() as patched:
        patched.setattr(TranslationCache, "get_decomps", lambda once, target: once._registry.get_decomps(target))
        return models(gm)


def layers(n: int) -> Program:
    def program(x: Tensor) -> Tensor:
        for _ in range(n):
            x = torch.softmax(x @ x.t(), -1).mean(1, keepdim=True) * x + 0.3
        return x

    return program


def test_layers_that_are_alike_are_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    read, again = [], []
    for n in (2, 7):
        (gm,) = aot_graphs(layers(n), X)
        before = counted.read, counted.again
        assert models(gm) == called_each_time(monkeypatch, gm)
        read.append(counted.read - before[0])
        again.append(counted.again - before[1])
    assert read[0] == read[1]
    assert again[1] - again[0] >= 5 * 5  # five more layers of at least five operators


UNLIKE: dict[str, Program] = {
    "constants": lambda x: [x * 2.0, x * 3.0],
    "the sign of zero": lambda x: [torch.full_like(x, 0.0) + x, torch.full_like(x, -0.0) + x],
    "a number's type": lambda x: [x.to(torch.int64) * 2, x.to(torch.int64) + 1],
    "dtypes": lambda x: [x.sin(), x.double().sin()],
    "shapes": lambda x: [x.sum(1), x[1:].sum(1), x.reshape(4, 3).sum(1)],
    "the same tensor twice": lambda x: [x.sin() * x.cos(), x.sin() * x.sin()],
    "lists": lambda x: [x.sum((0, 1)), x.sum((1,)), x.sum((0,))],
    "keywords": lambda x: [torch.div(x, 0.3, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="trunc")],
    "what made it": lambda x: [x.to(torch.int8).sum(0), x.to(torch.int64).sum(0), (x.to(torch.int64) + 1).sum(0)],
    "numbers beside half precision": lambda x: [x.half() * 0.1, x.half() + 0.1, x.bfloat16() * 0.1, x * 0.1],
    "float64": lambda x: [x.double() * 0.1, x * 0.1, x.double() + 0.1],
    "several results": lambda x: [*x.sort(1), *x.sort(0), *x.split(2, 1), *x.split([1, 3], 1), *torch.topk(x, 2)],
    "shared constants that are given": lambda x: [torch.zeros(()) + x, torch.zeros((1,)) * x, torch.ones(()) * x],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("what", UNLIKE)
def test_what_differs_in_something_is_not_alike(monkeypatch: pytest.MonkeyPatch, what: str, dynamic: bool) -> None:
    (gm,) = aot_graphs(lambda x: [y for _ in range(2) for y in UNLIKE[what](x + 1)], X, dynamic=dynamic)
    assert models(gm) == called_each_time(monkeypatch, gm)


def test_unlike_calls_are_each_made(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    (gm,) = aot_graphs(lambda x: [x.sin(), x[1:].sin(), x.double().sin(), x.sin()], X)
    models(gm)
    sines = len(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default))
    assert counted.read >= 3
    assert counted.again == sines - 3


def test_a_transformer_is_the_same_model_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0) for _ in range(3)))
    for gm in aot_graphs(stack, X.reshape(1, 3, 4).repeat(1, 1, 2)):
        assert models(gm) == called_each_time(monkeypatch, gm)


@torch.library.custom_op("rust_ort_test::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    return x.clone()


@counted.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_a_function_of_the_users_is_called_for_each_node() -> None:
    """It may go by what is not known here."""
    calls = []

    def onnx_counted(x: Any) -> Any:
        calls.append(x)
        return opset18.Identity(x)

    (gm,) = aot_graphs(lambda x: counted(counted(counted(x))), X)
    models(gm, custom={torch.ops.rust_ort_test.counted.default: onnx_counted})
    assert len(calls) == 3


def test_nothing_of_a_graph_is_kept_when_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def once(*args: Any, **kwargs: Any) -> TranslationCache:
        new = TranslationCache(*args, **kwargs)
        made.append(weakref.ref(new))
        return new

    monkeypatch.setattr(exporter, "TranslationCache", once)
    (gm,) = aot_graphs(layers(2), X)
    models(gm)
    gc.collect()
    assert len(made) == 1
    assert made[0]() is None
