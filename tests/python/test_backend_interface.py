"""Options, the callable module, comparison, dumps, explanation: what a user touches."""

from __future__ import annotations

import ast
import copy
import inspect
import os
import pickle
import pydoc
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import FakeClient
from torch import nn
from torch.nn import functional as F

import rust_ort
from rust_ort.errors import ClientError, ExecutorLost, OptionError


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.batch = nn.BatchNorm1d(6)
        # With a bias of zero, relu and batch norm cancel norm.weight: its gradient would be rounding noise.
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> Any:
        return {"out": self.batch(torch.relu(self.norm(self.linear(x)))), "none": None}


def wrong_epsilon(proto: Any) -> None:
    """The planted wrong kernel: every small constant (an epsilon) becomes 0.3."""
    import numpy as np
    from onnx import numpy_helper

    changed = 0
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 0.3
                changed += 1
            elif node.op_type == "Constant" and attribute.name == "value":
                value = numpy_helper.to_array(attribute.t)
                if value.dtype == np.float32 and value.size == 1 and 0 < value.item() < 1e-3:
                    attribute.t.CopyFrom(numpy_helper.from_array(np.full(value.shape, 0.3, np.float32)))
                    changed += 1
    for tensor in proto.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32 and value.size == 1 and 0 < value.item() < 1e-3:
            tensor.CopyFrom(numpy_helper.from_array(np.full(value.shape, 0.3, np.float32), tensor.name))
            changed += 1


wrong_epsilon.cache_key = "wrong epsilon"  # type: ignore[attr-defined]


def wrong_subtraction(proto: Any) -> None:
    """The planted wrong kernel of the backward: every subtraction adds."""
    for node in proto.graph.node:
        if node.op_type == "Sub":
            node.op_type = "Add"


def test_a_right_model_matches_in_every_value(client: FakeClient) -> None:
    report = rust_ort.compare(Norm(), torch.randn(5, 4, requires_grad=True))
    assert report.ok, str(report)
    names = {verdict.name for verdict in report.verdicts}
    assert {"output.out", "loss", "grad of linear.weight", "grad of input[0]", "buffer batch.running_mean"} <= names
    assert "grad of norm.bias" in str(report)
    assert '"ok": true' in report.to_json()


def test_a_planted_wrong_kernel_is_a_mismatch_in_forward_and_backward(client: FakeClient) -> None:
    report = rust_ort.compare(Norm(), torch.randn(5, 4), options={"transforms": [wrong_epsilon]})
    wrong = {verdict.name for verdict in report.verdicts if verdict.kind == "mismatch"}
    assert not report.ok
    assert {"output.out", "grad of linear.weight"} <= wrong


def test_compare_restores_state(client: FakeClient) -> None:
    model = Norm().train()
    model.linear.weight.grad = torch.ones(6, 4)
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    rng = torch.get_rng_state()
    rust_ort.compare(model, torch.randn(5, 4), autocast=None)
    assert torch.equal(model.linear.weight.grad, torch.ones(6, 4))
    assert model.linear.bias.grad is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    torch.set_rng_state(rng)


def test_a_model_that_ran_in_eager_is_not_compared(client: FakeClient) -> None:
    report = rust_ort.compare(lambda x: torch.rand_like(x), torch.randn(4, 4))
    assert {verdict.kind for verdict in report.verdicts} == {"not_compared"}
    assert not report.ok
    assert all("ran in eager" in verdict.reason for verdict in report.verdicts)
    assert client.eager_nodes >= 1


def test_option_compare_judges_every_part_output(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.LayerNorm(4))
    known = len(rust_ort.graphs())
    compiled = torch.compile(model, backend=rust_ort.backend(compare="outputs"))
    compiled(torch.randn(3, 4)).sum().backward()
    compiled(torch.randn(3, 4)).sum().backward()
    new = rust_ort.graphs()[known:]
    verdicts = [verdict.kind for info in new for _, verdict in info.verdicts]
    assert len(new) == 2
    assert verdicts
    assert set(verdicts) == {"match"}
    assert {step for info in new for step, _ in info.verdicts} == {0, 1}


def test_option_compare_reports_the_planted_kernel(
    client: FakeClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rust_ort.runtime.compiled_graph.LOOKS_INSIDE_SECONDS", -1.0)  # this client runs no nodes
    transforms = [wrong_epsilon, wrong_subtraction]
    compiled = torch.compile(Norm(), backend=rust_ort, options={"compare": "outputs", "transforms": transforms})
    known = len(rust_ort.graphs())
    x = torch.randn(5, 4)
    with caplog.at_level("WARNING", logger="rust_ort"):
        for _ in range(3):
            compiled(x)["out"].square().sum().backward()
    graphs = rust_ort.graphs()[known:]
    for info in graphs:
        assert "mismatch" in {verdict.kind for _, verdict in info.verdicts}, info.direction
    told = [record.getMessage() for record in caplog.records if "outputs that differ from eager" in record.getMessage()]
    assert len(told) == len({message.partition(",")[0] for message in told}) == len(graphs) == 2, told


def test_dropout_under_compare_draws_the_same_numbers(client: FakeClient) -> None:
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    compiled = torch.compile(model, backend=rust_ort.backend(compare="outputs"))
    x = torch.randn(8, 4)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)


def test_unsupported_nodes_are_named_when_asked(client: FakeClient) -> None:
    compiled = torch.compile(
        lambda x: torch.linalg.solve(x * 2, x), backend=rust_ort, options={"on_unsupported": "error"}
    )
    with pytest.raises(ClientError, match=r"(?s)linalg_solve.*test_backend_interface\.py:\d+ in") as caught:
        compiled(torch.eye(3))
    assert caught.value.node
    assert caught.value.code == "UNSUPPORTED"


def test_unsupported_nodes_of_a_backward_are_named_with_the_line_of_their_forward(client: FakeClient) -> None:
    def model(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        chosen = torch.gather(x * 2, 0, place)
        return chosen.sin()

    line = model.__code__.co_firstlineno + 1
    x, place = torch.randn((), requires_grad=True), torch.tensor(0)
    known = len(rust_ort.graphs())
    out = torch.compile(model, backend=rust_ort, options={"on_unsupported": "error"})(x, place)
    assert [graph.eager for graph in rust_ort.graphs()[known:]] == [[]]
    with pytest.raises(ClientError) as caught:
        out.sum().backward()
    assert (caught.value.code, caught.value.node) == ("UNSUPPORTED", "scatter_add")
    assert caught.value.graph.endswith("-backward")
    named = f"scatter_add (aten.scatter_add.default), {__file__}:{line} in model: torchlib's ScatterElements takes no"
    assert named in str(caught.value) and "custom_translations" in str(caught.value)


def test_every_unsupported_node_is_named_with_line_and_module(client: FakeClient) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Dropout(0.5)
            self.inner = nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.25)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            return self.inner[1](self.inner[0](x))

    line = Model.forward.__code__.co_firstlineno + 1
    with pytest.raises(ClientError, match=r"2 node\(s\) cannot run") as caught:
        torch.compile(Model(), backend=rust_ort, options={"on_unsupported": "error"})(torch.randn(2, 4))
    for name, at, module in (("bernoulli", line, "first"), ("bernoulli_1", line + 1, "inner.1")):
        named = f"{name} (aten.bernoulli.p), {__file__}:{at} in forward, module {module}: it draws random"
        assert named in str(caught.value)


def test_a_lost_executor_is_an_error_or_eager_if_asked(client: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> None:
        raise ExecutorLost("killed by signal 9", graph="0_0-inference")

    x = torch.randn(3)
    strict = torch.compile(lambda x: x * 2 + 1, backend=rust_ort)
    lenient = torch.compile(lambda x: x * 3 + 1, backend=rust_ort, options={"on_daemon_error": "eager"})
    strict(x), lenient(x)
    client.fail = lost
    with pytest.raises(ExecutorLost):
        strict(x)
    with caplog.at_level("WARNING", logger="rust_ort"):
        torch.testing.assert_close(lenient(x), x * 3 + 1)
        torch.testing.assert_close(lenient(x), x * 3 + 1)
    assert caplog.text.count("on_daemon_error") == 1
    assert rust_ort.graphs()[-1].daemon_fallbacks == 2
    client.fail = None
    torch.testing.assert_close(strict(x), x * 2 + 1)


def test_a_dump_covers_graphs_compiled_before_and_inside(client: FakeClient, tmp_path: Path) -> None:
    compiled = torch.compile(nn.Linear(3, 2), backend=rust_ort)
    compiled(torch.randn(2, 3)).sum().backward()
    with rust_ort.dump("run", folder=tmp_path, clean=True) as path:
        for _ in range(3):
            compiled(torch.randn(2, 3)).sum().backward()
        torch.compile(lambda x: x + 1, backend=rust_ort)(torch.ones(2))
    compiled(torch.randn(2, 3))
    assert path == tmp_path / "run"
    assert [step for _, _, step in client.data_sets] == [0, 0, 0]
    assert len({name for name, _, _ in client.data_sets}) == 3
    with rust_ort.dump("all", folder=tmp_path, calls="all"):
        compiled(torch.randn(2, 3))
        compiled(torch.randn(2, 3))
    assert [step for _, _, step in client.data_sets[3:]] == [0, 1]
    with pytest.raises(OptionError), rust_ort.dump("a/b"):
        pass


def test_explain_names_graphs_breaks_and_eager_nodes(client: FakeClient) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve(x * 2, x)
        torch._dynamo.graph_break()
        return y + 1

    explanation = rust_ort.explain(function, torch.eye(3))
    assert len(explanation.graphs) == 2
    assert sum(explanation.breaks.values()) == 1
    assert "aten._linalg_solve_ex.default" in [node.op for node in explanation.eager]
    assert explanation.nodes_on_onnxruntime >= 2
    text = str(explanation)
    assert "torchlib has no function" in text
    assert "test_backend_interface.py" in text
    assert "export" in text


def test_the_module_is_a_backend_that_copies_and_pickles(client: FakeClient) -> None:
    assert copy.deepcopy(rust_ort) is rust_ort
    assert pickle.loads(pickle.dumps(rust_ort)) is rust_ort
    assert pickle.loads(pickle.dumps(rust_ort.backend(compare="outputs"))).options.compare == "outputs"
    model = torch.compile(nn.Linear(2, 2), backend=rust_ort)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(torch.ones(1, 2)), model(torch.ones(1, 2)))


def test_options_come_from_torch_compile_an_object_or_the_environment(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OptionError, match="unknown option"):
        torch.compile(lambda x: x + 1, backend=rust_ort, options={"comparee": "outputs"})(torch.ones(2))
    with pytest.raises(OptionError, match="did you mean 'compare'"):
        rust_ort.backend(compar="outputs")
    monkeypatch.setenv("RUST_ORT_COMPARE", "outputs")
    torch.compile(lambda x: x + 2, backend=rust_ort)(torch.ones(2))
    assert rust_ort.graphs()[-1].verdicts


def test_a_mode_of_inductors_changes_nothing_and_is_told_once(
    client: FakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    rust_ort.backend._tell_mode.cache_clear()
    with caplog.at_level("WARNING", logger="rust_ort"):
        for n in range(2):  # of functions that are compiled apart
            made = torch.compile(lambda x, n=n: x + n, backend=rust_ort, mode="reduce-overhead")
            assert torch.equal(made(torch.ones(2)), torch.ones(2) + n)
        torch.compile(lambda x: x + 2, backend=rust_ort, mode="default")(torch.ones(2))
    assert caplog.text.count("mode=") == 2, caplog.text  # the mode, and what to give in its place
    assert "mode='reduce-overhead' is inductor's and changes nothing here; use mode=None" in caplog.text


def test_the_modes_are_torchs() -> None:
    from torch._inductor import list_mode_options

    assert set(rust_ort.backend.MODES) >= set(list_mode_options())


def test_autocast_regions_run(client: FakeClient) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    report = rust_ort.compare(model, torch.randn(3, 8), autocast=torch.float16)
    assert report.ok, str(report)
    assert not any(graph.eager for graph in report.graphs)


@pytest.mark.parametrize("tool", [rust_ort.compare, rust_ort.blame, rust_ort.keep_in_float32, rust_ort.explain])
def test_help_says_each_argument_and_shows_a_call_with_a_keyword_argument(tool: Callable[..., Any]) -> None:
    text = inspect.getdoc(tool) or ""
    for name in inspect.signature(tool).parameters:
        assert re.search(rf"\b{name}\b[^.\n]*[:.]", text), name
    (line,) = (line.strip() for line in text.splitlines() if "(model, input_ids" in line)
    (call,) = (node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call) and node.keywords)
    assert "labels" in {given.arg for given in call.keywords}


def test_help_names_the_interface_and_its_signatures() -> None:
    text = pydoc.plain(pydoc.render_doc(rust_ort))
    for name in ("compare", "explain", "dump", "status", "shutdown", "graphs", "Options", "Report", "NumericMismatch"):
        assert name in text, name
    for name in ("compare", "explain", "dump"):
        function = getattr(rust_ort, name)
        text = pydoc.plain(pydoc.render_doc(function))
        assert f"{name}(" in text and "Errors: " in text and "scalar_loss" not in text
        given = list(inspect.signature(function).parameters.values())[1:]
        assert all(entry.kind not in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD) for entry in given), name
    for function in (rust_ort.status, rust_ort.shutdown):
        assert all(entry.kind is entry.KEYWORD_ONLY for entry in inspect.signature(function).parameters.values())


def test_importing_loads_neither_exporter_nor_onnx() -> None:
    """onnxscript and onnxruntime begin with the same letters."""
    code = (
        "import sys, rust_ort, rust_ort.backend, rust_ort.export.partition; "
        "bad = [m for m in sys.modules if m.startswith(('onnx', 'torch.onnx._internal.exporter'))]; "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ.copy())


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("given", [{}, {"use_cache": False}], ids=["as it is", "no cache"])
def test_llama_causal_lm(client: FakeClient, attention: str, given: dict[str, bool]) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, attn_implementation=attention,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    ids = torch.randint(0, 128, (2, 16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        report = rust_ort.compare(model, input_ids=ids, labels=ids, **given)
    assert report.ok, str(report)
    assert len(report.graphs) == 2
    assert all(len(graph.parts) == 1 and not graph.eager for graph in report.graphs)


def test_llama_decoder_layer_is_dynamic_over_two_shapes(client: FakeClient) -> None:
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_attention_heads=4, attn_implementation="sdpa")
    layer = modeling.LlamaDecoderLayer(config, 0)
    rotary = modeling.LlamaRotaryEmbedding(config)
    compiled = torch.compile(layer, backend=rust_ort, dynamic=True, fullgraph=True)
    known = len(rust_ort.graphs())
    for batch, length in ((2, 12), (3, 24)):
        x = torch.randn(batch, length, 64)
        embeddings = rotary(x, torch.arange(length).unsqueeze(0))
        first = layer(x, position_embeddings=embeddings)
        second = compiled(x, position_embeddings=embeddings)
        first, second = (v[0] if isinstance(v, tuple) else v for v in (first, second))
        torch.testing.assert_close(second, first, atol=2e-5, rtol=2e-5)
        F.mse_loss(second, torch.zeros_like(second)).backward()
    assert len(rust_ort.graphs()) - known == 2
