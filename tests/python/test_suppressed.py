"""What Dynamo suppresses runs in eager, and is told wherever values of it would be compared with themselves."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rust_ort
from rust_ort import torch_private

pytestmark = pytest.mark.usefixtures("daemon")


@pytest.fixture(autouse=True)
def suppressing() -> Iterator[None]:
    config: Any = torch_private.find("torch._dynamo.config")
    with config.patch(suppress_errors=True):
        yield


class InTwoGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        torch._dynamo.graph_break()
        return torch.exp(self.second(hidden))


def refusing_exp(proto: Any) -> None:
    if any(node.op_type == "Exp" for node in proto.graph.node):
        raise ValueError("planted")


OPTIONS = {"transforms": [refusing_exp]}


def test_values_that_a_suppressed_graph_had_a_part_in_are_not_compared() -> None:
    report = rust_ort.compare(InTwoGraphs(), torch.randn(2, 4), options=OPTIONS)
    assert report.graphs, "the first graph was compiled"
    assert not report.ok
    assert {verdict.kind for verdict in report.verdicts} == {"not_compared"}, report
    assert all("planted" in verdict.reason and "suppress_errors" in verdict.reason for verdict in report.verdicts)


def test_the_backends_report_misses_the_graph() -> None:
    backend = rust_ort.backend(compare="outputs", transforms=[refusing_exp])
    model, x = InTwoGraphs(), torch.randn(2, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    report = backend.report()
    assert any(verdict.kind == "match" for verdict in report.verdicts)
    assert not report.ok
    assert [("planted" in verdict.reason, verdict.kind) for verdict in report.missing] == [(True, "not_compared")]


def test_explain_says_why() -> None:
    explained = rust_ort.explain(InTwoGraphs(), torch.randn(2, 4), options=OPTIONS)
    assert len(explained.not_compiled) == 1
    assert "planted" in str(explained) and "planted" in explained._repr_html_()


def test_what_compiles_is_compared_as_ever() -> None:
    assert rust_ort.compare(InTwoGraphs(), torch.randn(2, 4)).ok
