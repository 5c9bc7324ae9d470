"""Backends with equal options are one backend to Dynamo; reports made with them stay apart."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import rust_ort
from rust_ort import torch_private
from rust_ort.observe import graph_info
from rust_ort.options import Options

pytestmark = pytest.mark.usefixtures("client")


def transform(proto: Any) -> None:
    """Leaves the model as it is."""


def test_equal_options_make_equal_backends() -> None:
    given: list[dict[str, Any]] = [
        {},
        {"compare": "outputs"},
        {"transforms": [transform]},
        {"session_options": {"session.set_denormal_as_zero": "1"}},
        {"tolerance": {"atol": 1e-3}},
    ]
    for i, left in enumerate(given):
        for k, right in enumerate(given):
            assert (rust_ort.backend(**left) == rust_ort.backend(**right)) is (i == k)
        assert hash(rust_ort.backend(**left)) == hash(rust_ort.backend(**left))
        assert rust_ort.backend(**left) == rust_ort.Backend(Options.parse(left))
    assert rust_ort.backend() == pickle.loads(pickle.dumps(rust_ort.backend()))
    assert rust_ort.backend() != "rust_ort"
    assert len({rust_ort.backend(), rust_ort.backend(), rust_ort.backend(opset=20)}) == 2


def test_code_compiled_by_one_backend_serves_an_equal_one() -> None:
    model = nn.Linear(3, 2)
    first, second = rust_ort.backend(), rust_ort.backend()
    x = torch.randn(4, 3)
    torch.testing.assert_close(torch.compile(model, backend=first)(x), model(x))
    torch.testing.assert_close(torch.compile(model, backend=second)(x), model(x))
    assert len(first.graphs) == 1
    assert second.graphs == []
    torch.compile(model, backend=rust_ort.backend(compare="outputs"))(x)
    assert first.graphs[0].calls == 2


def test_a_module_is_compared_a_hundred_times() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    known = len(rust_ort.graphs())
    names = set()
    for _ in range(100):
        report = rust_ort.compare(model, torch.randn(4, 3), options={"compare": "outputs"})
        assert report.ok, str(report)
        assert [graph.direction for graph in report.graphs] == ["forward", "backward"]
        assert [graph.calls for graph in report.graphs] == [1, 1]
        assert all({step for step, _ in graph.verdicts} != set() for graph in report.graphs)
        names |= {graph.name for graph in report.graphs}
    assert len(rust_ort.graphs()) == known + 2
    assert len(names) == 2
    counts = Counter(len(graph.verdicts) for graph in rust_ort.graphs()[known:])
    assert all(count % 100 == 0 for count in counts)


def test_a_module_is_explained_a_hundred_times() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.linalg.solve(x * 2, x)
        torch._dynamo.graph_break()
        return y + 1

    first = rust_ort.explain(function, torch.eye(3))
    assert sum(first.breaks.values()) == 1
    for _ in range(99):
        again = rust_ort.explain(function, torch.eye(3))
        assert [graph.name for graph in again.graphs] == [graph.name for graph in first.graphs]
        assert again.breaks == first.breaks
        assert again.nodes_on_onnxruntime == first.nodes_on_onnxruntime > 0


@pytest.mark.skipif(not torch_private.HAS_REGIONS, reason="this torch counts all compilations of a model together")
def test_tools_with_many_options_leave_the_model_to_be_compiled() -> None:
    """More than torch._dynamo.config.recompile_limit of them look at one model, in which a graph breaks; then its user
    compiles it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.inner(x)
            torch._dynamo.graph_break()
            return y.sin()

    model, x = Model(), torch.randn(4, 3)
    for n in range(torch._dynamo.config.recompile_limit + 2):
        options = {"tolerance": {"atol": 1e-3 + n}}
        report = rust_ort.compare(model, x, options=options)
        assert len(report.graphs) == 4 and report.ok, f"{n}: {report}"
        assert len(rust_ort.explain(model, x, options=options).graphs) == 4, n
    backend = rust_ort.backend()
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    assert len(backend.graphs) == 2


def test_a_report_holds_its_own_calls_alone() -> None:
    model = nn.Linear(3, 2)
    backend = rust_ort.backend(compare="outputs")
    users = torch.compile(model, backend=backend)
    x = torch.randn(4, 3)
    for _ in range(3):
        users(x).sum().backward()
    one = rust_ort.compare(model, x, options={"compare": "outputs"})
    two = rust_ort.compare(model, x, options={"compare": "outputs"})
    assert [len(graph.verdicts) for graph in one.graphs] == [len(graph.verdicts) for graph in two.graphs]
    assert [graph.calls for graph in one.graphs] == [1, 1]
    assert sum(graph.calls for graph in backend.graphs) == 10


def test_verdicts_of_a_run_are_told_apart_after_old_ones_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_info, "KEPT_VERDICTS", 5)
    backend = rust_ort.backend(compare="outputs")
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    for _ in range(7):
        compiled(torch.ones(2))
    (info,) = backend.graphs
    with graph_info.called() as graphs:
        compiled(torch.ones(2))
        compiled(torch.ones(2))
    assert len(info.verdicts) == 5
    assert [step for step, _ in graphs()[0].verdicts] == [7, 8]
    with graph_info.called() as graphs:
        pass
    assert graphs() == []


def test_a_watched_backward_runs_in_the_thread_that_watches() -> None:
    """That of a GPU's tensors has a thread of autograd's else, in which nobody looks."""
    backend = rust_ort.backend(compare="outputs")
    compiled = torch.compile(lambda x: (x * 2).sum(), backend=backend)
    with graph_info.called() as graphs:
        assert not torch._C._is_multithreading_enabled()
        compiled(torch.ones(2, requires_grad=True)).backward()
    assert torch._C._is_multithreading_enabled()
    assert [graph.direction for graph in graphs()] == ["forward", "backward"]
