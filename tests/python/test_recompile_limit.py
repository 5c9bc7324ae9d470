"""Dynamo's recompile limit: a function that met it runs in eager, and no report calls that compared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort import torch_private

pytestmark = pytest.mark.usefixtures("daemon")
LIMIT = 3


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    torch.compiler.reset()
    config: Any = torch_private.find("torch._dynamo.config")
    with config.patch(recompile_limit=LIMIT):
        yield


def made() -> Callable[[Tensor, str], Tensor]:
    """A function that is compiled for each mode that it is called with."""

    def by_mode(x: Tensor, mode: str) -> Tensor:
        return (x * 2).sin() if mode[0] in "abc" else (x * 3).cos()

    return by_mode


def met(function: Any, x: Tensor) -> None:
    for mode in "abcd":
        function(x, mode)


def test_a_function_that_met_the_limit_is_in_the_report_and_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    backend = rust_ort.backend(compare="outputs")
    function = torch.compile(made(), backend=backend)
    x = torch.randn(4)
    for mode in "abc":
        function(x, mode)
    assert backend.report().ok
    with caplog.at_level(logging.WARNING, "rust_ort"):
        for mode in "defd":
            function(x, mode)
    warned = [record.getMessage() for record in caplog.records if record.name == "rust_ort"]
    assert len(warned) == 1 and "by_mode" in warned[0] and "recompile_limit = 3" in warned[0], warned
    report = backend.report()
    assert not report.ok and len(backend.graphs) == LIMIT
    (missing,) = report.missing
    assert "by_mode" in missing.name and "recompile_limit" in missing.reason and "eager" in str(report)
    assert not rust_ort.backend(compare="outputs", opset=20).report().missing


def test_a_compiled_function_beyond_its_limit_is_not_called_compared() -> None:
    function = torch.compile(made(), backend="rust_ort")
    x = torch.randn(4)
    met(function, x)
    assert rust_ort.compare(function, x, "a").ok
    report = rust_ort.compare(function, x, "e")
    assert not report.ok
    (missing,) = report.missing
    assert "by_mode" in missing.name and "1 call ran in eager" in missing.reason, missing
    assert all(verdict.kind == "match" for verdict in report.verdicts), "they are of the function compiled apart"


def test_where_a_part_of_a_model_ran_in_eager_nothing_is_called_compared() -> None:
    inner = made()

    @torch.compiler.disable(recursive=False)
    def twice(y: Tensor, mode: str) -> Tensor:
        return inner(y, mode) + inner(y, mode)

    function = torch.compile(lambda x, mode: twice(x.exp() * 2, mode), backend="rust_ort")
    x = torch.randn(4)
    met(function, x)
    report = rust_ort.compare(function, x, "e")
    assert report.graphs and not report.ok, report
    assert {verdict.kind for verdict in report.verdicts} == {"not_compared"}, report
    assert "2 calls ran in eager" in report.verdicts[0].reason


def test_tools_meet_no_limit_of_their_own() -> None:
    function, x = made(), torch.randn(4)
    for mode in "abcdefghij":
        assert rust_ort.compare(function, x, mode).ok, mode
        explained = rust_ort.explain(function, x, mode)
        assert explained.graphs and not explained.limits, explained


def test_explain_says_which_function_met_the_limit() -> None:
    function = torch.compile(made(), backend="rust_ort")
    x = torch.randn(4)
    met(function, x)
    explained = rust_ort.explain(function, x, "e")
    ((name, calls),) = explained.limits.items()
    assert "by_mode" in name and calls == 0
    assert "by_mode" in str(explained) and "recompile_limit" in str(explained) and "by_mode" in explained._repr_html_()


def test_what_torch_forgot_is_forgotten() -> None:
    backend = rust_ort.backend(compare="outputs")
    function, x = torch.compile(made(), backend=backend), torch.randn(4)
    met(function, x)
    assert backend.report().missing
    torch.compiler.reset()
    function(x, "e")
    assert not backend.report().missing


def test_other_backends_limits_are_not_ours() -> None:
    function = torch.compile(made(), backend="aot_eager")
    met(function, torch.randn(4))
    assert not rust_ort.backend().report().missing


def test_what_torch_suppressed_is_said_to_be() -> None:
    def fails(_: Any) -> None:
        raise ValueError("planted")

    config: Any = torch_private.find("torch._dynamo.config")
    with config.patch(suppress_errors=True):
        report = rust_ort.compare(lambda x: x.sin(), torch.randn(4), options={"transforms": [fails]})
    assert not report.ok and "suppress_errors" in report.verdicts[0].reason
