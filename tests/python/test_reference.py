"""What eager is compared with is eager: nothing compiled runs in the reference, however it was compiled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import rust_ort
from rust_ort.observe.reference import in_eager


def minus(proto: Any) -> None:
    """The planted wrong kernel: every addition subtracts."""
    for node in proto.graph.node:
        if node.op_type == "Add":
            node.op_type = "Sub"


minus.cache_key = "minus"  # type: ignore[attr-defined]
WRONG: dict[str, Any] = {"transforms": [minus]}


pytestmark = pytest.mark.usefixtures("client")


class Adds(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1


def compiled_module() -> Callable[..., Any]:
    return torch.compile(Adds(), backend="rust_ort", options=WRONG)


def compiled_in_place() -> Callable[..., Any]:
    model = Adds()
    model.compile(backend="rust_ort", options=WRONG)
    return model


def compiled_function() -> Callable[..., Any]:
    return torch.compile(lambda x: x * 2 + 1, backend="rust_ort", options=WRONG)


def nested_module() -> Callable[..., Any]:
    return nn.Sequential(torch.compile(Adds(), backend="rust_ort", options=WRONG), nn.Tanh())


def nested_in_place() -> Callable[..., Any]:
    model = nn.Sequential(Adds(), nn.Tanh())
    model[0].compile(backend="rust_ort", options=WRONG)
    return model


def decorated_further_down() -> Callable[..., Any]:
    inner = torch.compile(lambda x: x * 2 + 1, backend="rust_ort", options=WRONG)

    @torch._dynamo.disable
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return inner(x)

    return lambda x: hidden(x).tanh() + 0


@pytest.mark.parametrize(
    "make",
    [compiled_module, compiled_in_place, compiled_function, nested_module, nested_in_place, decorated_further_down],
)
def test_a_compiled_model_is_compared_with_eager_not_with_itself(make: Callable[[], Callable[..., Any]]) -> None:
    report = rust_ort.compare(make(), torch.randn(3, 4), options=WRONG)
    assert not report.ok
    assert "mismatch" in {verdict.kind for verdict in report.verdicts}, str(report)
    assert torch.compiler.is_compiling() is False
    x = torch.randn(3, 4)
    torch.testing.assert_close(torch.compile(Adds(), backend="eager")(x), x * 2 + 1)


@pytest.mark.parametrize("make", [compiled_module, compiled_in_place, compiled_function])
def test_the_options_of_a_compiled_model_are_not_taken_for_the_references(
    make: Callable[[], Callable[..., Any]],
) -> None:
    model = make()
    model(torch.randn(3, 4))  # already compiled, and warm
    report = rust_ort.compare(model, torch.randn(3, 4))
    assert not report.ok, str(report)


@pytest.mark.parametrize("atol", [1e-3, 10.0])
def test_a_compiled_model_is_judged_by_its_own_tolerance(atol: float) -> None:
    """The planted kernel is off by 2."""
    options = {**WRONG, "tolerance": {"atol": atol}, "compare_only": ["nosuch"]}
    model = torch.compile(Adds(), backend="rust_ort", options=options)
    report = rust_ort.compare(model, torch.randn(3, 4))
    (output,) = report.verdicts
    assert output.kind == ("match" if atol == 10.0 else "mismatch"), str(report)
    assert [verdict.name for verdict in report.missing] == ["option compare_only"]


def test_compilation_goes_on_after_comparisons_in_threads() -> None:
    def work() -> None:
        rust_ort.compare(lambda x: x + 1, torch.ones(3), backward=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = len(rust_ort.graphs())
    torch.compile(lambda x: x * 3, backend=rust_ort)(torch.ones(3))
    assert len(rust_ort.graphs()) == known + 1


class Chooses(nn.Module):
    """Both branches close over a layer."""

    def __init__(self, compiled: bool = False) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.adds = torch.compile(Adds(), backend="rust_ort", options=WRONG) if compiled else Adds()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = torch.cond(x.sum() > 0, lambda x: self.adds(self.one(x)).sin(), lambda x: self.other(x).cos(), (x,))
        return chosen + x.exp()


def test_the_gradients_of_what_a_branch_closes_over_are_eagers() -> None:
    model, x = Chooses(), torch.rand(2, 3)
    report = rust_ort.compare(model, x).check()
    assert {f"grad of {name}" for name, _ in model.named_parameters()} <= {entry.name for entry in report.verdicts}
    assert not report.first_wrong_node and report.graphs


def test_a_branch_takes_inputs_that_require_a_gradient() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) + x.exp()

    report = rust_ort.compare(model, torch.rand(2, 3, requires_grad=True)).check()
    assert [entry.name for entry in report.verdicts] == ["output", "loss", "grad of input[0]"]


def test_what_a_branch_calls_compiled_is_off_in_the_reference() -> None:
    """Every addition of the compiled layer subtracts, also where a higher-order operator calls it."""
    with in_eager():
        model = Chooses(compiled=True)
        x = torch.rand(2, 3)
        known = len(rust_ort.graphs())
        torch.testing.assert_close(model(x), (model.one(x) * 2 + 1).sin() + x.exp())
        assert len(rust_ort.graphs()) == known


def test_a_function_that_a_user_compiled_for_eager_is_off_too() -> None:
    compiled = torch.compile(lambda x: x + torch.compiler.is_compiling(), backend="eager")
    with in_eager():
        assert compiled(torch.zeros(1)).item() == 0
