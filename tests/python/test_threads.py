"""Several threads and several compiled modules at once, ends in the middle, and what is left behind."""

from __future__ import annotations

import copy
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.numpy_helper
import pytest
import torch
from conftest import WATCHDOG_S, Daemon, forget_held, held, wait_until
from torch import nn

import rust_ort

N_THREADS = 4


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """While this file exists calls stay in the executor. Listed before `daemon`, which inherits the variable."""
    file = tmp_path / "hold"
    monkeypatch.setenv("RUST_ORT_TEST_HOLD", str(file))
    return file


def in_threads(work: Callable[[int], None], n_threads: int = N_THREADS) -> None:
    """work(0) … work(n_threads - 1) at once; the first error of any is raised."""
    start = threading.Barrier(n_threads)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            start.wait(WATCHDOG_S)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def make_model(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))


def two_layers(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x @ first) @ second


def gradients(module: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(call(x).square().sum(), list(module.parameters())))


@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="before torch 2.13 a trace in one thread refuses compiled calls in all"
)
@pytest.mark.parametrize("compiled_before", [True, False])
def test_threads_share_a_compiled_function(daemon: Daemon, compiled_before: bool) -> None:
    """Each with weights of its own: docs/design/known-wrong-upstream.md says what torch does with shared ones."""
    compiled = torch.compile(two_layers, backend="rust_ort")
    known = sum(graph.calls for graph in rust_ort.graphs())

    def gradients_of(call: Callable[..., torch.Tensor], x: torch.Tensor, weights: list[torch.Tensor]) -> Any:
        return torch.autograd.grad(call(x, *weights).square().sum(), weights)

    def work(index: int) -> None:
        generator = torch.Generator().manual_seed(index)
        weights = [(torch.randn(16, 16, generator=generator) / 4).requires_grad_() for _ in range(2)]
        for _ in range(20):
            x = torch.randn(3, 16, generator=generator)
            torch.testing.assert_close(gradients_of(compiled, x, weights), gradients_of(two_layers, x, weights))
            with torch.no_grad():
                torch.testing.assert_close(compiled(x, *weights), two_layers(x, *weights))

    if compiled_before:
        work(0)
    in_threads(work)
    assert sum(graph.calls for graph in rust_ort.graphs()) - known == 20 * 3 * (N_THREADS + compiled_before)
    assert daemon.client()._connection is not None


def test_threads_with_shapes_of_their_own_share_a_dynamic_graph(daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort", dynamic=True)
    gradients(model, compiled, torch.randn(2, 16))
    known = len(rust_ort.graphs())

    def work(index: int) -> None:
        for step in range(20):
            x = torch.randn(2 + (index + step) % 7, 16)
            torch.testing.assert_close(gradients(model, compiled, x), gradients(model, model, x))

    in_threads(work)
    assert len(rust_ort.graphs()) == known


def test_threads_compile_modules_of_their_own(daemon: Daemon) -> None:
    def work(index: int) -> None:
        model = nn.Sequential(nn.Linear(4 + index, 5), nn.Tanh())
        compiled = torch.compile(model, backend="rust_ort", options={"threads": 1 + index % 2})
        for _ in range(5):
            x = torch.randn(3, 4 + index)
            torch.testing.assert_close(gradients(model, compiled, x), gradients(model, model, x))

    in_threads(work)


def test_backwards_run_in_another_order_than_their_forwards(daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    inputs = [torch.randn(3, 16) for _ in range(3)]
    expected = [gradients(model, model, x) for x in inputs]
    losses = [compiled(x).square().sum() for x in inputs]
    for index in (1, 2, 0):
        got = torch.autograd.grad(losses[index], list(model.parameters()))
        torch.testing.assert_close(list(got), expected[index])


@pytest.mark.parametrize("compiled_before", [True, False])
def test_a_backward_runs_twice_when_its_graph_is_retained(daemon: Daemon, compiled_before: bool) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(3, 16)
    if compiled_before:
        gradients(model, compiled, x)
    loss = compiled(x).square().sum()
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss, parameters, retain_graph=True)
    second = torch.autograd.grad(loss, parameters)
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    torch.testing.assert_close(list(first), gradients(model, model, x))


def test_a_backward_runs_in_another_thread_than_its_forward(daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    inputs = [torch.randn(3, 16) for _ in range(N_THREADS)]
    expected = [gradients(model, model, x) for x in inputs]
    losses = [compiled(x).square().sum() for x in inputs]  # the first backward compiles, in one of the threads

    def work(index: int) -> None:
        got = torch.autograd.grad(losses[index], list(model.parameters()))
        torch.testing.assert_close(list(got), expected[index])

    in_threads(work)


def test_outputs_die_in_another_thread_than_the_one_that_made_them(daemon: Daemon) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="rust_ort")
    made: list[torch.Tensor] = []
    compiled(torch.zeros(1000))

    def work(index: int) -> None:
        for step in range(50):
            made.append(compiled(torch.full((1000,), float(index))))
            if step % 3 == 2:
                assert made.pop(0).unique().numel() == 1

    in_threads(work)
    for output in made:
        assert output.unique().numel() == 1


def test_an_error_in_one_thread_leaves_the_others_right(daemon: Daemon) -> None:
    def lookup(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index] * 2

    compiled = torch.compile(lookup, backend="rust_ort")
    table = torch.randn(5, 3)
    good, bad = torch.tensor([0, 4]), torch.tensor([0, 5])
    compiled(table, good)

    def work(index: int) -> None:
        for _ in range(25):
            if index % 2:
                with pytest.raises(rust_ort.BadIndex, match="5"):
                    compiled(table, bad)
            torch.testing.assert_close(compiled(table, good), lookup(table, good))

    in_threads(work)
    connection = daemon.client()._connection
    assert connection is not None
    assert connection.dead is None


def test_a_daemon_killed_under_several_threads_costs_each_at_most_its_call(daemon: Daemon) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    compiled(torch.zeros(4))
    n_kills = 3
    losses: list[int] = []
    ended = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            for _ in range(n_kills):
                wait_until(lambda: daemon.pid() is not None, "the next daemon")
                daemon.stop()
            ended.set()
            return
        while not ended.is_set():
            x = torch.full((4,), float(10 * index + len(losses)))
            try:
                torch.testing.assert_close(compiled(x), x * 2)
            except (rust_ort.DaemonLost, rust_ort.ExecutorLost):
                losses.append(index)

    in_threads(work)
    assert all(losses.count(index) <= n_kills for index in losses), losses
    torch.testing.assert_close(compiled(torch.ones(4)), 2 * torch.ones(4))


def test_a_dump_opens_and_closes_while_threads_call(daemon: Daemon, tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    compiled(torch.zeros(4))

    def work(index: int) -> None:
        for step in range(8 if index == 0 else 60):
            if index == 0:
                with rust_ort.dump(f"run{step}", folder=tmp_path, calls="all") as path:
                    compiled(torch.full((4,), -1.0))
                assert list(path.glob("*/part_0/test_data_set_0/actual_0.pb"))
                continue
            x = torch.full((4,), float(10 * index + step))
            torch.testing.assert_close(compiled(x), x * 2)

    in_threads(work)


def test_calls_in_several_threads_are_each_dumped(daemon: Daemon, tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    compiled(torch.zeros(4))
    with rust_ort.dump("run", folder=tmp_path, calls="all") as path:

        def work(index: int) -> None:
            for step in range(5):
                x = torch.full((4,), float(10 * index + step))
                torch.testing.assert_close(compiled(x), x * 2)

        in_threads(work)
    sets = sorted(path.glob("*/part_0/test_data_set_*"))
    assert len(sets) == 5 * N_THREADS
    seen = set()
    for folder in sets:
        x, y = (onnx.numpy_helper.to_array(onnx.load_tensor(folder / name)) for name in ("input_0.pb", "actual_0.pb"))
        assert (y == 2 * x).all()
        seen.add(float(x[0]))
    assert seen == {float(10 * index + step) for index in range(N_THREADS) for step in range(5)}


def test_the_first_call_alone_is_dumped_whatever_thread_it_is_in(daemon: Daemon, tmp_path: Path) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort")
    compiled(torch.zeros(4))
    with rust_ort.dump("run", folder=tmp_path, calls="first") as path:
        in_threads(lambda index: compiled(torch.zeros(4)))
    assert [folder.name for folder in path.glob("*/part_0/test_data_set_*")] == ["test_data_set_0"]
    assert daemon.client().status()["counters"]["runs"] >= N_THREADS


def test_threads_are_compared_each_with_its_own_reference(daemon: Daemon) -> None:
    compiled = torch.compile(lambda x: x * 2, backend="rust_ort", options={"compare": "outputs"})
    known = len(rust_ort.graphs())
    compiled(torch.zeros(4))

    def work(index: int) -> None:
        for step in range(10):
            x = torch.full((4,), float(10 * index + step + 1))
            torch.testing.assert_close(compiled(x), x * 2)

    in_threads(work)
    verdicts = [verdict for info in rust_ort.graphs()[known:] for verdict in info.verdicts]
    assert {verdict.kind for _, verdict in verdicts} == {"match"}
    assert sorted(step for step, _ in verdicts) == list(range(1 + 10 * N_THREADS))


def test_a_compiled_module_dies_with_its_last_user(daemon: Daemon) -> None:
    def compile_and_run() -> tuple[weakref.ref[nn.Module], torch.Tensor, torch.Tensor]:
        model = make_model()
        x = torch.randn(3, 16)
        return weakref.ref(model), torch.compile(model, backend="rust_ort")(x), model(x).detach()

    model, kept, expected = compile_and_run()
    torch._dynamo.reset()
    gc.collect()
    torch.testing.assert_close(kept.detach(), expected)
    kept.sum().backward()  # the graph lives on in autograd
    del kept
    gc.collect()
    assert model() is None


def test_parts_of_dead_modules_are_forgotten(daemon: Daemon) -> None:
    from rust_ort.call import part

    gc.collect()
    before = len(part._parts)
    for _ in range(3):
        model = make_model()
        gradients(model, torch.compile(model, backend="rust_ort"), torch.randn(3, 16))
        torch._dynamo.reset()
    del model
    gc.collect()
    assert len(part._parts) <= before


def test_a_reset_between_forward_and_backward_changes_nothing(daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(3, 16)
    expected = gradients(model, model, x)
    for _ in range(3):
        loss = compiled(x).square().sum()
        torch._dynamo.reset()
        torch.testing.assert_close(list(torch.autograd.grad(loss, list(model.parameters()))), expected)
        torch.testing.assert_close(gradients(model, compiled, x), expected)


def test_a_copy_of_a_compiled_module_has_weights_of_its_own(daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend=rust_ort)
    x = torch.randn(3, 16)
    expected = compiled(x).detach()
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    torch.testing.assert_close(twin(x), torch.zeros(3, 16))
    torch.testing.assert_close(compiled(x), expected)
    twin(x).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in twin.parameters())
    del compiled, model
    gc.collect()
    torch.testing.assert_close(twin(x), torch.zeros(3, 16))


def test_two_compiled_modules_take_turns(daemon: Daemon) -> None:
    first, second = make_model(8), make_model(8).double()
    calls = [(m, torch.compile(m, backend="rust_ort"), x) for m, x in
             ((first, torch.randn(2, 8)), (second, torch.randn(3, 8, dtype=torch.float64)))]  # fmt: skip
    for _ in range(3):
        losses = [compiled(x).square().sum() for _, compiled, x in calls]
        for (model, _, x), loss in zip(calls, losses, strict=True):
            got = torch.autograd.grad(loss, list(model.parameters()))
            torch.testing.assert_close(list(got), gradients(model, model, x))


def interrupt_when(condition: Callable[[], object]) -> threading.Thread:
    def interrupt() -> None:
        wait_until(condition, "the call in the executor")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", ["call", "compared call", "compared nodes", "backward"])
def test_ctrl_c_in_a_call_leaves_a_working_client(barrier: Path, daemon: Daemon, kind: str) -> None:
    model = make_model()
    compare = {"compared call": "outputs", "compared nodes": "nodes"}.get(kind, "off")
    compiled = torch.compile(model, backend="rust_ort", options={"compare": compare})
    x = torch.randn(3, 16)
    expected = gradients(model, model, x)
    torch.testing.assert_close(gradients(model, compiled, x), expected)
    loss = compiled(x).square().sum() if kind == "backward" else None
    kept = compiled(x).detach()
    for _ in range(2):
        forget_held(barrier)
        barrier.touch()
        thread = interrupt_when(lambda: held(barrier))
        with pytest.raises(KeyboardInterrupt):
            if loss is not None:
                torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            else:
                compiled(x)
        thread.join(WATCHDOG_S)
        barrier.unlink()
        torch.testing.assert_close(gradients(model, compiled, x), expected)
        torch.testing.assert_close(kept, model(x).detach())
        connection = daemon.client().connection()
        wait_until(lambda connection=connection: connection.in_flight() == [], "the abandoned call")


def test_ctrl_c_while_compiling_leaves_a_working_compiler(barrier: Path, daemon: Daemon) -> None:
    """The interrupt comes between two requests of a first call."""
    interrupted = []

    def once(model: object) -> None:
        if not interrupted:
            interrupted.append(model)
            signal.raise_signal(signal.SIGINT)

    model = make_model()
    compiled = torch.compile(model, backend=rust_ort.backend(transforms=[once]))
    x = torch.randn(3, 16)
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    torch.testing.assert_close(gradients(model, compiled, x), gradients(model, model, x))


def test_ctrl_c_reaches_the_main_thread_while_others_stay_in_their_calls(barrier: Path, daemon: Daemon) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(3, 16)
    with torch.no_grad():
        expected = model(x)
        compiled(x)
    barrier.touch()
    got: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            got.append(compiled(x))

    others = [threading.Thread(target=work, daemon=True) for _ in range(2)]
    for other in others:
        other.start()
    wait_until(lambda: held(barrier), "a call in the executor")
    connection = daemon.client()._connection
    assert connection is not None
    assert connection.lanes is not None
    lanes = connection.lanes.lanes
    thread = interrupt_when(lambda: sum(not lane.answered() for lane in lanes) == 3)
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        compiled(x)
    thread.join(WATCHDOG_S)
    assert got == []
    barrier.unlink()
    for other in others:
        other.join(WATCHDOG_S)
        assert not other.is_alive()
    torch.testing.assert_close(got, [expected, expected])
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)
