import gc
import itertools
import threading
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rust_ort import _native
from rust_ort.errors import ClientError
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import ONNX_CODE, Layout, block_bytes, contiguous_strides
from rust_ort.memory.segment import LOCATION_BITS, Segment
from rust_ort.torch_private import reinterpret, set_over


@pytest.fixture
def arena() -> Arena:
    return Arena()


def layout(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None) -> Layout:
    return Layout(dtype, shape, stride)


@given(st.integers(1, 1 << 36))
def test_a_block_is_aligned_and_wastes_at_most_an_eighth(len_bytes: int) -> None:
    size = block_bytes(len_bytes)
    assert size % 64 == 0
    assert size >= len_bytes
    assert size - len_bytes <= max(63, len_bytes // 8)
    assert block_bytes(size) == size


def test_block_sizes_are_exact() -> None:
    got = [block_bytes(n) for n in (0, 1, 64, 65, 512, 513, 1024, 1025, 1 << 20, (1 << 20) + 1)]
    assert got == [64, 64, 64, 128, 512, 576, 1024, 1152, 1 << 20, (1 << 20) + (1 << 17)]


def test_a_freed_block_is_handed_out_again_newest_first(arena: Arena) -> None:
    first, first_at = arena.empty(layout((10,)))
    second, second_at = arena.empty(layout((10,)))
    assert first_at != second_at
    del first
    del second
    kept = [arena.empty(layout((10,))) for _ in range(2)]
    assert [location for _, location in kept] == [second_at, first_at]


def test_a_view_keeps_the_block_after_its_tensor(arena: Arena) -> None:
    tensor, location = arena.empty(layout((4, 4)))
    tensor.fill_(1)
    view = tensor[1:, 1:].t()
    del tensor
    assert arena.live() == [(location, 64)]
    other, other_at = arena.empty(layout((4, 4)))
    assert other_at != location
    other.fill_(7)
    assert view.tolist() == [[1.0] * 3] * 3
    del view
    assert arena.live() == [(other_at, 64)]


def test_autograd_keeps_the_block_it_saved(arena: Arena) -> None:
    tensor, location = arena.empty(layout((8,)))
    tensor.copy_(torch.arange(8.0))
    weight = torch.ones(8, requires_grad=True)
    loss = (weight * tensor).sum()
    del tensor
    assert [at for at, _ in arena.live()] == [location]
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == list(range(8))
    del loss
    gc.collect()
    assert arena.live() == []


def test_a_block_freed_in_another_thread_returns(arena: Arena) -> None:
    held = [arena.empty(layout((100,)))[0]]
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert arena.live() == []


@pytest.mark.parametrize("dtype", list(ONNX_CODE), ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (1, 1), (4, 1, 3)], ids=str)
def test_a_tensor_has_its_shape_strides_and_dtype(arena: Arena, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor, location = arena.empty(layout(shape, dtype))
    like = torch.empty(shape, dtype=dtype)
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (like.shape, like.stride(), dtype)
    assert tensor.is_contiguous()
    assert not tensor._is_view()
    assert arena.locate(tensor.data_ptr()) == location
    assert tensor.data_ptr() % 64 == 0


def test_a_tensor_without_elements_takes_no_block(arena: Arena) -> None:
    tensor, location = arena.empty(layout((0, 3)))
    assert (tuple(tensor.shape), location, arena.live()) == ((0, 3), 0, [])


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ClientError, match=r"torch\.quint8 does not exist in ONNX"):
        layout((1,), torch.quint8)


def test_strides_are_those_of_torch() -> None:
    for shape in [(), (3,), (2, 3), (2, 0, 4), (1, 1), (0,)]:
        assert contiguous_strides(shape) == torch.empty(shape).stride()


def test_strides_of_dimensions_of_size_one_need_no_copy() -> None:
    assert layout((2, 1, 3), stride=(3, 77, 1)).dense
    assert not layout((2, 3), stride=(1, 2)).dense


def test_addresses_outside_have_no_location(arena: Arena) -> None:
    assert arena.locate(torch.zeros(1).data_ptr()) == 0
    tensor, location = arena.empty(layout((1000,)))
    assert arena.locate(tensor[10:].data_ptr()) == location + 40
    segment = arena.segments[location >> LOCATION_BITS]
    assert arena.locate(segment.base - 1) == 0
    assert arena.locate(segment.base + segment.len_bytes) == 0
    assert arena.locate(segment.base + segment.len_bytes - 1) != 0


def test_resize_is_an_error_not_a_crash(arena: Arena) -> None:
    tensor, _ = arena.empty(layout((4,)))
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(1000)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.untyped_storage().resize_(0)
    tensor.resize_(2)
    other = torch.ones(3)
    tensor.set_(other)
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    assert arena.live() == []


def test_a_shared_or_pickled_tensor_leaves_the_arena(arena: Arena) -> None:
    tensor, _ = arena.empty(layout((4,)))
    tensor.fill_(3)
    tensor.share_memory_()
    assert tensor.tolist() == [3.0] * 4
    assert arena.live() == []


def test_the_user_may_write_in_place_what_was_made_without_grad(arena: Arena) -> None:
    with torch.no_grad():
        tensor, _ = arena.empty(layout((2, 2)))
        tensor.fill_(1)
    weight = torch.ones(2, requires_grad=True)
    tensor.mul_(weight)
    tensor.sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("made", [reinterpret, set_over])
def test_the_way_around_the_private_function_is_equal(arena: Arena, made: Callable[..., torch.Tensor]) -> None:
    flat, location = arena.empty(layout((6,), torch.bfloat16))
    tensor = made(flat, (2, 3), (3, 1))
    assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == ((2, 3), (3, 1), torch.bfloat16)
    assert (tensor._is_view(), arena.locate(tensor.data_ptr())) == (False, location)


def test_a_default_device_does_not_move_a_tensor(arena: Arena) -> None:
    with torch.device("meta"):
        tensor, _ = arena.empty(layout((2, 3)))
        empty, _ = arena.empty(layout((0, 3)))
    assert (tensor.device.type, empty.device.type) == ("cpu", "cpu")


def test_memory_stays_flat_over_many_allocations(arena: Arena) -> None:
    sizes = [1, 1000, 30_000, 300_000]
    for size in sizes:
        arena.empty(layout((size,)))[0].fill_(1)
    resident = arena.resident_bytes()
    for _ in range(500):
        for size in sizes:
            arena.empty(layout((size,)))[0].fill_(1)
    assert arena.resident_bytes() == resident
    assert len(arena.segments) == 1


def test_changing_sizes_reuse_the_same_memory(arena: Arena) -> None:
    for step in range(300):
        kept = [arena.empty(layout((100_000 + 5_000 * step + k,)))[0] for k in range(3)]
        for tensor in kept:
            tensor[0] = 1
        del kept, tensor
    assert len(arena.segments) == 1


def test_blocks_larger_than_a_segment_get_one(arena: Arena) -> None:
    tensor, location = arena.empty(layout((300 << 20,), torch.uint8))
    tensor[-1] = 1
    assert arena.segments[location >> LOCATION_BITS].len_bytes >= 300 << 20
    assert arena.resident_bytes() < 1 << 20


def test_memory_that_no_call_uses_goes_back(arena: Arena) -> None:
    tensor, _ = arena.empty(layout((200 << 20,), torch.uint8))
    tensor.fill_(1)
    del tensor
    assert arena.live() == []
    arena.trim()
    assert arena.resident_bytes() >= 200 << 20
    assert arena.trim() == block_bytes(200 << 20)
    assert arena.resident_bytes() < 1 << 20
    again, _ = arena.empty(layout((200 << 20,), torch.uint8))
    assert int(again[:4096].sum()) == 0


def test_memory_in_use_between_trims_stays(arena: Arena) -> None:
    for _ in range(4):
        tensor, _ = arena.empty(layout((200 << 20,), torch.uint8))
        del tensor
        arena.live()
        assert arena.trim() == 0


def test_memory_that_cannot_be_given_back_is_not_lost(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def punch(self, offset: int, len_bytes: int) -> None:
            raise OSError("Operation not supported")

    arena.empty(layout((200 << 20,), torch.uint8))
    arena.live()
    total = sum(segment.len_bytes for segment in arena.segments.values())
    with monkeypatch.context() as context:
        context.setattr(arena, "segments", dict.fromkeys(arena.segments, Refusing()))
        arena.trim()
        arena.trim()
    assert sum(size for size, _ in [*arena._ranges, *arena.blocks.drained()]) == total


def test_a_childs_blocks_return_to_nobody(arena: Arena) -> None:
    tensor, location = arena.empty(layout((10,)))
    arena.blocks.leave()
    del tensor
    assert [at for at, _ in arena.live()] == [location]


def test_a_segment_is_sealed_against_a_change_of_size() -> None:
    import fcntl
    import os

    segment = Segment("test", 1 << 20)
    seals = fcntl.fcntl(segment.fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_SHRINK
    with pytest.raises(PermissionError):
        os.ftruncate(segment.fd, 4096)


def test_a_new_segment_is_announced_before_it_is_used(arena: Arena) -> None:
    seen: list[int] = []
    arena.listeners.append(lambda segment: seen.append(segment.id))
    _, location = arena.empty(layout((1,)))
    assert seen == [location >> LOCATION_BITS]


def test_threads_never_share_a_block() -> None:
    arena = Arena()
    faults: list[str] = []

    def work(mark: int) -> None:
        held: list[torch.Tensor] = []
        for step in range(2000):
            tensor, _ = arena.empty(layout((1 + (step * 37 + mark * 11) % 300,), torch.int32))
            tensor.fill_(mark)
            held.append(tensor)
            if len(held) > 20:
                old = held.pop((step * 7) % 20)
                if not bool((old == mark).all()):
                    faults.append(f"thread {mark} step {step}")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert arena.live() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3 << 20), st.integers(0, 50)), max_size=80))
def test_live_blocks_never_overlap(steps: list[tuple[bool, int, int]]) -> None:
    arena = Arena()
    held: list[tuple[object, int, int]] = []
    for free, len_bytes, pick in steps:
        if free and held:
            held.pop(pick % len(held))
        elif free:
            arena._gather()
        else:
            size = block_bytes(len_bytes)
            block = arena.block(size)
            location = block.location
            held.append((block, location, size))
            made = _native.tensor(block, 2, (size,), (1,))
            assert arena.locate(made.data_ptr()) == location
            del block, made
        spans = arena.live()
        assert spans == sorted((location, size) for _, location, size in held)
        for (start, size), (following, _) in itertools.pairwise(spans):
            assert start + size <= following
    total = sum(size for size, _ in [*arena._ranges, *arena.blocks.drained()])
    assert total + sum(size for _, size in arena.live()) == sum(s.len_bytes for s in arena.segments.values())


@pytest.mark.parametrize("len_bytes", [1 << 43, 1 << 48])
def test_more_than_the_machine_has_is_refused_as_memory(arena: Arena, len_bytes: int) -> None:
    """As by torch's own allocator, with a RuntimeError that says how much."""
    with pytest.raises(torch.OutOfMemoryError, match=rf"{len_bytes:,} bytes was asked for .* this machine has [\d,]+"):
        arena.block(len_bytes)
    assert isinstance(arena.block(64), _native.Block)
