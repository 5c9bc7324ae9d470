"""Graphs that are traced for CUDA tensors, without a GPU: they become ONNX as those of the CPU do, and CPU tensors give
eager's numbers in them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import onnx
import pytest
import torch
from onnx import helper
from support import FakeClient
from torch import Tensor, fx
from torch.nn import functional

import rust_ort
from measure import op_census
from measure.architectures import TABLE
from measure.cuda_graphs import trace
from measure.op_census_runs import Run
from rust_ort.export import attention, devices, kernels, plan
from rust_ort.export.partition import SEVERAL_DEVICES
from rust_ort.link.specs import providers
from rust_ort.observe import reference
from rust_ort.torch_private import fake_mode, pytree

aten = torch.ops.aten
sdpa = functional.scaled_dot_product_attention
FAMILIES = {
    "llama": "sdpa", "gpt2": "sdpa", "bert": "sdpa", "t5": "eager", "vit": "sdpa", "convnext": "eager",
    "deberta-v2": "eager",
}  # fmt: skip
LAYERS: dict[str, dict[str, Any]] = {
    **{name: {"num_hidden_layers": 1} for name in ("llama", "bert", "vit", "deberta-v2")},
    "gpt2": {"n_layer": 1}, "t5": {"num_layers": 1}, "convnext": {"depths": (1, 1)},
}  # fmt: skip
CUDA = torch.device("cuda:0")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run(function: Callable[..., Any], inputs: list[Tensor], **options: Any) -> tuple[Any, list[Any]]:
    """(results on the CPU of what was traced for CUDA, the graphs). Shapes, dtypes and strides are the fake ones'."""
    backend = rust_ort.Backend()
    traced = trace(function, inputs, backend, **options)
    made = traced.run()
    for ours, fake in zip(pytree.tree_leaves(made), pytree.tree_leaves(traced.result), strict=True):
        assert fake.is_cuda
        assert (ours.shape, ours.dtype, ours.stride()) == (fake.shape, fake.dtype, fake.stride())
    return made, backend.graphs


def reasons(graphs: list[Any]) -> list[str]:
    return [node.reason for graph in graphs for node in graph.eager]


@pytest.mark.parametrize("name", FAMILIES)
def test_models_traced_for_cuda_are_eagers(name: str, client: FakeClient) -> None:
    """Outputs and gradients, of float32, to the tolerance of the census."""
    backend = rust_ort.Backend()

    def compiled(module: torch.nn.Module) -> Callable[..., Any]:
        if name == "gpt2":
            module.loss_type = "ForCausalLM"  # else it warns of that, which breaks the graph
        return lambda **inputs: trace(module, inputs, backend).run()

    made = Run(architecture=name, attention=FAMILIES[name], mode="frozen")
    built = dataclasses.replace(TABLE[name], options=TABLE[name].options | LAYERS[name]).build
    reference = op_census.values(built(made.attention), made.mode, lambda module: module)
    op_census.judge(made, reference, op_census.values(built(made.attention), made.mode, compiled))
    assert not made.mismatches
    assert made.compared == len(reference) > 10
    assert [graph.direction for graph in backend.graphs] == ["forward", "backward"]
    assert reasons(backend.graphs) == []
    operators = {operator for graph in backend.graphs for operator in graph.operators.values()}
    if made.attention == "sdpa":
        assert {name for name in operators if "efficient_attention" in name}


def test_autocast_of_cuda_is_traced(client: FakeClient) -> None:
    backend = rust_ort.Backend()
    linear = torch.nn.Linear(4, 4)
    traced = trace(linear, [normal(3, 4)], backend, autocast=torch.float16)
    assert traced.result.dtype is torch.float16
    torch.testing.assert_close(traced.run(), linear(normal(3, 4)).half(), rtol=2e-3, atol=2e-3)
    assert reasons(backend.graphs) == [] and linear.weight.is_cpu


@torch.library.custom_op("rust_ort_test::scaled", mutates_args=())
def scaled(x: Tensor, factor: float, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * factor, y * 2


@scaled.register_fake
def _(x: Tensor, factor: float, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(y)


scaled.register_autograd(
    lambda ctx, of_x, of_y: (of_x * ctx.factor, None, of_y * 2),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


def test_gradients_of_custom_operators_are_traced(client: FakeClient) -> None:
    """One output has no gradient, one argument is no tensor, one needs none."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        return scaled(x, 3.0, y)[0].sin()

    x, y = normal(4).requires_grad_(), normal(4, seed=1)
    made, graphs = run(function, [x, y])
    torch.testing.assert_close(made, function(x, y))
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x), torch.autograd.grad(function(x, y).sum(), x))
    assert [graph.direction for graph in graphs] == ["forward", "backward"]


def test_numbers_in_tensors_of_the_program_go_to_the_device(client: FakeClient) -> None:
    made, graphs = run(lambda x: torch.tensor(3).type_as(x) + x.clamp(torch.tensor(0.5, device=x.device)), [normal(5)])
    torch.testing.assert_close(made, 3 + normal(5).clamp(0.5))
    assert reasons(graphs) == []


def test_a_call_of_several_graphs_is_run_graph_by_graph(client: FakeClient) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y * x

    x = normal(4).requires_grad_()
    made, graphs = run(function, [x])
    torch.testing.assert_close(made, x.sin() * x)
    torch.testing.assert_close(torch.autograd.grad(made.sum(), x), torch.autograd.grad((x.sin() * x).sum(), x))
    assert len(graphs) == 4


# --- Attention -------------------------------------------------------------------------------------------------------


def bias_of(q: Tensor, k: Tensor) -> Tensor:
    """Some of it is -inf, and one row is."""
    bias = normal(q.shape[0], q.shape[1], q.shape[2], k.shape[2], seed=8)
    bias[bias > 1] = -math.inf
    bias[0, 0, 1] = -math.inf
    return bias


KERNELS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "flash": lambda q, k, v, bias, **how: aten._scaled_dot_product_flash_attention(q, k, v, 0.0, **how)[:2],
    "efficient": lambda q, k, v, bias, **how: aten._scaled_dot_product_efficient_attention(
        q, k, v, bias, True, 0.0, **how
    )[:2],
    "cudnn": lambda q, k, v, bias, **how: aten._scaled_dot_product_cudnn_attention(q, k, v, bias, True, 0.0, **how)[:2],
}
HOWS: dict[str, dict[str, Any]] = {"full": {}, "causal": {"is_causal": True}, "scale": {"scale": 0.7}}


@pytest.mark.parametrize("how, dynamic", [("full", False), ("causal", True), ("scale", False)])
@pytest.mark.parametrize("kernel, biased", [("flash", False), ("efficient", False), ("efficient", True),
                                            ("cudnn", False), ("cudnn", True)])  # fmt: skip
def test_operators_of_attention(kernel: str, biased: bool, how: str, dynamic: bool, client: FakeClient) -> None:
    """Output, logsumexp and the gradients of query, key and value; rows and sizes that are no multiple of anything."""
    options, keys = HOWS[how], 37 if how == "causal" else 19
    inputs = [normal(2, 4, 37, 6), normal(2, 4, keys, 6, seed=1), normal(2, 4, keys, 6, seed=2)]
    bias = [bias_of(*inputs[:2])] if biased else []

    def attend(q: Tensor, k: Tensor, v: Tensor, *bias: Tensor) -> tuple[Tensor, Tensor]:
        return KERNELS[kernel](q, k, v, bias[0] if bias else None, **options)

    leaves = [tensor.requires_grad_() for tensor in inputs]
    (output, logsumexp), graphs = run(attend, [*leaves, *bias], dynamic=dynamic)
    grad = normal(*output.shape, seed=9)
    made = torch.autograd.grad(output, leaves, grad)
    assert reasons(graphs) == [] and len(graphs) == 2

    reference = sdpa(*leaves, attn_mask=total_bias(leaves, bias, options), scale=options.get("scale"))
    torch.testing.assert_close(output, reference)
    torch.testing.assert_close(made, torch.autograd.grad(reference, leaves, grad))
    scores = leaves[0] @ leaves[1].mT * options.get("scale", 1 / math.sqrt(6)) + total_bias(leaves, bias, options)
    expected = scores.logsumexp(-1)
    rows = logsumexp.flatten(2)[..., :37]
    some = expected > -math.inf
    torch.testing.assert_close(rows[some], expected[some])
    assert logsumexp.shape[2:] == {"flash": (37,), "efficient": (64,), "cudnn": (37, 1)}[kernel]
    assert bool((logsumexp.flatten(2)[..., 37:] == math.inf).all())


def total_bias(leaves: list[Tensor], bias: list[Tensor], options: dict[str, Any]) -> Tensor:
    length, keys = leaves[0].shape[2], leaves[1].shape[2]
    total = bias[0] if bias else torch.zeros(length, keys)
    unseen = torch.ones(length, keys).triu(1) > 0
    return total.masked_fill(unseen, -math.inf) if options.get("is_causal") else total


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_gradient_of_a_bias(dtype: torch.dtype, is_causal: bool, client: FakeClient) -> None:
    inputs = [normal(2, 4, 37, 8, seed=seed).to(dtype).requires_grad_() for seed in range(3)]
    bias = bias_of(*inputs[:2])[:, :1].to(dtype).clone().requires_grad_()

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, bias.expand(-1, 4, -1, -1), True, 0.0, is_causal
        )[0]  # fmt: skip

    output, graphs = run(attend, [*inputs, bias])
    grad = normal(*output.shape, seed=9)
    made = torch.autograd.grad(output, [*inputs, bias], grad.to(dtype))
    wide = [tensor.detach().float().requires_grad_() for tensor in (*inputs, bias)]
    reference = sdpa(*wide[:3], attn_mask=total_bias(wide, wide[3:], {"is_causal": is_causal}))
    exact = torch.autograd.grad(reference, wide, grad.to(dtype).float())
    slack = {} if dtype is torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    torch.testing.assert_close([tensor.float() for tensor in made], [*exact], **slack)
    assert reasons(graphs) == []


@pytest.mark.parametrize("kernel, size", [("flash", 7), ("flash", 12), ("efficient", 12), ("cudnn", 16), ("math", 7)])
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_by_each_kernel(kernel: str, size: int, heads: int, client: FakeClient) -> None:
    """As torch calls it: sizes of heads padded, heads that are shared, bool masks."""
    grouped = heads != 4 and kernel != "efficient"  # which has no shared heads
    inputs = [normal(2, 4, 9, size), *(normal(2, heads if grouped else 4, 9, size, seed=seed) for seed in (1, 2))]
    leaves = [tensor.transpose(1, 2).contiguous().requires_grad_() for tensor in inputs]
    masks = [] if kernel == "flash" else [normal(9, 9, seed=3) > -0.5]

    def attend(*given: Tensor) -> Tensor:
        q, k, v = (tensor.transpose(1, 2) for tensor in given[:3])
        return sdpa(q, k, v, *given[3:], is_causal=kernel == "flash", enable_gqa=grouped)

    output, _ = run(attend, [*leaves, *masks], attention=kernel)
    reference = attend(*leaves, *masks)
    grad = normal(*output.shape, seed=9)
    torch.testing.assert_close(output, reference)
    torch.testing.assert_close(torch.autograd.grad(output, leaves, grad), torch.autograd.grad(reference, leaves, grad))


def test_what_the_function_does_not_compute_is_left_to_eager(client: FakeClient) -> None:
    """Causal attention to another number of keys, which begins at the other end; values of another size; dropout."""

    def flash(q: Tensor, k: Tensor) -> Tensor:
        return aten._scaled_dot_product_flash_attention(q, k, k, 0.0, True)[0]

    def wide(q: Tensor, v: Tensor) -> Tensor:
        return aten._scaled_dot_product_efficient_attention(q, q, v, None, False)[0]

    def dropping(q: Tensor, k: Tensor) -> Tensor:
        return aten._scaled_dot_product_flash_attention(q, k, k, 0.5)[0]

    q = normal(1, 2, 5, 8)
    for function, other, said in (
        (flash, normal(1, 2, 7, 8), "5 queries to 7 keys"), (wide, normal(1, 2, 5, 16), "size 16"),
        (dropping, q, "random numbers"),
    ):  # fmt: skip
        torch._dynamo.reset()
        backend = rust_ort.Backend()
        trace(function, [q, other], backend)
        (reason,) = reasons(backend.graphs)
        assert said in reason


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("kernel, places", [("flash", [6, 7]), ("efficient", [2, 3]), ("cudnn", [6, 7])])
def test_a_generators_state_that_nothing_was_drawn_by_is_chance(
    kernel: str, places: list[int], dropout_p: float
) -> None:
    """It is memory that nobody wrote into, in nodes not compared; eager's value of it is 0, as the model gives it."""
    attend = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    before = () if kernel == "flash" else (None, True)

    def tensors(q: Tensor) -> tuple[Tensor, ...]:
        return tuple(made for made in attend(q, q, q, *before, dropout_p) if isinstance(made, Tensor))

    gm = graph_of(tensors, ([1, 2, 8, 8], "cuda:0"))
    unwritten = [node for node in gm.graph.nodes if reference.is_unwritten(node)]
    assert [node.args[1] for node in unwritten] == (places if dropout_p == 0.0 else [])
    for node in unwritten:
        for dtype in (torch.int64, torch.uint64):
            assert reference.as_traced(node, torch.tensor(756470858, dtype=dtype)).item() == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_calls_say_which_kernel_eager_has(kernel: str, client: FakeClient) -> None:
    """In the model, which ONNX's checker takes."""
    leaves = [normal(1, 2, 8, 8, seed=seed).half().requires_grad_() for seed in range(3)]
    trace(lambda q, k, v: KERNELS[kernel](q, k, v, None)[0], leaves, rust_ort.Backend())
    assert len(client.parts) == 2
    for part in client.parts:
        model = onnx.load_model_from_string(part.spec.model)
        onnx.checker.check_model(model)
        (call,) = [node for node in model.graph.node if node.domain == attention.DOMAIN]
        (named,) = [helper.get_attribute_value(entry) for entry in call.attribute if entry.name == "kernel"]
        assert named.decode() == kernel


# --- Devices ---------------------------------------------------------------------------------------------------------


def test_nothing_of_an_export_begins_with_cuda(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: begun.append(True))

    def function(x: Tensor) -> Tensor:
        numbers = torch.arange(5, device=x.device) + torch.full((5,), 7e4, device=x.device).long()
        return x.index_fill(0, numbers[:1] * 0, 1.5) * torch.tensor(2.0)

    def overflowing(x: Tensor) -> Tensor:
        return torch.full((3,), 7e4, dtype=torch.float16, device=x.device)

    backend = rust_ort.Backend()
    with torch.no_grad():
        made, graphs = run(function, [normal(5, 3)])
        trace(overflowing, [normal(5, 3)], backend)
    torch.testing.assert_close(made, function(normal(5, 3)))
    assert reasons(graphs) == [] and reasons(backend.graphs) == [kernels.OVERFLOW]
    assert not begun and not torch.cuda.is_initialized()


def graph_of(function: Callable[..., Any], *inputs: tuple[list[int], str]) -> fx.GraphModule:
    """As an AOT graph, which gives a tuple. inputs: shape and device of each."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def given(*values: Tensor) -> tuple[Any, ...]:
        made = function(*values)
        return made if isinstance(made, tuple) else (made,)

    with fake_mode():
        return make_fx(given)(*(torch.empty(shape, device=device) for shape, device in inputs))


@pytest.mark.parametrize("function, inputs, device", [
    (lambda x: x + 1, [([3], "cpu")], None),
    (lambda x: x + 1, [([], "cpu")], None),
    (lambda: torch.ones(3, device="cuda") + 1, [], 0),
    (lambda x, y: x * y, [([3], "cuda:0"), ([], "cpu")], 0),
    (lambda x: x + 1, [([], "cuda:1")], 1),
    (lambda x, y: x + y.to("cuda"), [([3], "cuda:0"), ([3], "cpu")], 0),
    (lambda x: (x.sum() * 2).cpu(), [([3], "cuda:0")], 0),
    (lambda x: ((x * 2).cpu(), x + 1), [([3], "cuda:0")], 0),
    (lambda x, y: (x + 1, y), [([3], "cuda:0"), ([3], "cpu")], 0),
    (lambda x, y: (x + 1, y + 1), [([3], "cuda:0"), ([2, 5], "cpu")], 0),
    (lambda x: (x + 1, torch.ones(4) + 1), [([3], "cuda:0")], 0),
])  # fmt: skip
def test_a_part_is_on_the_device_of_its_tensors(
    function: Callable[..., Any], inputs: list[tuple[list[int], str]], device: int | None
) -> None:
    made = plan.make_plan(graph_of(function, *inputs), name="graph")
    assert [devices.places(part).device for part in made.parts] == [device]


TWO_DEVICES: list[tuple[Callable[..., Any], list[int | None], int]] = [
    (lambda x, y: (x + 1, y + 1), [0, 1], 0),
    (lambda x, y: (x * 2).to("cuda:1") + y, [0, 1], 1),
    (lambda x, y: (((x * 2).to("cuda:1") + y).to("cuda:0") * x, y + 3), [0, 1, 0, 1], 2),
    # With one part a device, each would read what the other gives.
    (lambda x, y: ((x + 1).to("cuda:1") * y, (y + 1).to("cuda:0") * x), [0, 1, 1, 0], 2),
    (lambda x, y: x.sum().cpu() + y.sum().cpu(), [0, 1, None], 0),
    (lambda x, y: (x.sum().cpu() + (y * 2).sum().cpu()).to("cuda:0") * x, [0, 1, None, 0], 0),
    (lambda x, y: (x + 1, torch.ones(3) + 1, y), [0], 0),
    (lambda x, y: (x.reshape(-1) + 1, y.reshape(x.shape) + 1, torch.ones(3) + 1), [0, 1, None], 0),
]
"""Function of tensors on two devices, the device of each part, and how many copies between devices are eager's."""


@pytest.mark.parametrize("function, expected, copies", TWO_DEVICES)
def test_a_graph_on_two_devices_has_parts_on_each(
    function: Callable[..., Any], expected: list[int | None], copies: int
) -> None:
    gm = graph_of(function, ([3], "cuda:0"), ([3], "cuda:1"))
    made = plan.make_plan(gm, name="graph")
    assert [devices.places(part).device for part in made.parts] == expected
    assert [(node.op, node.reason) for node in made.cut.eager] == copies * [("aten._to_copy.default", SEVERAL_DEVICES)]
    for part in made.parts:
        found = (node.meta.get("val") for node in part.graph.module.graph.nodes)
        assert len({value.device for value in found if isinstance(value, Tensor) and value.is_cuda}) <= 1


def test_parts_are_prepared_for_the_device_of_their_tensors(client: FakeClient) -> None:
    def function(x: Tensor, number: Tensor) -> Any:
        return x * number, x.sum()

    run(function, [normal(3), torch.tensor(2.0)])
    specs = [part.spec for part in client.parts]
    assert [spec.device for spec in specs] == [0]
    assert [output.device for output in specs[0].outputs] == [0, 0]
    told = json.loads(specs[0].provenance_json)
    assert told["providers"] == [["CUDAExecutionProvider", {"device_id": "0"}]]
    assert told["device"] == ""  # without a driver nobody knows its name


CUDA_ALONE = (("CUDAExecutionProvider", {"gpu_mem_limit": "1"}),)


@pytest.mark.parametrize("device, beside_cuda, asked, expected", [
    (None, False, None, []),
    (0, False, None, ["CUDAExecutionProvider"]),
    (0, True, CUDA_ALONE, ["CUDAExecutionProvider"]),
    (None, True, CUDA_ALONE, []),
    (None, True, (*CUDA_ALONE, ("CPUExecutionProvider", {})), ["CPUExecutionProvider"]),
    (None, False, CUDA_ALONE, ["CUDAExecutionProvider"]),
])  # fmt: skip
def test_what_is_on_the_cpu_beside_parts_on_cuda_stays_there(
    device: int | None, beside_cuda: bool, asked: Any, expected: list[str]
) -> None:
    """CUDA is asked to fetch what is on the CPU only in a graph that has nothing else."""
    found = providers(rust_ort.Options(providers=asked), device, beside_cuda=beside_cuda)
    assert [name for name, _ in found] == expected
    assert all(given["gpu_mem_limit"] == "1" for name, given in found if asked and name == "CUDAExecutionProvider")


def test_parts_on_the_cpu_of_a_graph_on_cuda_are_told_so(client: FakeClient) -> None:
    def function(x: Tensor, table: Tensor) -> Any:
        return (table.exp() + 1).to(x.device) + x, x * 2

    x, table = normal(3), normal(3, seed=1)
    on = {id(x): "cuda:0", id(table): "cpu"}
    trace(function, [x, table], rust_ort.Backend(), on=lambda tensor: on[id(tensor)])
    assert {part.spec.device for part in client.parts} == {0, None}
    assert all(part.spec.beside_cuda for part in client.parts)


def test_parts_on_the_cpu_are_told_of_what_eager_does_on_cuda(client: FakeClient) -> None:
    def function(x: Tensor, table: Tensor) -> Any:
        return torch.linalg.qr(x)[0], table.exp() + 1

    x, table = normal(3, 3), normal(3, seed=1)
    on = {id(x): "cuda:0", id(table): "cpu"}
    trace(function, [x, table], rust_ort.Backend(), on=lambda tensor: on[id(tensor)])
    assert [part.spec.device for part in client.parts] == [None]
    assert all(part.spec.beside_cuda for part in client.parts)


def test_numbers_of_the_cpu_stay_there(client: FakeClient) -> None:
    """One beside CUDA tensors is an input of the part; a copy of a tensor is eager's."""

    def function(x: Tensor, number: Tensor, table: Tensor) -> Any:
        return x * number, (x.sum() + number).cpu(), table.to(x.device) + x

    gm = graph_of(function, ([3], "cuda:0"), ([], "cpu"), ([3], "cpu"))
    made = plan.make_plan(gm, name="graph")
    assert [(node.op, node.reason) for node in made.cut.eager] == [("aten._to_copy.default", SEVERAL_DEVICES)]
    found = {}
    for part in made.parts:
        places = devices.places(part)
        found |= dict(zip(part.translated.input_names, places.inputs, strict=True))
        found |= dict(zip(part.tensor_outputs, places.outputs, strict=True))
    copied, moved = (gm.graph.find_nodes(op="call_function", target=aten._to_copy.default)[at].name for at in (1, 0))
    assert found == {"arg0_1": True, "arg1_1": False, copied: True, "mul": True, moved: False, "add_1": True}
