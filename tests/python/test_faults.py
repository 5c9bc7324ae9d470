"""Each process is killed in turn; the others carry on."""

import os
import signal
import socket
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import warm
from conftest import alive, forget_held, held, wait_until

import rust_ort
from rust_ort.call import part
from rust_ort.errors import ClientError, DaemonLost, ExecutorLost
from rust_ort.link import wire
from rust_ort.link.connection import Connection
from rust_ort.memory import process


def executor_pids(daemon) -> list[int]:
    return [executor["pid"] for executor in daemon.client().status()["executors"]]


def make_model() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()), torch.randn(3, 16)


def test_daemon_killed_between_calls(daemon) -> None:
    model, x = make_model()
    expected = model(x).detach()
    compiled = torch.compile(model, backend="rust_ort")
    kept = compiled(x)
    executors = executor_pids(daemon)
    assert executors
    pid = daemon.pid()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(alive(gone) for gone in (pid, *executors)), "executors to follow their daemon")
    torch.testing.assert_close(kept, expected)
    kept.sum().backward()  # may or may not be the call that notices: it must be right either way
    torch.testing.assert_close(compiled(x), expected)


def test_daemon_killed_then_next_forward_works(daemon) -> None:
    model, x = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.no_grad():
        first = compiled(x)
        os.kill(daemon.pid(), signal.SIGKILL)
        wait_until(lambda: daemon.pid() is None, "the daemon to die")
        torch.testing.assert_close(compiled(x), model(x))
        torch.testing.assert_close(first, model(x))


@pytest.mark.parametrize("with_another_graph", [False, True])
def test_work_that_a_lost_executor_left_undone_is_told(
    daemon, monkeypatch: pytest.MonkeyPatch, with_another_graph: bool
) -> None:
    """Whoever finds first that it is gone."""
    x, before = torch.randn(3), set(part._parts)
    compiled = torch.compile(lambda x: x * 2 + 1, backend="rust_ort")
    other = torch.compile(lambda x: x - 3, backend="rust_ort")
    compiled(x)
    (mine,) = set(part._parts) - before
    (executor,) = executor_pids(daemon)
    asked: list[bool] = []
    monkeypatch.setattr(mine._connection.order, "left_unfinished", lambda: asked.append(True) or len(asked) == 1)
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: not alive(executor), "the executor to end")
    if with_another_graph:
        torch.testing.assert_close(other(x), x - 3)
    with pytest.raises(ExecutorLost, match="work of earlier calls on a device"):
        compiled(x)
    torch.testing.assert_close(compiled(x), x * 2 + 1)
    assert asked


def test_daemon_killed_before_each_request_of_a_compile(daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be asked again is asked of the daemon that follows: a compile does not fail for a daemon that ends."""
    ask, asked = Connection.ask, []

    def killing(connection: Connection, request, **kwargs):
        asked.append(request.WhichOneof("body"))
        if len(asked) == at and daemon.pid() is not None:
            os.kill(daemon.pid(), signal.SIGKILL)
        return ask(connection, request, **kwargs)

    monkeypatch.setattr(Connection, "ask", killing)
    seen = set()
    for at in range(1, 40):
        torch._dynamo.reset()
        torch.manual_seed(at)  # values differ, the graph is the same: from the second turn on it is found on disk
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU())
        asked.clear()
        x = torch.randn(3, 16)
        expected = model(x)
        result = torch.compile(model, backend="rust_ort")(x)
        torch.testing.assert_close(result, expected)
        result.sum().backward()
        if len(asked) < at:
            break
        seen.add(asked[at - 1])
    assert len(asked) < at, "every request was killed once"
    assert {"get_plan", "register_graph", "prepare_part"} <= seen


@pytest.mark.parametrize("after", ["compare_nodes", "settle_node"])
def test_a_comparison_of_nodes_that_its_daemon_leaves_is_lost_and_no_mistake(
    daemon, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """The daemon that follows knows none of its nodes."""
    ask, killed, asked = Connection.ask, [], []

    def killing(connection: Connection, request, **kwargs):
        what = request.WhichOneof("body")
        answer = ask(connection, request, **kwargs)
        if killed:
            asked.append(what)
        if what == after and not killed:
            os.kill(daemon.pid(), signal.SIGKILL)
            wait_until(lambda: daemon.pid() is None, "the daemon to die")
            status = wire.Request()
            status.get_status.SetInParent()
            with pytest.raises(DaemonLost):  # and the client knows it
                ask(connection, status)
            killed.append(what)
        return answer

    torch.manual_seed(0)
    x = torch.randn(64, 64)
    options = {"compare": "nodes"}
    model = torch.compile(lambda x: ((x - x.mean()).mean() * 3, x @ x), backend="rust_ort", options=options)
    monkeypatch.setattr(Connection, "ask", killing)
    with pytest.raises(DaemonLost, match="compared its first nodes"):
        model(x)
    assert killed and not {"settle_node", "finish_nodes"} & {*asked}
    monkeypatch.setattr(Connection, "ask", ask)
    torch.testing.assert_close(model(x)[1], x @ x, rtol=1e-4, atol=1e-4)


def hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    barrier = tmp_path / "hold"
    monkeypatch.setenv("RUST_ORT_TEST_HOLD", str(barrier))
    return barrier


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Must be listed before `daemon`, so that the daemon inherits the variable."""
    return hold(monkeypatch, tmp_path)


OTHER_CLIENT = textwrap.dedent(
    """
    import sys, torch
    model = torch.nn.Linear(8, 8)
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        print("ready", flush=True)
        for line in sys.stdin:
            torch.testing.assert_close(compiled(x), model(x))
            print("right", flush=True)
    """
)


def test_executor_killed_in_mid_call(barrier, daemon, tmp_path: Path) -> None:
    file = barrier
    model, x = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.no_grad():
        expected = model(x)
        kept = compiled(x)
        (executor,) = executor_pids(daemon)
        other = warm.start([sys.executable, "-c", OTHER_CLIENT])
        try:
            assert other.stdin and other.stdout
            assert other.stdout.readline() == "ready\n"
            file.touch()
            errors: list[BaseException] = []

            def call() -> None:
                with torch.no_grad():
                    try:
                        compiled(x)
                    except BaseException as error:  # handed to the test's thread
                        errors.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            wait_until(lambda: held(file), "the executor to reach the barrier")
            os.kill(executor, signal.SIGABRT)
            thread.join(60)
            assert not thread.is_alive()
            file.unlink()

            (error,) = errors
            assert isinstance(error, rust_ort.errors.ExecutorLost), error
            text = str(error)
            assert error.graph and error.graph in text
            assert error.dump and error.dump in text
            assert error.log and error.log in text and Path(error.log).exists()
            folder = Path(error.dump)
            assert list(folder.rglob("model.onnx")), sorted(folder.rglob("*"))
            assert list(folder.rglob("input_0.pb"))
            assert daemon.client().status()["quarantine"]

            torch.testing.assert_close(compiled(x), expected)
            torch.testing.assert_close(kept, expected)
            other.stdin.write("again\n")
            other.stdin.flush()
            assert other.stdout.readline() == "right\n"
        finally:
            other.kill()
            other.wait()


CLIENT_IN_CALL = textwrap.dedent(
    """
    import torch
    compiled = torch.compile(torch.nn.Linear(8, 8), backend="rust_ort")
    with torch.no_grad():
        compiled(torch.randn(2, 8))
    """
)


def test_client_killed_in_mid_call(barrier, daemon) -> None:
    file = barrier
    file.touch()
    before = set(os.listdir("/dev/shm"))
    client = warm.start([sys.executable, "-c", CLIENT_IN_CALL])
    try:
        wait_until(lambda: held(file), "the executor to reach the barrier")
        assert len(executor_pids(daemon)) == 1
        client.kill()
        client.wait()
        file.unlink()

        def returned() -> bool:
            status = daemon.client().status()
            return client.pid not in [c["pid"] for c in status["clients"]] and all(
                e["leased_to"] is None for e in status["executors"]
            )

        wait_until(returned, "the lease to come back")
        wait_until(
            lambda: (
                not any(
                    "rust-ort-data" in Path(f"/proc/{pid}/maps").read_text()
                    for pid in [daemon.pid(), *executor_pids(daemon)]
                )
            ),
            "segments to be unmapped",
        )
        assert set(os.listdir("/dev/shm")) <= before
    finally:
        client.kill()
        client.wait()


def test_outputs_outlive_every_other_process(daemon) -> None:
    model, x = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.no_grad():
        kept = [compiled(x) for _ in range(3)]
        executors = executor_pids(daemon)
        os.kill(daemon.pid(), signal.SIGKILL)
        for pid in executors:
            wait_until(lambda pid=pid: not alive(pid), "executors to die")
        for output in kept:
            torch.testing.assert_close(output, model(x))
            output.add_(1.0)


def test_third_death_in_a_row_quarantines_for_good(barrier, daemon) -> None:
    file = barrier
    model, x = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    with torch.no_grad():
        for _ in range(3):
            forget_held(file)
            file.touch()
            caught: list[BaseException] = []

            def call(caught: list[BaseException] = caught) -> None:
                with torch.no_grad():
                    try:
                        compiled(x)
                    except rust_ort.errors.ExecutorLost as error:
                        caught.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            wait_until(lambda: held(file), "the executor to reach the barrier")
            for executor in daemon.client().status()["executors"]:
                os.kill(executor["pid"], signal.SIGABRT)
            thread.join(60)
            assert len(caught) == 1
            file.unlink()
        with pytest.raises(rust_ort.errors.RustOrtError, match="quarantine"):
            compiled(x)


def test_a_daemon_that_cannot_start_leaves_eager_only_when_asked(
    daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = make_model()
    monkeypatch.setenv("RUST_ORT_BINARY", "/bin/false")
    with torch.no_grad():
        with pytest.raises(rust_ort.errors.DaemonFault, match="/bin/false"):
            torch.compile(model, backend=rust_ort)(x)
        torch._dynamo.reset()
        backend = rust_ort.backend(on_daemon_error="eager", compare="outputs")
        torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    (info,) = backend.graphs
    assert info.daemon_fallbacks == 1
    assert [verdict.kind for _, verdict in info.verdicts] == ["not_compared"]
    assert "/bin/false" in caplog.text


def test_a_connection_that_cannot_carry_on_the_dump_is_closed(daemon, tmp_path: Path) -> None:
    client = daemon.client()
    listeners = process.arena().listeners
    with rust_ort.dump("run", folder=tmp_path, options={"socket": str(daemon.socket)}):
        torch.compile(lambda x: x * 2, backend="rust_ort")(torch.ones(3))
        before = len(listeners)
        client.connection()._lose("planted")

        def refused(*_: object, **__: object) -> None:
            raise ClientError("another client is writing this dump", code="DUMP")

        opening = client._open
        client._open = refused
        for _ in range(3):
            with pytest.raises(ClientError):
                client.connection()
        assert len(listeners) == before - 1
        client._open = opening
        wait_until(lambda: len(client.status()["clients"]) == 1, "the others to be gone")


@pytest.mark.parametrize("endings", [1, 2, 3])
def test_a_daemon_that_ends_while_a_client_comes_is_followed_by_another(daemon, endings: int) -> None:
    """An idle daemon takes the connection and ends before it answers; another may wait at its listener by then."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(daemon.socket))
    listener.listen()

    def ending() -> None:
        for left in reversed(range(endings)):
            taken = listener.accept()[0]
            if not left:
                daemon.socket.unlink()
                listener.close()
            taken.close()

    thread = threading.Thread(target=ending)
    thread.start()
    model, x = make_model()
    try:
        if endings < 3:
            torch.testing.assert_close(torch.compile(model, backend="rust_ort")(x), model(x))
        else:  # it is no daemon
            with pytest.raises(DaemonLost):
                daemon.client().connection()
    finally:
        thread.join()


def test_a_lost_daemon_is_eager_when_asked_and_then_not_compared(daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model()
    backend = rust_ort.backend(on_daemon_error="eager", compare="outputs")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected)
        monkeypatch.setenv("RUST_ORT_BINARY", "/bin/false")
        daemon.stop()
        torch.testing.assert_close(compiled(x), expected)
    (info,) = backend.graphs
    assert info.daemon_fallbacks == 1
    assert [verdict.kind for _, verdict in info.verdicts] == ["match", "not_compared"]


def test_a_graph_compiled_without_a_daemon_finds_one_later(daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model()
    binary = os.environ["RUST_ORT_BINARY"]
    monkeypatch.setattr(rust_ort.runtime.compiled_graph, "RETRY_AFTER_S", 0.0)
    monkeypatch.setenv("RUST_ORT_BINARY", "/bin/false")
    backend = rust_ort.backend(on_daemon_error="eager")
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
        (info,) = backend.graphs
        assert info.daemon_fallbacks == 2
        monkeypatch.setenv("RUST_ORT_BINARY", binary)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    assert info.daemon_fallbacks == 2
    assert info.unreachable is None


def test_a_rerun_in_eager_draws_what_an_undisturbed_run_draws(daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.bernoulli(torch.sigmoid(x * 2))
        return torch.bernoulli(torch.tanh(y + x).abs()) + 1

    x = torch.randn(50, 50)
    backend = rust_ort.backend(on_daemon_error="eager")
    compiled = torch.compile(function, backend=backend)
    torch.manual_seed(3)
    expected, after = compiled(x), torch.get_rng_state()
    (info,) = backend.graphs
    assert len(info.parts) > 1
    original = rust_ort.call.part.Part.__call__

    def lost_in_the_last_part(self, *args, **kwargs):
        if self.spec.part == len(info.parts) - 1:
            raise rust_ort.errors.ExecutorLost("planted")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(rust_ort.call.part.Part, "__call__", lost_in_the_last_part)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), expected)
    assert torch.equal(torch.get_rng_state(), after)
    assert info.daemon_fallbacks == 1


@pytest.mark.parametrize(
    ("kind", "node"), [("alone", "counted"), ("in a branch", "cond"), ("that writes", "auto_functionalized")]
)
def test_a_custom_operator_that_has_run_is_not_run_again(
    daemon, monkeypatch: pytest.MonkeyPatch, kind: str, node: str
) -> None:
    ran: list[int] = []

    @torch.library.custom_op("rust_ort_test::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return x.clone()

    @torch.library.custom_op("rust_ort_test::counted_", mutates_args=("x",))
    def counted_(x: torch.Tensor) -> None:
        ran.append(1)

    counted.register_fake(torch.empty_like)
    counted_.register_fake(lambda x: None)
    x = torch.randn(4)
    backend = rust_ort.backend(on_daemon_error="eager")

    def that_writes(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        counted_(y)
        return y.exp()

    def alone(x: torch.Tensor) -> torch.Tensor:
        return counted(x * 2).exp()

    def in_a_branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() < 1e9, lambda y: counted(y * 2), lambda y: y * 3, (x,)).exp()

    programs = {"alone": alone, "in a branch": in_a_branch, "that writes": that_writes}
    compiled = torch.compile(programs[kind], backend=backend)
    torch.testing.assert_close(compiled(x), (x * 2).exp())
    (info,) = backend.graphs
    original = rust_ort.call.part.Part.__call__
    lost_in = 1

    def lost(self, *args, **kwargs):
        if self.spec.part == lost_in:
            raise rust_ort.errors.ExecutorLost("planted")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(rust_ort.call.part.Part, "__call__", lost)
    ran.clear()
    with pytest.raises(rust_ort.errors.ExecutorLost, match="planted") as raised:
        compiled(x)
    assert len(ran) == 1 and info.daemon_fallbacks == 0
    assert node in " ".join(raised.value.__notes__)
    lost_in = 0  # before it
    torch.testing.assert_close(compiled(x), (x * 2).exp())
    assert len(ran) == 2 and info.daemon_fallbacks == 1
