"""A fork inside a dump: the child runs and dumps nothing, the parent's dump is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_fork import in_child

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")


def data_sets(path: Path) -> list[str]:
    return sorted(str(found.parent.relative_to(path)) for found in path.rglob("test_data_set_*/manifest.json"))


def compiled_double(**options: Any) -> Any:
    return torch.compile(lambda x: x * 2 + 1, backend=rust_ort.backend(**options))


def test_a_forked_child_runs_inside_a_dump_and_dumps_nothing(tmp_path: Path) -> None:
    call = compiled_double()
    call(torch.ones(3))
    with rust_ort.dump("run", folder=tmp_path, calls="all") as path:
        call(torch.ones(3))
        assert in_child(lambda: [call(torch.full((3,), 2.0)).tolist() for _ in range(2)]) == str([[5.0] * 3] * 2)
        fresh = torch.compile(lambda x: x * 3 - 1, backend="rust_ort")  # compiled in the child
        assert in_child(lambda: fresh(torch.ones(2)).tolist()) == "[2.0, 2.0]"
        call(torch.ones(3))
    assert len(data_sets(path)) == 2, data_sets(path)


def test_a_child_that_leaves_the_block_ends_nothing_of_its_parents(tmp_path: Path) -> None:
    call = compiled_double()
    dump = rust_ort.dump("run", folder=tmp_path, calls="all")
    path = dump.__enter__()
    call(torch.ones(3))

    def leave() -> object:
        dump.__exit__(None, None, None)
        return call(torch.ones(3)).tolist()

    assert in_child(leave) == "[3.0, 3.0, 3.0]"
    call(torch.ones(3))
    dump.__exit__(None, None, None)
    call(torch.ones(3))
    assert len(data_sets(path)) == 2


def test_a_child_may_open_a_dump_of_its_own(tmp_path: Path) -> None:
    call = compiled_double()
    with rust_ort.dump("parents", folder=tmp_path, calls="all") as path:
        call(torch.ones(3))

        def own() -> object:
            with rust_ort.dump("childs", folder=tmp_path) as childs:
                call(torch.ones(3))
            return len(data_sets(childs))

        assert in_child(own) == "1"
    assert len(data_sets(path)) == 1


def test_a_forked_child_runs_under_the_option_dump(tmp_path: Path) -> None:
    call = compiled_double(dump=str(tmp_path / "run"), dump_calls="all")
    call(torch.ones(3))
    try:
        assert in_child(lambda: call(torch.ones(3)).tolist()) == "[3.0, 3.0, 3.0]"
        fresh = compiled_double(dump=str(tmp_path / "run"), dump_calls="all")  # compiled in the child
        assert in_child(lambda: fresh(torch.ones(2)).tolist()) == "[3.0, 3.0]"
        call(torch.ones(3))
    finally:
        session = rust_ort.observe.session.set_current(None)
        assert session is not None
        rust_ort.observe.session.close(session)
    assert len(data_sets(tmp_path / "run")) == 2
