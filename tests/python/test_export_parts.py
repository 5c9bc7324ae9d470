"""Partition, translation, provenance: what a part is made of."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from functorch.compile import make_boxed_func
from onnx import numpy_helper
from support import FakeClient, use_client
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx.experimental.proxy_tensor import make_fx

import rust_ort
from rust_ort.errors import ClientError
from rust_ort.export import decompositions, exporter, partition, translate
from rust_ort.export.plan import make_plan
from rust_ort.export.provenance import module_path, parameter_name
from rust_ort.export.shapes import Binder
from rust_ort.export.value_info import drop_contradicted


def aot_graphs(function: Any, *args: Any, dynamic: bool = False) -> list[fx.GraphModule]:
    """Forward and backward AOT graphs of `function`, run in eager."""
    torch._dynamo.reset()
    found: list[fx.GraphModule] = []

    def keep(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(gm)
        return make_boxed_func(gm.forward)

    compiled = torch.compile(
        function, backend=aot_autograd(fw_compiler=keep, decompositions=decompositions.table), dynamic=dynamic
    )
    out = compiled(*args)
    if isinstance(out, torch.Tensor) and out.requires_grad:
        out.sum().backward()
    return found


@torch.library.custom_op("rust_ort_test::marked", mutates_args=())
def marked(x: torch.Tensor, place: int) -> torch.Tensor:
    return x.clone()


@marked.register_fake
def _(x: torch.Tensor, place: int) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("seed", range(40))
def test_custom_operators_run_in_the_order_of_the_program(seed: int) -> None:
    """They may do more than their schema says; a collective waits for the one that the other ranks begin."""
    rng = random.Random(seed)
    places = itertools.count()

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        values = [x]
        for _ in range(14):
            value = rng.choice(values)
            if rng.random() < 0.4:
                values.append(marked(value, next(places)))
            else:
                values.append(torch.cos(value) + rng.choice(values))
        return values[-6:]

    gm = make_fx(function, tracing_mode="fake")(torch.randn(3))
    gm.graph.eliminate_dead_code()

    def order(graph: fx.Graph) -> list[Any]:
        return [node.args for node in graph.nodes if node.target is torch.ops.rust_ort_test.marked.default]

    expected = [args[1] for args in order(gm.graph)]
    outer = partition.partition(gm, partition.Support()).outer.graph
    assert [args[1] for args in order(outer)] == expected and all(len(args) == 2 for args in order(outer))


def test_every_compute_node_is_in_one_part_or_in_eager_with_a_reason() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve(x @ x + 4 * torch.eye(3), x.relu())
        return torch.fft.fft(y).abs() + torch.rand_like(y)

    for gm in aot_graphs(function, torch.randn(3, 3, requires_grad=True)):
        plan = make_plan(gm, name="g")
        expected = [node.name for node in gm.graph.nodes if partition.is_compute(node)]
        got = [name for part in plan.parts for name in part.graph.compute_nodes]
        got += [node.name for node in plan.cut.eager]
        assert sorted(got) == sorted(expected)
        assert plan.cut.compute_nodes == len(expected)
        assert all(node.reason for node in plan.cut.eager)
        assert any("test_export_parts.py" in node.source for node in plan.cut.eager)
        described = json.loads(plan.cut.parts_json())
        assert described["schema"] == 1
        assert described["compute_nodes"] == len(expected)
        assert described["eager_nodes"] == len(plan.cut.eager)


def test_fx_names_are_onnx_names_and_every_node_has_a_value_that_a_node_produces() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.BatchNorm1d(4), nn.Softmax(-1))
    for gm in aot_graphs(lambda x: module(x).t().t(), torch.randn(3, 4, requires_grad=True)):
        for part in make_plan(gm, name="g").parts:
            model = onnx.load_model_from_string(part.translated.model)
            onnx.checker.check_model(model)
            produced = {value for node in model.graph.node for value in node.output}
            assert not model.functions
            assert not any(node.metadata_props for node in model.graph.node)
            assert len({node.name for node in model.graph.node}) == len(model.graph.node)
            assert [value.name for value in model.graph.input] == part.translated.input_names
            assert [value.name for value in model.graph.output] == part.translated.output_names
            for name in part.graph.compute_nodes:
                assert part.translated.fx_values[name] in produced
            assert set(part.translated.onnx_nodes) <= {node.name for node in model.graph.node}


def test_translation_is_the_same_text_twice() -> None:
    (gm,) = aot_graphs(lambda x: torch.softmax(x * 2, -1) + 1, torch.randn(3, 4))
    first, second = (make_plan(gm, name="g").parts[0].translated.model for _ in range(2))
    assert first == second


def test_unused_inputs_are_pruned_and_the_graph_is_left_as_it_was() -> None:
    (gm,) = aot_graphs(lambda x, y: (torch.zeros_like(x) + y, x.shape[0]), torch.randn(3), torch.randn(3))
    before = str(gm.graph)
    (part,) = make_plan(gm, name="g").parts
    assert len(part.translated.input_names) == 1
    assert str(gm.graph) == before


def test_a_missing_exporter_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.onnx._internal.exporter import _core

    exporter.private.cache_clear()
    monkeypatch.delattr(_core, "_translate_fx_graph")
    with pytest.raises(exporter.ExporterMissing, match=r"_translate_fx_graph .* made for torch>=2\.11,<2\.16"):
        exporter.private()
    monkeypatch.undo()
    exporter.private.cache_clear()


def test_a_node_whose_translation_fails_goes_to_eager_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    (gm,) = aot_graphs(lambda x: torch.tanh(x * 2) + 1, torch.randn(3))
    original = translate.translate

    def failing(module: fx.GraphModule, **kwargs: Any) -> Any:
        for node in module.graph.nodes:
            if node.op == "call_function" and "tanh" in node.name:
                raise translate.TranslationError("\nValueError: planted\n\nOriginal traceback:\n  line", node.name)
        return original(module, **kwargs)

    monkeypatch.setattr(translate, "translate", failing)
    plan = make_plan(gm, name="g")
    assert [node.name for node in plan.cut.eager] == ["tanh"]
    assert plan.cut.eager[0].reason == "its translation failed: ValueError: planted"
    assert len(plan.parts) == 2


def test_sizes_are_computed_from_the_inputs_of_a_part() -> None:
    (gm,) = aot_graphs(lambda x, y: torch.cat([x.reshape(-1), y]) * 2, torch.randn(3, 4), torch.randn(5), dynamic=True)
    (part,) = make_plan(gm, name="g").parts
    assert part.layout.symbolic
    names = part.translated.input_names
    placeholders = {node.name: node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"}
    binder = Binder([placeholders[name] for name in names])
    assert binder is not None
    tensors = {2: torch.randn(7, 2), 1: torch.randn(6)}
    sizes = iter([7, 2, 6])
    inputs = [tensors[v.dim()] if isinstance((v := placeholders[n]), torch.Tensor) else next(sizes) for n in names]
    ((dtype, shape, stride),) = part.layout.specs(inputs)
    assert (dtype, shape, stride) == (torch.float32, (20,), None)


def test_parameter_names_are_read_from_dynamos_sources() -> None:
    assert parameter_name("L['self']._modules['layer']._modules['0']._parameters['weight']") == "layer.0.weight"
    assert parameter_name("L['self'].lin.weight") == "lin.weight"
    assert parameter_name("L['x']") == "x"
    assert parameter_name("L['batch']['ids']") == "batch.ids"
    assert parameter_name("L['fn']._modules['0']._parameters['weight']") == "0.weight"
    assert parameter_name("L['fn']") == "fn"


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fn = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x)


@pytest.mark.parametrize(
    ("model", "expected"),
    [(nn.Linear(4, 4), {""}), (nn.Sequential(nn.Linear(4, 4), nn.Tanh()), {"0", "1"}), (Named(), {"fn.0", "fn.1"})],
)
def test_modules_are_named_from_the_model_on(model: nn.Module, expected: set[str], client: FakeClient) -> None:
    """torch wraps its own modules in a function, whose argument `fn` they are."""
    backend = rust_ort.backend()
    torch.compile(model, backend=backend)(torch.randn(2, 4)).sum().backward()
    for graph in backend.graphs:
        paths = {module_path(node) for node in graph.code()._plan.cut.module.graph.nodes if partition.is_compute(node)}
        assert expected - {""} <= paths and not any(path.startswith("fn") for path in paths - expected), paths


def test_provenance_joins_values_lines_modules_and_parameters() -> None:

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).relu()

    torch._dynamo.reset()
    fake = FakeClient()
    with pytest.MonkeyPatch.context() as patch:
        use_client(patch, fake)
        torch.compile(Model(), backend=rust_ort)(torch.randn(4, 3)).sum().backward()
    forward, backward = (json.loads(part.spec.provenance_json) for part in fake.parts)
    assert {entry["of"] for entry in forward["inputs"]} == {"inner.weight", "inner.bias", "x"}
    assert "GradAOTOutput" in {entry["role"] for entry in backward["outputs"]}
    assert "inner.weight" in {entry["of"] for entry in backward["outputs"]}
    assert {entry["module"] for entry in forward["values"].values()} >= {"inner"}
    assert all("test_export_parts.py" in entry["source"] for entry in forward["values"].values())
    spec = fake.parts[0].spec.graph
    assert spec.name.endswith("-forward")
    assert "relu" in spec.dynamo_text
    assert "tangents_1" in spec.joint_text
    assert "primals_1" in spec.fx_text


def test_nodes_inlined_from_a_torchlib_function_keep_their_fx_node() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.special.erf(x) + torch.erf(x * 2)

    (gm,) = aot_graphs(function, torch.randn(3))
    (part,) = make_plan(gm, name="g").parts
    nodes = {node.name: node.op_type for node in onnx.load_model_from_string(part.translated.model).graph.node}
    of_erf = {part.translated.onnx_nodes.get(name) for name, op_type in nodes.items() if op_type == "Erf"}
    assert of_erf == {"erf", "erf_1"}


def test_an_exporter_that_is_missing_is_an_error_not_a_reason_for_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    (gm,) = aot_graphs(lambda x: x + 1, torch.randn(3))

    def missing() -> Any:
        raise exporter.ExporterMissing("no exporter")

    monkeypatch.setattr(exporter, "private", missing)
    with pytest.raises(exporter.ExporterMissing):
        make_plan(gm, name="g")


class Unnaming(FakeClient):
    """Refuses models with a Sin, and does not say why."""

    def part(self, spec: Any, options: Any) -> Any:
        if "Sin" in {node.op_type for node in onnx.load_model_from_string(spec.model).graph.node}:
            raise ClientError("it is no good", code="BAD_MODEL", graph=spec.graph.name)
        return super().part(spec, options)


def sines(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).exp().relu()
    return (y.sin() + y.cos()).tanh() - y.sin()


def test_a_node_that_the_runtime_refuses_without_a_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    use_client(monkeypatch, Unnaming())
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    x = torch.linspace(-1, 1, 5)
    torch.testing.assert_close(torch.compile(sines, backend="rust_ort")(x), sines(x))
    (graph,) = rust_ort.graphs()[known:]
    assert {node.op for node in graph.eager} == {"aten.sin.default"}
    assert all("it is no good" in node.reason and "sin" in node.reason for node in graph.eager)
    assert sum(map(len, graph.parts)) + len(graph.eager) == graph.compute_nodes > len(graph.eager)


def test_such_a_node_is_named_where_nothing_may_run_in_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    use_client(monkeypatch, Unnaming())
    torch._dynamo.reset()
    strict = torch.compile(sines, backend="rust_ort", options={"on_unsupported": "error"})
    with pytest.raises(Exception, match=r"sin \(aten\.sin\.default\).*it is no good"):
        strict(torch.ones(3))


def test_a_determinant_runs_in_eager_and_what_is_around_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.det(x * 2) + 1

    use_client(monkeypatch, FakeClient())
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    x = torch.tensor([[1.0, 2.0], [4.0, 3.0]])
    torch.testing.assert_close(torch.compile(scaled, backend="rust_ort")(x), scaled(x))
    (graph,) = rust_ort.graphs()[known:]
    assert [node.op for node in graph.eager] == ["aten._linalg_det.default"] and graph.parts


@pytest.mark.usefixtures("served")
def test_a_transformed_model_tells_no_shape_that_its_nodes_contradict() -> None:
    """The rewrites believe what is told: a sum over another axis, of which the old shape was left in the model."""

    def over_the_first_axis(model: onnx.ModelProto) -> None:
        (node,) = [node for node in model.graph.node if node.op_type == "ReduceSum"]
        (told,) = [info for info in model.graph.value_info if info.name == node.output[0]]
        assert [size.dim_value for size in told.type.tensor_type.shape.dim] == [4, 1]
        model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
        node.input[1] = "first"

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) * (x * 2).sum(-1, keepdim=True) + x

    torch._dynamo.reset()
    x = torch.randn(4, 6)
    made = torch.compile(scaled, backend="rust_ort", options={"transforms": [over_the_first_axis]})(x)
    torch.testing.assert_close(made, torch.exp(x) * (x * 2).sum(0, keepdim=True) + x)


def test_what_shape_inference_cannot_tell_stays() -> None:
    info = onnx.helper.make_tensor_value_info
    sizes = [info(name, onnx.TensorProto.FLOAT, dims) for name, dims in (("x", [2, 3]), ("a", [3, 2]), ("b", [5, 5]))]
    nodes = [
        onnx.helper.make_node("Neg", ["x"], ["a"]),
        onnx.helper.make_node("Own", ["a"], ["b"], domain="mine"),
        onnx.helper.make_node("Own", ["b"], ["y"], domain="mine"),
    ]
    graph = onnx.helper.make_graph(
        nodes, "g", sizes[:1], [info("y", onnx.TensorProto.FLOAT, ["n"])], value_info=sizes[1:]
    )
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("mine", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    drop_contradicted(model)
    told = {known.name: known for known in model.graph.value_info}
    assert told == {"a": info("a", onnx.TensorProto.FLOAT, [2, 3]), "b": sizes[2]}


def test_rows_in_an_order_of_eagers_alone_meet_the_same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsorted, torch's kernel gives what is largest as its search leaves it, and dropout goes by the place."""

    def chosen(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x[torch.topk(scores, 20, sorted=False)[1]]

    def dropped(scores: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(chosen(scores, x), 0.5, training=True).sum(0)

    use_client(monkeypatch, FakeClient())
    torch._dynamo.reset()
    scores, x = torch.randn(24), torch.randn(24, 8)
    results = []
    for function in (dropped, torch.compile(dropped, backend="rust_ort")):
        torch.manual_seed(1)
        results.append(function(scores, x))
    torch.testing.assert_close(*results)
    assert partition.UNSORTED in {node.reason for node in rust_ort.graphs()[-1].eager}
    torch.testing.assert_close(
        torch.compile(lambda *given: chosen(*given).sum(0), backend="rust_ort")(scores, x), chosen(scores, x).sum(0)
    )
    assert not rust_ort.graphs()[-1].eager
