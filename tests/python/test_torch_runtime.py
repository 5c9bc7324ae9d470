"""libtorch as a runtime: `rust-ort-torch replay --runtime torch` on ONNX's node tests and on real models' graphs.

Skipped where there is no rust-ort-torch: `make test-torch` makes it, or RUST_ORT_TORCH_BINARY names it.
"""

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import Daemon
from support import TORCH_PROGRAM, needs_libtorch

import rust_ort
from measure import op_census, torch_cases, torch_nodes
from measure.architectures import TABLE
from rust_ort.link.daemon import find_binary


@needs_libtorch
def test_onnx_node_tests_are_passed_or_need_an_operator_that_has_no_kernel(tmp_path: Path) -> None:
    assert TORCH_PROGRAM is not None
    skipped = torch_cases.write(tmp_path / "cases")
    counts = torch_cases.count(torch_cases.replay(TORCH_PROGRAM, tmp_path / "cases", "--runtime", "torch"), skipped)
    print(f"{len(counts.passed)} passed, {len(counts.rounded)} rounded, unsupported: {counts.operators()}")
    assert counts.wrong == {}
    assert len(counts.passed) > 1300


@needs_libtorch
@pytest.mark.parametrize("name", ["llama", "bert", "convnext", "mamba"])
def test_graphs_of_real_models_give_what_onnxruntime_gave(name: str, daemon: Daemon, tmp_path: Path) -> None:
    assert TORCH_PROGRAM is not None
    backend = rust_ort.Backend({"compare": "outputs", "socket": str(daemon.socket)})
    torch._dynamo.reset()
    with rust_ort.dump("run", folder=tmp_path, options={"socket": str(daemon.socket)}) as run:
        case = TABLE[name].build("eager")
        op_census.values(case, "frozen", lambda module: torch.compile(module, backend=backend))
    made = torch_nodes.row(name, [("eager/frozen", run)], TORCH_PROGRAM)
    assert made.graphs >= 2
    for runtime, side in made.sides.items():
        assert side.outputs > 0, runtime
        assert (side.missing, side.failed, side.wrong) == ([], [], []), (runtime, dataclasses.asdict(side))


# --- Operators that ONNX's own tests do not have ---

RNG = np.random.default_rng(3)


def draw(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def model_of(node: onnx.NodeProto, inputs: Sequence[np.ndarray], outputs: Sequence[str]) -> onnx.ModelProto:
    """Of one node; outputs declare no shape."""
    element = onnx.helper.np_dtype_to_tensor_dtype
    typed = onnx.helper.make_tensor_value_info
    named = [name for name in node.input if name]
    feeds = [typed(name, element(value.dtype), value.shape) for name, value in zip(named, inputs, strict=True)]
    fetches = [typed(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    graph = onnx.helper.make_graph([node], "g", feeds, fetches)
    opsets = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid(node.domain, 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def on_libtorch(
    folder: Path, model: onnx.ModelProto, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> dict[str, str]:
    """{output: verdict}."""
    assert TORCH_PROGRAM is not None
    data_set = folder / "run" / "graph" / "part_0" / "test_data_set_0"
    data_set.mkdir(parents=True)
    (folder / "run" / "run.json").write_text(json.dumps({"schema": "rust_ort/run/1"}))
    (folder / "run" / "graph" / "parts.json").write_text(json.dumps({"name": "graph"}))
    onnx.save(model, data_set.parent / "model.onnx")
    for role, values, tensors in (("input", model.graph.input, inputs), ("output", model.graph.output, expected)):
        for at, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
            proto = onnx.numpy_helper.from_array(tensor, value.name)
            (data_set / f"{role}_{at}.pb").write_bytes(proto.SerializeToString())
    (found,) = torch_cases.replay(TORCH_PROGRAM, folder / "run", "--runtime", "torch")
    return {verdict["name"]: json.dumps(verdict["verdict"]) for verdict in found["verdicts"]}


MICROSOFT: list[tuple[str, list[np.ndarray], int, dict[str, Any]]] = [
    ("BiasGelu", [draw(2, 3, 8), draw(8)], 1, {}),
    ("FastGelu", [draw(2, 3, 8), draw(8)], 1, {}),
    ("FusedConv", [draw(2, 3, 9, 8), draw(4, 3, 3, 3), draw(4)], 1, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
    ("FusedGemm", [draw(4, 3), draw(4, 5), draw(5)], 1, {"activation": "Tanh", "transA": 1, "alpha": 0.5}),
    ("FusedMatMul", [draw(2, 5, 3), draw(2, 4, 5)], 1, {"transA": 1, "transB": 1, "alpha": 0.25}),
    ("Gelu", [draw(2, 9)], 1, {}),
    ("QuickGelu", [draw(2, 9)], 1, {"alpha": 1.5}),
    ("SkipLayerNormalization", [draw(2, 3, 8), draw(2, 3, 8), draw(8), draw(8), draw(8)], 1, {"epsilon": 1e-5}),
    ("SkipSimplifiedLayerNormalization", [draw(2, 3, 8), draw(2, 3, 8), draw(8)], 1, {"epsilon": 1e-5}),
]


@needs_libtorch
@pytest.mark.parametrize(
    ("operator", "inputs", "n_outputs", "attributes"), MICROSOFT, ids=[row[0] for row in MICROSOFT]
)
def test_operators_that_the_optimizer_makes_give_what_onnxruntime_gives(
    operator: str, inputs: list[np.ndarray], n_outputs: int, attributes: dict[str, Any], tmp_path: Path
) -> None:
    outputs = [f"y{at}" for at in range(n_outputs)]
    names = [f"x{at}" for at in range(len(inputs))]
    node = onnx.helper.make_node(operator, names, outputs, name="node", domain="com.microsoft", **attributes)
    model = model_of(node, inputs, outputs)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, dict(zip(names, inputs, strict=True)))
    assert on_libtorch(tmp_path, model, inputs, expected) == dict.fromkeys(outputs, '{"kind": "match"}')


@needs_libtorch
def test_a_region_gives_what_its_program_says(tmp_path: Path) -> None:
    x, w = draw(2, 3, 40), draw(3, 40)
    steps = "ReduceMax 0; Sub 0 2; Sigmoid 0; Mul 4 1"
    outputs = ["m", "d", "y"]
    node = onnx.helper.make_node("RegionFloat", ["x", "w"], outputs, name="node", domain="rust_ort")
    # make_node has arguments of these names itself.
    attributes = {"inputs": "ff", "steps": steps, "outputs": [2, 3, 5], "rank": 3}
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())
    largest = x.max(-1, keepdims=True)
    expected = [largest, x - largest, (w / (1 + np.exp(-x))).astype(np.float32)]
    assert on_libtorch(tmp_path, model_of(node, [x, w], outputs), [x, w], expected) == dict.fromkeys(
        outputs, '{"kind": "match"}'
    )


@needs_libtorch
def test_rows_are_added_up_by_index(tmp_path: Path) -> None:
    indices, updates, shape = np.array([3, 0, 3, 1]), draw(4, 5), np.array([6, 5])
    node = onnx.helper.make_node("AddRows", ["i", "u", "s"], ["y"], name="node", domain="rust_ort")
    expected = np.zeros((6, 5), np.float32)
    np.add.at(expected, indices, updates)
    model = model_of(node, [indices, updates, shape], ["y"])
    assert on_libtorch(tmp_path, model, [indices, updates, shape], [expected]) == {"y": '{"kind": "match"}'}


def test_a_program_without_libtorch_says_where_it_is(tmp_path: Path) -> None:
    case = tmp_path / "run" / "graph" / "part_0" / "test_data_set_0"
    case.mkdir(parents=True)
    done = subprocess.run(
        [find_binary(), "replay", "--runtime", "torch", case], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "built without libtorch; use rust-ort-torch, made by `make build-torch`" in done.stderr
