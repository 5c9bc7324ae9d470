"""Requests of several threads side by side, and clients that die inside one."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import WATCHDOG_S, Daemon, forget_held, held, interrupted_while_held, wait_until
from test_client import add, binary_model, out, part

from rust_ort.call.part import Part
from rust_ort.errors import DaemonLost
from rust_ort.link import waiting
from rust_ort.link.pool import default_threads
from rust_ort.link.specs import CustomOpLibrary, GraphSpec, PartSpec
from rust_ort.memory import process
from rust_ort.memory.arena import Arena

SLOW = """
#include <fcntl.h>
#include <unistd.h>
void *RegisterCustomOps(void *options, const void *api)
{
    static int waited; /* a dump asks for a second session */
    (void)options, (void)api;
    if (!waited++)
        close(open("%s", O_RDONLY));
    return 0;
}
"""


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[tuple[PartSpec, Path]]:
    """A part whose preparation waits in the executor, until somebody opens the file to write."""
    file, source, library = tmp_path / "fifo", tmp_path / "slow.c", tmp_path / "libslow.so"
    os.mkfifo(file)
    source.write_text(SLOW % file)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    graph = GraphSpec(graph_id="f" * 64, name="slow", direction="inference")
    spec = PartSpec(
        graph=graph, part=0, model=binary_model("Mul", (3,)), fx_values={"z": "z"}, input_names=["x", "y"],
        output_names=["z"], outputs=[out((3,))], custom_op_libraries=[CustomOpLibrary.at(str(library))],
    )  # fmt: skip
    yield spec, file
    file.unlink()  # nothing waits for it any more, whatever a failed test left


def let_go(file: Path) -> None:
    """The library goes on."""
    os.close(os.open(file, os.O_WRONLY))


class Preparing:
    """A thread that prepares a part."""

    def __init__(self, daemon: Daemon, spec: PartSpec) -> None:
        self.made: list[Any] = []
        self.thread = threading.Thread(target=self._run, args=(daemon, spec), daemon=True)
        self.thread.start()

    def _run(self, daemon: Daemon, spec: PartSpec) -> None:
        try:
            self.made.append(daemon.client().part(spec, daemon.options()))
        except BaseException as error:
            self.made.append(error)

    def join(self) -> Any:
        self.thread.join(WATCHDOG_S)
        assert not self.thread.is_alive()
        return self.made[0]


def test_calls_that_need_a_segment_do_not_wait_for_another_threads_preparation(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, hung: tuple[PartSpec, Path], tmp_path: Path
) -> None:
    monkeypatch.setattr(process, "_arena", Arena())
    spec, file = hung
    sizes = lambda inputs: [out(tuple(inputs[0].shape))]  # noqa: E731
    run = part(daemon.client(), daemon, binary_model("Add", ("n",)), sizes)
    run([torch.ones(10), torch.ones(10)])
    daemon.client().open_dump(folder=str(tmp_path), run="run")
    preparing = Preparing(daemon, spec)
    connection = daemon.client()._connection
    assert connection is not None
    wait_until(lambda: len(connection._awaited) == 1, "the preparation is with the daemon")
    segments = len(process.arena().segments)
    large = torch.ones(40 << 20)  # 160 MB: twice what is there
    done: list[Any] = []
    caller = threading.Thread(target=lambda: done.append(run([large, large])), daemon=True)
    caller.start()
    caller.join(WATCHDOG_S)
    try:
        assert not caller.is_alive(), "the call waits for the other thread's preparation"
        assert preparing.thread.is_alive(), "the preparation is over: nothing was shown"
        assert len(process.arena().segments) > segments
        assert done[0][0][-1] == 2
    finally:
        let_go(file)
    assert isinstance(preparing.join(), Part)


def test_a_lost_daemon_wakes_every_thread_that_waits(
    daemon: Daemon, hung: tuple[PartSpec, Path], tmp_path: Path
) -> None:
    spec, file = hung
    client = daemon.client()
    client.open_dump(folder=str(tmp_path), run="run")
    first = Preparing(daemon, spec)
    connection = client._connection
    assert connection is not None
    wait_until(lambda: len(connection._awaited) == 1, "the first waits")
    errors: list[BaseException] = []

    def flush() -> None:
        try:
            while True:  # the daemon answers until it waits for the reader
                client.flush_dump()
        except DaemonLost as error:
            errors.append(error)

    others = [threading.Thread(target=flush, daemon=True) for _ in range(3)]
    for thread in others:
        thread.start()

    def all_wait() -> bool:
        waiting = set(connection._awaited)
        time.sleep(0.1)
        return len(waiting) == 4 and waiting == set(connection._awaited)

    wait_until(all_wait, "all wait")
    daemon.stop()
    for thread in others:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
    assert len(errors) == 3, "what was to be written is lost"
    let_go(file)
    assert isinstance(first.join(), Part), "a preparation is asked of the next daemon"


PROGRAM = """
    import torch, rust_ort
    def f(x):
        return torch.tanh(x)
    options = {"compare": "outputs", "compare_every": 2}
    compiled = torch.compile(f, backend=rust_ort.backend(**options))
    compiled(torch.randn(4))
    print("ready", flush=True)
    input()
    compiled(torch.randn(4))
    compiled(torch.randn(4))
"""


def test_a_client_killed_in_an_observed_call_frees_everything_at_once(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    monkeypatch.setenv("RUST_ORT_TEST_HOLD", str(hold))
    monkeypatch.setenv("OMP_NUM_THREADS", str(default_threads()))  # of another size it is another executor
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        forget_held(hold)
        hold.touch()
        process.stdin.write("\n")
        process.stdin.flush()
        wait_until(lambda: held(hold), "the call is inside")
        if not status_of(daemon, process.pid):
            pytest.fail("the client is not there")
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not status_of(daemon, process.pid), "the daemon sees that the client is gone")
    (executor,) = daemon.client().status()["executors"]
    assert executor["leased_to"] is None
    hold.unlink()
    run = add(daemon)
    assert run([torch.ones(10), torch.ones(10)])[0].tolist() == [2.0] * 10
    assert run.client._connection is not None
    assert run.client._connection.executor_pid == executor["pid"], "the same, warm"


def status_of(daemon: Daemon, pid: int) -> list[Any]:
    return [client for client in daemon.client().status()["clients"] if client["pid"] == pid]


@pytest.mark.parametrize("observed", [False, True])
def test_an_interrupted_call_is_ended_and_its_executor_takes_the_next(
    daemon: Daemon, hold: Path, observed: bool
) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (3,)), [out((3,))])
    x = torch.ones(3)
    run([x, x])
    connection, before = daemon.client()._connection, daemon.client().status()["counters"]
    assert connection is not None
    hold.touch()

    interrupted_while_held(
        hold,
        lambda: run.observed([x, x], step=0, dump=False, references=None) if observed else run([x, x]),
    )
    daemon.client().status()  # answered after the request that ends the call
    hold.unlink()
    wait_until(lambda: connection.lives() and connection.in_flight() == [], "the end of the call")
    after = daemon.client().status()["counters"]
    assert (after["errors"] - before["errors"], after["runs"] - before["runs"]) == (1, 0), "it ran to its end"
    assert run([x, x])[0].tolist() == [2.0] * 3
    assert daemon.client()._connection is connection


def test_an_interrupt_as_soon_as_a_request_is_sent_costs_no_connection(daemon: Daemon, hold: Path) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (3,)), [out((3,))])
    x = torch.ones(3)
    connection = run.prepare()

    def interrupt() -> None:
        while not held(hold):  # without a pause: the other thread may still be at the end of sending
            pass
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(30):
        hold.touch()
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            run.observed([x, x], step=0, dump=False, references=None)
        thread.join()
        assert connection.dead is None, connection.dead
        hold.unlink()
        wait_until(lambda: daemon.client().status() and connection.in_flight() == [], "the end of the call")
        forget_held(hold)
    assert run([x, x])[0].tolist() == [2.0] * 3


@pytest.mark.parametrize("observed", [False, True])
def test_an_interrupted_call_that_hangs_ends_with_its_executor(daemon: Daemon, hold: Path, observed: bool) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (3,)), [out((3,))])
    x = torch.ones(3)
    run([x, x])
    connection = daemon.client()._connection
    assert connection is not None
    hold.write_text("hang")

    interrupted_while_held(
        hold,
        lambda: run.observed([x, x], step=0, dump=False, references=None) if observed else run([x, x]),
    )
    wait_until(lambda: not connection.lives(), "the end of the executor")
    hold.unlink()
    assert "which its client cancelled, went on for 10 s" in str(connection.error())
    assert run([x, x])[0].tolist() == [2.0] * 3
    status = daemon.client().status()
    assert daemon.client()._connection is not connection and status["quarantine"] == []


def test_an_interrupted_preparation_leaves_no_part_and_the_next_one_works(
    daemon: Daemon, hung: tuple[PartSpec, Path]
) -> None:
    spec, file = hung
    connection = daemon.client().leased()

    def interrupt() -> None:
        maps = Path(f"/proc/{connection.executor_pid}/maps")
        wait_until(lambda: "libslow.so" in maps.read_text(), "the executor makes the session")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    run = Part(client=daemon.client(), spec=spec, options=daemon.options())
    with pytest.raises(KeyboardInterrupt):
        run.prepare()
    thread.join()
    writer = os.open(file, os.O_RDWR | os.O_NONBLOCK)  # whoever makes a session from now on goes on
    wait_until(lambda: daemon.client().status() and not connection._kept, "the answer that nobody takes")
    # Made before the cancel came, it is given back with the next release.
    x = torch.ones(3)
    assert run([x, 2 * x])[0].tolist() == [2.0] * 3
    daemon.client().release_dead()
    assert not connection.orphans, "a part that was made for nobody stays"
    # Made anew where its making was ended (ONNX Runtime 1.22 and newer), else warm.
    assert run.prepared is not None
    os.close(writer)


@pytest.mark.parametrize("observed", [False, True])
def test_a_long_wait_says_whom_it_is_for(
    daemon: Daemon, hold: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, observed: bool
) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (3,)), [out((3,))])
    x = torch.ones(3)
    run([x, x])
    connection = daemon.client()._connection
    assert connection is not None
    monkeypatch.setattr(waiting, "TOLD_AFTER_S", (0.2, 0.4))
    monkeypatch.setattr(waiting, "TOLD_EACH_S", 0.2)
    whom = f"graph 0_0-inference: no answer from executor {connection.executor_pid} of daemon {connection.daemon_pid}"

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.getMessage().startswith(whom)]

    hold.touch()
    call = (lambda: run.observed([x, x], step=0, dump=False, references=None)) if observed else (lambda: run([x, x]))
    thread = threading.Thread(target=call, daemon=True)
    with caplog.at_level(logging.WARNING, "rust_ort"):
        thread.start()
        try:
            wait_until(lambda: len(told()) >= 4, "what is told again and again")
        finally:
            hold.unlink()
            thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        caplog.clear()
        call()
        assert told() == []
