"""A daemon of each test's own: its socket, its logs, its end."""

import contextlib
import ctypes
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from support import FakeClient, serving, use_client

from rust_ort.call import client as client_module
from rust_ort.call.client import Client
from rust_ort.errors import ClientError
from rust_ort.link.daemon import find_binary
from rust_ort.memory import parameters
from rust_ort.observe import graph_info, session
from rust_ort.options import Options

WATCHDOG_S = 60.0

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the package `measure`

# A shell's background job ignores SIGINT, and so does what it starts: tests that interrupt would wait for ever.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A forked child holds the pipes of its parent: one that hangs must not outlive a worker that a watchdog has ended, or
# pytest waits for it.
PR_SET_PDEATHSIG = 1
os.register_at_fork(after_in_child=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL))


warm.spare_torchs_own_measuring()


@dataclass
class Daemon:
    """Where a test's daemon lives. It starts with the first client and is stopped with the test."""

    socket: Path
    state: Path

    def options(self, **given: object) -> Options:
        return Options.parse({"socket": str(self.socket), **given})

    def client(self, **given: object) -> Client:
        return Client.get(self.options(**given))

    def pid(self) -> int | None:
        """The process that listens on the socket, None when none does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(str(self.socket))
            except OSError:
                return None
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            return int.from_bytes(credentials[:4], "little")

    def stop(self) -> None:
        """Ends the daemon and waits until nobody listens."""
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not alive(pid), "the daemon's end")

    def logs(self) -> str:
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(self.state.glob("log/*")))


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie. One whose first thread has ended is, as long as others have not: its
    files are open."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not ended or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def wait_until(condition: object, what: str) -> None:
    """Until the condition holds; a watchdog ends a wait without hope."""
    end = time.monotonic() + WATCHDOG_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, f"waited {WATCHDOG_S:.0f} s for {what}"
        time.sleep(0.01)


def binary() -> str | None:
    try:
        return find_binary()
    except ClientError:
        return None


@pytest.fixture(autouse=True, scope="session")
def warm_interpreters_end_with_the_session() -> Iterator[None]:
    yield
    warm.stop()


@pytest.fixture(autouse=True, scope="session")
def every_graph_is_known() -> None:
    """Tests look at the graphs that came since they began: the list of a long session lets none go meanwhile."""
    graph_info.KEPT_GRAPHS = 100_000


@pytest.fixture(autouse=True, scope="module")
def what_earlier_modules_left_is_not_looked_through() -> None:
    """A worker keeps millions of torch's objects: tests that collect garbage, and Python between them, would look
    through all of them each time."""
    torch.compiler.reset()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_numbers_each_time() -> None:
    """A test draws what it draws, whatever ran before it in its process: one that fails fails again."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@pytest.fixture(autouse=True)
def no_dump_stays_open() -> Iterator[None]:
    """A dump is the process's: one left open would take the calls of every later test."""
    yield
    left = session.set_current(None)
    assert left is None, f"the dump {left.folder / left.run} was left open"


@pytest.fixture
def threads_of_the_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that pytest's plugins have are left out: beside others nothing is moved into shared memory."""
    real, before = parameters.other_threads, parameters.other_threads()
    monkeypatch.setattr(parameters, "other_threads", lambda: real() - before)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """An isolated socket and state folder; RUST_ORT_SOCKET and RUST_ORT_STATE_DIR name them."""
    program = binary()
    if program is None:
        pytest.fail("no rust-ort binary: build it and set RUST_ORT_BINARY")
    # A short path: a socket's address holds 107 bytes.
    with tempfile.TemporaryDirectory(prefix="rort-") as folder:
        root = Path(folder)
        (root / "run").mkdir(mode=0o700)
        isolated = Daemon(socket=root / "run" / "v1.sock", state=root / "state")
        monkeypatch.setenv("RUST_ORT_SOCKET", str(isolated.socket))
        monkeypatch.setenv("RUST_ORT_STATE_DIR", str(isolated.state))
        monkeypatch.setenv("RUST_ORT_IDLE_TIMEOUT_S", "120")
        # Code compiled by an earlier test holds that test's client; one of another daemon is nothing that a shutdown is
        # to end, for tests of another worker may be there, too.
        torch._dynamo.reset()
        of_others = dict(client_module._clients)
        client_module._clients.clear()
        try:
            yield isolated
        finally:
            # Before its clients are closed: a thread that a failed test left waiting for an answer holds their lock. No
            # watchdog is on after a failure.
            isolated.stop()
            for key in [key for key in client_module._clients if key[0] == str(isolated.socket)]:
                client_module._clients.pop(key).close()
            client_module._clients.update(of_others)


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """While this file exists executors wait before they enter the runtime."""
    path = tmp_path / "hold"
    monkeypatch.setenv("RUST_ORT_TEST_HOLD", str(path))
    return path


def held(hold: Path) -> bool:
    """Whether an executor waits. The file that tells of it stays where it is: executors have it open."""
    told = Path(f"{hold}.held")
    return told.exists() and told.stat().st_size > 0


def forget_held(hold: Path) -> None:
    Path(f"{hold}.held").write_bytes(b"")


def interrupted_while_held(hold: Path, call: Callable[[], object]) -> None:
    """Makes a call, which the executor holds, and interrupts it there."""

    def interrupt() -> None:
        wait_until(lambda: held(hold), "the call in the executor")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    thread.join()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """In the daemon's place: runs models in this process. Nothing compiled before is left."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    fake = FakeClient()
    use_client(monkeypatch, fake)
    return fake


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One daemon for a file of tests; its folder."""
    folder = tmp_path_factory.mktemp("daemon")
    with serving(folder):
        yield folder


@pytest.fixture
def run_cli(daemon: Daemon) -> object:
    """Runs `rust-ort` with arguments against the test's daemon."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = binary()
        assert program is not None
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=WATCHDOG_S, check=False)

    return run
