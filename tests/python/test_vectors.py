"""Products of a matrix and a vector: eager's values, without the form that ONNX Runtime is slow in."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx
import pytest
import torch
from onnx import shape_inference
from support import FakeClient
from torch import Tensor

PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "matmul": lambda m, v, u: m @ v,
    "transposed": lambda m, v, u: m.T @ u,
    "from the left": lambda m, v, u: u @ m,
    "mv": lambda m, v, u: torch.mv(m, v),
    "batch": lambda m, v, u: torch.stack([m, m + 1]) @ v,
    "addmv": lambda m, v, u: torch.addmv(u, m, v),
    "addmv, transposed": lambda m, v, u: torch.addmv(v, m.T, u, beta=2, alpha=3),
    "addmv to a number": lambda m, v, u: torch.addmv(u[0], m, v, beta=2),
}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]


def operands(dtype: torch.dtype, rows: int = 70, columns: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Of small whole numbers: their sums are exact in any order."""
    generator = torch.Generator().manual_seed(0)
    m, v, u = (torch.randint(-2, 3, shape, generator=generator) for shape in ((rows, columns), (columns,), (rows,)))
    return m.to(dtype), v.to(dtype), u.to(dtype)


def right_ranks(client: FakeClient) -> list[int]:
    """Of each MatMul in what was compiled, the rank of its second operand."""
    ranks = []
    for part in client.parts:
        graph = shape_inference.infer_shapes(onnx.load_from_string(part.spec.model)).graph
        known = {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.output, *graph.value_info)
        }
        ranks += [known[node.input[1]] for node in graph.node if node.op_type == "MatMul"]
    return ranks


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_vector_is_eagers(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    torch._dynamo.reset()
    function = PRODUCTS[name]
    compiled = torch.compile(function, backend="rust_ort", dynamic=dynamic)
    for rows in (70, 33, 2) if dynamic else (70,):
        given = operands(dtype, rows)
        made, expected = compiled(*given), function(*given)
        assert made.stride() == expected.stride() and made.dtype == expected.dtype
        torch.testing.assert_close(made, expected)


@pytest.mark.parametrize("name", PRODUCTS)
def test_nothing_that_is_not_finite_is_lost(name: str) -> None:
    function = PRODUCTS[name]
    m, v, u = operands(torch.float32)
    m[3, 2], m[5, 1], m[6, 0], v[4], u[7] = math.nan, math.inf, -math.inf, math.inf, -math.inf
    compiled = torch.compile(function, backend="rust_ort")
    torch.testing.assert_close(compiled(m, v, u), function(m, v, u), equal_nan=True)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(("rows", "columns"), [(0, 8), (70, 0), (1, 8), (70, 1)])
def test_of_no_rows_or_columns(name: str, rows: int, columns: int) -> None:
    torch._dynamo.reset()
    if name == "addmv to a number" and 0 in (rows, columns):
        pytest.skip("there is no number, or eager gives one number for all rows")
    given, function = operands(torch.float32, rows, columns), PRODUCTS[name]
    torch.testing.assert_close(torch.compile(function, backend="rust_ort")(*given), function(*given))


@pytest.mark.parametrize("name", PRODUCTS)
def test_gradients_are_eagers(name: str) -> None:
    function, found = PRODUCTS[name], []
    for call in (function, torch.compile(function, backend="rust_ort")):
        given = [one.requires_grad_() for one in operands(torch.float64)]
        made = call(*given)
        found.append(torch.autograd.grad(made, given, made.detach().cos(), allow_unused=True))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", PRODUCTS)
def test_no_vector_is_the_second_operand_of_matmul(name: str, client: FakeClient) -> None:
    """There ONNX Runtime makes one product of each row: 36 ms in the place of 0.3 for 2^18 rows of 8."""
    given = [one.requires_grad_() for one in operands(torch.float32)]
    torch.compile(PRODUCTS[name], backend="rust_ort")(*given).sum().backward()
    ranks = right_ranks(client)
    assert ranks and 1 not in ranks
