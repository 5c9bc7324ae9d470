"""Parameters as constants of sessions: which they are, what a change of one does, and what is refused."""

import copy
import gc
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
from test_fork import in_child
from torch import nn

import rust_ort
from rust_ort.call import part as parts_module
from rust_ort.call.client import Client
from rust_ort.call.frozen import CHANGES, IN_VAIN, FreezingPart, FrozenPart
from rust_ort.memory import process

pytestmark = pytest.mark.usefixtures("daemon", "threads_of_the_test_alone")

X = torch.linspace(-1, 1, 120).reshape(5, 24)
FROZEN = {"freeze_parameters": True}


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 8)).eval()


def frozen(model: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(model, backend="rust_ort", options={**FROZEN, **options})


def assert_same(model: Callable[..., Any], compiled: Callable[..., Any], *args: Any) -> None:
    torch.testing.assert_close(compiled(*args), model(*args), atol=1e-5, rtol=1e-5)


def parts(kind: type) -> list[Any]:
    """Those whose compiled functions are alive, of this test: the ones before lost their daemon."""
    gc.collect()
    return [part for part in parts_module._parts if type(part) is kind and part._connection is not None
            and part._connection.dead is None]  # fmt: skip


def constants() -> list[int]:
    """How many inputs of each frozen session are constants, as the executor says."""
    return sorted(part.prepared.frozen_inputs for part in parts(FrozenPart))


def counters() -> dict[str, int]:
    counted: dict[str, int] = rust_ort.status()["counters"]
    return counted


def test_parameters_are_constants_and_calls_name_the_others_alone() -> None:
    model = make_model()
    compiled = frozen(model)
    for _ in range(3):
        assert_same(model, compiled, X)
    (part,) = parts(FrozenPart)
    assert part.prepared.frozen_inputs == 4 == len(part.positions)
    assert len(part.spec.input_names) == 1 and len(part.prepared.inputs) == 5
    assert part.calls == 3
    assert counters()["frozen_bytes"] == sum(parameter.nbytes for parameter in model.parameters())


def test_what_constants_alone_decide_is_folded(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            scaled = self.weight.exp() + 1
            return x @ scaled, scaled, self.weight

    model = Scaled()
    compiled = frozen(model)
    x = torch.randn(3, 6)
    for _ in range(2):
        assert_same(model, compiled, x)
    assert compiled(x)[2] is model.weight
    model.weight.add_(1)
    assert_same(model, compiled, x)


@pytest.mark.parametrize(
    "way", ["in_place", "data", "load", "load_assigned", "another_parameter", "swapped", "optimizer", "fused"]
)
def test_a_change_that_torch_counts_makes_the_session_anew(way: str, caplog: pytest.LogCaptureFixture) -> None:
    model, other = make_model(), make_model()
    for parameter in other.parameters():
        parameter.add_(0.5)
    compiled = frozen(model)
    assert_same(model, compiled, X)
    before = model(X)
    with caplog.at_level(logging.INFO, logger="rust_ort"):
        if way == "in_place":
            model[0].weight.mul_(2)
        elif way == "data":
            model[0].weight.data = torch.zeros(40, 24)
        elif way == "load":
            model.load_state_dict(other.state_dict())
        elif way == "load_assigned":
            model.load_state_dict(other.state_dict(), assign=True)
        elif way == "another_parameter":
            model[2].bias = nn.Parameter(torch.ones(8))
        elif way == "swapped":
            torch.utils.swap_tensors(model[0].weight, other[0].weight)
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=way == "fused")
            with torch.enable_grad():
                model(X).sum().backward()
            optimizer.step()
        assert not torch.allclose(model(X), before)
        for _ in range(2):
            assert_same(model, compiled, X)
    assert constants() == [4], "the old session ended"
    del other
    told = [record for record in caplog.records if "is made anew" in record.getMessage()]
    assert len(told) == (0 if way in ("load_assigned", "another_parameter") else 1)


def test_memory_that_comes_back_to_an_address_is_not_taken_for_the_old() -> None:
    model = nn.Linear(1000, 1000, bias=False).eval()
    compiled, x = frozen(model), torch.randn(2, 1000)
    assert_same(model, compiled, x)
    for value in (1.0, 2.0, 3.0):
        model.weight.data = torch.empty(0)  # what it had may be given to the next
        model.weight.data = torch.full((1000, 1000), value)
        assert_same(model, compiled, x)


def test_a_write_that_torch_does_not_count_is_not_seen_as_documented() -> None:
    model = make_model()
    compiled = frozen(model)
    before = compiled(X).clone()
    model[2].bias.data.add_(1)
    torch.testing.assert_close(compiled(X), before)
    model[2].bias.add_(0)  # counted
    assert_same(model, compiled, X)
    model[2].bias.numpy()[:] += 1
    assert not torch.allclose(compiled(X), model(X))


def test_what_changes_all_the_time_becomes_an_input(caplog: pytest.LogCaptureFixture) -> None:
    model = make_model()
    compiled = frozen(model)
    with caplog.at_level(logging.WARNING, logger="rust_ort"):
        for _ in range(CHANGES + 3):
            assert_same(model, compiled, X)
            model[2].bias.add_(1)
    assert constants() == [3]
    told = [record.getMessage() for record in caplog.records if "inputs from now on" in record.getMessage()]
    assert len(told) == 1
    built = counters()["sessions_built"]
    for _ in range(3):
        model[2].bias.add_(1)
        assert_same(model, compiled, X)
    assert counters()["sessions_built"] == built


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.linear(x) * self.scale + self.seen


def test_a_buffer_that_the_graph_writes_stays_an_input() -> None:
    model, reference = Counting().eval(), Counting().eval()
    reference.load_state_dict(model.state_dict())
    compiled = frozen(model)
    for n in range(1, 5):
        torch.testing.assert_close(compiled(X), reference(X))
        assert model.seen == n
    assert constants() == [2]
    assert counters()["sessions_built"] == 2, "one with inputs, one with constants"


def test_the_statistics_of_batch_norm_are_inputs() -> None:
    model = nn.Sequential(nn.Linear(24, 6), nn.BatchNorm1d(6))
    reference = nn.Sequential(nn.Linear(24, 6), nn.BatchNorm1d(6))
    reference.load_state_dict(model.state_dict())
    compiled = frozen(model)
    for training in (True, False):
        model.train(training), reference.train(training)
        for _ in range(3):
            torch.testing.assert_close(compiled(X), reference(X), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), atol=1e-5, rtol=1e-5)
    assert constants() == [4, 4]


@pytest.mark.parametrize("way", ["eager", "between graphs"])
def test_statistics_that_are_trained_elsewhere_are_seen(way: str) -> None:
    """BatchNorm's training in eager counts no write to them."""
    model = nn.Sequential(nn.Linear(24, 6), nn.BatchNorm1d(6)).eval()
    compiled = frozen(model)
    for _ in range(3):
        assert_same(model, compiled, X)
        model.train()
        if way == "eager":
            model(X * 3 + 1)
        else:
            torch._dynamo.disable(model)(X * 3 + 1)
        model.eval()


def test_parameters_that_share_memory_are_inputs() -> None:
    model = make_model()
    shadow = torch.randn(40, 24)
    model[0].weight.data = shadow
    compiled = frozen(model)
    for _ in range(3):
        assert_same(model, compiled, X)
        shadow.mul_(1.5)
    assert constants() == [3]
    flat = torch.cat([parameter.flatten() for parameter in model.parameters()])
    for _ in range(3):
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        assert_same(model, compiled, X)
        flat.add_(0.25)


def test_a_call_without_parameters_waits_for_no_session(daemon: Any) -> None:
    compiled = torch.compile(lambda x, y: x * y + 1, backend="rust_ort", options={"freeze_parameters": True})
    expected = compiled(X, X)
    called: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            called.append(compiled(X, X))

    with Client.get(rust_ort.Options.parse(FROZEN)).lock:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join(30)
    torch.testing.assert_close(called, [expected])


def test_one_update_of_modules_that_share_a_graph_leaves_them_frozen() -> None:
    layers = [make_model() for _ in range(5)]
    compiled = [frozen(layer) for layer in layers]
    for _ in range(2):
        for layer, call in zip(layers, compiled, strict=True):
            assert_same(layer, call, X)
            layer[0].weight.mul_(1.1)
    for layer, call in zip(layers, compiled, strict=True):
        assert_same(layer, call, X)
    assert set(constants()) == {4}


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.out = nn.Linear(16, 30, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("view", self.embedding.weight.detach()[2:4])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.embedding(tokens)) + self.view.sum()


def test_tied_weights_and_views_of_them_change_together() -> None:
    model = Tied()
    compiled, tokens = frozen(model), torch.arange(7)
    for _ in range(2):
        assert_same(model, compiled, tokens)
        model.embedding.weight.mul_(1.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    model = make_model().to(dtype)
    compiled = frozen(model)
    x = X.to(dtype)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x), atol=2e-2, rtol=2e-2)
        model[0].weight.mul_(0.5)
    plain = torch.compile(make_model().to(dtype), backend="rust_ort")
    torch.testing.assert_close(compiled(x), model(x), atol=2e-2, rtol=2e-2)
    assert plain(x).dtype is dtype and constants() == [4]


def test_strided_and_expanded_parameters() -> None:
    model = make_model()
    model[0].weight = nn.Parameter(torch.randn(24, 40).t())
    model[2].weight = nn.Parameter(torch.randn(1, 40).expand(8, 40))
    compiled = frozen(model)
    assert_same(model, compiled, X)
    assert constants() == [4]


def test_sizes_that_move() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort", options=FROZEN, dynamic=True)
    for n in (3, 5, 9, 3):
        assert_same(model, compiled, torch.randn(n, 24))
    (part,) = parts(FrozenPart)
    assert part.calls == 4 and part.prepared.frozen_inputs == 4


def test_modules_that_share_a_graph_have_sessions_of_their_own() -> None:
    layers = [nn.Linear(24, 24) for _ in range(3)]
    compiled = frozen(lambda layer, x: layer(x).tanh())

    def same() -> None:
        for layer in layers:
            torch.testing.assert_close(compiled(layer, X), layer(X).tanh(), atol=1e-5, rtol=1e-5)

    for _ in range(3):
        same()
    (of_all,) = parts(FreezingPart)
    assert len(of_all.frozen) == len(parts(FrozenPart)) == 3
    built = counters()["sessions_built"]
    layers[1].weight.add_(1)
    same()
    assert counters()["sessions_built"] == built + 1, "of the one that changed alone"


def test_two_graphs_of_one_model_have_its_parameters_once() -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort", options=FROZEN, dynamic=False)
    for n in (2, 5):
        assert_same(model, compiled, torch.randn(n, 24))
    assert constants() == [4, 4]
    assert counters()["frozen_bytes"] == sum(parameter.nbytes for parameter in model.parameters())


def test_memory_goes_with_the_compiled_function(daemon: Any) -> None:
    model = make_model()
    compiled = frozen(model)
    assert_same(model, compiled, X)
    assert counters()["frozen_bytes"] > 0
    del compiled
    torch._dynamo.reset()
    gc.collect()
    after = daemon.client().status()["counters"]
    assert (after["frozen_bytes"], after["sessions_live"]) == (0, 0)


def test_a_module_that_was_replaced_leaves_its_session_at_the_next_one() -> None:
    def call(model: nn.Module) -> None:
        assert_same(model, lambda x: compiled(model, x), X)

    compiled = frozen(lambda model, x: model(x))
    for _ in range(3):
        call(make_model())
        gc.collect()
    assert len(parts(FrozenPart)) <= 2


def test_parameters_that_are_others_at_each_call_become_inputs(caplog: pytest.LogCaptureFixture) -> None:
    compiled = frozen(lambda weight, x: x @ weight.tanh())
    with caplog.at_level(logging.WARNING, logger="rust_ort"):
        for n in range(2 * IN_VAIN):
            weight = nn.Parameter(torch.full((24, 3), float(n)))
            torch.testing.assert_close(compiled(weight, X), X @ weight.tanh(), atol=1e-5, rtol=1e-5)
            del weight
    assert len([record for record in caplog.records if "freeze_parameters" in record.getMessage()]) == 1
    assert counters()["sessions_built"] <= IN_VAIN + 2


def test_a_graph_with_a_backward_is_refused() -> None:
    model = make_model()
    compiled = frozen(model)
    with torch.enable_grad(), pytest.raises(rust_ort.OptionError, match=r"freeze_parameters=True.*no_grad"):
        compiled(X)
    model.requires_grad_(False)
    with torch.enable_grad():
        assert_same(model, compiled, X)
    with torch.enable_grad(), pytest.raises(rust_ort.OptionError, match="freeze_parameters"):
        compiled(X.clone().requires_grad_())


def test_inference_mode_and_tensors_made_in_it() -> None:
    with torch.inference_mode():
        model = make_model()
        compiled = frozen(model)
        for _ in range(2):
            assert_same(model, compiled, X)
            model[0].weight.mul_(2)  # torch counts no writes to these
    assert constants() == []
    other = make_model()
    with torch.inference_mode():
        assert_same(other, frozen(other), X)
    assert constants() == [4]


def test_a_subclass_is_an_input() -> None:
    class Own(nn.Parameter):
        pass

    model = make_model()
    model[0].weight = Own(model[0].weight.detach().clone())
    compiled = frozen(model)
    for _ in range(2):
        assert_same(model, compiled, X)
        model[0].weight.mul_(2)
    assert constants() == [3]


def test_a_forked_child_has_its_own_and_its_parent_goes_on() -> None:
    model = make_model()
    compiled = frozen(model)
    assert_same(model, compiled, X)

    other = copy.deepcopy(model)
    other[0].weight.mul_(3)
    expected = other(X)  # here: OpenMP's threads of this process are not in a child, and a product may wait for them

    def work() -> str:
        with torch.no_grad():
            model[0].weight.mul_(3)
            assert torch.allclose(compiled(X), expected, atol=1e-5, rtol=1e-5)
        return "done"

    assert in_child(work) == "done"
    built = counters()["sessions_built"]
    assert_same(model, compiled, X)
    assert counters()["sessions_built"] == built


def test_another_executor_gets_the_constants_again(daemon: Any) -> None:
    model = make_model()
    compiled = frozen(model)
    assert_same(model, compiled, X)
    daemon.stop()
    assert_same(model, compiled, X)
    model[0].weight.mul_(2)
    daemon.stop()
    assert_same(model, compiled, X)
    assert constants() == [4]


def test_threads_share_one_session() -> None:
    model = make_model()
    compiled = frozen(model)
    compiled(X)
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    assert_same(model, compiled, X)
        except BaseException as error:
            wrong.append(error)

    model[0].weight.mul_(2)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert constants() == [4]


@pytest.mark.parametrize("compare", ["outputs", "nodes"])
def test_comparing_judges_the_session_with_constants(compare: str) -> None:
    model = make_model()
    backend = rust_ort.backend(freeze_parameters=True, compare=compare)
    compiled = torch.compile(model, backend=backend)
    for _ in range(2):
        assert_same(model, compiled, X)
        model[0].weight.mul_(2)
    backend.report().check()
    runs = counters()
    assert runs["observed_runs"] >= 2
    (part,) = parts(FrozenPart)
    assert part.calls == 1, "it ran, and was made anew"
    # What nobody counts shows as a mismatch: the session has the old values.
    compiled(X)
    model[2].bias.data.add_(1)
    compiled(X)
    with pytest.raises(rust_ort.NumericMismatch):
        backend.report().check()


def test_a_dump_has_every_input_and_runs_anywhere(tmp_path: Path) -> None:
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    model = make_model()
    compiled = frozen(model)
    with rust_ort.dump("run", folder=str(tmp_path)):
        expected = compiled(X)
    (path,) = tmp_path.glob("run/*/part_0/model.onnx")
    names = [value.name for value in onnx.load(path).graph.input]
    assert len(names) == 5
    (data,) = path.parent.glob("test_data_set_*")
    feeds = {}
    for i, name in enumerate(names):
        tensor = onnx.TensorProto()
        tensor.ParseFromString((data / f"input_{i}.pb").read_bytes())
        feeds[name] = numpy_helper.to_array(tensor)
    session = onnxruntime.InferenceSession(path)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected.numpy(), atol=1e-5)
    options = json.loads((path.parents[1] / "parts.json").read_text())["options"]
    assert options["freeze_parameters"] is True


def test_explain_and_compare_take_the_option() -> None:
    model = make_model().requires_grad_(False)
    with torch.enable_grad():
        assert rust_ort.explain(model, X, options=FROZEN).nodes_on_onnxruntime > 0
        assert rust_ort.compare(model, X, options=FROZEN)
        with pytest.raises(rust_ort.OptionError, match="freeze_parameters"):
            rust_ort.explain(make_model(), X, options=FROZEN)


def test_a_kept_plan_serves_with_and_without_the_option(daemon: Any) -> None:
    program = """
import json, sys, torch, rust_ort
torch.manual_seed(0)
model = torch.nn.Linear(8, 4)
with torch.no_grad():
    compiled = torch.compile(model, backend="rust_ort")
    torch.testing.assert_close(compiled(torch.ones(2, 8)), model(torch.ones(2, 8)))
print(json.dumps(rust_ort.status()["counters"]))
"""
    exports = []
    for value in ("0", "1", "1"):
        environment = {**os.environ, "RUST_ORT_FREEZE_PARAMETERS": value}
        done = warm.run([sys.executable, "-c", program], env=environment, check=True)
        counted = json.loads(done.stdout.splitlines()[-1])
        exports.append((counted["exports"], counted["frozen_bytes"] > 0))
    assert exports == [(1, False), (1, True), (1, True)]


def test_sharing_goes_on_beside_it() -> None:
    model = make_model()
    plain = torch.compile(model, backend="rust_ort")
    plain(X)
    compiled = frozen(model, share_parameters=True)
    assert_same(model, compiled, X)
    assert process.arena().locate(model[0].weight.data_ptr())
    assert_same(model, plain, X)
    assert len(parts(FreezingPart)) == 1 and constants() == [4]
