"""compare="nodes" on a Llama decoder: a wrong kernel is found at its node, and right ones are right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from support import DaemonClient, use_client
from torch import Tensor, nn

import rust_ort
from measure import language_models
from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.export import rules
from rust_ort.export.value_info import drop_contradicted
from rust_ort.link.daemon import find_binary
from rust_ort.observe import nodes as nodes_module
from rust_ort.observe.graph_info import GraphInfo, NodeVerdict
from rust_ort.options import Options
from rust_ort.studies import llama_models

# float32's tolerance at the largest element is 4.6e-5 of it (docs/design/decisions/0002-tolerance.md).
TWICE_THE_TOLERANCE = 1e-4


@dataclass
class Decoder:
    """A compiled decoder layer, its parts, and what its graphs know."""

    study: llama_models.Study
    compiled: Any
    parts: dict[str, Any]

    def step(self, seed: int = 0) -> dict[str, list[NodeVerdict]]:
        """{direction: verdicts of its nodes} of one training step on new inputs."""
        torch.manual_seed(seed)
        inputs = [
            torch.randn_like(tensor).requires_grad_() if tensor.requires_grad else tensor
            for tensor in self.study.inputs
        ]
        graphs = graphs_of(self.parts) if self.parts else []
        for graph in graphs:
            graph.nodes.clear()
        output = self.compiled(*inputs)
        (output * torch.randn_like(output)).mean().backward()
        return {graph.direction: [node for _, node in graph.nodes] for graph in graphs}


def graphs_of(parts: dict[str, Any]) -> list[GraphInfo]:
    names = {part.spec.graph.name for part in parts.values()}
    return [graph for graph in rust_ort.graphs() if graph.name in names]


@pytest.fixture
def decoder(daemon: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoder]:
    client = DaemonClient()
    use_client(monkeypatch, client)
    study = llama_models.build("decoder", llama_models.SIZES["small"], attention="eager")
    made = Decoder(study, torch.compile(study.module, backend="rust_ort", options={"compare": "nodes"}), {})
    made.step()
    made.parts = {part.spec.graph.direction: part for part in client.parts}
    assert set(made.parts) == {"forward", "backward"}
    yield made


@pytest.mark.usefixtures("daemon")
def test_results_of_one_operator_are_never_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their nodes read each other: sort's values are gathered by its indices."""

    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, places = torch.sort(x * 2, dim=-1)
        most, where = x.max(dim=0)
        best, _ = torch.topk(x, 2)
        return values + 1, places, most, where, best, torch.nn.functional.layer_norm(x, (8,))

    def compared() -> dict[str, tuple[str, str]]:
        torch._dynamo.reset()
        report = rust_ort.compare(several, x, options={"compare": "nodes"})
        assert report.ok, report
        return {node.name: (node.local.kind, node.cumulative.kind) for _, node in report.nodes}

    x = torch.randn(4, 8, requires_grad=True)
    whole = compared()
    monkeypatch.setattr(nodes_module, "BATCH_NODES", 1)
    assert compared() == whole


@pytest.mark.usefixtures("daemon")
def test_nodes_of_equal_layers_share_their_sessions() -> None:
    def built(n_layers: int) -> int:
        torch._dynamo.reset()
        layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(n_layers)]
        client = Client.get(Options())
        before = client.status()["counters"]["pieces_built"]
        report = rust_ort.compare(torch.nn.Sequential(*layers), torch.randn(4, 8), options={"compare": "nodes"})
        assert report.ok, report
        assert len({node.name for _, node in report.nodes}) >= 2 * n_layers
        return int(client.status()["counters"]["pieces_built"]) - before

    assert built(2) > 1
    # Nodes alone are those of before. What drifts is a model a batch: one of the forward's nodes, two of the
    # backward's, which are more than a batch has that ends with its layer.
    assert built(5) == 3


def test_nodes_that_are_right_match_whatever_the_inputs(decoder: Decoder) -> None:
    for seed in range(5):
        for direction, nodes in decoder.step(seed).items():
            assert len(nodes) > 70, direction
            kinds = {node.local.kind for node in nodes} | {node.cumulative.kind for node in nodes}
            assert kinds == {"match"}, [str(node) for node in nodes if node.local.kind != "match"]


def test_every_compute_node_has_a_verdict(decoder: Decoder) -> None:
    seen = decoder.step()
    for graph in graphs_of(decoder.parts):
        wanted = {name for part in graph.parts for name in part}
        assert wanted <= {node.name for node in seen[graph.direction]}


@pytest.mark.usefixtures("daemon")
def test_a_call_that_fails_leaves_nothing_to_the_next_graph_of_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled() -> Callable[..., torch.Tensor]:
        torch._dynamo.reset()
        made: Any = torch.compile(lambda x: torch.tanh(x) * 2, backend=rust_ort.backend(compare="nodes"))
        return made

    def fails(*_: Any, **__: Any) -> None:
        raise rust_ort.ClientError("the call after its nodes")

    x = torch.randn(4)
    with monkeypatch.context() as patch:
        patch.setattr(Part, "observed", fails)
        with pytest.raises(rust_ort.ClientError, match="after its nodes"):
            compiled()(x)
    torch.testing.assert_close(compiled()(x), torch.tanh(x) * 2)


# --- planting ---


def constant(graph: onnx.GraphProto, value: Any, like: str) -> str:
    """Name of a new constant before everything else."""
    name = f"planted_{len(graph.node)}"
    tensor = numpy_helper.from_array(np.asarray(value), name)
    graph.node.insert(0, helper.make_node("Constant", [], [name], name=name, value=tensor))
    return name


def epsilon(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """RMS norm's 1e-6, larger by twice the tolerance of the variance."""
    node.input[1] = constant(graph, np.float32(1e-6 + 2 * TWICE_THE_TOLERANCE), node.input[1])


def axis(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """One axis before."""
    if node.op_type == "Softmax":
        node.attribute[0].i -= 1
    elif node.op_type == "Transpose":
        perm = list(node.attribute[0].ints)
        del node.attribute[0].ints[:]
        node.attribute[0].ints.extend([*perm[:-2], perm[-1], perm[-2]])
    else:
        node.input[1] = constant(graph, np.array([1], np.int64), node.input[1])


def through_half(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """The result rounded to float16 on its way."""
    wrap(graph, node, lambda source, target: [
        helper.make_node("Cast", [source], [source + "_half"], to=onnx.TensorProto.FLOAT16),
        helper.make_node("Cast", [source + "_half"], [target], to=onnx.TensorProto.FLOAT),
    ])  # fmt: skip


def swapped(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """The operands in the other order."""
    node.input[0], node.input[1] = node.input[1], node.input[0]


def dropped(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """The factor left out."""
    node.op_type = "Identity"
    del node.input[1:]


def off_scale(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """The factor off by twice the tolerance."""
    factor = constant(graph, np.float32(1 + TWICE_THE_TOLERANCE), "")
    wrap(graph, node, lambda source, target: [helper.make_node("Mul", [source, factor], [target])])


def wrap(graph: onnx.GraphProto, node: onnx.NodeProto, rest: Callable[[str, str], list[onnx.NodeProto]]) -> None:
    target = node.output[0]
    node.output[0] = target + "_planted"
    at = list(graph.node).index(node)
    for offset, extra in enumerate(rest(node.output[0], target)):
        graph.node.insert(at + 1 + offset, extra)


def send(part: Any, model: bytes) -> None:
    """Makes the daemon's model of the part another: what is prepared already is not sent a second time."""
    proto = onnx.load_from_string(model)
    drop_contradicted(proto)
    part.spec.model = proto.SerializeToString()
    part._connection = None
    part.prepare()


Plant = Callable[[onnx.GraphProto, onnx.NodeProto], None]

# (direction, what is wrong, ONNX operator, which of them)
PLACEMENTS: list[tuple[str, Plant, str, int]] = [
    ("forward", epsilon, "rsqrt's Add", 0),
    ("forward", epsilon, "rsqrt's Add", 1),
    ("forward", axis, "Softmax", 0),
    ("forward", axis, "Transpose", 0),
    ("forward", through_half, "MatMul", 2),
    ("forward", through_half, "Mul", 0),
    ("forward", swapped, "Concat of floats", 0),
    ("forward", swapped, "Concat of floats", 1),
    ("forward", dropped, "Mul", 6),
    ("forward", off_scale, "MatMul", 4),
    ("backward", off_scale, "Sub", 1),
    ("backward", off_scale, "ReduceSum", 0),
    ("backward", axis, "ReduceSum", 1),
    ("backward", axis, "ReduceSum", 2),
    ("backward", through_half, "MatMul", 5),
    ("backward", through_half, "Div", 0),
    ("backward", swapped, "Sub", 0),
    ("backward", swapped, "Sub", 1),
    ("backward", dropped, "Mul", 8),
    ("backward", dropped, "Mul", 12),
]


def find(graph: onnx.GraphProto, what: str, index: int) -> onnx.NodeProto:
    producer = {name: node for node in graph.node for name in node.output}
    if what == "rsqrt's Add":
        found = [producer[node.input[0]] for node in graph.node if node.op_type == "Sqrt"]
    elif what == "Concat of floats":
        found = [node for node in graph.node if node.op_type == "Concat" and node.output[0].startswith("cat")]
    else:
        found = [node for node in graph.node if node.op_type == what]
    return found[index]


def test_the_first_local_mismatch_is_the_planted_node(decoder: Decoder) -> None:
    assert len(PLACEMENTS) == 20
    right = {direction: part.spec.model for direction, part in decoder.parts.items()}
    outcome = []
    for direction, plant, what, index in PLACEMENTS:
        part = decoder.parts[direction]
        model = onnx.load_from_string(right[direction])
        node = find(model.graph, what, index)
        name = node.output[0]
        assert name in part.spec.named_values, f"{what} {index} makes {name}, which is no FX value: choose another"
        plant(model.graph, node)
        send(part, model.SerializeToString())
        seen = decoder.step()
        send(part, right[direction])
        other = "backward" if direction == "forward" else "forward"
        wrong = [node.name for node in seen[direction] if node.is_wrong]
        outcome.append((direction, plant.__name__, name, wrong, [n.name for n in seen[other] if n.is_wrong]))
    for direction, kind, name, wrong, elsewhere in outcome:
        print(f"{direction} {kind} at {name}: found {wrong}")
        assert (wrong, elsewhere) == ([name], []), (direction, kind, name)
    assert all(not node.is_wrong for nodes in decoder.step().values() for node in nodes)


# --- precisions and options ---


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_nodes_in_half_precision_match(dtype: torch.dtype) -> None:
    study = llama_models.build("decoder", llama_models.SIZES["small"])
    module = study.module.to(dtype)
    inputs = [tensor.detach().to(dtype).requires_grad_(tensor.requires_grad) for tensor in study.inputs]
    backend = rust_ort.Backend({"compare": "nodes"})
    output = torch.compile(module, backend=backend)(*inputs)
    (output * torch.randn_like(output)).mean().backward()
    for graph in backend.graphs:
        assert not graph.eager
        kinds = {kind for _, node in graph.nodes for kind in (node.local.kind, node.cumulative.kind)}
        assert kinds == {"match"}, graph.name


class Mixed(torch.nn.Module):
    """Parts on ONNX Runtime around nodes that stay in eager and draw random numbers; sizes that change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.dropout(self.linear(x).relu(), 0.5)
        first, second = y.split(4, 1)
        return (first * second.exp()).sum(0) + torch.linalg.inv(y.T @ y + 8 * torch.eye(8))[:4, 0] + x.shape[0]


def verdicts_of(calls: int, **options: Any) -> list[tuple[str, int, NodeVerdict]]:
    """(direction, call, verdict) of every node of training steps on inputs of growing length."""
    torch.manual_seed(0)
    backend = rust_ort.Backend({"compare": "nodes", **options})
    compiled = torch.compile(Mixed(), backend=backend, dynamic=True)
    for n in range(calls):
        compiled(torch.randn(5 + n, 8)).sum().backward()
    return [(graph.direction, step, node) for graph in backend.graphs for step, node in graph.nodes]


@pytest.mark.usefixtures("daemon")
def test_parts_eager_nodes_random_numbers_and_sizes_compare_alike() -> None:
    found = verdicts_of(2, compare_memory=4096)
    assert {direction for direction, _, _ in found} == {"forward", "backward"}
    wrong = [
        str(node)
        for _, _, node in found
        if (node.local.kind, node.cumulative.kind) != ("match", "match") and node.part is not None
    ]
    assert not wrong
    assert sum("split" in node.op for _, _, node in found if node.part is not None) >= 4
    eager = {node.op for _, _, node in found if node.part is None}
    assert any("bernoulli" in op for op in eager) and any("linalg_inv" in op for op in eager)
    assert all("ran in eager" in node.local.reason for _, _, node in found if node.part is None)


@pytest.mark.usefixtures("daemon")
def test_one_call_in_so_many_is_compared_and_only_what_a_pattern_names() -> None:
    found = verdicts_of(3, compare_every=2, compare_only=["aten.relu*", "exp"])
    assert {step for _, step, _ in found} == {0, 2}
    ops = {node.op for _, _, node in found if node.part is not None}
    assert ops == {"aten.relu.default", "aten.exp.default"}, ops


def test_comparing_stops_at_the_first_mismatch(decoder: Decoder) -> None:
    part = decoder.parts["forward"]
    model = onnx.load_from_string(part.spec.model)
    through_half(model.graph, find(model.graph, "MatMul", 0))
    # Small batches: what is in the batch of the mismatch has been judged with it.
    object.__setattr__(part.options, "compare_stop", "first")
    object.__setattr__(part.options, "compare_memory", 1 << 16)
    send(part, model.SerializeToString())
    nodes = decoder.step()["forward"]
    first = next(index for index, node in enumerate(nodes) if node.is_wrong)
    left_out = [node for node in nodes[first + 1 :] if node.local.kind == "not_compared"]
    assert left_out and all(nodes[first].name in node.local.reason for node in left_out)
    assert sum(node.is_wrong for node in nodes) == 1


# --- constants made inside a graph, and inputs that a model does not read ---


def _nothing_joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor([]), x * 2]) + 1


def _only_nothing_joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor([], dtype=x.dtype), x])


def _nothing_joined_in_half_precision(x: torch.Tensor) -> torch.Tensor:
    joined = torch.cat([torch.tensor([], dtype=torch.bfloat16), x.bfloat16()])
    return (joined * torch.tensor([1, 2, 3], dtype=torch.bfloat16)).float()


def _nothing_of_two_dimensions_joined(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.tensor([]).reshape(0, 3), x[None] * 2])


def _multiplied(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(2.5)


def _picked(x: torch.Tensor) -> torch.Tensor:
    return x[torch.tensor([2, 0])] * 2


def _read_for_its_shape(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) + torch.zeros_like(torch.tensor([1.0, 2.0, 3.0])) + x.sum()


CONSTANTS = (
    _nothing_joined,
    _only_nothing_joined,
    _nothing_joined_in_half_precision,
    _nothing_of_two_dimensions_joined,
    _multiplied,
    _picked,
    _read_for_its_shape,
)


def matched(graphs: Iterable[GraphInfo]) -> set[str]:
    """Names of nodes; each other one is left to eager: it has no elements, or draws random numbers, or gives the memory
    that these are drawn into."""
    rows = [node for graph in graphs for _, node in graph.nodes]
    others = [row for row in rows if row.local.kind != "match"]
    causes = ("it reads a tensor without elements", "it draws random numbers", "memory that nobody wrote into")
    reasons = tuple(f"ran in eager: {cause}" for cause in causes)
    assert all(row.local.reason.startswith(reasons) for row in others), others
    return {row.name for row in rows if row.local.kind == "match"}


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("function", CONSTANTS, ids=lambda function: function.__name__.strip("_"))
def test_a_constant_made_inside_a_graph_is_a_feed_where_its_model_reads_it(
    function: Callable[[torch.Tensor], torch.Tensor], dynamic: bool
) -> None:
    for grad in (True, False):
        torch._dynamo.reset()
        x = torch.randn(3, requires_grad=grad)
        backend = rust_ort.backend(compare="nodes", compare_float64="all")
        result = torch.compile(function, backend=backend, dynamic=dynamic)(x)
        if grad:
            result.sum().backward()
        assert {graph.direction for graph in backend.graphs} == ({"forward", "backward"} if grad else {"inference"})
        assert matched(backend.graphs)
        backend.report().check()


@pytest.mark.usefixtures("daemon")
def test_a_value_that_the_translation_folds_away_is_no_feed() -> None:
    x = torch.randn(3, requires_grad=True)
    with rules.without("aten.cat.default"):  # or the empty tensor would not come so far
        backend = rust_ort.backend(compare="nodes")
        torch.compile(_nothing_joined, backend=backend)(x).sum().backward()
    assert {node.name for node in backend.graphs[0].eager} == {"lift_fresh_copy"}
    assert {"cat", "add"} <= matched(backend.graphs)
    backend.report().check()


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("function", CONSTANTS, ids=lambda function: function.__name__.strip("_"))
def test_a_dumped_graph_with_a_constant_is_blamed_replayed_and_shown(
    function: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    x = torch.randn(3, requires_grad=True)
    blamed = rust_ort.blame(function, x, folder=tmp_path)
    assert blamed.report.ok
    assert blamed.culprit is None, str(blamed)
    parts = sorted(tmp_path.glob("blame/*/part_*"))
    assert parts
    for part in parts:
        for command in ("replay", "sbs", "blame"):
            said = subprocess.run([find_binary(), command, part], capture_output=True, text=True, check=False)
            assert said.returncode == 0, (command, said.stdout, said.stderr)


@pytest.mark.usefixtures("daemon")
def test_what_to_keep_in_float32_is_found_beside_a_constant() -> None:
    kept = rust_ort.keep_in_float32(_nothing_joined_in_half_precision, torch.randn(3, requires_grad=True))
    assert kept.complete
    assert kept.outputs


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("family", ["Llama", "GPT-2", "T5"])
def test_a_language_model_as_its_class_makes_it_is_compared_node_by_node(family: str) -> None:
    """`python -m measure.language_models` has more of them. A cache begins as torch.tensor([])."""
    model = language_models.build(family)
    assert model.config.use_cache
    for training in (True, False):
        backend = language_models.compare_nodes(model, training=training)
        assert len(matched(backend.graphs)) > (150 if training else 50)
        backend.report().check()


def test_a_mean_that_cancels_in_one_node_accuses_nobody() -> None:
    """Of what batch norm gives, the next one's mean is zero but for rounding, and so are gradients behind it."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8), torch.nn.BatchNorm2d(8))
    report = rust_ort.compare(model, torch.randn(4, 8, 7, 7), options={"compare": "nodes"})
    assert report.ok, report
    norms = [node for _, node in report.nodes if "batch_norm" in node.op]
    assert len(norms) > 10 and all(node.local.is_pass for node in norms), [str(node) for node in norms]


def _spread(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """As graph networks have it: an index of rows, spread over the columns, and read more than once."""
    spread = rows.view(-1, 1).expand(-1, x.shape[1])
    first = x.gather(0, spread).tanh().exp().sin()
    return (x.cos() * 2).gather(0, spread) * first


@pytest.mark.usefixtures("daemon")
def test_what_an_index_is_spread_from_stays_until_the_last_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "BATCH_NODES", 1)
    x = torch.arange(12.0).reshape(4, 3).requires_grad_()
    report = rust_ort.compare(_spread, x, torch.tensor([2, 0, 2, 1, 3]), options={"compare": "nodes"})
    assert report.ok, report
    assert {node.local.kind for _, node in report.nodes} <= {"match", "noise"}, report


def test_the_reference_has_the_layout_that_views_of_the_trace_rely_on() -> None:
    """Batch norm of a transposed tensor is transposed in the trace, and contiguous by the kernel (PatchTST)."""

    class Transposed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))

    report = rust_ort.compare(Transposed(), torch.randn(4, 8, 16), options={"compare": "nodes"})
    assert report.ok, report
    assert any(node.op == "aten.view.default" or "addmm" in node.op for _, node in report.nodes)
