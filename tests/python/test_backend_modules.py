"""Small modules, forward and backward, against eager: each a trap that was met once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import DaemonClient, FakeClient, binary, serving, use_client
from torch import nn
from torch.nn import functional as F

import rust_ort
from rust_ort.export.aliases import SHARES_MEMORY
from rust_ort.export.plan import make_plan
from rust_ort.runtime import compilation


@pytest.fixture(scope="module")
def daemon_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("daemon")
    with serving(folder):
        yield folder


@pytest.fixture(params=["in process", "daemon"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeClient | DaemonClient:
    """Every test on the in-process oracle and on the daemon."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    if request.param == "in process":
        fake = FakeClient()
        use_client(monkeypatch, fake)
        return fake
    if binary() is None:
        pytest.skip("no rust-ort program: build it and set RUST_ORT_BINARY")
    request.getfixturevalue("daemon_folder")
    real = DaemonClient()
    use_client(monkeypatch, real)
    return real


@pytest.fixture
def on_daemon(daemon_folder: Path, monkeypatch: pytest.MonkeyPatch) -> DaemonClient:
    """For bfloat16, which the in-process oracle's models do not run in: the executor makes them fit."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    real = DaemonClient()
    use_client(monkeypatch, real)
    return real


class Fn(nn.Module):
    """A function of parameters and inputs as a module."""

    def __init__(self, function: Callable[..., Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def run(module: nn.Module, args: tuple[Any, ...], call: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    args = tuple(
        arg.detach().clone(memory_format=torch.preserve_format).requires_grad_(arg.requires_grad)
        if isinstance(arg, torch.Tensor) else arg
        for arg in args
    )  # fmt: skip
    torch.manual_seed(7)
    out = call(*args)
    loss = sum((leaf.float() * torch.linspace(0.5, 1.5, leaf.numel()).reshape(leaf.shape)).sum()
               for leaf in leaves(out) if leaf.requires_grad and leaf.dtype.is_floating_point)  # fmt: skip
    grads: dict[str, Any] = {}
    if isinstance(loss, torch.Tensor):
        loss.backward()
        grads = {name: p.grad for name, p in module.named_parameters()}
        grads |= {f"input {i}": a.grad for i, a in enumerate(args) if isinstance(a, torch.Tensor) and a.requires_grad}
    state = {name: value for name, value in module.named_buffers()}
    state |= {f"arg {i}": a.detach() for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    return out, grads | state


def check(
    module: nn.Module,
    *args: Any,
    client: FakeClient | DaemonClient,
    tol: float = 2e-5,
    fullgraph: bool = True,
    eager: int | None = 0,
    **kwargs: Any,
) -> Any:
    """Equal to eager in values, dtypes, shapes and strides of outputs, gradients, buffers and mutated arguments.

    eager: nodes left to eager, but for views that share memory.
    """
    twin = copy.deepcopy(module)
    expected, expected_rest = run(twin, args, twin)
    known = len(rust_ort.graphs())
    compiled = torch.compile(module, backend=rust_ort, fullgraph=fullgraph, **kwargs)
    got, got_rest = run(module, args, compiled)
    assert len(leaves(expected)) == len(leaves(got))
    for reference, candidate in zip(leaves(expected), leaves(got), strict=True):
        assert candidate.dtype is reference.dtype
        torch.testing.assert_close(candidate, reference, atol=tol, rtol=tol)
        assert candidate.stride() == reference.stride() or reference.numel() <= 1 or 0 in reference.stride()
        assert candidate.requires_grad == reference.requires_grad
    assert expected_rest.keys() == got_rest.keys()
    for name, reference in expected_rest.items():
        if reference is None:
            assert got_rest[name] is None, name
        else:
            torch.testing.assert_close(got_rest[name], reference, atol=tol, rtol=tol, msg=lambda m, n=name: f"{n}: {m}")
    new = rust_ort.graphs()[known:]
    for info in new:
        assert info.compute_nodes == sum(map(len, info.parts)) + len(info.eager)
        assert all(node.reason for node in info.eager)
    if eager is not None:
        left = [node for info in new for node in info.eager if node.reason != SHARES_MEMORY]
        assert len(left) == eager, left
    return got


def test_mlp(client: FakeClient | DaemonClient) -> None:
    check(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)), torch.randn(5, 4), client=client)
    assert len(client.parts) == 2


def test_batch_norm_in_training_updates_running_statistics(client: FakeClient | DaemonClient) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    check(module, torch.randn(2, 3, 9, 9, requires_grad=True), client=client, eager=None)


def test_batch_norm_in_inference(client: FakeClient | DaemonClient) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    module[1].running_mean.normal_()
    check(module, torch.randn(2, 3, 9, 9, requires_grad=True), client=client)
    with torch.no_grad():
        check(module, torch.randn(2, 3, 9, 9), client=client)


@pytest.mark.parametrize("ignore", [False, True])
def test_nll_loss_scales_gradients_by_the_total_weight(client: FakeClient | DaemonClient, ignore: bool) -> None:
    weight = torch.tensor([0.2, 1.0, 3.0])
    module = Fn(lambda self, x, y: F.cross_entropy(x @ self.w, y, weight=weight.to(x)), w=torch.randn(4, 3))
    target = torch.tensor([0, 2, -100, 1, 2]) if ignore else torch.tensor([0, 2, 1, 1, 2])
    check(module, torch.randn(5, 4), target, client=client)


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2)])
def test_convolution_backward_is_decomposed_where_plain(
    client: FakeClient | DaemonClient, stride: int, padding: int, dilation: int
) -> None:
    module = nn.Conv2d(3, 4, 3, stride=stride, padding=padding, dilation=dilation)
    check(module, torch.randn(2, 3, 11, 10, requires_grad=True), client=client, tol=1e-4)


@pytest.mark.parametrize("make", [lambda: nn.Conv2d(4, 4, 3, groups=2), lambda: nn.ConvTranspose2d(4, 2, 3, stride=2)])
def test_grouped_and_transposed_convolution_backward_is_decomposed(
    client: FakeClient | DaemonClient, make: Callable[[], nn.Module]
) -> None:
    check(make(), torch.randn(2, 4, 7, 7, requires_grad=True), client=client, tol=1e-4)


SYMBOLIC: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "plain": (lambda: nn.Conv2d(4, 8, 3, padding=1), 2),
    "stride": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1), 2),
    "stride over the kernel": (lambda: nn.Conv2d(4, 8, 2, stride=3), 2),
    "dilation and groups": (lambda: nn.Conv2d(4, 8, 3, padding=2, dilation=2, groups=4), 2),
    "one element": (lambda: nn.Conv2d(4, 8, 1, bias=False), 2),
    "one element, stride": (lambda: nn.Conv2d(4, 8, 1, stride=2), 2),
    "a kernel that is no square": (lambda: nn.Conv2d(4, 8, (1, 3), padding=(0, 1)), 2),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), 2),
    "one axis": (lambda: nn.Conv1d(4, 8, 5, padding=2), 1),
    "three axes": (lambda: nn.Conv3d(4, 8, 2, stride=(1, 2, 1)), 3),
    "float64": (lambda: nn.Conv2d(4, 8, 3, padding=1).double(), 2),
}
"""{case: (a layer, its spatial axes)}."""


@pytest.mark.parametrize("case", SYMBOLIC)
def test_the_gradient_of_a_kernel_of_symbolic_sizes_is_one_node(client: FakeClient | DaemonClient, case: str) -> None:
    make, spatial = SYMBOLIC[case]
    module = make()
    dtype = next(module.parameters()).dtype
    torch._dynamo.reset()
    known = len(rust_ort.graphs())
    compiled = torch.compile(module, backend="rust_ort", dynamic=True)
    for batch, size in ((2, 9), (3, 12)):
        x = torch.randn(batch, 4, *(size + axis for axis in range(spatial)), dtype=dtype, requires_grad=True)
        expected, got = (
            torch.autograd.grad(function(x).square().sum(), [x, *module.parameters()])
            for function in (module, compiled)
        )
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    graphs = rust_ort.graphs()[known:]
    assert [len(info.eager) for info in graphs] == [0] * len(graphs) and len(graphs) == 2
    backward = next(info for info in graphs if info.direction == "backward")
    assert [*backward.operators.values()].count("aten.convolution_backward.default") == 1, backward.operators


def test_the_nodes_of_a_convolution_of_symbolic_sizes_match(daemon: Any) -> None:
    module = nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    options: dict[str, Any] = {"compare": "nodes"}
    for batch in (2, 3):
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="rust_ort", dynamic=True, options=options)
        known = len(rust_ort.graphs())
        compiled(torch.randn(batch, 4, 9, 11)).square().sum().backward()
        nodes = [node for info in rust_ort.graphs()[known:] for _, node in info.nodes]
        assert any(node.op == "aten.convolution_backward.default" for node in nodes)
        assert {node.local.kind for node in nodes} <= {"match", "not_compared"}, nodes


@pytest.mark.parametrize("kind", ["plain", "causal", "bool mask", "float mask", "empty row", "grouped", "permuted"])
def test_attention_equals_torchs_kernel(client: FakeClient | DaemonClient, kind: str) -> None:
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    options: dict[str, Any] = {}
    if kind == "causal":
        options = {"is_causal": True}
    elif kind in ("bool mask", "empty row"):
        mask = torch.rand(2, 1, 6, 6) > 0.4
        mask[:, :, :, 0] = True
        if kind == "empty row":
            mask[0, 0, 2] = False
        options = {"attn_mask": mask}
    elif kind == "float mask":
        options = {"attn_mask": torch.randn(6, 6), "scale": 0.3}
    elif kind == "grouped":
        k, v, options = k[:, :2], v[:, :2], {"enable_gqa": True}
    elif kind == "permuted":
        q, k, v = (torch.randn(2, 6, 4, 8).transpose(1, 2) for _ in range(3))
    check(
        Fn(lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v, **options)),
        *(t.requires_grad_() for t in (q, k, v)), client=client, eager=None,
    )  # fmt: skip


def test_a_function_that_does_nothing_renames_neither_input_nor_output(client: FakeClient | DaemonClient) -> None:
    module = Fn(lambda self, x, y: (x.t(), x.t() + y, (x * 2).t(), y), w=torch.ones(1))
    check(module, torch.randn(3), torch.randn(3), client=client)


def test_none_repeated_and_passed_through_outputs(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any, y: Any) -> Any:
        z = x * self.w
        return None, z, y, z, {"a": x, "b": None}, 3, "text"

    out = check(Fn(function, w=torch.tensor(2.0)), torch.randn(3), torch.randn(2), client=client)
    assert out[0] is None
    assert out[5] == 3
    assert out[6] == "text"


def test_mutated_inputs_are_written_back(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any, y: Any) -> Any:
        x.mul_(2)
        y[:, 0] = 0
        return x + y

    check(Fn(function), torch.randn(3, 2), torch.randn(3, 2), client=client)


def test_outputs_that_alias_inputs_and_each_other(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any) -> Any:
        y = x * 2
        return x.view(-1), y, y[0], y.transpose(0, 1), x[1:]

    check(Fn(function), torch.randn(3, 4, requires_grad=True), client=client)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0,)])
def test_tensors_without_elements(client: FakeClient | DaemonClient, shape: tuple[int, ...]) -> None:
    check(Fn(lambda self, x: (x * 2 + 1, torch.relu(x))), torch.randn(shape), client=client)


def test_inputs_that_are_not_contiguous(client: FakeClient | DaemonClient) -> None:
    module = Fn(lambda self, x, y: (x @ y, x.sum(0)))
    check(module, torch.randn(4, 3).t(), torch.randn(8, 5)[::2], client=client)


def test_outputs_have_eagers_strides(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any) -> Any:
        return x.permute(2, 0, 1) * 2, (x + 1).transpose(0, 1), x.sum(1, keepdim=True).expand(2, 5, 3) * 1

    out = check(Fn(function), torch.randn(2, 4, 3), client=client)
    assert out[0].stride() == (1, 12, 3)


def test_dropout_equals_eager_exactly(client: FakeClient | DaemonClient) -> None:
    module = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    check(module, torch.randn(8, 4), client=client, eager=None)
    reasons = {node.reason for info in rust_ort.graphs()[-2:] for node in info.eager}
    assert any("random numbers" in reason for reason in reasons)


def test_dropouts_that_do_not_depend_on_each_other_draw_in_eagers_order(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any, y: Any) -> Any:
        for _ in range(3):
            x = F.dropout(x.tanh().sum(0, keepdim=True) * x, 0.5)
        return F.dropout(F.dropout(y * 2, 0.5).relu(), 0.5) @ x

    check(Fn(function), torch.randn(4, 8), torch.randn(4, 4), client=client, eager=None)


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like, lambda x: torch.randint_like(x, 9), F.dropout,
                                  lambda x: torch.empty_like(x).uniform_(), lambda x: torch.empty_like(x).normal_(),
                                  lambda x: F.rrelu(x, training=True), F.gumbel_softmax])  # fmt: skip
def test_two_draws_alike_are_two_draws(draw: Callable[..., Any], client: FakeClient | DaemonClient) -> None:
    function = Fn(lambda self, x, y: (draw(x) * y, draw(x) * y))
    out = check(function, torch.randn(4, 5), torch.ones(4, 5, requires_grad=True), client=client, eager=None)
    assert not torch.equal(*out)


def test_linalg_solve_runs_in_eager_between_two_parts(client: FakeClient | DaemonClient) -> None:
    module = Fn(lambda self, x, y: torch.relu(torch.linalg.solve(x * 2 + 5 * torch.eye(3), y + 1)))
    check(module, torch.randn(3, 3, requires_grad=True), torch.randn(3, 2), client=client, eager=None, tol=1e-4)


def test_complex_numbers_run_as_pairs(client: FakeClient | DaemonClient) -> None:
    check(Fn(lambda self, x: torch.view_as_real(torch.fft.fft(x * 2)).abs() + 1), torch.randn(8), client=client,
          eager=0)  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda self, x: F.avg_pool2d(x, 2, divisor_override=3),
        lambda self, x: F.avg_pool3d(x.unsqueeze(0), 2),
        lambda self, x: torch.zeros(2, 4).scatter_reduce(1, torch.tensor([[0, 1, 1], [2, 2, 0]]), x[0, :2, :3], "mean"),
        lambda self, x: torch.special.erfcx(x),
        lambda self, x: torch.special.log_ndtr(x),
    ],
)  # fmt: skip
def test_functions_torchlib_translates_wrongly_run_right(
    client: FakeClient | DaemonClient, function: Callable[..., Any]
) -> None:
    check(Fn(function), torch.randn(2, 4, 6), client=client, eager=None)


def test_matrix_vector_products(client: FakeClient | DaemonClient) -> None:
    module = Fn(lambda self, x, v: (x.t() @ v, torch.mv(x.t(), v), v @ x), w=torch.ones(1))
    check(module, torch.randn(4, 4, requires_grad=True), torch.randn(4, requires_grad=True), client=client)


def test_scalars_of_each_python_type(client: FakeClient | DaemonClient) -> None:
    module = Fn(lambda self, x, i, f, b: x * i + f if b else x)
    check(module, torch.randn(3), 3, 0.25, True, client=client, eager=None)
    check(module, torch.randn(3), 3, 0.75, True, client=client, eager=None)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool]
)
def test_dtypes(client: FakeClient | DaemonClient, dtype: torch.dtype) -> None:
    x = torch.tensor([[1, 0, 3], [2, 5, 4]]).to(dtype)
    check(Fn(lambda self, x: (x.clone(), x + x, x.sum(), x.float() * 2, x == x, x.max())), x, client=client, eager=None)


def test_a_function_of_torchlib_that_the_runtime_lacks_for_a_dtype_runs_in_eager(
    client: FakeClient | DaemonClient,
) -> None:
    check(nn.GELU(), torch.randn(3, dtype=torch.float64, requires_grad=True), client=client, eager=None)
    refused = [node.name for info in rust_ort.graphs()[-2:] for node in info.eager]
    assert refused == ["gelu", "erf"]


def test_bool_reductions_are_promoted(client: FakeClient | DaemonClient) -> None:
    check(Fn(lambda self, x: (x > 0).sum(0) + (x > 0).float().mean()), torch.randn(3, 4), client=client)


def test_embedding_and_index_put_accumulate(client: FakeClient | DaemonClient) -> None:
    module = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    check(module, torch.tensor([[0, 1, 1], [6, 6, 6]]), client=client)


def test_gru_tril_and_cumsum(client: FakeClient | DaemonClient) -> None:
    cell = nn.GRUCell(4, 4)
    cell.register_buffer("scale", torch.ones(4))
    check(cell, torch.randn(3, 4), torch.randn(3, 4), client=client)
    check(Fn(lambda self, x: torch.tril(x).cumsum(1) * self.w, w=torch.ones(1)), torch.randn(4, 4), client=client)


def test_one_dynamic_graph_serves_two_shapes(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any) -> Any:
        n = x.shape[0] * x.shape[1]
        return x.reshape(-1) @ x.reshape(-1) + n, x @ self.w, x.transpose(0, 1) * 2, n, x.shape[1] // 2

    module = Fn(function, w=torch.randn(8, 3))
    twin = copy.deepcopy(module)
    compiled = torch.compile(module, backend=rust_ort, dynamic=True, fullgraph=True)
    known = len(rust_ort.graphs())
    for rows in (5, 9, 3):
        x = torch.randn(rows, 8, requires_grad=True)
        got, grads = run(module, (x,), compiled)
        expected, expected_grads = run(twin, (x,), twin)
        for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        for name in grads:
            torch.testing.assert_close(grads[name], expected_grads[name], atol=1e-4, rtol=1e-4)
        module.zero_grad()
        twin.zero_grad()
    assert len(rust_ort.graphs()) - known == 2


def test_a_graph_without_inputs(client: FakeClient | DaemonClient) -> None:
    check(Fn(lambda self: torch.arange(6).reshape(2, 3) * 2), client=client)


def test_graph_breaks_give_several_graphs(client: FakeClient | DaemonClient) -> None:
    def function(self: Any, x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    known = len(rust_ort.graphs())
    check(Fn(function), torch.randn(3, requires_grad=True), client=client, fullgraph=False)
    names = [info.name for info in rust_ort.graphs()[known:]]
    assert len(names) == len(set(names)) == 4


def test_bfloat16_modules_round_where_eager_rounds(on_daemon: DaemonClient) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 4)).to(torch.bfloat16)
    check(module, torch.randn(3, 8, dtype=torch.bfloat16, requires_grad=True), client=on_daemon, tol=4e-2)


def test_bfloat16_data_movement_and_several_outputs(on_daemon: DaemonClient) -> None:
    def function(self: Any, x: Any) -> Any:
        first, second = x.split(2)
        values, indices = second.topk(1, 0)
        return first.expand(3, 2, 4) * 1, torch.cat([first, second]), values, indices, torch.full_like(x, 0.1), x > 0

    check(Fn(function), torch.randn(4, 4, dtype=torch.bfloat16), client=on_daemon, tol=0)


def test_pools_of_a_graph_whose_last_windows_begin_behind_their_images(client: FakeClient | DaemonClient) -> None:
    """ONNX Runtime took one's memory for the other's, whose shape it had inferred alike."""

    def pooled(_: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            F.max_pool1d(x, 2, 2, 1, ceil_mode=True), F.max_pool1d(y, 2, 3, 1, ceil_mode=True),
            F.max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True), F.max_pool1d(x, 3, 3, ceil_mode=True),
        )  # fmt: skip

    check(Fn(pooled), torch.randn(2, 3, 7), torch.randn(2, 3, 8), client=client)


AT_RUN_TIME: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by places": lambda x: x[(x > 0).nonzero(as_tuple=True)].exp(),
    "rows": lambda x: x.index_select(0, (x[:, 0] > 0).nonzero()[:, 0]) @ torch.ones(4, 3),
    "added to": lambda x: x.index_put((x > 0).nonzero(as_tuple=True), torch.tensor(1.0), accumulate=True),
    "scattered to": lambda x: torch.zeros(6).scatter_add(0, (x[:, 0] > 0).nonzero()[:, 0], x[:, 0].detach()),
    "embedded": lambda x: F.embedding((x > 0).nonzero()[:, 1], x),
}


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_no_decomposition_asks_for_a_size_known_only_at_run_time(name: str, client: FakeClient | DaemonClient) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(Fn(lambda _, x: AT_RUN_TIME[name](x)), torch.randn(6, 4, requires_grad=True), client=client, eager=None)


def test_a_plan_of_symbolic_sizes_adds_no_guard(client: FakeClient | DaemonClient, monkeypatch: Any) -> None:
    """Dynamo has its guards when a backend plans: what is asked of a size then would hold for one size alone."""
    asked = []

    def watched(gm: torch.fx.GraphModule, **how: Any) -> Any:
        values = [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]
        env = next(value for value in values if isinstance(value, torch.SymInt)).node.shape_env
        before = len(env.guards)
        plan = make_plan(gm, **how)
        asked.append(env.guards[before:])
        return plan

    def every(x: torch.Tensor, y: torch.Tensor) -> Any:
        views = (x * 2)[x.shape[0] // 2 :], x.chunk(2)[1].t(), (x @ y.mT).mT[:, 1:]
        values = F.pad(x, (1, 2)).softmax(0), torch.cat([x, y.flip(0)]), x.roll(1, 0), F.layer_norm(x, (4,))
        index = (x[:, 0] > 0).long()
        written = x.index_put((index,), y, accumulate=True), x.select_scatter(y[0], 0, 1), x.as_strided((2,), (1,))
        return *views, *values, *written, F.avg_pool2d(x[None], 2), F.max_pool1d(x, 2), x.sum(0), x.var(), x.sort(0)[0]

    monkeypatch.setattr(compilation, "make_plan", watched)
    x, y = torch.randn(7, 4, requires_grad=True), torch.randn(7, 4)
    outputs = torch.compile(every, backend="rust_ort", dynamic=True)(x, y)
    sum(output.sum() for output in outputs).backward()
    assert len(asked) == 2
    assert not any(asked), asked
