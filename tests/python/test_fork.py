import os
import threading
from collections.abc import Callable

import pytest
import torch

from rust_ort.memory import process
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import Layout


def in_child(work: Callable[[], object]) -> str:
    """What work returned in a forked child, as text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, str(work()).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.close(writer)
    text = b""
    while piece := os.read(reader, 4096):
        text += piece
    os.close(reader)
    assert os.waitpid(pid, 0)[1] == 0
    return text.decode()


def new(shape: tuple[int, ...], value: float) -> torch.Tensor:
    tensor, _ = process.arena().empty(Layout(torch.float32, shape, None))
    return tensor.fill_(value)


def test_a_childs_write_is_not_seen_by_its_parent() -> None:
    tensor = new((1000,), 1)
    assert in_child(lambda: (tensor.add_(5), tensor.sum().item())[1]) == "6000.0"
    assert tensor.sum().item() == 1000.0


def test_a_parents_write_is_not_seen_by_its_child() -> None:
    tensor = new((1000,), 1)
    go_reader, go_writer = os.pipe()
    back_reader, back_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_writer)  # so that a parent that fails ends this child
        os.read(go_reader, 1)
        os.write(back_writer, str(tensor.sum().item()).encode())
        os._exit(0)
    tensor.fill_(9)
    os.write(go_writer, b"1")
    assert os.read(back_reader, 100) == b"1000.0"
    os.waitpid(pid, 0)
    for fd in (go_reader, go_writer, back_reader, back_writer):
        os.close(fd)


def test_a_block_freed_by_the_parent_stays_whole_in_the_child() -> None:
    kept = [new((5_000,), 2)]
    address = kept[0].data_ptr()
    go_reader, go_writer = os.pipe()
    back_reader, back_writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_writer)  # so that a parent that fails ends this child
        os.read(go_reader, 1)
        os.write(back_writer, f"{kept[0].data_ptr() == address} {kept[0].sum().item()}".encode())
        os._exit(0)
    kept.clear()
    again = new((5_000,), 3)
    assert again.data_ptr() == address
    os.write(go_writer, b"1")
    assert os.read(back_reader, 100) == b"True 10000.0"
    os.waitpid(pid, 0)
    for fd in (go_reader, go_writer, back_reader, back_writer):
        os.close(fd)


def test_a_child_has_an_arena_of_its_own_and_frees_nothing_inherited() -> None:
    held = [new((10,), 1), new((10,), 2)]
    parents = process.arena()
    live = parents.live()

    def work() -> object:
        mine = new((10,), 4)
        addresses = {tensor.data_ptr() for tensor in held}
        fresh = process.arena() is not parents and mine.data_ptr() not in addresses
        held.clear()
        return fresh, len(process.arena().live()), mine.sum().item()

    assert in_child(work) == "(True, 1, 40.0)"
    assert parents.live() == live


def test_a_grandchild_is_separate_too() -> None:
    tensor = new((10,), 1)

    def work() -> object:
        mine = new((10,), 2)
        inner = in_child(lambda: (tensor.add_(1), mine.add_(1), tensor.sum().item() + mine.sum().item())[2])
        return inner, tensor.sum().item(), mine.sum().item()

    assert in_child(work) == "('50.0', 10.0, 20.0)"
    assert tensor.sum().item() == 10.0


def test_a_fork_without_live_blocks_makes_no_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    import gc

    gc.collect()
    monkeypatch.setattr(process, "_arena", Arena())
    new((10,), 1)
    assert process.arena().live() == []
    pipes: list[object] = []
    monkeypatch.setattr(process.os, "pipe", lambda: pipes.append(1))
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert pipes == []


def test_threads_that_fork_do_not_wait_for_each_other() -> None:
    tensor = new((1000,), 1)
    got: list[str] = []

    def work() -> None:
        for _ in range(5):
            got.append(in_child(lambda: (tensor.add_(1), tensor.sum().item())[1]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == ["2000.0"] * 15
    assert process._handshakes == {}


def test_a_dataloader_reads_outputs_in_its_workers() -> None:
    data = new((64, 4), 1)
    rows = [data[k] for k in range(64)]
    loader = torch.utils.data.DataLoader(rows, batch_size=8, num_workers=2)
    assert sum(batch.sum().item() for batch in loader) == 256.0
    assert data.sum().item() == 256.0
