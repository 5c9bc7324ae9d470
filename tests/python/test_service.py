"""rust_ort.status() and rust_ort.shutdown(), and the ranges that torch's profiler shows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from conftest import alive, wait_until
from torch import nn

import rust_ort
from rust_ort.call.part import Part
from rust_ort.errors import ClientError

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7


def test_status_without_a_daemon_starts_none(daemon: Any) -> None:
    assert rust_ort.status() == {"running": False, "socket": str(daemon.socket)}
    assert daemon.pid() is None


def test_status_tells_what_runs_without_who_asks(daemon: Any, run_cli: Any) -> None:
    torch.compile(nn.Linear(4, 4), backend="rust_ort")(X)
    known = rust_ort.status()
    assert known["running"] is True and known["daemon"]["pid"] == daemon.pid()
    assert [client["pid"] for client in known["clients"]] == [os.getpid()]
    assert known["counters"]["runs"] >= 1
    printed = json.loads(run_cli("status", "--json").stdout)
    assert set(known) == {"running", *printed}
    assert rust_ort.status(options={"socket": str(daemon.socket)})["daemon"]["pid"] == daemon.pid()


def test_after_a_shutdown_the_next_call_works_and_tensors_are_valid(daemon: Any) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="rust_ort")
    before = compiled(X)
    rust_ort.shutdown()
    wait_until(lambda: rust_ort.status()["clients"] == [], "the daemon to see the connection's end")
    torch.testing.assert_close(before, model(X))
    torch.testing.assert_close(compiled(X), model(X))
    before.sum().backward()
    assert len(rust_ort.status()["clients"]) == 1
    rust_ort.shutdown()
    rust_ort.shutdown()


def test_a_shutdown_can_stop_the_daemon(daemon: Any) -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="rust_ort")
    compiled(X)
    torch.compile(lambda x: x * 2, backend="rust_ort", options={"threads": 1})(X)
    pid = daemon.pid()
    rust_ort.shutdown(stop_daemon=True)
    assert not alive(pid)
    assert rust_ort.status()["running"] is False
    rust_ort.shutdown(stop_daemon=True)
    torch.testing.assert_close(compiled(X), model(X))
    assert daemon.pid() not in (None, pid)


ANOTHER = """
import sys, torch
torch.compile(lambda x: x + 1, backend="rust_ort")(torch.ones(2))
print("up", flush=True)
sys.stdin.read()
"""


def test_another_processes_daemon_is_not_stopped(daemon: Any) -> None:
    other = warm.start([sys.executable, "-c", ANOTHER])
    try:
        assert other.stdout is not None and other.stdout.readline() == "up\n"
        with pytest.raises(ClientError, match="1 other clients are connected"):
            rust_ort.shutdown(stop_daemon=True, options={"socket": str(daemon.socket)})
        assert rust_ort.status()["running"] is True
    finally:
        other.communicate(timeout=60)


def test_a_dump_goes_on_after_a_shutdown(daemon: Any, tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    with rust_ort.dump("run", folder=tmp_path, calls="all") as path:
        compiled(X)
        rust_ort.shutdown()
        assert len(list(path.glob("*/part_0/test_data_set_0/input_0.pb"))) == 1
        compiled(X)
    assert len(list(path.glob("*/part_0/test_data_set_*/input_0.pb"))) == 2


def ranges(profile: Any) -> list[str]:
    return [event.key for event in profile.key_averages() if event.key.startswith("rust_ort: ")]


@pytest.mark.usefixtures("daemon")
def test_the_profiler_shows_each_part() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.RReLU(), nn.Linear(4, 4))
    backend = rust_ort.backend()
    compiled = torch.compile(model, backend=backend)
    compiled(X).sum().backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(X).sum().backward()
    expected = [f"rust_ort: {graph.name} part {index}" for graph in backend.graphs for index in range(len(graph.parts))]
    assert len(expected) == 3 and sorted(ranges(profile)) == sorted(expected)


@pytest.mark.usefixtures("daemon")
def test_the_profiler_shows_a_compared_call_too() -> None:
    backend = rust_ort.backend(compare="outputs")
    compiled = torch.compile(lambda x: x * 2, backend=backend)
    compiled(X)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        compiled(X)
    assert ranges(profile) == [f"rust_ort: {backend.graphs[0].name} part 0"]


@pytest.mark.usefixtures("daemon")
def test_without_a_profiler_no_range_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    compiled(X)
    monkeypatch.setattr(Part, "_profiled", lambda self: pytest.fail("a range was made"))
    assert torch.equal(compiled(X), X * 2)
