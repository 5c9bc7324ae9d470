"""The option `dump`, and dumps of a process whose graphs do not all use one connection. Each test runs in a child."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fork import in_child
from test_fork_in_dump import data_sets

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")


def doubled(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(lambda x: x * 2, backend=rust_ort.backend(**options))


def tripled(**options: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return torch.compile(lambda x: x * 3 - 1, backend=rust_ort.backend(**options))


def test_graphs_of_other_threads_are_in_the_same_dump(tmp_path: Path) -> None:
    def run() -> object:
        doubled(dump=str(tmp_path / "run"), threads=1)(torch.ones(3))
        tripled(threads=2)(torch.ones(3))  # another connection; the open dump has it, too
        tripled(dump=str(tmp_path / "run"), threads=3)(torch.ones(2, 2))
        rust_ort.shutdown()
        return len(data_sets(tmp_path / "run"))

    assert in_child(run) == "3"


def test_so_are_those_in_a_block(tmp_path: Path) -> None:
    def run() -> object:
        with rust_ort.dump("run", folder=tmp_path, calls="all") as path:
            calls = [doubled(threads=1), tripled(threads=2)]
            for _ in range(2):
                for call in calls:
                    call(torch.ones(3))
        return len(data_sets(path))

    assert in_child(run) == "4"


@pytest.mark.parametrize("options", [{"dump": "other"}, {"dump": "run", "dump_calls": "all"}])
def test_a_second_dump_by_option_is_refused_with_both_names(tmp_path: Path, options: dict[str, str]) -> None:
    def run() -> object:
        doubled(dump=str(tmp_path / "run"))(torch.ones(3))
        second = options | {"dump": str(tmp_path / options["dump"])}
        with pytest.raises(Exception, match="one dump at a time") as raised:
            tripled(**second)(torch.ones(3))
        return str(tmp_path / "run") in str(raised.value) and second["dump"] in str(raised.value)

    assert in_child(run) == "True"
    assert not (tmp_path / "other").exists()


def test_a_block_inside_a_block_is_refused_and_the_outer_one_goes_on(tmp_path: Path) -> None:
    def run() -> object:
        call = doubled()
        with rust_ort.dump("run", folder=tmp_path, calls="all") as path:
            call(torch.ones(3))
            for name in ("run", "other"):
                with pytest.raises(rust_ort.OptionError, match=r"run' is open, .* leave it first"):
                    rust_ort.dump(name, folder=tmp_path, options={"threads": 2}).__enter__()
            call(torch.ones(3))
        return len(data_sets(path))

    assert in_child(run) == "2"
    assert not (tmp_path / "other").exists()


def test_another_path_to_the_open_dump_is_the_open_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path / "beside")

    def run() -> object:
        doubled(dump="../run")(torch.ones(3))
        tripled(dump=str(tmp_path / "run"))(torch.ones(3))
        tripled(dump=str(tmp_path / "link" / "run"))(torch.ones(3, dtype=torch.float64))
        monkeypatch.chdir(tmp_path)
        tripled(dump="../run")(torch.ones(3, dtype=torch.int64))  # as an environment variable has it all along
        rust_ort.shutdown()
        return len(data_sets(tmp_path / "run"))

    assert in_child(run) == "4"


def test_a_dump_that_could_not_be_opened_is_not_the_open_one(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("a file")

    def run() -> object:
        bad = {"dump": str(tmp_path / "bad" / "run")}
        with pytest.raises(Exception, match="bad"):
            doubled(**bad)(torch.ones(3))
        tripled(dump=str(tmp_path / "good"))(torch.ones(3))
        (tmp_path / "bad").unlink()
        with pytest.raises(Exception, match="one dump at a time"):
            doubled(**bad)(torch.ones(3))
        return len(data_sets(tmp_path / "good"))

    assert in_child(run) == "1"


def test_a_graph_that_learns_of_a_dump_when_it_is_closed_opens_it_no_more(tmp_path: Path) -> None:
    def run() -> object:
        with rust_ort.dump("run", folder=tmp_path, clean=True) as path:
            doubled()(torch.ones(3))
            session = rust_ort.observe.session.current()
        assert session is not None
        assert not rust_ort.observe.session.open_at(session, rust_ort.Options(threads=2))
        with rust_ort.dump("run", folder=tmp_path):
            pass
        return len(data_sets(path))

    assert in_child(run) == "1"


def test_threads_that_run_a_graph_of_another_connection_at_once_are_all_dumped(tmp_path: Path) -> None:
    def run() -> object:
        call = doubled(threads=2)
        call(torch.ones(3))
        counts = []
        for at in range(10):
            with rust_ort.dump(f"run{at}", folder=tmp_path, calls="all") as path, ThreadPoolExecutor(4) as pool:
                list(pool.map(call, [torch.ones(3)] * 8))
            counts.append(len(data_sets(path)))
        return counts

    assert in_child(run) == str([8] * 10)


def test_who_is_interrupted_while_a_dump_ends_opens_the_next(tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def run() -> object:
        call = doubled()
        for at, name in enumerate(("flush_dump", "_empty")):
            dump = rust_ort.dump(f"run{at}", folder=tmp_path)
            with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt), dump:
                call(torch.ones(3))
                patch.setattr(rust_ort.observe.session.Client, name, staticmethod(interrupted))
        with rust_ort.dump("last", folder=tmp_path) as path:
            call(torch.ones(3))
        return len(data_sets(path))

    assert in_child(run) == "1"


def test_two_blocks_of_two_threads_are_not_open_at_once(tmp_path: Path) -> None:
    def enter(barrier: threading.Barrier, at: int) -> str:
        barrier.wait()
        try:
            with rust_ort.dump(f"run{at}", folder=tmp_path, options={"threads": at}) as path:
                barrier.wait()
                return str(path.exists())
        except rust_ort.OptionError:
            barrier.wait()
            return "refused"

    def run() -> object:
        barrier = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            return sorted(pool.map(enter, [barrier] * 2, [1, 2]))

    assert in_child(run) == str(["True", "refused"])


def test_a_folder_behind_a_link_is_the_one_that_the_system_finds(tmp_path: Path) -> None:
    (tmp_path / "a" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "sub")

    def run() -> object:
        with rust_ort.dump("run", folder=tmp_path / "link" / "..") as path:
            doubled()(torch.ones(3))
        return path == tmp_path / "a" / "run" and len(data_sets(path))

    assert in_child(run) == "1"


def test_a_block_takes_what_is_compiled_with_the_option_inside(tmp_path: Path) -> None:
    def run() -> object:
        with rust_ort.dump("run", folder=tmp_path) as path:
            doubled(dump=str(tmp_path / "other"))(torch.ones(3))
        return len(data_sets(path))

    assert in_child(run) == "1"
    assert not (tmp_path / "other").exists()


def test_a_block_inside_the_options_dump_is_refused_and_the_dump_goes_on(tmp_path: Path) -> None:
    def run() -> object:
        options = {"dump": str(tmp_path / "run"), "dump_calls": "all"}
        call = doubled(**options)
        call(torch.ones(3))
        for threads in (None, 2):  # two threads are another connection
            with pytest.raises(rust_ort.OptionError, match="one dump at a time; the option dump has opened it"):
                rust_ort.dump("other", folder=tmp_path, options={"threads": threads}).__enter__()
        call(torch.ones(3))
        rust_ort.shutdown()
        return len(data_sets(tmp_path / "run"))

    assert in_child(run) == "2"
