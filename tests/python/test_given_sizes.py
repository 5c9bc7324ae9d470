"""Sizes that a part cannot compute from what it reads: solved for, or given to it by the graph's own inputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import rust_ort
from rust_ort.export.shapes import Binder, UnboundSymbol, compile_expression


def symbol(env: ShapeEnv, name: str, hint: int) -> torch.SymInt:
    made = env.create_symintnode(env.create_symbol(hint, ConstantSource(name)), hint=hint)
    assert isinstance(made, torch.SymInt)
    return made


def test_a_size_that_is_no_symbol_is_solved_for_whole() -> None:
    env = ShapeEnv()
    length, batch = symbol(env, "length", 53), symbol(env, "batch", 7)
    strided = torch.sym_max(1, (length - length % 4) // 4)
    binder = Binder([batch, 16 * strided + 16])
    for size in (strided, 128 * strided + 128, 128 * strided * batch, 16 * strided + batch, (strided + 1) // 2):
        assert compile_expression(binder.code(size))([7, 16 * 13 + 16]) == size.node.hint
    with pytest.raises(UnboundSymbol, match="which no input of the part determines"):
        binder.code(length)


def test_what_one_input_tells_solves_another() -> None:
    env = ShapeEnv()
    length = symbol(env, "length", 53)
    binder = Binder([length - length % 4, 2 * (length % 4) + 1])
    assert compile_expression(binder.code(length))([52, 3]) == 53


def parts_of_a_length(x: Tensor) -> Tensor:
    n = x.shape[0]
    kept, rest = n - n % 4, n % 4
    drop = nn.functional.dropout
    return torch.cat([drop(x[:kept]), drop(x[kept : kept + rest])]) * 2


def one_more_than_two_thirds(x: Tensor) -> Tensor:
    late = nn.functional.dropout(x[x.shape[0] // 3 :])
    return torch.cat([late, late[:1]]) * 2


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("function", [parts_of_a_length, one_more_than_two_thirds])
def test_only_what_draws_is_left_to_eager(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(function, backend="rust_ort", dynamic=True)
    for n in (21, 34, 53):
        x, same = (torch.arange(n * 3.0).reshape(n, 3).requires_grad_() for _ in range(2))
        torch.manual_seed(n)
        expected = function(x)
        torch.manual_seed(n)
        given = compiled(same)
        torch.testing.assert_close(given, expected)
        expected.sum().backward()
        given.sum().backward()
        torch.testing.assert_close(same.grad, x.grad)
    explained = rust_ort.explain(compiled, torch.ones(22, 3, requires_grad=True))
    left = {node.op for graph in explained.graphs for node in graph.eager}
    assert left == {"aten.native_dropout.default"}
