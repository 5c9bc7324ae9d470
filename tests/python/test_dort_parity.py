"""What PyTorch's removed backend `onnxrt` promised and tested, promised and tested here, against the daemon."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from conftest import Daemon
from torch import nn

import rust_ort
from rust_ort.studies import llama_models

TENSOR = onnx.TensorProto


@pytest.fixture(autouse=True)
def seeded(daemon: Daemon) -> None:
    torch.manual_seed(0)


class Recorded:
    """`target` compiled by the backend, with every ONNX model that came of it."""

    def __init__(self, target: Any, *, dynamic: bool | None = None, **options: Any) -> None:
        self.models: list[onnx.ModelProto] = []
        self._known = len(rust_ort.graphs())
        transforms = [*options.pop("transforms", ()), self.models.append]
        self.call = torch.compile(
            target, backend=rust_ort.backend(transforms=transforms, **options), dynamic=dynamic, fullgraph=True
        )

    @property
    def graphs(self) -> list[rust_ort.GraphInfo]:
        return rust_ort.graphs()[self._known :]

    def feeds(self) -> list[list[int]]:
        """ONNX dtype codes of each model's inputs."""
        return [[value.type.tensor_type.elem_type for value in model.graph.input] for model in self.models]

    def check(self, n_graphs: int, n_calls: int) -> None:
        """So many graphs, each one part wholly on ONNX Runtime, called so often in all."""
        assert [(len(graph.parts), graph.eager) for graph in self.graphs] == [(1, [])] * n_graphs
        assert len(self.models) == n_graphs
        assert sum(graph.calls for graph in self.graphs) == n_calls


def leaves(value: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(value)


def assert_equal(candidate: Any, reference: Any, tolerance: float = 1e-5) -> None:
    """Values within tolerance; dtype, shape, strides and Python types equal."""
    assert len(leaves(candidate)) == len(leaves(reference))
    for got, expected in zip(leaves(candidate), leaves(reference), strict=True):
        assert type(got) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
        else:
            assert got == expected


# --- what it tested --------------------------------------------------------------------------------------------------


def test_an_elementwise_function_is_one_graph_over_batches() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid() * x.relu() + x

    recorded = Recorded(function, dynamic=True)
    for batch in (2, 4, 6, 8, 10):
        x = torch.randn(batch)
        assert_equal(recorded.call(x), function(x))
    recorded.check(n_graphs=1, n_calls=5)


def test_several_elementwise_outputs_are_one_graph_over_batches() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.relu()
        z = y.sigmoid()
        return x, y, z

    recorded = Recorded(function, dynamic=True)
    for batch in (2, 4, 8):
        x = torch.randn(batch)
        assert_equal(recorded.call(x), function(x))
    recorded.check(n_graphs=1, n_calls=3)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).sigmoid()).sigmoid()


def test_an_mlp_is_one_graph_for_batch_one_and_one_for_the_rest() -> None:
    module = Mlp()
    recorded = Recorded(module)
    with torch.no_grad():
        for batch in (1, 2, 4, 6, 8):
            x = torch.randn(batch, 2)
            assert_equal(recorded.call(x), module(x))
    recorded.check(n_graphs=2, n_calls=5)


SMALL = llama_models.Size(hidden=32, heads=2, intermediate=48, vocabulary=99)


def llama(part: str) -> tuple[nn.Module, Callable[[int, int], tuple[torch.Tensor, ...]]]:
    """A piece of Llama with eager attention and no mask, and its inputs for a batch and a length."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = llama_models.config(SMALL, attention="eager")
    rotary = LlamaRotaryEmbedding(config)

    def hidden(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        x = torch.randn(batch, length, SMALL.hidden)
        return (x, *rotary(x, torch.arange(length).expand(batch, length)))

    def tokens(batch: int, length: int) -> tuple[torch.Tensor, ...]:
        return (torch.randint(0, SMALL.vocabulary, (batch, length)),)

    kinds = {"attention": llama_models.Attention, "decoder": llama_models.Decoder, "model": llama_models.Model}
    return kinds[part](config), tokens if part == "model" else hidden


def has_symbol(values: Sequence[onnx.ValueInfoProto]) -> bool:
    return any(dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "forward+backward"])
@pytest.mark.parametrize("part", ["attention", "decoder", "model"])
def test_llama_is_one_dynamic_graph_over_shapes(part: str, backward: bool) -> None:
    module, make_inputs = llama(part)
    twin = copy.deepcopy(module)
    recorded = Recorded(module, dynamic=True)
    with torch.set_grad_enabled(backward):
        for shape in ((2, 8), (4, 7), (9, 15)):
            inputs = make_inputs(*shape)
            candidate, reference = recorded.call(*inputs), twin(*inputs)
            assert_equal(candidate, reference, 1e-4)
            if backward:
                candidate.sum().backward()
                reference.sum().backward()
                for (name, got), expected in zip(module.named_parameters(), twin.parameters(), strict=True):
                    torch.testing.assert_close(
                        got.grad, expected.grad, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
                    )
    recorded.check(n_graphs=1 + backward, n_calls=3 * (1 + backward))
    for model in recorded.models:
        assert has_symbol(model.graph.input)
    # A backward's outputs are the parameters' gradients, of fixed shape.
    assert has_symbol(recorded.models[0].graph.output)


def test_a_dump_grows_with_the_first_call_alone(daemon: Daemon, tmp_path: Path) -> None:
    def files() -> set[str]:
        daemon.client().flush_dump()
        return {entry.relative_to(tmp_path).as_posix() for entry in tmp_path.rglob("*") if entry.is_file()}

    compiled = torch.compile(Mlp(), backend="rust_ort")
    with torch.no_grad(), rust_ort.dump("run", folder=tmp_path, calls="first"):
        compiled(torch.randn(3, 2))
        first = files()
        compiled(torch.randn(3, 2))
        assert files() == first
    (graph,) = (entry.name for entry in (tmp_path / "run").iterdir() if entry.is_dir())
    for name in ("dynamo.txt", "fx.txt", "parts.json", "part_0/model.onnx", "part_0/test_data_set_0/input_0.pb"):
        assert f"run/{graph}/{name}" in first


def test_a_function_without_inputs_has_its_values_in_the_model() -> None:
    def function() -> torch.Tensor:
        return torch.ones(3, 4).cumsum(1) + torch.tensor([0.0, 1.0, 2.0, 3.0])

    recorded = Recorded(function)
    for _ in range(2):
        assert_equal(recorded.call(), function())
    assert sum(graph.calls for graph in recorded.graphs) == 2


def relu_to_sigmoid(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Sigmoid"


def test_a_transform_rewrites_the_model_that_runs() -> None:
    x = torch.randn(4, 4)
    recorded = Recorded(torch.relu, transforms=[relu_to_sigmoid])
    assert_equal(recorded.call(x), torch.sigmoid(x))
    (model,) = recorded.models
    assert [node.op_type for node in model.graph.node] == ["Sigmoid"]


def break_first_node(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"


def rename_output(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = model.graph.output[0].name = "other"


@pytest.mark.parametrize(
    ("transform", "text"),
    [
        (break_first_node, "option transforms: the runtime refuses the model that .* made.*NoSuchOperator"),
        (rename_output, r"inputs and outputs are .*\['other'\], expected"),
        (lambda model: 3, "returned 3 of type int, expected a ModelProto"),
    ],
    ids=["unknown operator", "renamed output", "no model"],
)
def test_a_model_that_a_transform_broke_is_an_error_and_not_run_in_eager(
    transform: Callable[[onnx.ModelProto], Any], text: str
) -> None:
    with pytest.raises(rust_ort.RustOrtError, match=text):
        torch.compile(torch.relu, backend=rust_ort.backend(transforms=[transform]))(torch.ones(3))


def test_a_node_the_runtime_refuses_runs_in_eager_beside_a_transform() -> None:
    recorded = Recorded(nn.functional.gelu)
    x = torch.randn(3, dtype=torch.float64)
    assert_equal(recorded.call(x * 2), nn.functional.gelu(x * 2))
    assert ["refused" in node.reason for graph in recorded.graphs for node in graph.eager] == [True]


def test_suppressed_errors_are_torchs_to_suppress() -> None:
    compiled = torch.compile(torch.relu, backend="rust_ort", options={"providers": ["CUDAExecutionProvider"]})
    with torch._dynamo.config.patch(suppress_errors=True):
        assert_equal(compiled(torch.ones(3)), torch.ones(3))


UNAVAILABLE: list[dict[str, Any]] = [
    {"providers": ["TensorrtExecutionProvider"]},
]


@pytest.mark.parametrize("options", UNAVAILABLE, ids=lambda options: next(iter(options)))
def test_an_option_of_a_later_version_is_refused_wherever_it_is_given(options: dict[str, Any]) -> None:
    (name,) = options
    text = f"option {name}=.* is not available yet"
    known = len(rust_ort.graphs())
    with pytest.raises(rust_ort.NotAvailableYet, match=text):
        torch.compile(torch.relu, backend="rust_ort", options=options)(torch.ones(3))
    for use in (rust_ort.backend, rust_ort.Options):
        with pytest.raises(rust_ort.NotAvailableYet, match=text):
            use(**options)
    for ask in (rust_ort.compare, rust_ort.explain):
        with pytest.raises(rust_ort.NotAvailableYet, match=text):
            ask(torch.relu, torch.ones(3), options=options)
    assert len(rust_ort.graphs()) == known


def test_options_that_are_equal_compile_again_and_run_right() -> None:
    x = torch.randn(3)
    for options in (None, {}, {"providers": ["CPUExecutionProvider"]}, rust_ort.Options(threads=1)):
        torch._dynamo.reset()
        assert_equal(torch.compile(torch.relu, backend="rust_ort", options=options)(x), torch.relu(x))


def test_session_options_reach_the_session() -> None:
    x = torch.randn(3)
    backend = rust_ort.backend(session_options={"session.intra_op.allow_spinning": "0"}, ort_optimization="basic")
    assert_equal(torch.compile(torch.relu, backend=backend)(x), torch.relu(x))


def test_passes_run_unless_they_are_left_out(tmp_path: Path) -> None:
    x, weight = torch.randn(2, 3), torch.randn(5, 3)
    for disabled, expected in (((), {"rust_ort.passes": "product-transposes 1"}), (("product-transposes",), {})):
        torch._dynamo.reset()
        with rust_ort.dump(f"without-{len(disabled)}", folder=tmp_path):
            linear = torch.compile(torch.nn.functional.linear, backend="rust_ort", options={"disable_passes": disabled})
            assert_equal(linear(x, weight), torch.nn.functional.linear(x, weight))
        (optimized,) = tmp_path.glob(f"without-{len(disabled)}/*/part_0/model.ort.onnx")
        entries = {entry.key: entry.value for entry in onnx.load(optimized).metadata_props}
        assert {key: value for key, value in entries.items() if key.startswith("rust_ort")} == expected


@pytest.mark.parametrize("provider", ["TensorrtExecutionProvider", ("TensorrtExecutionProvider", {"device_id": "0"})])
def test_a_provider_that_is_not_available_is_refused(provider: object) -> None:
    with pytest.raises(rust_ort.NotAvailableYet, match=r"option providers=.*Tensorrt.* is not available yet"):
        torch.compile(torch.relu, backend="rust_ort", options={"providers": [provider]})(torch.ones(3))


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="this onnxruntime has the provider"
)
def test_cuda_on_a_library_for_the_cpu_is_told_with_what_that_has() -> None:
    compiled = torch.compile(torch.relu, backend="rust_ort", options={"providers": ["CUDAExecutionProvider"]})
    with pytest.raises(rust_ort.ClientError, match=r'"CUDA.*" is not in .*it has .*CPU'):
        compiled(torch.ones(3))


def test_an_option_for_the_cpu_provider_is_refused() -> None:
    backend = rust_ort.backend(providers=[("CPUExecutionProvider", {"option": "value"})])
    with pytest.raises(rust_ort.ClientError, match=r"CPUExecutionProvider.*takes no options"):
        torch.compile(torch.relu, backend=backend)(torch.ones(3))


# --- what it got wrong -----------------------------------------------------------------------------------------------


def test_another_rank_is_another_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    recorded = Recorded(function)
    for shape in ((4,), (4, 1), (1, 4), (4, 1, 1), ()):
        x = torch.randn(shape)
        assert_equal(recorded.call(x), function(x))
    recorded.check(n_graphs=5, n_calls=5)


def test_one_element_and_a_scalar_stay_apart() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, y + 1, x + y, x.sum(), x.reshape(())

    recorded = Recorded(function)
    for shapes in (((1,), ()), ((), (1,)), ((1,), (1,)), ((), ())):
        inputs = [torch.randn(shape) for shape in shapes]
        assert_equal(recorded.call(*inputs), function(*inputs))
    assert recorded.feeds() == [[TENSOR.FLOAT] * 2] * 4


def test_bool_is_sent_as_bool() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.where(mask, x, -x), ~mask, mask.any()

    recorded = Recorded(function)
    x, mask = torch.randn(5), torch.tensor([True, False, True, True, False])
    assert_equal(recorded.call(x, mask), function(x, mask))
    (feeds,) = recorded.feeds()
    assert sorted(feeds) == [TENSOR.FLOAT, TENSOR.BOOL]


def test_python_numbers_keep_their_types() -> None:
    def function(x: torch.Tensor, n: int, factor: float, flag: bool) -> tuple[Any, ...]:
        return x * factor + n, n, n + 1, factor, flag, not flag, x.shape[0] * 2

    recorded = Recorded(function, dynamic=True)
    for batch, n, factor, flag in ((3, 5, 0.5, True), (4, 6, 0.25, False), (7, 8, 2.0, False)):
        x = torch.randn(batch)
        assert_equal(recorded.call(x, n, factor, flag), function(x, n, factor, flag))


def test_bfloat16_runs_on_the_cpu() -> None:
    module = Mlp().to(torch.bfloat16)
    twin = copy.deepcopy(module)
    recorded = Recorded(module)
    x = torch.randn(4, 2, dtype=torch.bfloat16)
    assert_equal(recorded.call(x), twin(x), 1e-2)
    recorded.call(x).sum().backward()
    twin(x).sum().backward()
    for got, expected in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, expected.grad, atol=2e-2, rtol=2e-2)
    recorded.check(n_graphs=2, n_calls=3)
    assert all(TENSOR.BFLOAT16 in feeds for feeds in recorded.feeds())


def test_an_input_without_gradient_gives_none() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return (x * y)[index]

    recorded = Recorded(function)
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    index = torch.tensor([2, 0])
    recorded.call(x, y, index).sum().backward()
    expected = torch.zeros(4).index_copy(0, index, y[index])
    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)
    assert y.grad is None


def test_an_output_without_gradient_takes_none() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x @ w, (x * 2).detach(), (x > 0)

    recorded = Recorded(function)
    x, w = torch.randn(3, 2), torch.randn(2, 2, requires_grad=True)
    first, second, third = recorded.call(x, w)
    assert (first.requires_grad, second.requires_grad, third.requires_grad) == (True, False, False)
    first.sum().backward()
    assert w.grad is not None
    torch.testing.assert_close(w.grad, x.sum(0)[:, None].expand(2, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(4, 3).t(),
        lambda: torch.randn(3, 8)[:, ::2],
        lambda: torch.randn(3, 1).expand(3, 4),
        lambda: torch.randn(13)[1:].view(3, 4),
        lambda: torch.randn(4, 3, 1).permute(1, 0, 2)[..., 0],
        lambda: torch.randn(3, 4, dtype=torch.complex64).imag,
        lambda: torch.randn(3, 4, dtype=torch.complex64).conj().imag,
    ],
    ids=["transposed", "stepped", "expanded", "offset", "permuted", "imag", "negated"],
)
def test_views_give_eagers_values_and_strides(make: Callable[[], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y.t(), x + x.sum(0), x.t().exp(), y.sum(1, keepdim=True)

    recorded = Recorded(function)
    x = make()
    assert_equal(recorded.call(x), function(x))


def test_channels_last_stays_channels_last() -> None:
    module = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    recorded = Recorded(module)
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        got = recorded.call(x)
        assert_equal(got, module(x), 1e-4)
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_an_input_changed_in_place_is_changed() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y += 1
        return x.reshape(-1) + y.reshape(-1)

    recorded = Recorded(function)
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    twin = y.clone()
    assert_equal(recorded.call(x, y), function(x, twin))
    assert_equal(y, twin)


def test_an_output_that_is_an_input_is_that_input() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x, x.view(-1), x + 1

    recorded = Recorded(function)
    x = torch.randn(2, 3)
    same, view, _ = recorded.call(x)
    assert same is x
    assert view.data_ptr() == x.data_ptr()


def test_two_functions_of_the_same_graph_keep_their_constants_apart() -> None:
    def scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
        table = torch.full((3,), factor)
        return lambda x: x * table

    x = torch.randn(3)
    for factor in (2.0, 3.0, 2.0):
        assert_equal(Recorded(scaled(factor)).call(x), x * factor)


def test_convolutions_pools_and_losses_train() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 3 * 3, 10), nn.LogSoftmax(1)
    )
    twin = copy.deepcopy(module)
    recorded = Recorded(module)
    for _ in range(5):
        x, target = torch.randn(2, 1, 8, 8), torch.randint(0, 10, (2,))
        for each in (recorded.call, twin):
            nn.functional.nll_loss(each(x), target).backward()
        for got, expected in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(got.grad, expected.grad, atol=1e-5, rtol=1e-5)
    assert [graph.calls for graph in recorded.graphs] == [5, 5]


def test_a_cast_on_the_way_runs() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.to(torch.float64) + 1, x.to(torch.float16), x.to(torch.int64), x.to("cpu"), x.to(torch.bool)

    recorded = Recorded(function)
    x = torch.randn(2, 3) * 4
    assert_equal(recorded.call(x), function(x))
    recorded.check(n_graphs=1, n_calls=1)
