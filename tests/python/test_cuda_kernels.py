"""Graphs traced for CUDA in half precision, as sessions on CUDA get them: by the table of what the provider has kernels
for, no node is without one that float32 has."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
import pytest
import torch
from onnx import TensorProto, defs, shape_inference
from support import FakeClient, binary, use_client
from torch import nn
from torch.nn import functional

import rust_ort
from measure.architectures import TABLE
from measure.cuda_graphs import trace
from measure.cuda_kernels.cases import ELEMENTS
from measure.cuda_kernels.table import is_lacking
from rust_ort.link import wire
from rust_ort.torch_private import pytree

KERNELS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs/results/cuda-kernels.json").read_text())[
    "operators"
]
NAMES = {number: name for name, number in ELEMENTS.items()}
HALVES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Recorded(FakeClient):
    """Takes every model, and runs none."""

    def part(self, spec: Any, options: Any) -> Any:
        part = type("Part", (), {"spec": spec, "prepared": wire.Reply().prepared})()
        self.parts.append(part)
        return part


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    torch._dynamo.reset()
    torch.manual_seed(0)
    client = Recorded()
    use_client(monkeypatch, client)
    return client


def widened(model: bytes, folder: Path) -> onnx.ModelProto:
    """As a session on CUDA has it."""
    program = binary()
    if program is None:
        pytest.skip("no rust-ort: `make build` makes it")
    given, made = folder / "model.onnx", folder / "cuda.onnx"
    given.write_bytes(model)
    subprocess.run([program, "widen", "--cuda", str(given), str(made)], check=True, capture_output=True)
    return onnx.load(made)


def nodes(graph: onnx.GraphProto, outer: Mapping[str, int]) -> Iterator[tuple[onnx.NodeProto, dict[str, int]]]:
    """Each with the element types of what it can read and gives, those in bodies among them."""
    types = dict(outer)
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    infos = [*graph.input, *graph.value_info, *graph.output]
    types |= {info.name: info.type.tensor_type.elem_type for info in infos}
    for node in graph.node:
        yield node, types
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g, types)


def lacking(model: onnx.ModelProto, *, strict: bool) -> Counter[str]:
    """{"operator of element type": nodes} without a kernel that float32 has. strict: every type is one that
    ONNX gives the operator."""
    opset = next(one.version for one in model.opset_import if one.domain == "")
    inferred = shape_inference.infer_shapes(model, check_type=strict, strict_mode=strict)
    found: Counter[str] = Counter()
    for node, types in nodes(inferred.graph, {}):
        if node.op_type not in KERNELS or node.domain:
            continue
        versions = KERNELS[node.op_type]
        told = versions[str(max(int(since) for since in versions if int(since) <= opset))]
        schema = defs.get_schema(node.op_type, opset, "")
        sides = [(node.input, schema.inputs), (node.output, schema.outputs)]
        for names, formals in sides:
            for at, name in enumerate(names):
                states = told.get(formals[min(at, len(formals) - 1)].type_str, {})
                element = NAMES.get(types.get(name, TensorProto.UNDEFINED), "")
                if element in HALVES.values() and is_lacking(states.get(element, ""), states.get("float", "")):
                    found[f"{node.op_type} of {element}"] += 1
                    break
    return found


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, stride=2, groups=2, padding_mode="reflect", padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.group = nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self.norm(self.first(x)).relu(), 2)
        x = functional.leaky_relu(self.up(self.second(functional.pad(x, (1, 2, 0, 1)))))
        return functional.log_softmax(self.group(x).flatten(1), -1).logsumexp(-1).sum()


def llama() -> tuple[nn.Module, dict[str, Any]]:
    small = dataclasses.replace(TABLE["llama"], options=TABLE["llama"].options | {"num_hidden_layers": 1})
    case = small.build("sdpa")
    return case.module.eval(), case.inputs


@pytest.mark.parametrize("half", HALVES, ids=HALVES.get)
@pytest.mark.parametrize("name", ["llama", "convolutions"])
def test_no_node_of_a_graph_for_cuda_lacks_a_kernel(
    name: str, half: torch.dtype, recorded: FakeClient, tmp_path: Path
) -> None:
    """Forward and backward under autocast, and with parameters in half precision."""
    backend = rust_ort.Backend()
    for is_pure in (False, True):
        module, inputs = llama() if name == "llama" else (ConvNet(), {"x": torch.randn(2, 3, 16, 16)})
        if is_pure:
            module = module.to(half)
            inputs = pytree.tree_map_only(torch.Tensor, lambda x: x.to(half) if x.is_floating_point() else x, inputs)
        torch._dynamo.reset()
        trace(module, inputs, backend, autocast=None if is_pure else half)
    assert {graph.direction for graph in backend.graphs} == {"forward", "backward"}
    assert not [node for graph in backend.graphs for node in graph.eager]
    before: Counter[str] = Counter()
    for part in recorded.parts:
        exported = onnx.inliner.inline_local_functions(onnx.load_model_from_string(part.spec.model))
        before += lacking(exported, strict=False)
        assert not lacking(widened(part.spec.model, tmp_path), strict=True)
    print(f"{name}, {half}: {dict(before)}")
    assert bool(before) is (half is torch.bfloat16)
