"""float16 and bfloat16 on the CPU, as whole models and under autocast: forward and backward equal eager."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import rust_ort
from measure import mixed_training
from rust_ort.studies import llama_models

pytestmark = pytest.mark.usefixtures("daemon")

HALVES = (torch.float16, torch.bfloat16)


class Autocast(nn.Module):
    """A module called inside a region."""

    def __init__(self, module: nn.Module, dtype: torch.dtype, *, enabled: bool = True) -> None:
        super().__init__()
        self.module, self.dtype, self.enabled = module, dtype, enabled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=self.dtype, enabled=self.enabled):
            return self.module(*args, **kwargs)


def whole(study: llama_models.Study, dtype: torch.dtype) -> nn.Module:
    study.inputs = tuple(given.detach().to(dtype) for given in study.inputs)
    study.inputs[0].requires_grad_()
    return study.module.to(dtype)


def around_all(study: llama_models.Study, dtype: torch.dtype) -> nn.Module:
    return Autocast(study.module, dtype)


def around_one(study: llama_models.Study, dtype: torch.dtype) -> nn.Module:
    study.module.layer.mlp = Autocast(study.module.layer.mlp, dtype)
    return study.module


def but_for_one(study: llama_models.Study, dtype: torch.dtype) -> nn.Module:
    """The projection gets half precision from the region around it: a float32 one casts it back itself."""
    layer = study.module.layer
    layer.input_layernorm = Autocast(layer.input_layernorm, dtype, enabled=False)
    layer.mlp.act_fn = Autocast(layer.mlp.act_fn, dtype, enabled=False)
    return Autocast(study.module, dtype)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("make", [whole, around_all, around_one, but_for_one])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_llama_decoder_equals_eager(
    make: Callable[[llama_models.Study, torch.dtype], nn.Module], dtype: torch.dtype, attention: str
) -> None:
    study = llama_models.build("decoder", llama_models.SIZES["small"], attention=attention)
    module = make(study, dtype)
    backend = rust_ort.backend(compare="outputs")
    compiled = torch.compile(module, backend=backend, fullgraph=True)
    known = len(rust_ort.graphs())
    output = compiled(*study.inputs)
    # Weights cos(i) as compare's; scaled so that float16 gradients do not underflow.
    (output.float() * torch.arange(output.numel()).cos().reshape(output.shape)).sum().backward()
    graphs = rust_ort.graphs()[known:]
    assert [graph.direction for graph in graphs] == ["forward", "backward"]
    for graph in graphs:
        verdicts = [verdict for _, verdict in graph.verdicts]
        print(graph.name, graph.compute_nodes, len(verdicts), max(verdict.max_rel_to_max for verdict in verdicts))
        assert verdicts and {verdict.kind for verdict in verdicts} == {"match"}, [str(v) for v in verdicts]
        assert (len(graph.parts), graph.eager, len(graph.parts[0])) == (1, [], graph.compute_nodes)
        assert graph.lowest_precision is dtype


def test_a_dump_has_the_model_as_exported_and_as_it_ran(tmp_path: Path) -> None:
    compiled = torch.compile(nn.Linear(4, 4).bfloat16(), backend="rust_ort")
    single = torch.compile(nn.Linear(4, 4), backend="rust_ort")
    with rust_ort.dump("halves", folder=tmp_path) as path, torch.no_grad():
        compiled(torch.randn(2, 4, dtype=torch.bfloat16))
        single(torch.randn(2, 4))
    exported, ran = (sorted(path.rglob(name)) for name in ("model.onnx", "model.precision.onnx"))
    assert (len(exported), len(ran)) == (2, 1)
    types = {file.name: element_types(onnx.load(file)) for file in [ran[0].with_name("model.onnx"), ran[0]]}
    bfloat16, float32 = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT
    assert bfloat16 in types["model.onnx"] and float32 not in types["model.onnx"]
    assert {bfloat16, float32} <= types["model.precision.onnx"]


def element_types(model: onnx.ModelProto) -> set[int]:
    """Of inputs, outputs and casts."""
    values = [*model.graph.input, *model.graph.output]
    casts = [attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "to"]
    return {value.type.tensor_type.elem_type for value in values} | set(casts)


def scaled_steps(call: nn.Module, model: nn.Module, *, n_steps: int) -> list[tuple[float, bool]]:
    """(scale after the step, the step was skipped) of float16 steps; the first scale overflows."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**19, growth_interval=3)
    inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    steps = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = call(inputs).float().square().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        kept = all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        steps.append((scaler.get_scale(), kept))
    return steps


def test_a_step_whose_float16_gradients_overflow_is_skipped_as_in_eager() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    expected = scaled_steps(twin, twin, n_steps=12)
    got = scaled_steps(torch.compile(model, backend="rust_ort", fullgraph=True), model, n_steps=12)
    print(expected)
    assert got == expected
    assert {skipped for _, skipped in expected} == {True, False}
    for candidate, reference in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(candidate, reference, atol=2e-3, rtol=4e-3)


@pytest.fixture(autouse=True, scope="module")
def eager_trains_once() -> Iterator[None]:
    """Runs without a wrapper draw the same and end the same, whatever the compiled one beside them."""
    train = mixed_training.train
    once = functools.cache(train)

    def remembered(seed: int, n_steps: int, **given: Any) -> mixed_training.Run:
        return (train if "wrap" in given else once)(seed, n_steps, **given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mixed_training, "train", remembered)
        yield


# float16 is slow in eager on many CPUs: fewer steps.
@pytest.mark.parametrize(("dtype", "n_steps"), [(torch.float16, 3), (torch.bfloat16, 10)])
def test_training_under_autocast_is_as_close_to_float32_as_eager_is(dtype: torch.dtype, n_steps: int) -> None:
    made = mixed_training.row(0, n_steps, dtype, hidden=128)
    print(made)
    assert made.losses["compiled"][-1] < made.losses["compiled"][0]
    assert made.ok, made.problem


def wrong_epsilon(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon *= 100
    return mixed_training.compiled(model)


def not_compiled(model: nn.Module) -> nn.Module:
    return model


def without_autocast(model: nn.Module) -> nn.Module:
    model.forward = torch.autocast("cpu", enabled=False)(model.forward)
    return mixed_training.compiled(model)


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        (wrong_epsilon, "further from float32"),
        (not_compiled, "forward: 0 of 3 steps"),
        (without_autocast, "forward: 0 of 3 steps"),
    ],
)
def test_a_run_that_is_wrong_or_not_ours_or_not_in_half_precision_fails(
    planted: Callable[[nn.Module], nn.Module], seen: str
) -> None:
    made = mixed_training.row(0, 3, torch.bfloat16, hidden=128, wrap=planted)
    print(made)
    assert not made.ok
    assert seen in made.problem


@pytest.mark.parametrize("dtype", HALVES)
def test_a_group_norm_in_half_precision_with_float32_parameters_is_compared_node_by_node(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 8, 10, stride=5), nn.GroupNorm(8, 8))
    blamed = rust_ort.blame(model, torch.randn(2, 1, 100), autocast=dtype)
    assert blamed.culprit is None and blamed.complete
    assert {node.local.kind for _, node in blamed.report.check().nodes} == {"match"}
