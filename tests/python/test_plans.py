"""Plans of calls, by dtypes and shapes of inputs: made once for each, found again, never taken for another's."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from rust_ort import _native
from rust_ort.call.part import RECENT_PLANS, Part
from rust_ort.call.staging import CallPlan
from rust_ort.memory import process
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import Layout
from rust_ort.memory.segment import LOCATION_BITS, OFFSET_MASK

pytestmark = pytest.mark.usefixtures("daemon")


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CallPlan]]:
    """Plans that were looked up or made."""
    plans: list[CallPlan] = []
    real = Part._planned

    def planned(self: Part, inputs: Any, **how: Any) -> CallPlan:
        plans.append(real(self, inputs, **how))
        return plans[-1]

    monkeypatch.setattr(Part, "_planned", planned)
    yield plans


def scaled(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * n + x.sum(-1, keepdim=True)


@pytest.fixture
def compiled() -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] = torch.compile(scaled, backend="rust_ort", dynamic=True, fullgraph=True)
    return function


def test_alternating_shapes_are_looked_up_once(
    compiled: Callable[..., torch.Tensor], looked_up: list[CallPlan]
) -> None:
    inputs = [torch.randn(rows, 5) for rows in range(3, 3 + RECENT_PLANS)]
    for x in inputs:
        torch.testing.assert_close(compiled(x, 2.5), scaled(x, 2.5))
    first = len(looked_up)
    for x in [*inputs[::-1], *inputs]:
        torch.testing.assert_close(compiled(x, -0.5), scaled(x, -0.5))
    assert first == RECENT_PLANS and len(looked_up) == first


def test_of_many_shapes_each_has_one_plan(compiled: Callable[..., torch.Tensor], looked_up: list[CallPlan]) -> None:
    inputs = [torch.randn(rows, 5) for rows in range(3, 3 + 2 * RECENT_PLANS)]
    for x in inputs * 3:
        torch.testing.assert_close(compiled(x, 1.5), scaled(x, 1.5))
    assert len({id(plan) for plan in looked_up}) == len(inputs)


class Own(torch.Tensor):
    """A subclass over memory of its own."""


def test_inputs_of_other_kinds_come_and_go(compiled: Callable[..., torch.Tensor]) -> None:
    base = torch.randn(4, 6, dtype=torch.complex64)
    given = [
        torch.randn(4, 6),
        torch.randn(4, 6).as_subclass(Own),
        torch.randn(6, 4).T,
        base.conj().imag,
        torch.randn(4, 12)[:, ::2],
        torch.randn(1, 6).expand(4, 6),
        torch.randn(25)[1:].view(4, 6),
        torch.randn(4, 6).double(),
        torch.randn(4, 6).half(),
    ]
    for _ in range(2):
        for x in given:
            for n in (2.0, 0.5):
                got = compiled(x, n)
                torch.testing.assert_close(got.as_subclass(torch.Tensor), scaled(x, n).as_subclass(torch.Tensor))


def test_a_result_that_is_an_input_again_is_read_where_it_lies() -> None:
    step = torch.compile(lambda x, y: (x + y, x * 2), backend="rust_ort", fullgraph=True)
    ours, eagers = (torch.ones(3, 4),) * 2, (torch.ones(3, 4),) * 2
    for _ in range(20):
        ours = step(*ours)
        eagers = eagers[0] + eagers[1], eagers[0] * 2
        torch.testing.assert_close(ours, eagers)
    flipped = step(ours[0].T, ours[1].T[:, 1:3].repeat(1, 2)[:, :3])
    torch.testing.assert_close(flipped[1], eagers[0].T * 2)


def test_of_another_plans_inputs_none_is_copied() -> None:
    arena = process.arena()
    plan = _native.Plan([(1, (1000,), "tensor", None, None), (1, (3,), "tensor", None, None)], [])
    before = arena.live()
    assert plan.gather(arena, arena.blocks, _native.DeviceBlocks(), [torch.zeros(1000), torch.zeros(4)], False) is None
    assert arena.live() == before


def test_a_number_that_decides_shapes_is_told_by_its_bits() -> None:
    arena = process.arena()
    for value, others in ((float("nan"), (1.0,)), (0.0, (-0.0, float("nan"))), (7, (8, 7.0))):
        plan = _native.Plan([(7 if isinstance(value, int) else 11, (), type(value).__name__, value, None)], [])
        assert plan.gather(arena, arena.blocks, _native.DeviceBlocks(), [value], False) is not None
        assert all(plan.gather(arena, arena.blocks, _native.DeviceBlocks(), [other], False) is None for other in others)


def test_what_is_row_major_is_copied_by_one_thread_up_to_a_limit() -> None:
    arena = process.arena()
    for megabytes, here in ((3, True), (6, True), (9, False)):
        x = torch.zeros(megabytes << 18)
        plan = _native.Plan([(1, tuple(x.shape), "tensor", None, None)], [])
        call = plan.gather(arena, arena.blocks, _native.DeviceBlocks(), [x], False)
        assert call is not None and call.copied == ([0] if here else []) and call.left == ([] if here else [0])


def test_outputs_that_reach_beyond_their_elements_are_refused() -> None:
    with pytest.raises(ValueError, match="strides reach beyond"):
        _native.Plan([], [(1, (2, 3), (4, 1), False)])


@pytest.mark.parametrize("in_arena", [False, True])
def test_memory_that_is_replaced_while_blocks_are_cut_is_not_read(in_arena: bool) -> None:
    arena = Arena()
    x = arena.empty(Layout(torch.float32, (300,), None))[0] if in_arena else torch.empty(300)
    x.fill_(1)

    class Replacing:
        """Another thread's doing, while the arena is asked."""

        def carve(self, len_bytes: int) -> int:
            x.data = torch.full((300,), 2.0)
            return arena.carve(len_bytes)

        def trim(self) -> int:
            return arena.trim()

    plan = _native.Plan([(1, (300,), "tensor", None, None)], [(1, (300,), (1,), False)])
    call = plan.gather(Replacing(), arena.blocks, _native.DeviceBlocks(), [x], False)
    assert call is not None and call.copied == [0]
    location, output = call.locations
    segment = arena.segments[location >> LOCATION_BITS]
    assert struct.unpack("<300f", segment.read(location & OFFSET_MASK, 1200)) == (2.0,) * 300
    assert location != output
