"""What torch assumed of sizes, as data: bounds, sizes fixed at a number, and the lines that are printed of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from rust_ort.runtime.assumptions import Assumptions, Bounds, assumptions


def assumed_of(program: Callable[..., Any], *given: Tensor) -> Assumptions:
    """Each first size being dynamic."""
    found: list[Assumptions] = []

    def compile_it(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
        found.append(
            assumptions([node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder")], {})
        )
        return gm.forward

    for tensor in given:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)
    torch.compile(program, backend=compile_it, fullgraph=True, dynamic=False)(*given)
    return found[0]


def bounds(size: str, least: int = 2, most: int | None = None) -> Bounds:
    return Bounds(sizes=(size,), least=least, least_line="", most=most, most_line="")


def test_equal_sizes_share_their_bounds_and_a_trial_of_one_is_of_them_all() -> None:
    found = assumed_of(lambda x, y: x * y, torch.ones(3), torch.ones(3))
    (same,) = found.bounds
    assert sorted(same.sizes) == ["x.shape[0]", "y.shape[0]"]
    assert same.open_to_one
    for size in same.sizes:
        assert list(found.lines({size}))[-1] == f"{same.sizes[0]} >= 1"
    assert list(found.lines())[-1] == f"{same.sizes[0]} >= 2"


def test_a_bound_that_the_program_asks_for_is_not_open_to_one() -> None:
    found = assumed_of(lambda x: x * 2 if x.shape[0] >= 3 else x, torch.ones(4))
    (of_x,) = found.bounds
    assert (of_x.least, of_x.open_to_one) == (3, False)
    assert list(found.lines({"x.shape[0]"})) == ["x.shape[0] >= 3"]


@pytest.mark.parametrize(
    ("program", "fixed", "lines"),
    [
        (lambda x: x * 2 if x.shape[0] == 4 else x, {"x.shape[0]": 4}, ["x.shape[0] == 4"]),
        (lambda x: x * 2 if 2 * x.shape[0] == 8 else x, {"x.shape[0]": 4}, ["x.shape[0] == 4"]),
        (lambda x: x * 2 if x.shape[0] % 2 == 0 else x, {}, ["x.shape[0] % 2 == 0", "x.shape[0] >= 2"]),
    ],
    ids=["number", "multiple", "even"],
)
def test_a_size_that_is_one_number_is_fixed_and_one_that_is_even_is_not(
    program: Callable[[Tensor], Tensor], fixed: dict[str, int], lines: list[str]
) -> None:
    found = assumed_of(program, torch.ones(4))
    assert (found.fixed, list(found.lines())) == (fixed, lines)


def reshaped(x: Tensor, y: Tensor) -> Tensor:
    """x[b, n], y[c, 4]: what GPT-2 does to an embedding, and Whisper to its keys."""
    return x.reshape(-1, 4).reshape(y.shape[0], -1, 4) + y[:, None]


def test_what_holds_since_sizes_are_equal_is_left_out() -> None:
    found = assumed_of(lambda x, y: (x + y[:, :1], reshaped(x, y)), torch.ones(3, 8), torch.ones(3, 4))
    (equality,) = found.relations
    assert set(equality.split(" == ")) == {"x.shape[0]", "y.shape[0]"}


def test_a_product_and_a_quotient_read_as_python_computes_them() -> None:
    found = assumed_of(reshaped, torch.ones(3, 8), torch.ones(3, 4))

    def hold(line: str, n: int, m: int) -> bool:
        return bool(eval(line, {"x": torch.ones(n, 8), "y": torch.ones(m, 4)}))

    for n, m in ((3, 3), (5, 5), (6, 4)):
        assert all(hold(line, n, m) for line in found.relations), (n, m)
    for line in (
        "8 * x.shape[0] % (4 * y.shape[0]) == 0",
        "2 * x.shape[0] == y.shape[0] * (2 * x.shape[0] // y.shape[0])",
    ):
        assert line in found.relations
        assert not hold(line, 3, 4)


def test_lines_are_printed_of_what_is_known_in_order() -> None:
    known = Assumptions(
        holds=lambda _: True,
        relations={"a != b": "x.py:1"},
        bounds=[bounds("a", most=9), bounds("b", least=0)],
        fixed={},
    )
    assert known.lines() == {"a != b": "x.py:1", "a >= 2": "", "a <= 9": ""}
    assert known.lines({"a", "b"}) == {"a != b": "x.py:1", "a >= 1": "", "a <= 9": ""}
