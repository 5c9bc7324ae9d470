"""custom_translations: an operator in the user's own ONNX form, and what is said where that does not work."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from typing import Any

import onnxscript
import pytest
import torch
import warm
from onnxscript import opset18, opset23
from support import FakeClient
from torch import Tensor
from torch.nn import functional

import rust_ort
from rust_ort.errors import ClientError, OptionError
from rust_ort.export import exporter
from rust_ort.options import Options

X = torch.arange(12.0).cos().reshape(3, 4)
local = onnxscript.values.Opset("rust_ort_test.functions", 1)


@torch.library.custom_op("rust_ort_test::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, scale: float) -> Tensor:
    return torch.sin(x) * scale


@scaled_sine.register_fake
def _(x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rust_ort_test::scaled_sine_backward", mutates_args=())
def scaled_sine_backward(grad: Tensor, x: Tensor, scale: float) -> Tensor:
    return grad * torch.cos(x) * scale


@scaled_sine_backward.register_fake
def _(grad: Tensor, x: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


def keep_for_backward(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def backward(ctx: Any, grad: Tensor) -> Any:
    return scaled_sine_backward(grad, *ctx.saved_tensors, ctx.scale), None


scaled_sine.register_autograd(backward, setup_context=keep_for_backward)


@torch.library.custom_op("rust_ort_test::halves", mutates_args=())
def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:2].clone(), x[2:].clone()


@halves.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x[:2]), torch.empty_like(x[2:])


def onnx_sine(x: Any, scale: float) -> Any:
    return opset18.Mul(opset18.Sin(x), opset18.CastLike(opset18.Constant(value_float=scale), x))


@onnxscript.script(local, default_opset=opset18)
def onnx_sine_backward(grad, x, scale: float):  # type: ignore[no-untyped-def]
    return opset18.Mul(opset18.Mul(grad, opset18.Cos(x)), opset18.Constant(value_float=scale))


def onnx_mv(matrix: Any, vector: Any) -> Any:
    column = opset18.Unsqueeze(vector, opset18.Constant(value_ints=[1]))
    return opset18.Squeeze(opset18.MatMul(matrix, column), opset18.Constant(value_ints=[1]))


def failing(x: Any, scale: float) -> Any:
    raise ValueError("no sine here")


def of_opset_23(x: Any, scale: float) -> Any:
    squares = opset23.RMSNormalization(x, opset23.CastLike(opset23.Constant(value_floats=[1.0] * 4), x), axis=-1)
    return opset23.Mul(opset23.Sin(squares), opset23.Constant(value_float=scale))


BOTH = {scaled_sine: onnx_sine, scaled_sine_backward: onnx_sine_backward}


def results(function: Callable[[Tensor], Tensor], given: Tensor = X) -> list[Tensor]:
    x = given.clone().requires_grad_()
    out = function(x)
    return [out, *torch.autograd.grad(out.square().sum(), [x])]


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend=rust_ort.backend(**options), fullgraph=True)


def model(x: Tensor) -> Tensor:
    return scaled_sine(x * 2, 3.0) + 1


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("opset", [18, 26])
@pytest.mark.parametrize(
    "translations",
    [
        BOTH,
        {torch.ops.rust_ort_test.scaled_sine: onnx_sine, "rust_ort_test::scaled_sine_backward": onnx_sine_backward},
        {
            "rust_ort_test::scaled_sine.default": onnx_sine,
            torch.ops.rust_ort_test.scaled_sine_backward.default: onnx_sine_backward,
        },
    ],
    ids=["definitions", "packet and name", "overloads"],
)
def test_an_operator_of_the_users_runs_on_onnx_runtime_forward_and_backward(
    translations: dict[Any, Any], opset: int
) -> None:
    known = len(rust_ort.graphs())
    made = results(compiled(model, custom_translations=translations, on_unsupported="error", opset=opset))
    torch.testing.assert_close(made, results(model))
    graphs = rust_ort.graphs()[known:]
    assert [graph.direction for graph in graphs] == ["forward", "backward"]
    names = ["scaled_sine", "scaled_sine_backward"]
    for graph, name in zip(graphs, names, strict=True):
        assert graph.eager == [] and any(node.startswith(name) for node in graph.parts[0])


@pytest.mark.usefixtures("daemon")
def test_each_node_of_it_can_be_compared_with_eager() -> None:
    report = rust_ort.compare(
        torch.nn.Sequential(torch.nn.Linear(4, 4), _Module()), X, backward=True,
        options={"custom_translations": BOTH, "compare": "nodes", "on_unsupported": "error"},
    )  # fmt: skip
    assert report.ok and report.nodes and report.first_wrong_node is None


class _Module(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return model(x)


def test_it_wins_over_decompositions_and_over_rules(client: FakeClient) -> None:
    known = len(rust_ort.graphs())
    translations = {"aten::mv": onnx_mv, "aten::angle": lambda x: opset18.Sub(x, x)}
    function = compiled(lambda m, v: (torch.mv(m, v), torch.angle(v)), custom_translations=translations)
    product, angle = function(X, X[0])
    torch.testing.assert_close(product, torch.mv(X, X[0]))
    assert torch.equal(angle, torch.zeros(4))
    (graph,) = rust_ort.graphs()[known:]
    assert graph.eager == [] and graph.parts == [["mv", "angle"]]
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(torch.angle)(X), torch.angle(X))


def test_without_its_translation_the_operator_runs_in_eager(client: FakeClient) -> None:
    known = len(rust_ort.graphs())
    torch.testing.assert_close(results(compiled(model)), results(model))
    for graph in rust_ort.graphs()[known:]:
        reason = f"torchlib has no function for {graph.eager[0].op}; the option custom_translations takes one"
        assert [node.reason for node in graph.eager] == [reason]


def test_it_holds_for_the_compilation_that_names_it_alone(client: FakeClient) -> None:
    compiled(torch.relu, custom_translations={"aten::relu": failing})(X)
    assert [node.op for node in rust_ort.graphs()[-1].eager] == ["aten.relu.default"]
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(torch.relu)(X), torch.relu(X))
    assert rust_ort.graphs()[-1].eager == []


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (failing, rf"custom translation failing, {__file__}:\d+: ValueError: no sine here"),
        (lambda x, scale: None, r"custom translation <lambda> returned None, expected an ONNX value"),
        (lambda x, scale: scale, r"custom translation <lambda> returned 3.0, expected an ONNX value"),
        (lambda x, scale: (x, x), r"returned 2 value\(s\), rust_ort_test.scaled_sine.default returns 1"),
        (lambda x: opset18.Sin(x), rf"custom translation <lambda>, {__file__}:\d+: TypeError: .*takes 1 positional"),
        (of_opset_23, "Constant of opset 23, the model has opset 18; set option opset to 23 or more"),
        (lambda x, scale: opset18.Cast(x, to=7), "ONNX Runtime refused"),
    ],
    ids=["raises", "None", "number", "two", "arguments", "opset", "dtype"],
)
def test_a_translation_that_fails_is_told_of(client: FakeClient, function: Any, text: str) -> None:
    known = len(rust_ort.graphs())
    torch.testing.assert_close(compiled(model, custom_translations={scaled_sine: function})(X), model(X))
    (graph,) = rust_ort.graphs()[known:]
    (node,) = graph.eager
    assert node.name == "scaled_sine"
    assert re.search(text, node.reason), node.reason
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    with pytest.raises(ClientError, match=text) as raised:
        compiled(model, custom_translations={scaled_sine: function}, on_unsupported="error")(X)
    message = str(raised.value)
    assert "scaled_sine (rust_ort_test.scaled_sine.default)" in message
    assert f"{__file__}:{model.__code__.co_firstlineno + 1}" in message


def test_an_operator_of_two_results(client: FakeClient) -> None:
    def split(x: Any) -> Any:
        first, two, last = (opset18.Constant(value_ints=[at]) for at in (0, 2, 3))
        return opset18.Slice(x, first, two), opset18.Slice(x, two, last)

    known = len(rust_ort.graphs())
    translations = {halves: split}
    for made, expected in zip(compiled(halves, custom_translations=translations)(X), halves(X), strict=True):
        assert torch.equal(made, expected)
    assert rust_ort.graphs()[known].eager == []
    torch._dynamo.reset()
    compiled(halves, custom_translations={halves: lambda x: opset18.Identity(x)})(X)
    (node,) = rust_ort.graphs()[-1].eager
    assert "returned 1 value(s), rust_ort_test.halves.default returns 2" in node.reason


@pytest.mark.parametrize("opset", [23, 26])
def test_it_may_be_written_at_the_models_opset_or_below(client: FakeClient, opset: int) -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.sin(functional.rms_norm(x, (4,))) * 3

    options = {"custom_translations": {scaled_sine: of_opset_23}, "on_unsupported": "error", "opset": opset}
    torch.testing.assert_close(compiled(lambda x: scaled_sine(x, 3.0), **options)(X), norm(X), atol=1e-5, rtol=1e-5)


@torch.library.custom_op("rust_ort_test::attend", mutates_args=())
def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True), query.max()


@attend.register_fake
def _attend_fake(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(())


@pytest.mark.parametrize("opset", [23, 24, 25, 26])
def test_attention_of_opset_23_means_the_same_above(client: FakeClient, opset: int) -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        attended, *_ = opset23.Attention(query, key, value, is_causal=1)
        return attended, opset23.ReduceMax(query, keepdims=0)

    heads = torch.arange(2 * 4 * 6 * 8, dtype=torch.float32).sin().reshape(2, 4, 6, 8)
    options = {"custom_translations": {attend: attention}, "on_unsupported": "error", "opset": opset}
    made = compiled(lambda x: attend(x, x * 2, x * 3), **options)(heads)
    torch.testing.assert_close(made, attend(heads, heads * 2, heads * 3))


def test_a_plan_is_kept_for_later_processes_only_with_cache_keys(client: FakeClient) -> None:
    def keyed(x: Any, scale: float) -> Any:
        return onnx_sine(x, scale)

    keyed.cache_key = "1"  # type: ignore[attr-defined]
    compiled(torch.tanh)(X)
    for function, kept in ((onnx_sine, False), (keyed, True)):
        torch._dynamo.reset()
        before = set(client.plans)
        compiled(model, custom_translations={scaled_sine: function})(X)
        (made,) = set(client.plans) - before
        assert bool(client.plans[made]) is kept
    keys = set(client.plans)
    torch._dynamo.reset()
    compiled(model, custom_translations={scaled_sine: keyed})(X)
    assert set(client.plans) == keys
    keyed.cache_key = "2"  # type: ignore[attr-defined]
    torch._dynamo.reset()
    compiled(model, custom_translations={scaled_sine: keyed})(X)
    assert len(set(client.plans) - keys) == 1


@pytest.mark.parametrize(
    ("translations", "text"),
    [
        ([onnx_sine], "expected a dict {torch operator: onnxscript function}"),
        ({"sine": onnx_sine}, 'expected "namespace::name" or "namespace::name.overload", got \'sine\''),
        (
            {"rust_ort_test::scaled_sinus": onnx_sine},
            "no operator rust_ort_test::scaled_sinus is .*; did you mean 'rust_",
        ),
        ({"aten::gelu.out2": onnx_sine}, "aten.gelu has no overload 'out2'; it has aten.gelu.default, aten.gelu.out"),
        ({"aten::mul": onnx_sine}, "aten.mul has no default overload; name one of aten.mul.Tensor, aten.mul.Scalar"),
        ({torch.sin: onnx_sine}, "expected an operator, such as torch.ops.aten.gelu.default or .*, got <built-in"),
        ({torch.ops.higher_order.cond: onnx_sine}, "expected an operator"),
        ({"aten::relu_": onnx_sine}, "aten.relu_.default writes to its inputs"),
        ({"aten::rms_norm": onnx_sine}, "aten.rms_norm.default is composite: torch takes it apart"),
        ({"aten::gelu": 3}, "an onnxscript function for aten.gelu.default, got 3"),
        ({"aten::gelu": math.sqrt, torch.ops.aten.gelu.default: math.sqrt}, "two functions for aten.gelu.default"),
    ],
)
def test_what_is_no_operator_or_function_is_an_error(translations: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        Options.parse({"custom_translations": translations})


def test_the_environment_names_operators_and_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"aten::gelu={__name__}:onnx_sine,aten::mul.Tensor={__name__}:onnx_mv"
    monkeypatch.setenv("RUST_ORT_CUSTOM_TRANSLATIONS", text)
    expected = {torch.ops.aten.gelu.default: onnx_sine, torch.ops.aten.mul.Tensor: onnx_mv}
    assert Options.parse({}).custom_translations == expected
    monkeypatch.setenv("RUST_ORT_CUSTOM_TRANSLATIONS", f"aten::gelu={__name__}:missing")
    with pytest.raises(OptionError, match=r"variable RUST_ORT_CUSTOM_TRANSLATIONS: .*module:function .*missing"):
        Options.parse({})


def test_a_graph_of_custom_operators_alone_makes_the_registry_itself(client: FakeClient) -> None:
    compiled(torch.tanh)(X)  # the decomposition table is known, as in a warm process
    exporter._with.cache_clear()
    made = compiled(lambda x: scaled_sine(x, 3.0), custom_translations={scaled_sine: onnx_sine})(X)
    torch.testing.assert_close(made, scaled_sine(X, 3.0))


LIBRARY_IMPORTED_LATE = """
import importlib.machinery, sys, types
import torch
from rust_ort.export import exporter

before = exporter.registry()
module = sys.modules["torchvision"] = types.ModuleType("torchvision")
module.__spec__ = importlib.machinery.ModuleSpec("torchvision", None)
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
nms = torch.ops.torchvision.nms.default
print(before.is_registered(nms), exporter.registry().is_registered(nms), exporter.registry() is exporter.registry())
"""


def test_torchlibs_functions_of_a_library_that_is_imported_late_are_found() -> None:
    done = warm.run([sys.executable, "-c", LIBRARY_IMPORTED_LATE], check=True)
    assert done.stdout.split() == ["False", "True", "True"]
