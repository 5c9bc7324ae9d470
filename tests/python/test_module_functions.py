"""Submodules as ONNX local functions: each call one node, equal calls one function, the same numbers inlined or not."""

from __future__ import annotations

import ast

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx.inliner import inline_local_functions
from torch import Tensor, nn

import rust_ort
from rust_ort.errors import OptionError
from rust_ort.studies import submodules
from rust_ort.studies.submodules import LLM


class Block(nn.Module):
    """A layer that is called twice, before and after another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.act = nn.Linear(4, 8), nn.Linear(8, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.second(self.act(self.first(x))) + x)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x * 2


def bodies(model: onnx.ModelProto) -> dict[str, list[str]]:
    return {function.name: [node.op_type for node in function.node] for function in model.functions}


def results(model: onnx.ModelProto, **feeds: Tensor) -> list[list[np.ndarray]]:
    """Of the model, and of it with its functions inlined; the checker has nothing against either."""
    found = []
    for one in (model, inline_local_functions(model)):
        onnx.checker.check_model(one, full_check=True)
        session = onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        found.append(session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()}))
    return found


def assert_right(model: onnx.ModelProto, module: nn.Module, **feeds: Tensor) -> None:
    expected = module(*feeds.values()).detach().numpy()
    for (given,) in results(model, **feeds):
        np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimized", [False, True])
def test_equal_calls_share_a_function_that_takes_its_parameters(optimized: bool) -> None:
    module, x = Blocks().eval(), torch.randn(3, 4)
    model = rust_ort.to_onnx(module, x, optimized=optimized, export_modules_as_functions=True)
    assert_right(model, module, x=x)
    assert {"Block", "Linear", "ReLU"} <= {*bodies(model)}
    assert [*bodies(model)].count("Block") == 1 and "Block_2" not in bodies(model)
    assert [node.op_type for node in model.graph.node][:2] == ["Block", "Block"]
    assert bodies(model)["Block"] == ["Linear", "ReLU", "Linear", "Add", "ReLU"]
    assert list(model.graph.node[1].input)[1] == "blocks.1.first.weight"
    (block,) = (function for function in model.functions if function.name == "Block")
    assert list(block.input)[1:] == ["first.weight", "first.bias", "second.weight", "second.bias"]
    paths = {entry.key: entry.value for entry in model.graph.node[0].metadata_props}
    assert paths["rust_ort.module"] == "blocks.0"


def test_dynamic_sizes_stay_so() -> None:
    module, x = Blocks().eval(), torch.randn(3, 4)
    model = rust_ort.to_onnx(module, x, dynamic_shapes={"x": {0: "rows"}}, export_modules_as_functions=True)
    for rows in (1, 3, 7):
        assert_right(model, module, x=torch.randn(rows, 4))


def test_patterns_name_paths_and_classes() -> None:
    module, x = Blocks().eval(), torch.randn(3, 4)
    for patterns, names in (
        (["blocks.1"], {"Block"}),
        (["*.ReLU"], {"ReLU"}),
        (["ReLU", "blocks.0.first"], {"ReLU", "Linear"}),
    ):
        model = rust_ort.to_onnx(module, x, export_modules_as_functions=patterns)
        assert_right(model, module, x=x)
        assert {*bodies(model)} == names
    with pytest.raises(OptionError, match=r"no submodule called is like 'Conv\*'; there are Block, Linear"):
        rust_ort.to_onnx(module, x, export_modules_as_functions=["Conv*"])
    for wrong in ("Block", 3, [3]):
        with pytest.raises(
            OptionError, match="export_modules_as_functions: expected True, False or a list of patterns"
        ):
            rust_ort.to_onnx(module, x, export_modules_as_functions=wrong)  # type: ignore[arg-type]


class Crossing(nn.Module):
    """Two halves of each call are computed around the other's: neither can be one node before the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Half(), Half()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x) + 1) + self.a(self.b(x))


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp().sin()


def test_an_optimizer_that_shares_nodes_between_calls_leaves_no_circle() -> None:
    module, x = Crossing().eval(), torch.randn(3)
    for optimized in (False, True):
        model = rust_ort.to_onnx(module, x, optimized=optimized, export_modules_as_functions=True)
        assert_right(model, module, x=x)


class Act(nn.Module):
    """One class, two bodies."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.function = getattr(torch, name)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.function(x)
        return made


class Act_2(nn.Module):  # noqa: N801 (named as the second body of the other)
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()


def test_a_class_named_as_anothers_second_body_has_its_own_function() -> None:
    module, x = nn.Sequential(Act("sin"), Act("cos"), Act_2()).eval(), torch.randn(5)
    model = rust_ort.to_onnx(module, x, export_modules_as_functions=True)
    assert len({node.op_type for node in model.graph.node}) == 3
    for (given,) in results(model, **{model.graph.input[0].name: x}):
        np.testing.assert_allclose(given, module(x).numpy(), rtol=1e-6)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.weight = nn.LayerNorm(4), nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(x) * self.weight
        return made


class Outer(nn.Module):
    """A child that has a child of its own name, and both a parameter of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(x)
        return made


def test_parameters_of_one_name_within_each_other_stay_apart() -> None:
    module, x = Outer().eval(), torch.randn(2, 4)
    assert_right(rust_ort.to_onnx(module, x, export_modules_as_functions=True), module, x=x)


@pytest.mark.parametrize("optimized", [False, True])
def test_the_recipes_model_has_its_functions(optimized: bool) -> None:
    """experimental-experiment's plot_exporter_recipes_c_modules."""
    torch.manual_seed(0)
    module, ids = LLM().eval(), torch.randint(0, 1024, (1, 30))
    model = rust_ort.to_onnx(module, ids, optimized=optimized, export_modules_as_functions=True)
    (given,), (inlined,) = results(model, input_ids=ids)
    np.testing.assert_allclose(given, module(ids).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(given, inlined)
    assert bodies(model)["MultiAttentionBlock"] == ["AttentionBlock", "AttentionBlock", "Concat", "Linear_2"]
    assert bodies(model)["DecoderLayer"] == [
        "LayerNorm",
        "MultiAttentionBlock",
        "Add",
        "LayerNorm",
        "FeedForward",
        "Add",
    ]


def test_the_study_prints_every_model_and_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert submodules.main([]) == 0
    printed = capsys.readouterr().out
    assert "----- function name=DecoderLayer domain=rust_ort.modules" in printed
    assert "= | OUTPUT float32  3:1x30x16" in printed and "0 mismatch" in printed
    assert printed.count(" right\n") == len(submodules.VARIANTS) + 2
    assert printed.count("max discrepancy=") == len(submodules.VARIANTS) + 1
    assert "%softmax : [num_users=1] = call_function" in printed and "call_module[target=decoder]" in printed


def test_a_functions_sizes_are_of_its_own_inputs() -> None:
    """With dynamic sizes too: each Linear takes a tensor and its parameters, and equal ones share a function."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                         num_attention_heads=2, num_key_value_heads=2)  # fmt: skip
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(0, 32, (2, 5))
    proto = rust_ort.to_onnx(
        model, ids, dynamic_shapes={"input_ids": {0: "batch", 1: "length"}}, export_modules_as_functions=True
    )
    linears = [function for function in proto.functions if function.name.startswith("Linear")]
    assert [(len(function.input), len(function.output)) for function in linears] == [(2, 1)] * len(linears)
    assert len(linears) == 2  # 16 to 16, and the head's 16 to 32
    assert [function.name for function in proto.functions if function.name.startswith("LlamaDecoder")] == [
        "LlamaDecoderLayer"
    ]
    taken = [name for function in proto.functions for name in function.input]
    assert [name for name in taken if "sym_size" in name] == []
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for shape in ((2, 5), (1, 1), (3, 7)):
        ids = torch.randint(0, 32, shape)
        with torch.no_grad():
            expected = model(ids).logits
        np.testing.assert_allclose(session.run(None, {"input_ids": ids.numpy()})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimized", [False, True])
def test_each_node_tells_its_modules(optimized: bool) -> None:
    proto = rust_ort.to_onnx(LLM().eval(), torch.zeros(1, 8, dtype=torch.int64), optimized=optimized)
    told = [{entry.key: ast.literal_eval(entry.value) for entry in node.metadata_props} for node in proto.graph.node]
    scopes = {tuple(of["pkg.torch.onnx.name_scopes"][:-1]) for of in told if of}
    assert ("", "decoder", "decoder.attention", "decoder.attention.attention.1") in scopes
    relu = next(of for of, node in zip(told, proto.graph.node, strict=True) if node.op_type == "Relu")
    assert relu["pkg.torch.onnx.name_scopes"][-2] == "decoder.feed_forward.relu"
    assert relu["pkg.torch.onnx.class_hierarchy"][-2:] == ["torch.nn.modules.activation.ReLU", "Relu"]
