"""rust_ort.to_onnx: one model, the user's names, eager's numbers in plain ONNX Runtime, errors that say where."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import rust_ort
from rust_ort.errors import ClientError, OptionError
from rust_ort.export import attention, model_file
from rust_ort.runtime.dynamic_shapes import dynamic_sizes
from rust_ort.studies import broadcast

Dim = torch.export.Dim


def run(model: onnx.ModelProto | Path, feeds: dict[str, Tensor]) -> list[np.ndarray]:
    """In ONNX Runtime as it comes: its own optimizers on, nothing of ours."""
    what = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(what, providers=["CPUExecutionProvider"])
    made: list[np.ndarray] = session.run(None, {name: tensor.numpy() for name, tensor in feeds.items()})
    return made


def assert_eager(model: onnx.ModelProto | Path, feeds: dict[str, Tensor], expected: list[Tensor]) -> None:
    got = run(model, feeds)
    assert len(got) == len(expected)
    for candidate, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(candidate, reference.detach().numpy(), rtol=1e-5, atol=1e-5)


def shapes(entries: Any) -> dict[str, list[int | str]]:
    return {
        entry.name: [size.dim_param or size.dim_value for size in entry.type.tensor_type.shape.dim] for entry in entries
    }


def assumed(model: onnx.ModelProto) -> list[str]:
    found = {entry.key: entry.value for entry in model.metadata_props}
    return found.get("rust_ort.assumes", "").splitlines()


class Named(nn.Module):
    """A buffer, a dict of outputs, one of which is an input, one a view, one no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor, y: Tensor, flag: bool = True) -> dict[str, Any]:
        made = self.linear(x) * y + self.shift
        return {"made": made, "x": x, "size": x.shape[0], "across": x.t() if flag else x}


def test_the_users_names_are_the_models() -> None:
    model, x, y = Named().eval(), torch.randn(3, 4), torch.randn(3, 4)
    proto = rust_ort.to_onnx(model, x, kwargs={"y": y})
    onnx.checker.check_model(proto, full_check=True)
    assert shapes(proto.graph.input) == {"x": [3, 4], "y": [3, 4]}
    assert [entry.name for entry in proto.graph.initializer] == ["linear.weight", "linear.bias", "shift"]
    assert shapes(proto.graph.output) == {"made": [3, 4], "x_1": [3, 4], "across": [4, 3]}
    expected = model(x, y)
    assert_eager(proto, {"x": x, "y": y}, [expected["made"], x, expected["across"]])


def test_parameters_may_be_inputs() -> None:
    model, x, y = Named().eval(), torch.randn(3, 4), torch.randn(3, 4)
    proto = rust_ort.to_onnx(model, x, y, parameters="inputs")
    assert list(shapes(proto.graph.input)) == ["x", "y", "linear.weight", "linear.bias"]
    assert [entry.name for entry in proto.graph.initializer] == ["shift"]
    weights = {f"linear.{name}": torch.randn_like(entry) for name, entry in model.linear.named_parameters()}
    linear = functional.linear(x, weights["linear.weight"], weights["linear.bias"])
    assert_eager(proto, {"x": x, "y": y, **weights}, [linear * y + 1, x, x.t()])


def test_a_dynamic_size_has_its_name_and_other_sizes_run() -> None:
    model = Named().eval()
    for n in (1, 3):  # torch traces an example of size 1 apart
        x, y = torch.randn(n, 4), torch.randn(n, 4)
        named = {"x": {0: "batch"}, "y": (Dim("batch"), None)}
        proto = rust_ort.to_onnx(model, x, y, dynamic_shapes=named)
        assert shapes(proto.graph.input) == {"x": ["batch", 4], "y": ["batch", 4]}
        assert shapes(proto.graph.output) == {"made": ["batch", 4], "x_1": ["batch", 4], "across": [4, "batch"]}
        assert assumed(proto)[0] == "x.shape[0] == y.shape[0]"
        for other in (1, 7):
            x, y = torch.randn(other, 4), torch.randn(other, 4)
            assert_eager(proto, {"x": x, "y": y}, [model(x, y)["made"], x, x.t()])


def test_sizes_that_cannot_be_as_named_are_errors_that_say_why() -> None:
    model, x, y = Named().eval(), torch.randn(3, 4), torch.randn(3, 4)
    with pytest.raises(OptionError, match=r"x.shape\[0\] is named 'n' and y.shape\[0\] 'm'") as caught:
        rust_ort.to_onnx(model, x, y, dynamic_shapes={"x": {0: "n"}, "y": {0: "m"}})
    assert "test_to_onnx.py" in str(caught.value)
    with pytest.raises(OptionError, match=r"x.shape\[1\] is to be dynamic, but the program fixes it at 4"):
        rust_ort.to_onnx(model, x, y, dynamic_shapes={"x": {1: Dim.DYNAMIC}})
    left_open = rust_ort.to_onnx(model, x, y, dynamic_shapes={"x": {1: Dim.AUTO}})
    assert shapes(left_open.graph.input)["x"] == [3, 4]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"z": {0: "n"}}, "no argument 'z'"),
        ({"x": {2: "n"}}, "has no dimension 2"),
        ({"x": {0: "two words"}}, "expected a name such as 'batch'"),
        ({"x": {0: 5}}, r"x.shape\[0\] is 3, not 5"),
        ({"x": {0: 1.5}}, "expected a name"),
        ({"pair": ({0: "n"},)}, "does not fit pair"),
        ([None], "one spec for each of x, pair"),
    ],
)  # fmt: skip
def test_dynamic_shapes_that_do_not_fit_are_told(given: Any, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        dynamic_sizes(given, {"x": torch.ones(3, 4), "pair": (torch.ones(2), torch.ones(2))})


def test_dynamic_shapes_reach_into_containers_by_negative_axes_and_bounds() -> None:
    given = {"x": torch.ones(3, 4), "pair": (torch.ones(2), {"a": torch.ones(2)})}
    found = dynamic_sizes({"x": {-1: "n"}, "pair": (None, {"a": {0: Dim("m", min=1, max=9)}})}, given)
    assert [(str(size), size.name, size.bounds) for size in found] == [
        ("x.shape[1]", "n", None),
        ("pair[1]['a'].shape[0]", "m", (2, 9)),
    ]


class Variadic(nn.Module):
    """A tied weight, arguments of every kind, one that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, *rest: Tensor, scale: float = 2.0, **more: Tensor) -> Any:
        return self.head(self.embedding(ids)) * scale + sum(rest) + more["k"], (ids,)


def test_arguments_of_every_kind_are_inputs_and_a_tied_weight_is_one_initializer() -> None:
    model, ids, rest = Variadic(), torch.randint(0, 8, (2, 3)), torch.randn(8)
    more = {"k": torch.ones(8), "unread": torch.ones(3)}
    proto = rust_ort.to_onnx(model, ids, rest, kwargs=more, dynamic_shapes={"ids": (None, "length")})
    assert shapes(proto.graph.input) == {"ids": [2, "length"], "rest_0": [8], "k": [8], "unread": [3]}
    assert shapes(proto.graph.output) == {"output_0": [2, "length", 8], "output_1_0": [2, "length"]}
    assert [entry.name for entry in proto.graph.initializer] == ["embedding.weight"]
    assert_eager(proto, {"ids": ids, "rest_0": rest, **more}, [model(ids, rest, **more)[0], ids])


class Returning(nn.Module):
    """Returns parameters, one of which nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.unread = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"sum": x + self.read, "read": self.read, "unread": self.unread, "again": x}


def test_a_parameter_that_is_returned_is_an_output_of_another_name() -> None:
    model, x = Returning(), torch.randn(3)
    proto = rust_ort.to_onnx(model, x)
    assert [entry.name for entry in proto.graph.initializer] == ["read", "unread"]
    assert list(shapes(proto.graph.output)) == ["sum", "read_1", "unread_1", "again"]
    assert_eager(proto, {"x": x}, [x + model.read, model.read, model.unread, x])


def test_a_cache_is_inputs_and_outputs_by_the_names_of_its_layers() -> None:
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    model, cache = LlamaForCausalLM(config).eval(), DynamicCache(config=config)
    first, following = torch.randint(0, 64, (2, 5)), torch.randint(0, 64, (2, 1))
    with torch.no_grad():
        model(first, past_key_values=cache)
        keys, values = cache.layers[0].keys, cache.layers[0].values
        sizes = {"input_ids": {0: "batch"}, "past_key_values": [{0: "batch", 2: "past"}, {0: "batch", 2: "past"}]}
        proto = rust_ort.to_onnx(model, following, kwargs={"past_key_values": cache}, dynamic_shapes=sizes)
        assert cache.layers[0].keys is keys
        expected = model(following, past_key_values=cache).logits
    layer = "past_key_values_layers_0"
    assert shapes(proto.graph.input) == {
        "input_ids": ["batch", 1],
        f"{layer}_keys": ["batch", 2, "past", 8],
        f"{layer}_values": ["batch", 2, "past", 8],
    }
    assert list(shapes(proto.graph.output)) == ["logits", f"{layer}_keys_1", f"{layer}_values_1"]
    got = run(proto, {"input_ids": following, f"{layer}_keys": keys, f"{layer}_values": values})
    np.testing.assert_allclose(got[0], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_a_name_of_the_users_that_a_node_has_too_is_the_users() -> None:
    def function(mul: Tensor, s17: Tensor) -> dict[str, Tensor]:
        made = mul * 2
        return {"add": made * s17, "mul_1": made + s17}

    given = {"mul": torch.randn(3), "s17": torch.randn(3)}
    proto = rust_ort.to_onnx(function, kwargs=given, dynamic_shapes={"mul": {0: "s17"}, "s17": {0: "s17"}})
    assert shapes(proto.graph.input) == {"mul": ["s17"], "s17": ["s17"]}
    assert shapes(proto.graph.output) == {"add": ["s17"], "mul_1": ["s17"]}
    assert_eager(proto, given, list(function(**given).values()))


TABLE = torch.randn(4, 4)


def test_a_functions_constants_and_globals_are_initializers() -> None:
    def function(x: Tensor) -> Tensor:
        return x @ TABLE + torch.tensor([1.0, 2.0, 3.0, 4.0])

    x = torch.randn(3, 4)
    proto = rust_ort.to_onnx(function, x)
    assert proto.graph.initializer[0].name == "TABLE"
    assert len(proto.graph.initializer) == 2
    assert_eager(proto, {"x": x}, [function(x)])


def test_attention_is_a_call_whose_body_any_runtime_runs() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    given = {name: torch.randn(1, 2, 5, 8) for name in ("query", "key", "value")}
    for optimized in (False, True):
        proto = rust_ort.to_onnx(attend, kwargs=given, optimized=optimized)
        assert [node.domain for node in proto.graph.node if node.domain] == [attention.DOMAIN]
        assert [function.name for function in proto.functions] == ["CausalScaledDotProductAttention"]
        assert_eager(proto, given, [attend(**given)])


def test_what_is_optimized_has_the_same_names_and_numbers_in_fewer_nodes() -> None:
    model, x = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).eval(), torch.randn(3, 4)
    plain, made = (rust_ort.to_onnx(model, x, dynamic_shapes=({0: "n"},), optimized=wanted) for wanted in (False, True))
    assert len(made.graph.node) < len(plain.graph.node)
    assert "Constant" not in {node.op_type for node in made.graph.node}
    names = {entry.name for entry in plain.graph.initializer}
    assert names == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
    assert names <= {entry.name for entry in made.graph.initializer}
    for n in (1, 5):
        x = torch.randn(n, 4)
        for proto in (plain, made):
            assert_eager(proto, {"input": x}, [model(x)])


def node_types(proto: Any) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def test_a_weight_that_is_only_read_transposed_is_stored_so_where_nothing_else_reads_it() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(9, 64)
            self.linear, self.twice = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
            self.returned = nn.Linear(64, 64, bias=False)

        def forward(self, ids: Tensor) -> Any:
            x = self.twice(self.twice(self.linear(self.embedding(ids))))
            return x @ self.embedding.weight.t(), self.returned(x), self.returned.weight

    model, ids = Tied().eval(), torch.tensor([[3, 1, 8]])
    plain, made = (rust_ort.to_onnx(model, ids, optimized=wanted) for wanted in (False, True))
    names = {entry.name: tuple(entry.dims) for entry in made.graph.initializer}
    assert {"linear.weight.T", "twice.weight.T", "returned.weight", "embedding.weight"} <= set(names)
    assert not {"linear.weight", "returned.weight.T", "embedding.weight.T"} & set(names)
    assert node_types(made).count("Transpose") == 2
    for proto in (plain, made):
        assert_eager(proto, {"ids": ids}, list(model(ids)))
    inputs = rust_ort.to_onnx(model, ids, optimized=True, parameters="inputs")
    assert [entry.name for entry in inputs.graph.input][1:] == [name for name, _ in model.named_parameters()]


def test_a_gemm_reads_its_weight_as_it_is() -> None:
    model, x = nn.Linear(4, 8).eval(), torch.randn(3, 4)
    made = rust_ort.to_onnx(model, x, optimized=True)
    assert node_types(made) == ["Gemm"]
    assert [(name.name, name.i) for name in made.graph.node[0].attribute if name.name == "transB"] == [("transB", 1)]
    assert {entry.name for entry in made.graph.initializer} == {"weight", "bias"}
    assert_eager(made, {"input": x}, [model(x)])


class Masked(nn.Module):
    """Two equal buffers, and one that is read in pieces."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("first", "second"):
            self.register_buffer(name, torch.tril(torch.ones(64, 64)))
        self.register_buffer("table", torch.randn(4096))
        self.register_buffer("given", torch.ones(8, 8))

    def forward(self, x: Tensor) -> Any:
        n = x.shape[-1]
        for mask in (self.first, self.second):
            x = x.masked_fill(mask[:n, :n] == 0, -2.0)
        return x * self.table[:2000].sum() + self.table[1:2001].sum(), self.given, x + self.given[0, 0]


def test_what_is_of_buffers_alone_is_folded_where_the_model_does_not_grow() -> None:
    model, x = Masked().eval(), torch.randn(6, 6)
    plain, made = (rust_ort.to_onnx(model, x, optimized=wanted) for wanted in (False, True))
    names = {entry.name for entry in made.graph.initializer}
    assert {"table", "given"} <= names and not {"first", "second"} & names
    assert not {"Equal", "Not"} & set(node_types(made))
    wheres = [node for node in made.graph.node if node.op_type == "Where"]
    assert len({node.input[0] for node in wheres}) == 1  # of equal masks
    for proto in (plain, made):
        assert_eager(proto, {"x": x}, list(model(x)))
    assert made.ByteSize() < plain.ByteSize()


def test_a_buffer_that_is_cut_to_a_dynamic_size_stays() -> None:
    model = Masked().eval()
    made = rust_ort.to_onnx(model, torch.randn(6, 6), dynamic_shapes=({0: "n", 1: "n"},), optimized=True)
    assert {"first", "second"} <= {entry.name for entry in made.graph.initializer}
    for n in (2, 9):
        x = torch.randn(n, n)
        assert_eager(made, {"x": x}, list(model(x)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_pointwise_node_between_two_reshapes_needs_neither(dynamic: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    x = torch.randn(2, 3, 4)
    shapes: Any = ({0: "batch"},) if dynamic else None
    plain, made = (rust_ort.to_onnx(model, x, dynamic_shapes=shapes, optimized=wanted) for wanted in (False, True))
    assert [kind for kind in node_types(made) if kind in ("Gemm", "Relu")] == ["Gemm", "Relu", "Gemm"]
    assert node_types(made).count("Reshape") == 2
    for n in (1, 5) if dynamic else (2,):
        x = torch.randn(n, 3, 4)
        for proto in (plain, made):
            assert_eager(proto, {"input": x}, [model(x)])


def test_a_reshape_that_is_an_output_or_is_read_elsewhere_stays() -> None:
    def function(x: Tensor) -> Any:
        wide = x.reshape(6, 4).relu()
        y = x.reshape(6, 4).exp()
        return y.reshape(2, 3, 4), wide, wide.reshape(2, 3, 4) + 1

    x = torch.randn(2, 3, 4)
    assert_eager(rust_ort.to_onnx(function, x, optimized=True), {"x": x}, list(function(x)))


def test_a_model_is_written_and_a_large_one_with_its_tensors_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Linear(64, 64), torch.randn(2, 64)
    proto = rust_ort.to_onnx(model, x, path=tmp_path / "small.onnx")
    assert onnx.load(tmp_path / "small.onnx") == proto
    monkeypatch.setattr(model_file, "MOST_BYTES", 1000)
    with pytest.raises(OptionError, match="name a path"):
        rust_ort.to_onnx(model, x)
    rust_ort.to_onnx(model, x, path=tmp_path / "large.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data", "small.onnx"]
    assert (tmp_path / "large.onnx").stat().st_size < 2000
    assert_eager(tmp_path / "large.onnx", {"input": x}, [model(x)])
    with pytest.raises(OptionError, match="a folder that is there"):
        rust_ort.to_onnx(model, x, path=tmp_path / "none" / "model.onnx")


def test_a_graph_break_is_an_error_that_names_the_line() -> None:
    def breaks(x: Tensor) -> Tensor:
        y = x + 1
        print("a side effect")
        return y * 2

    line = inspect.getsourcelines(breaks)[1] + 2
    with pytest.raises(ClientError, match=rf"the graph breaks at .*test_to_onnx.py:{line} in breaks"):
        rust_ort.to_onnx(breaks, torch.ones(3))


def test_every_node_without_an_onnx_form_is_named_with_its_line() -> None:
    def function(x: Tensor) -> Tensor:
        chosen = torch.nonzero(x)
        return torch.linalg.svdvals(x), chosen

    with pytest.raises(ClientError) as caught:
        rust_ort.to_onnx(function, torch.eye(3))
    text = str(caught.value)
    first = inspect.getsourcelines(function)[1] + 1
    assert caught.value.code == "UNSUPPORTED"
    assert f"nonzero (aten.nonzero.default), {__file__}:{first} in function: a size is known only at run time" in text
    assert f"_linalg_svd (aten._linalg_svd.default), {__file__}:{first + 1} in function" in text


def test_what_a_dynamic_size_makes_in_integers_runs_and_in_floats_is_an_error() -> None:
    """torchlib has float32 where Python has float64: 29 of 100 rows, where eager gives 28."""

    def part(x: Tensor) -> Tensor:
        return x[: x.shape[0] * 29 // 100] + (-x.shape[0]) // 2 - x.shape[0] % 3

    proto = rust_ort.to_onnx(part, torch.randn(20), dynamic_shapes=({0: "n"},))
    for n in (99, 100):
        x = torch.randn(n)
        assert_eager(proto, {"x": x}, [part(x)])
    with pytest.raises(ClientError, match=r"sym_float .*a symbolic float(.|\n)*in integers"):
        rust_ort.to_onnx(lambda x: x[: int(x.shape[0] * 0.29)], torch.randn(20), dynamic_shapes=({0: "n"},))
    fixed = rust_ort.to_onnx(lambda x: x[: int(x.shape[0] * 0.29)], torch.ones(100))
    assert_eager(fixed, {"x": torch.ones(100)}, [torch.ones(28)])


def test_dropout_in_training_mode_is_named_with_its_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    with pytest.raises(ClientError, match=r"bernoulli .* module 1: it draws random numbers(.|\n)*model.eval\(\)"):
        rust_ort.to_onnx(model, torch.ones(2, 4))
    assert_eager(
        rust_ort.to_onnx(model.eval(), torch.ones(2, 4)), {"input": torch.ones(2, 4)}, [model(torch.ones(2, 4))]
    )


class Counting(nn.Module):
    """replaces: whether another tensor takes the buffer's place, or it is written in place."""

    def __init__(self, *, replaces: bool) -> None:
        super().__init__()
        self.replaces = replaces
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.replaces:
            self.steps = self.steps + 1
        else:
            self.steps += 1
        return x + self.steps


@pytest.mark.parametrize("replaces", [True, False])
def test_a_buffer_that_is_written_in_eval_mode_is_an_error_and_stays_as_it_was(replaces: bool) -> None:
    model = Counting(replaces=replaces).eval()
    buffer = model.steps
    with pytest.raises(ClientError, match=r"writes into .*steps.*nothing is in training mode"):
        rust_ort.to_onnx(model, torch.ones(3))
    assert model.steps is buffer
    assert buffer == 0


def test_statistics_in_training_mode_are_an_error_that_says_to_call_eval() -> None:
    with pytest.raises(ClientError, match=r"running_mean.*in training mode: call model.eval\(\)"):
        rust_ort.to_onnx(nn.BatchNorm1d(4), torch.randn(3, 4))


def test_an_argument_that_is_written_is_an_error_and_the_users_own_is_untouched() -> None:
    x = torch.ones(3)
    with pytest.raises(ClientError, match="writes into x"):
        rust_ort.to_onnx(lambda x: x.add_(1) * 2, x)
    assert x.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"parameters": "constant"}, "parameters"),
        ({"optimized": 1}, "optimized"),
        ({"opset": 17}, "opset"),
        ({"path": 3}, "path"),
        ({"kwargs": {"y": 1}}, "does not take these arguments"),
    ],
)
def test_a_wrong_argument_is_an_option_error(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        rust_ort.to_onnx(nn.Linear(4, 4), torch.ones(2, 4), **given)


def test_an_array_among_the_arguments_is_no_constant() -> None:
    with pytest.raises(OptionError, match="give a tensor"):
        rust_ort.to_onnx(nn.Linear(4, 4), np.ones((2, 4), np.float32))


def test_a_compiled_model_is_exported_as_it_was_before() -> None:
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    proto = rust_ort.to_onnx(torch.compile(model, backend="eager"), x)
    assert [entry.name for entry in proto.graph.initializer] == ["weight", "bias"]
    assert_eager(proto, {"input": x}, [model(x)])


def test_one_model_of_a_product_serves_all_four_cases_and_one_that_asks_for_its_size_does_not() -> None:
    whole = broadcast.served("x * y", "(p,) (p,)")
    assert set(whole.cases.values()) == {"right"}
    assert whole.declared == "(x_0), (x_0) -> (x_0)"
    assert whole.assumes == ["x.shape[0] == y.shape[0]", "x.shape[0] >= 1"]
    mean = broadcast.served("(x * y).sum() / (x * y).shape[0]", "(p,) (p,)")
    assert mean.cases == {"(1,) (1,)": "right", "(1,) (p,)": "wrong", "(q,) (1,)": "right", "(p,) (p,)": "right"}
    fixed = broadcast.served("x * y", "(1,) (p,)")
    assert fixed.declared == "(1), (y_0) -> (y_0)"
    assert fixed.cases["(q,) (1,)"] == "refused"


def test_torch_export_takes_two_dynamic_sizes_for_one() -> None:
    made = broadcast.exported("x * y", "(p,) (p,)")
    first, second = made.plain.partition(" -> ")[0].split(", ")
    assert first == second
    assert broadcast.exported("x * y", "(1,) (1,)").plain == "(1), (1) -> (1)"


def test_one_tensor_in_two_places_is_two_inputs() -> None:
    """As a language model is called: labels=input_ids."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(10, 10))

        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.weight[ids], labels)

    model, ids, labels = Model(), torch.arange(6), torch.arange(6).flip(0)
    proto = rust_ort.to_onnx(model, ids, ids)
    assert [value.name for value in proto.graph.input] == ["ids", "labels"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (loss,) = session.run(None, {"ids": ids.numpy(), "labels": labels.numpy()})
    torch.testing.assert_close(torch.from_numpy(loss), model(ids, labels).detach())


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_is_one_graph(layer: type[nn.RNNBase]) -> None:
    model, x = layer(3, 5, batch_first=True), torch.randn(2, 7, 3)
    proto = rust_ort.to_onnx(model, x)
    name = proto.graph.input[0].name
    assert_eager(proto, {name: x}, [*torch.utils._pytree.tree_leaves(model(x))])


def test_a_convolution_bounds_no_batch() -> None:
    layer, x = nn.Conv2d(3, 4, 3), torch.randn(8, 3, 9, 9)
    for size in ("batch", torch.export.Dim("batch", max=64)):
        proto = rust_ort.to_onnx(layer, x, dynamic_shapes={"input": {0: size}})
        (assumed,) = (entry.value for entry in proto.metadata_props if entry.key == "rust_ort.assumes")
        assert "15" not in assumed and "16" not in assumed, assumed


def test_only_a_file_is_written_and_a_link_leads_to_it(tmp_path: Path) -> None:
    layer, x = nn.Linear(3, 4), torch.randn(2, 3)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(rust_ort.OptionError, match="expected a file"):
        rust_ort.to_onnx(layer, x, path=tmp_path / "pipe")
    (tmp_path / "link.onnx").symlink_to(tmp_path / "model.onnx")
    rust_ort.to_onnx(layer, x, path=tmp_path / "link.onnx")
    assert (tmp_path / "link.onnx").is_symlink() and onnx.load(tmp_path / "model.onnx").graph.node


def test_a_mean_of_no_rows_is_nan() -> None:
    """ReduceMean of nothing is 0 in ONNX Runtime."""
    model = rust_ort.to_onnx(lambda x: x.mean((0,)), torch.randn(3, 4), dynamic_shapes={"x": {0: "rows"}})
    for rows in (0, 1, 5):
        x = torch.randn(rows, 4)
        (given,) = run(model, {model.graph.input[0].name: x})
        np.testing.assert_allclose(given, x.mean(0).numpy(), rtol=1e-6)


def test_arguments_in_a_tuple_as_of_torchs_export_are_told_apart() -> None:
    x = torch.ones(2, 4)
    for args in (((x,),), ([x],), ((x,), "model.onnx"), ((x, x),)):
        with pytest.raises(OptionError, match=r"one by one, to_onnx\(model, x, y, path=\.\.\.\)"):
            rust_ort.to_onnx(nn.Linear(4, 4), *args)
    pair = rust_ort.to_onnx(lambda pair: pair[0] - pair[1], (x, x))
    assert list(shapes(pair.graph.input)) == ["pair_0", "pair_1"]
    with pytest.raises(ClientError, match="draws random"):
        rust_ort.to_onnx(lambda pair: pair[0] + torch.rand_like(pair[1]), (x, x))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"input": torch.ones(2, 4)}, r"kwargs=\{'input': \.\.\.\}"),
        ({"dynamic_axes": {"input": {0: "n"}}}, r"dynamic_shapes=\{argument"),
        ({"f": "model.onnx"}, "path="),
        ({"dynamic_shape": None}, "did you mean dynamic_shapes"),
    ],
)
def test_an_argument_of_another_name_is_told_what_it_is_here(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=f"no argument of that name.*{text}"):
        rust_ort.to_onnx(nn.Linear(4, 4), **given)


def test_what_the_model_raises_comes_through_with_no_log_of_torchs(capfd: pytest.CaptureFixture[str]) -> None:
    def refuses(x: Tensor) -> Tensor:
        raise KeyError("not this one")

    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        rust_ort.to_onnx(nn.Linear(4, 4), torch.ones(2, 5))
    with pytest.raises(KeyError, match="not this one"):
        rust_ort.to_onnx(refuses, torch.ones(2))
    assert "Traceback" not in capfd.readouterr().err


def test_advice_is_of_the_nodes_that_have_no_form() -> None:
    def cond(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    def text(function: Any, **given: Any) -> str:
        with pytest.raises(ClientError) as caught:
            rust_ort.to_onnx(function, torch.eye(4), **given)
        return str(caught.value).partition("To go on, ")[2]

    assert text(lambda x: torch.fft.rfft(x)).startswith("return complex numbers as torch.view_as_real(...)")
    assert text(cond).startswith("compute both branches and choose by torch.where")
    assert text(torch.nonzero).startswith("give results a size that the inputs' sizes decide")
    for function in (torch.fft.rfft, cond, torch.nonzero):
        assert "custom_translations" not in text(function)
    assert "custom_translations" in text(torch.linalg.svdvals)
    given = {torch.ops.aten.nonzero.default: lambda x: x}
    assert "do without the custom translation of aten.nonzero.default" in text(torch.nonzero, custom_translations=given)


def test_complex_results_as_pairs_are_outputs() -> None:
    x = torch.randn(8)
    proto = rust_ort.to_onnx(lambda x: torch.view_as_real(torch.fft.rfft(x)), x)
    assert_eager(proto, {"x": x}, [torch.view_as_real(torch.fft.rfft(x))])


def test_bfloat16_on_the_cpu_is_warned_of_with_the_command_that_helps() -> None:
    class Mixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return (x @ x * 2).float()

    with pytest.warns(UserWarning, match="rust-ort widen model.onnx wide.onnx") as caught:
        rust_ort.to_onnx(Mixed(), torch.eye(3))
    assert [entry.filename for entry in caught if "bfloat16" in str(entry.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "to_onnx")
        rust_ort.to_onnx(nn.Linear(3, 3).half(), torch.eye(3).half())


@pytest.mark.parametrize("function", [lambda x: x @ x, lambda x: x.bool().sort().values], ids=["int16", "bool"])
def test_a_type_that_onnx_has_not_for_an_operator_is_warned_of(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.warns(UserWarning, match="by onnx's checker no runtime takes this model: .*(MatMul|TopK)"):
        rust_ort.to_onnx(function, torch.ones(3, 3, dtype=torch.int16))
