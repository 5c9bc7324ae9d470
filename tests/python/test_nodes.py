"""compare="nodes" on a Llama decoder: a wrong kernel is found at its node, and right ones are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from support import DaemonClient, use_client

import rust_ort
from rust_ort.graph_info import GraphInfo, NodeVerdict
from rust_ort.studies import llama_models

# float32's tolerance at the largest element is 4.6e-5 of it (docs/decisions/0002-tolerance.md).
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
        part.spec.model = model.SerializeToString()
        part.prepare(again=True)
        seen = decoder.step()
        part.spec.model = right[direction]
        part.prepare(again=True)
        other = "backward" if direction == "forward" else "forward"
        wrong = [node.name for node in seen[direction] if node.is_wrong]
        outcome.append((direction, plant.__name__, name, wrong, [n.name for n in seen[other] if n.is_wrong]))
    for direction, kind, name, wrong, elsewhere in outcome:
        print(f"{direction} {kind} at {name}: found {wrong}")
        assert (wrong, elsewhere) == ([name], []), (direction, kind, name)
    assert all(not node.is_wrong for nodes in decoder.step().values() for node in nodes)
