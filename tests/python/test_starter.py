"""A daemon serves clients that did not start it: other CPUs, niceness, variables, and namespaces of pids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from conftest import alive, wait_until

import rust_ort
from rust_ort import service
from rust_ort.link.connection import Connection
from rust_ort.link.daemon import find_binary

X = torch.arange(8, dtype=torch.float32).reshape(2, 4) / 7
STARTER = "import torch; torch.compile(lambda x: x + 1, backend='rust_ort')(torch.ones(2))"
WITH_ROOM = {
    "OMP_NUM_THREADS": "2",  # which is what clients are told apart by, too
    "ORT_TEST_VARIABLE": "of the starter",
}
INSIDE = """
import sys, torch, rust_ort
from rust_ort.errors import ExecutorLost
double = torch.compile(lambda x: x * 2, backend="rust_ort")
assert double(torch.ones(3)).tolist() == [2.0] * 3
print("up", flush=True)
sys.stdin.readline()
try:
    double(torch.ones(3))
except ExecutorLost as error:
    print("lost", error.code, flush=True)
assert double(torch.full((3,), 2.0)).tolist() == [4.0] * 3
with rust_ort.dump("inside", folder=sys.argv[1]):
    torch.compile(lambda x: x - 1, backend="rust_ort")(torch.ones(2))
print("done", flush=True)
"""


def _executor_pid() -> int:
    return int(rust_ort.status()["executors"][0]["pid"])


def _tasks(pid: int) -> list[int]:
    return [int(task) for task in os.listdir(f"/proc/{pid}/task")]


def _unshared(*command: str) -> list[str]:
    """In namespaces of its own of pids and mounts. Skips where the system has none for this user."""
    given = ["--pid", "--fork", "--kill-child", "--mount-proc"]
    for more in ([], ["--user", "--map-root-user"]):
        unshare = ["unshare", *more, *given]
        try:
            if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
                return [*unshare, *command]
        except FileNotFoundError:
            break
    pytest.skip("no namespaces of pids for this user")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_an_executor_lives_as_its_own_client(daemon: Any) -> None:
    def confine() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.nice(1)

    starter = subprocess.run(
        [sys.executable, "-c", STARTER], preexec_fn=confine, env={**os.environ, **WITH_ROOM}, check=True
    )
    assert starter.returncode == 0 and daemon.pid() is not None
    torch.compile(lambda x: x * 2, backend="rust_ort")(X)
    clients = [client for client in rust_ort.status()["clients"] if client["pid"] == os.getpid()]
    executors = {executor["id"]: executor["pid"] for executor in rust_ort.status()["executors"]}
    pid = executors[clients[0]["executor"]]
    assert {frozenset(os.sched_getaffinity(task)) for task in _tasks(pid)} == {frozenset(os.sched_getaffinity(0))}
    variables = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"ORT_TEST_VARIABLE" not in variables
    if os.geteuid() == 0:  # others cannot be less nice than who started them
        nice = {os.getpriority(os.PRIO_PROCESS, task) for task in _tasks(pid)}
        assert nice == {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_a_warm_executor_moves_to_its_next_clients_cpus(daemon: Any) -> None:
    torch.compile(lambda x: x * 2, backend="rust_ort", options={"threads": 1})(X)
    pid, all_cpus = _executor_pid(), os.sched_getaffinity(0)
    rust_ort.shutdown()
    wait_until(lambda: rust_ort.status()["clients"] == [], "the client's end")
    one = {max(all_cpus)}
    os.sched_setaffinity(0, one)
    try:
        torch.compile(lambda x: x * 3, backend="rust_ort", options={"threads": 1})(X)
        assert _executor_pid() == pid
        assert {frozenset(os.sched_getaffinity(task)) for task in _tasks(pid)} == {frozenset(one)}
    finally:
        os.sched_setaffinity(0, all_cpus)


def test_a_client_in_another_namespace_of_pids_is_served(daemon: Any, tmp_path: Path) -> None:
    command = _unshared(sys.executable, "-c", INSIDE, str(tmp_path))
    torch.compile(lambda x: x + 1, backend="rust_ort")(X)
    own = _executor_pid()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as inside:
        assert inside.stdin is not None and inside.stdout is not None
        assert inside.stdout.readline() == "up\n"
        others = [int(executor["pid"]) for executor in rust_ort.status()["executors"] if executor["pid"] != own]
        os.kill(others[0], signal.SIGKILL)
        wait_until(lambda: not alive(others[0]), "the executor's end")
        time.sleep(0.2)
        out, _ = inside.communicate("\n", timeout=120)
    assert out.splitlines()[-1] == "done" and inside.returncode == 0, out
    assert (tmp_path / "inside" / "run.json").is_file()


def test_a_daemon_in_another_namespace_of_pids_serves(daemon: Any) -> None:
    command = _unshared(find_binary(), "serve", "--socket", str(daemon.socket))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as serving:
        try:
            wait_until(lambda: daemon.socket.exists(), "the daemon")
            double = torch.compile(lambda x: x * 2, backend="rust_ort")
            torch.testing.assert_close(double(X), X * 2)
            assert rust_ort.status()["daemon"]["pid"] == 1
            report = rust_ort.compare(torch.nn.Linear(4, 4), X, backward=True)
            assert report.ok
            rust_ort.shutdown(stop_daemon=True)
            assert serving.wait(timeout=30) == 0
        finally:
            serving.kill()  # and its child with it
    assert daemon.pid() is None


def test_whoever_stops_a_daemon_starts_none(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end between two looks of who waits for that."""
    torch.compile(lambda x: x * 2, backend="rust_ort")(X)
    connection = Connection(str(daemon.socket))
    rust_ort.shutdown()
    daemon.stop()
    assert not service._is_succeeded(connection, str(daemon.socket))
    connection.close()
    monkeypatch.setattr("rust_ort.link.daemon.answers", lambda _: False)
    assert not rust_ort.status()["running"]
    rust_ort.shutdown(stop_daemon=True)
    assert daemon.pid() is None


def test_a_socket_that_is_removed_comes_back(daemon: Any) -> None:
    double = torch.compile(lambda x: x * 2, backend="rust_ort")
    double(X)
    pid = daemon.pid()
    daemon.socket.unlink()
    torch.testing.assert_close(double(X + 1), (X + 1) * 2)
    warm.run([sys.executable, "-c", STARTER], check=True, timeout=120)
    assert daemon.pid() == pid
    assert "the socket's file was removed" in daemon.logs()


def test_files_of_a_dump_have_their_clients_umask(daemon: Any, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", STARTER], umask=0o022, check=True)
    for taken in (0o077, 0o027, 0o002):
        before = os.umask(taken)
        try:
            with rust_ort.dump(f"u{taken:o}", folder=tmp_path):
                weight = torch.nn.Linear(4, 4)  # another file than that of the run before
                torch.compile(weight, backend="rust_ort")(X + taken)
        finally:
            os.umask(before)
        made = [path for path in (tmp_path / f"u{taken:o}").rglob("*")]
        assert {path.suffix for path in made} >= {".pb", ".onnx", ".json", ".txt"}
        wrong = [path for path in made if path.stat().st_mode & taken]
        assert wrong == [], wrong
        assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o777 & ~taken}
        assert {path.stat().st_mode & 0o777 for path in made if path.suffix == ".onnx"} == {0o666 & ~taken}
