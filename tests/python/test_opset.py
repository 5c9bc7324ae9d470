"""Models at every opset that torchlib and ONNX Runtime share: the results are eager's and the names stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from test_export_parts import aot_graphs
from torch import Tensor, fx
from torch.nn import functional

import rust_ort
from rust_ort.export import attention
from rust_ort.export.opset import CHANGED, OpsetError, raise_nodes
from rust_ort.export.plan import make_plan
from rust_ort.observe.graph_info import GraphInfo, GraphLog
from rust_ort.options import HIGHEST_OPSET, LOWEST_OPSET
from rust_ort.runtime import compilation
from rust_ort.studies import llama_models

HIGHER = range(LOWEST_OPSET + 1, HIGHEST_OPSET + 1)
IMAGE = torch.arange(2 * 4 * 9 * 7, dtype=torch.float32).sin().reshape(2, 4, 9, 7)
GRID = torch.arange(2 * 5 * 4 * 2, dtype=torch.float32).cos().reshape(2, 5, 4, 2) * 1.2


def resize(x: Tensor) -> list[Tensor]:
    nearest = functional.interpolate(x, scale_factor=2.0, mode="nearest")
    linear = functional.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True)
    return [nearest, linear, functional.interpolate(x, size=(12, 5), mode="bicubic", align_corners=False)]


def sample_grid(x: Tensor) -> list[Tensor]:
    modes = [("bilinear", "zeros"), ("nearest", "border"), ("bicubic", "reflection")]
    return [functional.grid_sample(x, GRID, mode, padding, align_corners=False) for mode, padding in modes]


def pad(x: Tensor) -> list[Tensor]:
    constant = functional.pad(x, (1, -2, 0, 3), value=2.5)
    return [constant, *(functional.pad(x, (2, 1, 1, 2), mode) for mode in ("reflect", "replicate", "circular"))]


def reduce(x: Tensor) -> list[Tensor]:
    found = [x.sum(1), x.mean((2, 3), keepdim=True), x.amax(1), x.amin((0, 2)), x.prod(1), x.logsumexp(-1), x.var(1)]
    return [*found, x.norm(dim=1), x.abs().sum(), (x > 0).any(1), (x > -2).all(2), x.to(torch.int64).sum(1)]


def rearrange(x: Tensor) -> list[Tensor]:
    first, second = x.split([1, 3], 1)
    folded = x.permute(0, 2, 3, 1).flatten(1, 2).unsqueeze(1).squeeze(1)
    repeated = x.expand(3, *x.shape).clone()
    triangle = x.new_zeros(x.shape) + x.tril() + torch.eye(9, 7)
    views = [first, second, folded, *x.chunk(3, 3), x.reshape(4, -1).t(), *x.unbind()]  # as outputs they stay in torch
    return [*(view * 1.5 for view in views), repeated, triangle, x.roll(2, 1)]


def convert(x: Tensor) -> list[Tensor]:
    wide = x.double().float()
    whole = (x * 100).to(torch.int32).to(torch.int64)
    return [wide, x.half().float() * 2, whole, (x > 0).float(), whole.bool(), x.isnan(), torch.zeros_like(x).isinf()]


def select(x: Tensor) -> list[Tensor]:
    largest, where = x.topk(3, 2)
    smallest, order = x.sort(3)
    index = torch.tensor([2, 0, 1])
    picked = [x.index_select(1, index), x.gather(1, where % 4), torch.where(x > 0, x, -x), x.masked_fill(x < 0, 7.0)]
    return [largest, where, smallest, order, *picked, x.scatter(1, where % 4, 1.0), x.cumsum(1), x.clamp(-0.5, 0.5)]


def convolve(x: Tensor) -> list[Tensor]:
    weight = torch.arange(6 * 4 * 3 * 3, dtype=torch.float32).cos().reshape(6, 4, 3, 3)
    moved = functional.conv_transpose2d(x, weight.transpose(0, 1), stride=2, padding=1)
    return [functional.conv2d(x, weight, padding=1, stride=2), moved, functional.conv2d(x, weight, dilation=2)]


def pool(x: Tensor) -> list[Tensor]:
    average = functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    largest, where = functional.max_pool2d(x, 3, 2, 1, ceil_mode=True, return_indices=True)
    return [average, largest, where, functional.avg_pool1d(x[0], 3, 2, 1), functional.adaptive_avg_pool2d(x, 1)]


def normalize(x: Tensor) -> list[Tensor]:
    means, deviations, weight = torch.zeros(4), torch.ones(4), torch.arange(4.0)
    batch = functional.batch_norm(x, means, deviations, weight, weight)
    instance, group = functional.instance_norm(x), functional.group_norm(x, 2, weight, weight)
    return [batch, instance, group, functional.layer_norm(x, (7,)), functional.rms_norm(x, (9, 7)), x.softmax(1)]


def activate(x: Tensor) -> list[Tensor]:
    named = ["gelu", "silu", "mish", "elu", "selu", "hardswish", "hardsigmoid", "softplus", "softsign", "leaky_relu"]
    smooth = [x.sin(), x.cos(), x.tan(), x.atan(), x.sinh(), x.asinh(), x.tanh(), x.round(), x.erf(), x.sigmoid()]
    return [*(getattr(functional, name)(x) for name in named), *smooth, functional.gelu(x, approximate="tanh")]


def attend(x: Tensor) -> list[Tensor]:
    return [functional.scaled_dot_product_attention(x, x, x, is_causal=True)]


FUNCTIONS = [activate, attend, convert, convolve, normalize, pad, pool, rearrange, reduce, resize, sample_grid, select]
IN_EAGER = {"convolve", "pad", "pool", "resize", "sample_grid", "select", "reduce", "activate"}
"""Functions whose backward is not all translated."""


def results(function: Callable[[Tensor], list[Tensor]], given: Tensor) -> list[Tensor]:
    """Outputs, and the gradient of what can be differentiated."""
    x = given.clone().requires_grad_()
    outputs = function(x)
    summed = sum((out.float() * torch.arange(out.numel()).cos().reshape(out.shape)).sum() for out in outputs)
    return [*outputs, *torch.autograd.grad(summed, [x])]


@dataclass(frozen=True, kw_only=True)
class Traced:
    """An AOT graph, on its way when the backend got it, with what it was given and what came out."""

    compilation: Any
    direction: str
    gm: fx.GraphModule
    inputs: list[Any]
    outputs: list[Any]

    def at(self, opset: int) -> tuple[list[Any], GraphInfo]:
        """The outputs at another opset, and what is known of the graph there."""
        options = dataclasses.replace(self.compilation.options, opset=opset)
        log = GraphLog()
        one = dataclasses.replace(self.compilation, options=options, made={}, collected=log)
        call = compilation._compile_aot_graph(one, dict, self.direction, self.gm, self.inputs)
        outputs = call(list(self.inputs))
        (info,) = log.list()
        return list(outputs), info


def traced(run: Callable[[Any], Any], patch: pytest.MonkeyPatch, **options: Any) -> list[Traced]:
    """Forward and backward at the highest opset, traced once: that takes longer than all the rest. run: given the
    backend, compiles, calls and judges."""
    found = []
    compile_graph = compilation._compile_aot_graph

    def kept(
        one: Any, table: Any, direction: str, gm: fx.GraphModule, example_inputs: Any
    ) -> Callable[[list[Any]], Any]:
        call = compile_graph(one, table, direction, gm, example_inputs)

        def calling(args: list[Any]) -> Any:
            inputs = [arg.clone() if isinstance(arg, Tensor) else arg for arg in args]
            outputs = call(args)
            found.append(Traced(compilation=one, direction=direction, gm=gm, inputs=inputs, outputs=list(outputs)))
            return outputs

        calling._boxed_call = True  # type: ignore[attr-defined]
        return calling

    with patch.context() as patched:
        patched.setattr(compilation, "_compile_aot_graph", kept)
        torch._dynamo.reset()
        run(rust_ort.backend(opset=HIGHEST_OPSET, **options))
    assert [graph.direction for graph in found] == ["forward", "backward"]
    return found


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_operators_equal_eager_at_every_opset(
    function: Callable[[Tensor], list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(backend: Any) -> None:
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        torch.testing.assert_close(results(compiled, IMAGE), results(function, IMAGE))

    forward, backward = traced(run, monkeypatch)
    for opset in HIGHER:
        for graph in (forward, backward):
            outputs, info = graph.at(opset)
            whole = graph is forward or function.__name__ not in IN_EAGER
            assert info.parts and (info.eager == [] or not whole), f"opset {opset}: {info.eager}"
            torch.testing.assert_close(outputs, graph.outputs, msg=lambda text, at=opset: f"opset {at}: {text}")


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("dtype", "opsets"), [(torch.float32, HIGHER), (torch.bfloat16, (23, 26))], ids=["float32", "bfloat16"]
)
def test_a_llama_decoder_equals_eager_at_every_opset(
    dtype: torch.dtype, opsets: Iterable[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = llama_models.build("decoder", llama_models.SIZES["small"])
    inputs = [given.detach().to(dtype) for given in study.inputs]
    inputs[0].requires_grad_()

    def run(backend: Any) -> None:
        output = torch.compile(study.module.to(dtype), backend=backend, fullgraph=True)(*inputs)
        (output.float() * torch.arange(output.numel()).cos().reshape(output.shape)).sum().backward()

    graphs = traced(run, monkeypatch, compare="outputs", on_unsupported="error")
    for opset in opsets:
        for graph in graphs:
            _, info = graph.at(opset)
            where = f"{graph.direction} at opset {opset}"
            assert (info.direction, len(info.parts)) == (graph.direction, 1), where
            verdicts = [verdict for _, verdict in info.verdicts]
            assert verdicts and {verdict.kind for verdict in verdicts} == {"match"}, f"{where}: {verdicts}"


@pytest.mark.usefixtures("served")
def test_every_node_can_be_compared_at_the_highest() -> None:
    study = llama_models.build("decoder", llama_models.SIZES["small"])
    options = {"opset": HIGHEST_OPSET, "compare": "nodes"}
    report = rust_ort.compare(study.module, *study.inputs, backward=True, options=options)
    assert report.ok and report.nodes and report.first_wrong_node is None, str(report)


@pytest.mark.parametrize("function", [resize, sample_grid, rearrange, attend], ids=lambda function: function.__name__)
def test_names_and_provenance_are_those_of_the_lowest(function: Callable[[Tensor], list[Tensor]]) -> None:
    (gm,) = aot_graphs(function, IMAGE)
    lowest, *others = ([part.translated for part in make_plan(gm, name="g", opset=at).parts] for at in (18, 21, 26))
    for parts, opset in zip(others, (21, 26), strict=True):
        for part, known in zip(parts, lowest, strict=True):
            model = onnx.load_model_from_string(part.model)
            onnx.checker.check_model(model)
            ours = [(attention.DOMAIN, attention.VERSION)] if model.functions else []
            assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset), *ours]
            assert all([entry.version for entry in made.opset_import] == [opset] for made in model.functions)
            assert {**vars(part), "model": b""} == {**vars(known), "model": b""}


def raised(node: onnx.NodeProto, *, written: int, opset: int) -> onnx.NodeProto:
    graph = ir.Graph([], [], nodes=[ir.from_proto(node)], opset_imports={"": LOWEST_OPSET})
    graph[0].version = written
    raise_nodes(list(graph), opset)
    return ir.to_proto(graph[0])


@pytest.mark.parametrize(("mode", "expected"), [("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic")])
def test_the_modes_of_grid_sample_get_their_new_names(mode: str, expected: str) -> None:
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode)
    assert raised(node, written=18, opset=19) == node
    assert raised(node, written=18, opset=20) == helper.make_node("GridSample", ["x", "grid"], ["y"], mode=expected)


def test_a_default_mode_is_the_mode_that_was_the_default() -> None:
    node = raised(helper.make_node("GridSample", ["x", "grid"], ["y"]), written=16, opset=26)
    assert [(entry.name, entry.s) for entry in node.attribute] == [("mode", b"linear")]


@pytest.mark.parametrize(
    ("operator", "written", "opset", "text"),
    [
        ("DFT", 18, 20, "DFT of opset 17, which means something else from opset 20 on"),
        ("GroupNormalization", 18, 26, "GroupNormalization of opset 18, which means something else from opset 21 on"),
        ("RMSNormalization", 23, 18, "RMSNormalization of opset 23, the model has opset 18; set option opset to 23"),
        ("Reshape", 21, 20, "Reshape of opset 21, the model has opset 20"),
    ],
)
def test_a_node_that_would_mean_something_else_is_an_error(operator: str, written: int, opset: int, text: str) -> None:
    with pytest.raises(OpsetError, match=text):
        raised(helper.make_node(operator, ["x"], ["y"]), written=written, opset=opset)


@pytest.mark.parametrize(("operator", "written", "opset"), [("Add", 23, 18), ("DFT", 20, 20), ("Attention", 23, 26)])
def test_a_node_that_means_the_same_is_left_as_it_is(operator: str, written: int, opset: int) -> None:
    node = helper.make_node(operator, ["x"], ["y"])
    assert raised(node, written=written, opset=opset) == node


def test_every_operator_whose_attributes_or_inputs_changed_is_looked_after() -> None:
    """Defaults, kinds and order of attributes and inputs: a later opset may only add optional ones."""

    def shape(schema: Any) -> tuple[list[Any], dict[str, str]]:
        inputs = [(given.name, given.option) for given in schema.inputs]
        return inputs, {name: f"{kind.type} {kind.default_value}" for name, kind in schema.attributes.items()}

    changed = set()
    history = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain]
    for name in {schema.name for schema in history if schema.since_version <= LOWEST_OPSET}:
        before = onnx.defs.get_schema(name, LOWEST_OPSET)
        (inputs, attributes), (new_inputs, new_attributes) = map(shape, (before, onnx.defs.get_schema(name, 26)))
        kept = {key: value for key, value in new_attributes.items() if key in attributes}
        if kept != attributes or new_inputs[: len(inputs)] != inputs:
            changed.add(name)
    assert changed == {"DFT", "GridSample"}
    assert changed < set(CHANGED)
