"""Mixtures of experts: rows multiplied group by group, as transformers' operator does it and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import rust_ort
from rust_ort import torch_private
from rust_ort.export.rules import RULES, How, Rule
from rust_ort.observe.wide import in_float64

pytest.importorskip("transformers.integrations.moe")
pytestmark = pytest.mark.usefixtures("daemon")


def by_transformers(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, weight.transpose(1, 2), ends)


def by_torch(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return torch._grouped_mm(x, weight.transpose(1, 2), offs=ends)


def given(dtype: torch.dtype, ends: Sequence[int], *, rows: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 8, dtype=dtype), torch.randn(len(ends), 16, 8, dtype=dtype)
    return x.requires_grad_(), weight.requires_grad_(), torch.tensor(ends, dtype=torch.int32)


def checked(function: Callable[..., Tensor], *inputs: Tensor) -> None:
    torch.compiler.reset()
    report = rust_ort.compare(function, *inputs, options={"compare": "nodes"})
    report.check()
    assert {graph.direction for graph in report.graphs} == {"forward", "backward"}
    assert [node.reason for graph in report.graphs for node in graph.eager] == []


@pytest.mark.parametrize("ends", [(2, 2, 7, 9), (0, 0, 0, 9), (3, 5, 6, 7), (0, 0, 0, 0), (9,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_transformers_operator_and_its_gradients_run_on_onnx_runtime(dtype: torch.dtype, ends: Sequence[int]) -> None:
    """Groups without rows, and rows behind the last group, which are zero, among them."""
    checked(by_transformers, *given(dtype, ends))


@pytest.mark.parametrize("ends", [(2, 2, 7, 9), (0, 0, 0, 9)], ids=str)
def test_torchs_operator_and_its_gradients_run_on_onnx_runtime(ends: Sequence[int]) -> None:
    checked(by_torch, *given(torch.bfloat16, ends))


def test_torchs_operator_without_offsets_is_a_batch_of_products() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(3, 4, 8).bfloat16().requires_grad_(), torch.randn(3, 16, 8).bfloat16().requires_grad_()
    checked(lambda x, y: torch._grouped_mm(x, y.transpose(1, 2)), x, y)


def test_how_many_rows_there_are_may_change() -> None:
    torch.compiler.reset()
    function = torch.compile(by_transformers, backend=(backend := rust_ort.backend()))
    for rows, ends in ((9, (2, 2, 7, 9)), (5, (0, 1, 4, 5)), (12, (12, 12, 12, 12))):
        x, weight, places = given(torch.float32, ends, rows=rows)
        torch_private.mark_dynamic(x, 0, None)
        torch.testing.assert_close(function(x, weight, places), by_transformers(x, weight, places))
    assert [graph.direction for graph in backend.graphs].count("forward") == 1
    assert not any(graph.eager for graph in backend.graphs)


def test_it_has_a_third_opinion() -> None:
    x, weight, ends = (tensor.detach() for tensor in given(torch.float32, (2, 2, 7, 9)))
    operator = torch.ops.transformers.grouped_mm_fallback.default
    made = operator(x, weight.transpose(1, 2), ends)
    exact = in_float64(operator, (x, weight.transpose(1, 2), ends), {}, made)
    assert exact.dtype is torch.float64


def test_a_rule_knows_an_operator_that_a_library_registers_later() -> None:
    (known,) = (rule for rule in RULES if rule.operator == "transformers.grouped_mm_fallback.default")
    assert known.overloads == [torch.ops.transformers.grouped_mm_fallback.default]
    later = Rule(operator="rust_ort_tests_later.twice.default", how=How.TRANSLATED, why="", upstream="torchlib")
    assert later.overloads == []

    @torch.library.custom_op("rust_ort_tests_later::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    registered: Any = torch.ops.rust_ort_tests_later
    assert later.overloads == [registered.twice.default]
