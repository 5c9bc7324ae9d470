"""rust_ort.compare: what it puts back, what it copies, what it compares, and what is no comparison."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import FakeClient
from torch import Tensor, nn

import rust_ort
from rust_ort.errors import ClientError, DaemonFault, ExecutorLost
from rust_ort.observe.report import Report

pytestmark = pytest.mark.usefixtures("client")

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7
LENIENT = {"on_daemon_error": "eager"}


def kinds(report: Report) -> dict[str, str]:
    return {verdict.name: verdict.kind for verdict in report.verdicts}


def reason(report: Report, name: str) -> str:
    return next(verdict.reason for verdict in report.verdicts if verdict.name == name)


class Failing:
    """The executor is lost at the calls of these numbers, counted from 0."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.count = calls, -1

    def __call__(self) -> None:
        self.count += 1
        if self.count in self.calls:
            raise ExecutorLost("killed by signal 9", graph="g")


# Where it ran


def test_a_call_that_fell_back_to_eager_is_not_compared(client: FakeClient) -> None:
    client.fail = Failing(0)
    report = rust_ort.compare(nn.Linear(4, 4), X, backward=False, options=LENIENT)
    assert kinds(report)["output"] == "not_compared" and "killed by signal 9" in reason(report, "output")
    assert not report.ok
    assert "0 nodes on ONNX Runtime, 2 in eager" in str(report) and "1 of 1 calls ran in eager" in str(report)
    with pytest.raises(ClientError, match="killed by signal 9"):
        report.check()


def test_of_a_backward_that_fell_back_the_gradients_are_not_compared(client: FakeClient) -> None:
    client.fail = Failing(1)
    report = rust_ort.compare(nn.Linear(4, 4), X, options=LENIENT)
    assert kinds(report) == {
        "output": "match", "loss": "match", "grad of weight": "not_compared", "grad of bias": "not_compared"
    }  # fmt: skip
    assert not report.ok
    with pytest.raises(ClientError, match="not all that was asked for was compared"):
        report.check()


def test_of_two_graphs_that_share_the_work_one_that_fell_back_is_enough(client: FakeClient) -> None:
    def model(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    client.fail = Failing(1)
    report = rust_ort.compare(model, X, options=LENIENT)
    assert kinds(report) == {"output": "not_compared"} and not report.ok


def test_a_graph_whose_parts_could_not_be_prepared_is_not_compared(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> None:
        raise DaemonFault("no daemon", code="LOST")

    monkeypatch.setattr(FakeClient, "part", unreachable)
    report = rust_ort.compare(nn.Linear(4, 4), X, backward=False, options=LENIENT)
    assert kinds(report) == {"output": "not_compared"} and not report.ok and "no daemon" in str(report)
    explained = rust_ort.explain(nn.Linear(4, 4), X, backward=False, options=LENIENT)
    assert explained.nodes_on_onnxruntime == 0
    assert "0 on ONNX Runtime in 1 part(s), 2 in eager" in str(explained) and "no daemon" in str(explained)


def test_of_a_forward_that_is_all_eager_the_gradients_alone_are_compared() -> None:
    report = rust_ort.compare(nn.RReLU(), X.clone().requires_grad_())
    assert kinds(report) == {"output": "not_compared", "loss": "not_compared", "grad of input[0]": "match"}


# What is put back


class Reassigns(nn.Module):
    """Its buffer becomes another tensor, of another dtype and shape."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 3, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        self.cache = torch.cat([self.cache, x])
        return self.cache.exp()


def test_a_reassigned_buffer_is_afterwards_the_tensor_it_was() -> None:
    model = Reassigns()
    before = model.cache
    report = rust_ort.compare(model, torch.ones(1, 3)).check()
    assert kinds(report) == {"output": "match", "buffer cache": "match"}
    assert model.cache is before and torch.equal(before, torch.zeros(1, 3, dtype=torch.int64))


def test_a_tensor_that_was_given_other_memory_has_its_own_afterwards() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            grow(self.n)
            return x * self.n.sum()

    @torch._dynamo.disable
    def grow(n: Tensor) -> None:
        n.data = torch.ones(5, dtype=torch.float64)

    model = Grows()
    rust_ort.compare(model, torch.ones(1, 3))
    assert torch.equal(model.n, torch.zeros(3)) and model.n.dtype is torch.float32


def test_a_read_only_buffer_is_not_written(tmp_path: Path) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            np.save(tmp_path / "t.npy", np.ones((4, 3), dtype=np.float32))
            self.register_buffer("table", torch.from_numpy(np.load(tmp_path / "t.npy", mmap_mode="r")))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.table).exp()

    model = Table()
    rust_ort.compare(model, torch.rand(4, 3)).check()


def test_an_expanded_buffer_and_a_module_of_inference_mode_are_compared() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.ones(1, 3).expand(4, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.mask).exp()

    rust_ort.compare(Masked(), torch.rand(4, 3)).check()
    rust_ort.explain(Masked(), torch.rand(4, 3))
    with torch.inference_mode():
        model = nn.Linear(3, 3)
    rust_ort.compare(model, torch.rand(2, 3), backward=False).check()


def test_a_backward_that_waits_can_go_on() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    loss = model(X).exp().sum()
    rust_ort.compare(model, X).check()
    loss.backward()
    assert model[0].weight.grad is not None


def test_buffers_written_in_place_are_put_back_and_compared() -> None:
    model = nn.BatchNorm1d(4)
    report = rust_ort.compare(model, X).check()
    assert kinds(report)["buffer running_mean"] == kinds(report)["buffer num_batches_tracked"] == "match"
    assert torch.equal(model.running_mean, torch.zeros(4)) and model.num_batches_tracked == 0


def test_every_generator_starts_the_candidate_as_it_started_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)

    def model(x: Tensor, given: torch.Generator) -> Tensor:
        numbers = random.random() + float(np.random.rand())
        return x.exp() * numbers + torch.rand(x.shape, generator=given)

    random.seed(1), np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), generator.get_state()
    rust_ort.compare(model, X, generator).check()
    assert before[:2] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[2], generator.get_state())


def test_a_module_without_its_parameters_is_an_error_that_says_so() -> None:
    with pytest.raises(ClientError, match="call it once before"):
        rust_ort.compare(nn.LazyLinear(3), X)


# What is copied


def test_arguments_that_are_one_tensor_stay_one() -> None:
    seen = []

    def model(one: Tensor, other: Tensor, view: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            seen.append((one is other, one.data_ptr() == view.data_ptr() - 4))
        one.add_(1)
        return other * 2 + view.sum()

    x = torch.zeros(4)
    rust_ort.compare(model, x, x, x[1:])
    assert seen[0] == (True, True) and torch.equal(x, torch.zeros(4))


def test_a_view_keeps_its_place_in_its_memory() -> None:
    whole = torch.arange(20.0)
    seen = []

    def model(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            seen.append(x.as_strided((3,), (1,), 0) * 2)
        return x * 2

    rust_ort.compare(model, whole[5:10])
    assert seen[0].tolist() == [0, 2, 4]


def test_parameters_among_the_arguments_are_copied_with_gradients_of_their_own() -> None:
    weight = nn.Parameter(torch.ones(4))

    def model(w: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            w.add_(1)
        return (w * x).exp()

    report = rust_ort.compare(model, weight, torch.rand(4)).check()
    assert kinds(report)["grad of input[0]"] == "match"
    assert weight.grad is None and torch.equal(weight.detach(), torch.ones(4))


class Cache:
    def __init__(self) -> None:
        self.layers = [{"k": torch.zeros(1, 4)}]
        self.length = 0


def append(x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    cache.layers[0]["k"] = torch.cat([cache.layers[0]["k"], x])
    cache.length += 1
    return cache.layers[0]["k"].exp(), cache


def test_objects_that_hold_tensors_are_copied_and_compared() -> None:
    cache = Cache()
    report = rust_ort.compare(append, X, cache).check()
    assert kinds(report) == {"output[0]": "match", "output[1].layers[0].k": "match"}
    assert cache.length == 0 and cache.layers[0]["k"].shape == (1, 4)


def test_an_object_that_cannot_be_copied_is_said_to_be_shared() -> None:
    class Held:
        def __init__(self) -> None:
            self.scale, self.lock = torch.tensor(2.0), threading.Lock()

        def __deepcopy__(self, memo: Any) -> Held:
            raise TypeError("no copies of this")

    report = rust_ort.compare(lambda x, held: x * held.scale, X, Held()).check()
    assert kinds(report) == {"output": "match", "input[1]": "not_compared"}
    assert "no copies of this" in reason(report, "input[1]")


# What is compared


def test_tensors_in_the_attributes_of_an_output_are_compared() -> None:
    class Out:
        def __init__(self, value: Tensor) -> None:
            self.value = value

    def model(x: Tensor) -> tuple[Tensor, Out]:
        return x * 2, Out(x + (2 if torch.compiler.is_compiling() else 1))

    report = rust_ort.compare(model, X)
    assert kinds(report) == {"output[0]": "match", "output[1].value": "mismatch"} and not report.ok


def test_an_output_that_nothing_is_known_of_is_said_not_to_be_compared() -> None:
    report = rust_ort.compare(lambda x: (x * 2, len), X).check()
    assert kinds(report) == {"output[0]": "match", "output[1]": "not_compared"}


@pytest.mark.parametrize(
    ("eager", "compiled", "kind"),
    [(1, 2, "failed"), ("a", "b", "failed"), (True, None, "failed"), (1.0, 1.5, "mismatch"), (1.0, 1.0, "")],
)
def test_python_values_that_differ_are_no_match(eager: object, compiled: object, kind: str) -> None:
    def model(x: Tensor) -> tuple[Tensor, object]:
        return x * 2, compiled if torch.compiler.is_compiling() else eager

    report = rust_ort.compare(model, X)
    assert kinds(report).get("output[1]", "") == kind and report.ok == (not kind)


def test_no_two_values_have_one_name() -> None:
    def model(x: Tensor) -> dict[str, Any]:
        return {"a.b": x + (2 if torch.compiler.is_compiling() else 1), "a": {"b": x * 2}}

    report = rust_ort.compare(model, X)
    assert sorted(kinds(report).items()) == [("output.a.b", "mismatch"), ("output.a.b (2)", "match")]


def test_of_jagged_tensors_the_offsets_are_compared() -> None:
    @torch._dynamo.disable
    def jagged(values: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(values, torch.tensor(ends.pop()))

    ends = [[0, 5, 6], [0, 2, 6]]
    report = rust_ort.compare(lambda x: jagged(x.exp()), torch.rand(6, 2), backward=False)
    assert kinds(report) == {"output": "match", "output offsets": "mismatch"} and not report.ok


def test_parameters_that_the_sides_left_different_are_named() -> None:
    class Writes(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.bias.fill_(2.0 if torch.compiler.is_compiling() else 1.0)
            return x * 2

    model = Writes(4, 4)
    before = model.bias.detach().clone()
    report = rust_ort.compare(model, X, backward=False)
    assert kinds(report)["parameter bias afterwards"] == "mismatch"
    assert torch.equal(model.bias.detach(), before)


# What is no comparison


def test_a_buffer_that_nobody_wrote_into_is_no_comparison() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.arange(4.0))

        def forward(self, x: Tensor) -> None:
            self.seen = (x * self.scale).exp()

    report = rust_ort.compare(Seen(), X)
    assert kinds(report) == {"buffer scale": "not_compared"} and not report.ok


def test_outputs_that_nobody_wrote_into_are_no_comparison() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return torch.empty(64), x.exp(), torch.empty_like(x)

    for options in ({}, {"compare": "outputs"}, {"on_unsupported": "error"}):
        report = rust_ort.compare(function, X, options=options).check()
        assert kinds(report) == {"output[0]": "not_compared", "output[1]": "match", "output[2]": "not_compared"}
        assert report.verdicts[0].reason == "memory that nobody wrote into"
        assert [verdict.name for graph in report.graphs for _, verdict in graph.verdicts] == (
            ["exp"] if options.get("compare") else []
        )
    alone = rust_ort.compare(lambda x: torch.empty(64), X)
    assert kinds(alone) == {"output": "not_compared"} and not alone.ok


def test_memory_that_somebody_wrote_into_since_is_compared() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        made = torch.empty(4)
        torch._dynamo.graph_break()
        return made.fill_(3 if torch.compiler.is_compiling() else 2), x.exp()

    def partly(x: Tensor) -> Tensor:
        made = torch.empty(2, 4)
        made[0] = 1
        made[1] = x[1]
        return made

    def through_numpy(x: Tensor) -> tuple[Tensor, ...]:
        made, number = torch.empty(4), 3 if torch.compiler.is_compiling() else 2
        torch._dynamo.graph_break()
        made.numpy()[:] = number
        return made, x.exp()

    assert kinds(rust_ort.compare(function, X))["output[0]"] == "mismatch"
    inferring = torch.inference_mode()(function)
    assert kinds(rust_ort.compare(inferring, X, backward=False))["output[0]"] == "mismatch"
    assert kinds(rust_ort.compare(through_numpy, X))["output[0]"] != "not_compared"
    assert kinds(rust_ort.compare(partly, X).check()) == {"output": "match"}


def test_arguments_that_are_given_back_are_no_comparison() -> None:
    report = rust_ort.compare(lambda x: (x.exp(), x, x.t()), X).check()
    assert kinds(report) == {"output[0]": "match", "output[1]": "not_compared", "output[2]": "not_compared"}
    report = rust_ort.compare(lambda x: (x.exp() and None) if x is None else (x.exp().sum().item(), x)[1], X)
    assert not report.ok
    report = rust_ort.compare(lambda x: x.add_(1), X.clone()).check()
    assert kinds(report) == {"output": "match"}


# Names and modes


def test_gradients_have_the_names_of_the_users_parameters() -> None:
    inner = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"))
    for model in (torch.compile(nn.Sequential(nn.Linear(4, 4)), backend="rust_ort"), inner):
        report = rust_ort.compare(model, X).check()
        assert {"grad of 0.weight", "grad of 0.bias"} <= set(kinds(report))


def test_gradients_that_inference_mode_keeps_away_are_missed() -> None:
    model = nn.Linear(4, 4)
    with torch.inference_mode():
        report = rust_ort.compare(model, X)
        assert not report.ok and "torch.inference_mode() is on" in str(report)
        rust_ort.compare(model, X, backward=False).check()


class MakesALayerInItsFirstCall(nn.Module):
    """As BigBird does, which goes over to full attention where a sequence is short."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.is_made = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_made:
            nn.Linear(4, 4)
            self.is_made = True
        return nn.functional.dropout(self.inner(x))


def test_what_eager_draws_in_its_first_call_alone_is_held_against_nobody() -> None:
    torch.manual_seed(0)
    model = MakesALayerInItsFirstCall()
    before = torch.get_rng_state()
    report = rust_ort.compare(model, X).check()
    assert kinds(report)["output"] == "match" and torch.equal(torch.get_rng_state(), before)


class SeedsItself(nn.Module):
    """As Reformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        torch._dynamo.graph_break()
        torch.seed()
        torch._dynamo.graph_break()
        return self.inner(x), nn.functional.dropout(x + 1)


def test_what_eager_does_not_give_again_is_no_comparison() -> None:
    # So many elements that a second draw of the same is no chance to meet.
    x = torch.ones(32, 4)
    report = rust_ort.compare(SeedsItself(), x, loss=lambda outputs: outputs[0].sum()).check()
    found = kinds(report)
    assert (found["output[0]"], found["output[1]"]) == ("match", "not_compared")
    assert "runs again" in reason(report, "output[1]")


def test_what_the_backend_draws_otherwise_is_told() -> None:
    def model(x: Tensor) -> Tensor:
        more = torch.rand(1) * 0 if torch.compiler.is_compiling() else torch.zeros(1)
        return nn.functional.dropout(x + 1 + more)

    torch.manual_seed(0)
    report = rust_ort.compare(model, X)
    assert kinds(report)["output"] == "mismatch" and "the backend drew other random numbers" in str(report)


def test_numpy_random_in_a_compiled_function_is_told_as_other_draws() -> None:
    def model(x: Tensor) -> Tensor:
        return x * float(np.random.rand(1).item() + 1)

    report = rust_ort.compare(model, X)
    assert kinds(report)["output"] == "mismatch" and "use_numpy_random_stream" in str(report)
    torch.compiler.reset()
    with torch._dynamo.config.patch(use_numpy_random_stream=True):
        assert rust_ort.compare(model, X).ok
