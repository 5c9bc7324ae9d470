"""What a process no longer has goes in the daemon, too: graphs, parts, models and sessions."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from conftest import Daemon, wait_until
from onnx import helper, numpy_helper
from test_client import value
from torch._C._dynamo.eval_frame import reset_code
from torch.multiprocessing.reductions import StorageWeakRef

import rust_ort
from rust_ort import torch_private
from rust_ort.call.part import Part, _parts
from rust_ort.link import connection as connection_module
from rust_ort.link import wire
from rust_ort.link.releases import Releases
from rust_ort.link.specs import GraphSpec, OutputSpec, PartSpec
from rust_ort.observe import graph_info
from rust_ort.observe.graph_info import GraphInfo, GraphLog
from rust_ort.runtime import compiled_graph

N_GRAPHS = 200


def compiled(scale: float, **options: Any) -> Any:
    """A function that is a graph of its own for each scale. Of this file: functions without one share a frame of
    Dynamo's until torch 2.12."""
    names: dict[str, Any] = {"torch": torch}
    exec(compile(f"def scaled(x):\n    return torch.tanh(x) * {scale}", __file__, "exec"), names)
    return torch.compile(names["scaled"], backend=rust_ort.backend(**options))


def drop(function: Any) -> None:
    """What Dynamo compiled of the function is gone, as after `torch._dynamo.reset()` of everything: torch 2.13 keeps it
    longer than the function."""
    reset_code(function._torchdynamo_orig_callable.__code__)


def held(daemon: Daemon) -> dict[str, int]:
    """What the daemon and the executor have of this process."""
    gc.collect()
    status = daemon.client().status()
    (client,) = [client for client in status["clients"] if client["pid"] == os.getpid()]
    sessions = sum(executor["sessions"] for executor in status["executors"])
    return {"graphs": client["graphs"], "parts": client["parts"], "kept": client["kept_bytes"], "sessions": sessions}


def resident_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def executor_pid(daemon: Daemon) -> int:
    (executor,) = daemon.client().status()["executors"]
    return int(executor["pid"])


def scaling(daemon: Daemon, scale: float) -> Part:
    """x · scale, with 256 KiB of numbers of its own."""
    numbers = numpy_helper.from_array(numpy.full((256, 256), scale, numpy.float32), "numbers")
    shape = (256, 256)
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "numbers"], ["z"], name="z")], "g", [value("x", shape)], [value("z", shape)],
        [numbers],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    named = GraphSpec(graph_id=f"{int(scale):064x}", name=f"{int(scale)}_0-inference", direction="inference")
    spec = PartSpec(
        graph=named, part=0, model=model, fx_values={"z": "z"}, input_names=["x"], output_names=["z"],
        outputs=[OutputSpec(dtype=torch.float32, shape=shape)],
    )  # fmt: skip
    return daemon.client().part(spec, daemon.options())


def test_two_hundred_graphs_made_and_dropped_leave_nothing(daemon: Daemon) -> None:
    x = torch.ones(256, 256)
    early: dict[str, float] = {}
    for n in range(N_GRAPHS):
        run = scaling(daemon, n)
        assert run([x])[0][3, 5].item() == n
        del run
        if n % 50 == 49:
            assert held(daemon) == {"graphs": 0, "parts": 0, "kept": 0, "sessions": 0}
            pids = {"client": os.getpid(), "executor": executor_pid(daemon)}
            early = early or {name: resident_mb(pid) for name, pid in pids.items()}
    assert daemon.client().status()["counters"]["sessions_built"] == N_GRAPHS
    late = {name: resident_mb(pid) for name, pid in pids.items()}
    # A hundred and fifty that stayed would be 37 MiB of models here, and twice that in the executor.
    assert all(late[name] - early[name] < 30 for name in late), (early, late)


def test_graphs_that_are_compiled_again_and_again_leave_nothing(daemon: Daemon) -> None:
    x = torch.randn(8, 8)
    gc.collect()
    others = set(_parts)
    for n in range(5):
        assert torch.allclose(compiled(n + 0.5)(x), torch.tanh(x) * (n + 0.5), atol=1e-4)
        assert held(daemon)["parts"] == 1
        torch._dynamo.reset()
        assert held(daemon) == {"graphs": 0, "parts": 0, "kept": 0, "sessions": 0}
        assert set(_parts) <= others


def test_what_is_dropped_goes_and_the_rest_stays(daemon: Daemon) -> None:
    x = torch.randn(4)
    one, two = compiled(2.0), compiled(3.0)
    one(x), two(x)
    both = held(daemon)
    assert (both["graphs"], both["parts"], both["sessions"]) == (2, 2, 2)
    drop(one)
    only = held(daemon)
    assert (only["graphs"], only["parts"], only["sessions"]) == (1, 1, 1)
    assert 0 < only["kept"] < both["kept"]
    built = daemon.client().status()["counters"]["sessions_built"]
    assert torch.allclose(two(x), torch.tanh(x) * 3)
    assert daemon.client().status()["counters"]["sessions_built"] == built, "the other was not built again"


def test_a_call_of_another_graph_tells_what_died(daemon: Daemon) -> None:
    x = torch.randn(4)
    one, two = compiled(2.0), compiled(3.0)
    one(x), two(x)
    drop(one)
    gc.collect()
    assert len(daemon.client().releases.dead) > 0, "a deleter talks to nobody"
    two(x)
    assert len(daemon.client().releases.dead) == 0


def test_equal_graphs_share_what_the_last_of_them_releases(daemon: Daemon) -> None:
    x = torch.randn(4)
    one, two = compiled(2.0), compiled(2.0, compare_every=7)
    one(x), two(x)
    both = held(daemon)
    assert (both["graphs"], both["parts"], both["sessions"]) == (1, 2, 1)
    drop(one)
    only = held(daemon)
    assert (only["graphs"], only["parts"], only["sessions"]) == (1, 1, 1)
    assert torch.allclose(two(x), torch.tanh(x) * 2)
    drop(two)
    assert held(daemon) == {"graphs": 0, "parts": 0, "kept": 0, "sessions": 0}


def test_a_pending_backward_keeps_its_graph(daemon: Daemon) -> None:
    layer = torch.nn.Linear(4, 4)
    model = torch.compile(layer, backend=rust_ort.backend())
    loss = model(torch.randn(2, 4)).square().sum()
    loss.backward(retain_graph=True)
    assert held(daemon)["graphs"] == 2
    expected = layer.weight.grad.clone()
    layer.weight.grad = None
    del model
    torch._dynamo.reset()
    assert held(daemon)["graphs"] >= 1
    loss.backward()
    assert torch.equal(layer.weight.grad, expected)
    del loss
    assert held(daemon)["graphs"] == 0


def test_a_backward_may_run_twice_over_saved_intermediates(daemon: Daemon) -> None:
    """AOTAutograd gives intermediates to the first backward to write into, and then refuses a second."""

    def several(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x).sin().exp() * torch.sigmoid(x)).cos()

    x = torch.randn(64, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(several(x).sum(), x)
    loss = torch.compile(several, backend=rust_ort.backend())(x).sum()
    for _ in range(3):
        (grad,) = torch.autograd.grad(loss, x, retain_graph=True)
        torch.testing.assert_close(grad, expected)


def test_inputs_of_a_backward_of_several_parts_go_with_their_last_use(daemon: Daemon) -> None:
    """Six stages, each with a node in eager between two parts: the values saved for a stage are gone when the backward
    has passed it."""
    saved: list[StorageWeakRef] = []
    left: list[int] = []

    @torch.library.custom_op("rust_ort_test::passed", mutates_args=())
    def passed(x: torch.Tensor) -> torch.Tensor:
        made = x.clone()
        saved.append(StorageWeakRef(made.untyped_storage()))
        return made

    @torch.library.custom_op("rust_ort_test::passed_back", mutates_args=())
    def passed_back(grad: torch.Tensor) -> torch.Tensor:
        left.append(sum(not storage.expired() for storage in saved))
        return grad.clone()

    passed.register_fake(torch.empty_like)
    passed_back.register_fake(torch.empty_like)
    passed.register_autograd(lambda ctx, grad: passed_back(grad))

    def staged(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = passed(x * 1.5).sin()
        return x

    function = torch.compile(staged, backend=rust_ort.backend(on_unsupported="eager"))
    for way in (torch_private.boxed, torch_private.interpreted):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled_graph, "boxed", way)
            torch._dynamo.reset()
            saved.clear(), left.clear()
            x = torch.randn(8, 8, requires_grad=True)
            function(x).sum().backward()
            assert left == [5, 4, 3, 2, 1, 0], way


def test_a_graph_that_is_wholly_eager_is_released(daemon: Daemon) -> None:
    f = torch.compile(lambda x: torch.linalg.eigvals(x).abs().clone(), backend=rust_ort.backend())
    f(torch.randn(3, 3))
    assert held(daemon)["graphs"] >= 1
    del f
    torch._dynamo.reset()
    assert held(daemon)["graphs"] == 0


def test_dumps_that_come_and_go_prepare_nothing_again(daemon: Daemon, tmp_path: Path) -> None:
    x = torch.randn(4)
    f = compiled(2.0)
    f(x)
    before = held(daemon)
    for n in range(5):
        with rust_ort.dump(f"run_{n}", folder=tmp_path, clean=True) as path:
            f(x)
        (graph,) = [folder for folder in Path(path).iterdir() if folder.is_dir()]
        assert (graph / "part_0" / "model.onnx").exists() and (graph / "part_0" / "model.ort.onnx").exists()
        assert (graph / "part_0" / "test_data_set_0" / "input_0.pb").exists()
    assert held(daemon) == before


def test_graphs_that_die_at_exit_or_on_other_threads_are_silent(daemon: Daemon) -> None:
    program = """
        import gc, threading, torch, rust_ort
        def f(x):
            return torch.tanh(x) * 2
        class Scaled(torch.nn.Module):
            def forward(self, x):
                return torch.tanh(x) * 3
        x = torch.randn(4)
        kept = torch.compile(f, backend="rust_ort")
        kept(x)
        module = torch.compile(Scaled(), backend="rust_ort")
        module(x)
        def drop():
            global module
            del module
            gc.collect()
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        assert torch.allclose(kept(x), torch.tanh(x) * 2)
        torch._dynamo.reset()
        del kept, f
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    wait_until(lambda: not daemon.client().status()["clients"][1:], "the process is gone from the daemon")


def info(nodes: int = 1) -> GraphInfo:
    return GraphInfo(
        name="g", direction="inference", graph_id="0" * 64, compute_nodes=nodes, parts=[], eager=[], seconds={}
    )


def test_the_log_keeps_what_lives_and_the_newest_of_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_info, "KEPT_GRAPHS", 3)
    monkeypatch.setattr(graph_info, "KEPT_NODES", 100)
    log = GraphLog()
    living = info()
    living.code = lambda: log
    log.add(living)
    dead = [info() for _ in range(7)]
    for graph in dead[:6]:
        log.add(graph)
    assert log.list() == [living, *dead[:6]]
    log.add(dead[6])
    assert log.list() == [living, *dead[4:]]
    large = [info(90), info(90), info(30)]
    for graph in large:
        log.add(graph)
    assert log.list() == [living, large[2]]


def test_names_are_unique_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_info, "KEPT_NAMES", 10)
    monkeypatch.setattr(graph_info, "_names", {})
    names = [graph_info.unique_name("0_0") for _ in range(4)]
    assert names == ["0_0", "0_0_1", "0_0_2", "0_0_3"]
    assert graph_info.unique_name("0_0_2") == "0_0_2_1"
    for n in range(100):
        graph_info.unique_name(f"{n}_7")
    assert len(graph_info._names) == 10


class Connection:
    """Takes requests."""

    def __init__(self) -> None:
        self.graphs = {("a" * 64, "0_0"), ("a" * 64, "0_0_1"), ("b" * 64, "1_0")}
        self.asked: list[Any] = []
        self.orphans: deque[int] = deque()

    def ask(self, request: Any) -> None:
        self.asked.append(request)


class User:
    pass


def test_a_graph_goes_with_the_last_of_its_users_and_only_this_connections_handles() -> None:
    releases, connection, lost = Releases(), Connection(), Connection()
    users = [User(), User(), User()]
    for user, graph, on, handle in zip(users, "aab", (connection, connection, lost), (1, 2, 3), strict=True):
        releases.watch(user, graph * 64).add(on, handle)  # type: ignore[arg-type]
    del users[0]
    releases.tell(connection)  # type: ignore[arg-type]
    assert [list(request.release.handles) for request in connection.asked] == [[1]]
    assert not connection.asked[0].release.graph_ids
    users.clear()
    del user
    gc.collect()
    releases.tell(connection)  # type: ignore[arg-type]
    last = connection.asked[1].release
    assert (list(last.handles), list(last.graph_ids)) == ([2], ["a" * 64, "b" * 64])
    assert connection.graphs == set()
    releases.tell(connection)  # type: ignore[arg-type]
    assert len(connection.asked) == 2, "nothing died, nothing is asked"


def test_users_come_in_one_thread_while_another_tells() -> None:
    releases, connection, users = Releases(), Connection(), []

    def come() -> None:
        for n in range(20_000):
            users.append(User())
            releases.watch(users[-1], "c" * 64)
            connection.graphs.add(("c" * 64, str(n)))

    thread = threading.Thread(target=come)
    thread.start()
    while thread.is_alive():
        user = User()
        releases.watch(user, "d" * 64).add(connection, 1)  # type: ignore[arg-type]
        del user
        releases.tell(connection)  # type: ignore[arg-type]
    thread.join()
    assert len(connection.asked) > 1 and len(connection.graphs) > 20_000


def test_what_an_interrupted_request_would_have_told_is_told_later() -> None:
    releases, connection = Releases(), Connection()
    user = User()
    releases.watch(user, "a" * 64).add(connection, 1)  # type: ignore[arg-type]
    connection.orphans.append(9)
    del user

    def interrupted(request: Any) -> None:
        raise KeyboardInterrupt

    connection.ask, ask = interrupted, connection.ask  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        releases.tell(connection)  # type: ignore[arg-type]
    connection.ask = ask  # type: ignore[method-assign]
    releases.tell(connection)  # type: ignore[arg-type]
    (request,) = connection.asked
    assert (list(request.release.handles), list(request.release.graph_ids)) == ([9, 1], ["a" * 64])


@pytest.mark.parametrize("when", ["before the reply", "after the reply"])
def test_a_part_whose_preparation_was_interrupted_is_released(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    x = torch.randn(4)
    one, two = compiled(2.0), compiled(3.0)
    two(x)
    real_await = connection_module.Connection._await

    def interrupting(self: Any, *asked_for: Any) -> Any:
        kinds = [request.WhichOneof("body") for request in asked]
        if kinds[-1:] == ["prepare_part"]:
            monkeypatch.setattr(connection_module.Connection, "_await", real_await)
            if when == "after the reply":
                real_await(self, *asked_for)
            raise KeyboardInterrupt
        return real_await(self, *asked_for)

    asked: list[Any] = []
    real_ask = connection_module.Connection.ask

    def ask(self: Any, request: Any, **kwargs: Any) -> Any:
        asked.append(request)
        return real_ask(self, request, **kwargs)

    monkeypatch.setattr(connection_module.Connection, "ask", ask)
    monkeypatch.setattr(connection_module.Connection, "_await", interrupting)
    with pytest.raises(KeyboardInterrupt):
        one(x)
    monkeypatch.undo()
    assert torch.allclose(one(x), torch.tanh(x) * 2)
    assert torch.allclose(two(x), torch.tanh(x) * 3)
    drop(one), drop(two)
    wait_until(lambda: held(daemon) == {"graphs": 0, "parts": 0, "kept": 0, "sessions": 0}, "everything to be released")


def test_what_an_interrupted_reader_left_is_taken_by_a_look_for_notices(daemon: Daemon) -> None:
    """Received and not yet taken apart: nothing more may come that would wake a reader."""
    connection = daemon.client().connection()
    notice = wire.Notice()
    notice.executor_lost.cause = "planted"
    connection._chunks.append(wire.encode_frame(wire.NOTICE, notice.SerializeToString()))
    assert not connection.lives()


def test_an_interrupted_look_for_notices_leaves_a_connection_that_reads(daemon: Daemon) -> None:
    compiled(2.0)(torch.randn(4))
    connection = daemon.client().connection()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted, others = 0, []
    pool = ThreadPoolExecutor(4)
    try:
        for n in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, 5e-5 + n * 1e-6)
                while True:
                    connection.check()
            except KeyboardInterrupt:
                interrupted += 1
            if n % 30 == 0:
                others.append(pool.submit(daemon.client().status))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted == 150
    # Whatever the interrupts left: nobody waits for a thread that does not read.
    connection._reader = 1
    others.append(pool.submit(daemon.client().status))
    assert all(other.result(30)["clients"] for other in others)
    pool.shutdown()
    connection._reader = 1
    os.kill(executor_pid(daemon), signal.SIGKILL)
    wait_until(lambda: not connection.lives(), "the notice of the executor's end")
