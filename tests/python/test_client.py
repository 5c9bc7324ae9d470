"""The client against the real daemon and executor."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
import torch
import warm
from conftest import Daemon, alive, held, interrupted_while_held, wait_until
from onnx import TensorProto, helper

from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.errors import ClientError, DaemonLost, ExecutorLost
from rust_ort.link.specs import GraphSpec, OutputSpec, PartSpec, Policy
from rust_ort.memory import process
from rust_ort.memory.layout import Layout
from rust_ort.options import Tolerance

ELEMENT = {torch.float32: TensorProto.FLOAT, torch.int64: TensorProto.INT64, torch.float64: TensorProto.DOUBLE}


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(made.SerializeToString())


def value(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def binary_model(op: str, shape: Sequence[int | str], dtype: torch.dtype = torch.float32) -> bytes:
    code = ELEMENT[dtype]
    node = helper.make_node(op, ["x", "y"], ["z"], name="z")
    return model([node], [value("x", shape, code), value("y", shape, code)], [value("z", shape, code)])


def graph_spec(mark: int = 1) -> GraphSpec:
    return GraphSpec(graph_id=f"{mark:064x}", name="0_0-inference", direction="inference")


def part(
    client: Client,
    daemon: Daemon,
    data: bytes,
    outputs: list[OutputSpec] | Callable[[Sequence[object]], list[OutputSpec]],
    *,
    inputs: Sequence[str] = ("x", "y"),
    names: Sequence[str] = ("z",),
    mark: int = 1,
) -> Part:
    spec = PartSpec(
        graph=graph_spec(mark),
        part=0,
        model=data,
        fx_values={name: name for name in names},
        input_names=list(inputs),
        output_names=list(names),
        outputs=outputs,
    )
    return client.part(spec, daemon.options())


def out(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, stride: tuple[int, ...] | None = None
) -> OutputSpec:
    return OutputSpec(dtype=dtype, shape=shape, stride=stride)


def add(daemon: Daemon, shape: tuple[int, ...] = (10,), **given: object) -> Part:
    return part(daemon.client(**given), daemon, binary_model("Add", shape), [out(shape)])


def executor_pid(daemon: Daemon) -> int:
    connection = daemon.client()._connection
    assert connection is not None
    return connection.executor_pid


def test_a_call_gives_what_the_model_computes(daemon: Daemon) -> None:
    run = add(daemon)
    x, y = torch.arange(10.0), torch.full((10,), 0.5)
    (z,) = run([x, y])
    assert z.tolist() == [k + 0.5 for k in range(10)]
    assert (run.prepared.onnx_nodes, run.prepared.fx_nodes, len(run.prepared.inputs)) == (1, 1, 2)


def test_outputs_of_a_call_are_inputs_of_the_next_without_a_copy(daemon: Daemon) -> None:
    run = add(daemon)
    x = torch.ones(10)
    for _ in range(50):
        (x,) = run([x, x])
        assert process.arena().locate(x.data_ptr()) != 0
        x /= 2
    assert x.tolist() == [1.0] * 10


def test_inputs_of_every_make_are_staged_right(daemon: Daemon) -> None:
    run = add(daemon, (4, 3))
    y = torch.arange(12.0).reshape(4, 3)
    zero = torch.zeros(4, 3)
    makes = {
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "expanded": torch.arange(3.0).expand(4, 3),
        "sliced": torch.arange(24.0).reshape(4, 6)[:, ::2],
        "offset": torch.arange(13.0)[1:].reshape(4, 3),
        "parameter": torch.nn.Parameter(y.clone()),
        "requires grad": y.clone().requires_grad_(),
        "negative bit": torch._neg_view(y),
        "imaginary": torch.complex(zero, y).conj().imag,
        "numpy": torch.from_numpy(y.numpy().copy()),
        "inference": torch.inference_mode()(lambda: y.clone())(),
    }
    for name, x in makes.items():
        (z,) = run([x, y])
        assert z.tolist() == (x.detach() + y).tolist(), name
        assert not z.requires_grad, name
    assert torch.is_grad_enabled()


def test_arena_tensors_of_every_make_are_found_or_staged(daemon: Daemon) -> None:
    run = add(daemon, (4, 3))
    (base,) = run([torch.arange(12.0).reshape(4, 3), torch.zeros(4, 3)])
    wide = torch.zeros(4, 3)
    big, _ = process.arena().empty(Layout(torch.float32, (8, 6), None))
    big.copy_(torch.arange(48.0).reshape(8, 6))
    for x in (base, base[:, :], big[2:6, 1:4], big[:2].reshape(4, 3), big.t()[:4, :3], torch._neg_view(base)):
        (z,) = run([x, wide])
        assert z.tolist() == x.tolist()


def test_large_inputs_are_staged_for_each_call(daemon: Daemon) -> None:
    shape = (1500, 1000)
    run = add(daemon, shape)
    x = torch.full(shape, 2.0)
    (z,) = run([x, x])
    assert float(z.sum()) == 4.0 * x.numel()
    x.fill_(3)
    (z,) = run([x, x.clone()])
    assert float(z.sum()) == 6.0 * x.numel()
    del z
    live = sum(size for _, size in process.arena().live())
    for _ in range(20):
        run([x, x])
    assert sum(size for _, size in process.arena().live()) == live


def test_a_weight_changed_behind_autograds_back_is_seen(daemon: Daemon) -> None:
    run = add(daemon)
    weight = torch.nn.Parameter(torch.zeros(10))
    alias = weight.detach().numpy()
    assert run([weight, weight])[0].tolist() == [0.0] * 10
    weight.data.fill_(1)
    assert run([weight, weight])[0].tolist() == [2.0] * 10
    alias[:] = 3
    assert run([weight, weight])[0].tolist() == [6.0] * 10


def test_numbers_are_rank_0_tensors(daemon: Daemon) -> None:
    data = model(
        [
            helper.make_node("Identity", ["n"], ["m"]),
            helper.make_node("Add", ["f", "f"], ["g"]),
        ],
        [value("n", (), TensorProto.INT64), value("f", (), TensorProto.DOUBLE)],
        [value("m", (), TensorProto.INT64), value("g", (), TensorProto.DOUBLE)],
    )
    specs = [out((), torch.int64), out((), torch.float64)]
    run = part(daemon.client(), daemon, data, specs, inputs=("n", "f"), names=("m", "g"))
    for n, f in ((7, 1.5), (-1, 0.25)):
        m, g = run([n, f])
        assert (m.item(), g.item(), m.dim()) == (n, 2 * f, 0)


def test_shapes_may_change_when_the_outputs_are_a_function(daemon: Daemon) -> None:
    data = model(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        [value("x", ("n", 2)), value("y", ("n", 2))],
        [value("z", ("n", 2))],
    )
    run = part(daemon.client(), daemon, data, lambda inputs: [out(tuple(inputs[0].shape))])  # type: ignore[attr-defined]
    for n in (1, 3, 2, 0, 3, *range(4, 60)):
        (z,) = run([torch.ones(n, 2), torch.ones(n, 2)])
        assert (tuple(z.shape), float(z.sum())) == ((n, 2), 4.0 * n)
    assert len(run._plans) <= 32


@pytest.mark.parametrize(
    "stride", [(1, 2), (3, 1), (7, 2), (0, 1), (1, 1)], ids=["transposed", "dense", "gaps", "expanded", "overlapping"]
)
def test_an_output_has_the_strides_of_eager(daemon: Daemon, stride: tuple[int, int]) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (2, 3)), [out((2, 3), stride=stride)])
    row = torch.tensor([[1.0, 2.0, 3.0]]) if stride == (0, 1) else torch.arange(6.0).reshape(2, 3)
    x = row.expand(2, 3) if stride != (1, 1) else torch.tensor([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]])
    (z,) = run([x, torch.zeros(2, 3)])
    assert z.stride() == stride
    assert z.tolist() == x.tolist()


def test_outputs_without_elements(daemon: Daemon) -> None:
    run = part(daemon.client(), daemon, binary_model("Add", (0, 3)), [out((0, 3))])
    (z,) = run([torch.zeros(0, 3), torch.zeros(0, 3)])
    assert tuple(z.shape) == (0, 3)


def test_an_input_that_cannot_be_sent_is_named(daemon: Daemon) -> None:
    run = add(daemon)
    good = torch.zeros(10)
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Special(torch.Tensor):
        __torch_dispatch__ = classmethod(lambda *args: None)  # a wrapper in the making
        pass

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(good)
    bad = {
        "outside FakeTensorMode": fake,
        "cannot be sent to ONNX Runtime": good.as_subclass(Special),
        "a tensor on meta; move it to the CPU": good.to("meta"),
        "expected a tensor, an int or a float, got builtins.str": "text",
        "layout torch.sparse_coo": good.to_sparse(),
    }
    run([good, good])
    for message, x in bad.items():
        for _ in range(2):
            with pytest.raises(ClientError, match=f"input 1 'y' of 0_0-inference: .*{message}"):
                run([good, x])  # type: ignore[list-item]
    with pytest.raises(ClientError, match=r"input 0 'x' .*torch\.func"):
        torch.func.vmap(lambda x: run([x, good])[0])(torch.zeros(3, 10))
    with pytest.raises(ClientError, match=r"input 0 'x' .*torch\.func"):
        torch.func.grad(lambda x: run([x, good])[0].sum())(good)
    with pytest.raises(ClientError, match=r"expected 2 inputs \(x, y\), got 1"):
        run([good])
    assert run([good, good])[0].tolist() == [0.0] * 10


def test_a_wrong_shape_or_dtype_is_the_callers_mistake(daemon: Daemon) -> None:
    run = add(daemon)
    for x in (torch.zeros(3), torch.zeros(10, dtype=torch.float64)):
        with pytest.raises(ClientError) as caught:
            run([x, x])
        assert caught.value.graph == "0_0-inference"
    assert run([torch.ones(10), torch.ones(10)])[0].tolist() == [2.0] * 10


def test_a_bad_model_is_the_callers_mistake(daemon: Daemon) -> None:
    with pytest.raises(ClientError) as caught:
        part(daemon.client(), daemon, b"no model", [out((10,))])
    assert caught.value.code == "BAD_MODEL"
    with pytest.raises(ClientError, match="expected"):
        part(daemon.client(), daemon, binary_model("Add", (10,)), [out((10,))], inputs=("x", "other"))


def test_threads_call_side_by_side(daemon: Daemon) -> None:
    run = add(daemon)
    faults: list[object] = []

    def work(mark: int) -> None:
        try:
            x = torch.full((10,), float(mark))
            for step in range(200):
                (z,) = run([x, torch.full((10,), float(step))])
                if z.tolist() != [float(mark + step)] * 10:
                    faults.append((mark, step))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_more_calls_at_once_than_lanes_wait_for_one(daemon: Daemon) -> None:
    run = add(daemon)
    run([torch.ones(10), torch.ones(10)])
    got: list[float] = []
    barrier = threading.Barrier(100)

    def work() -> None:
        barrier.wait()
        got.append(run([torch.ones(10), torch.ones(10)])[0].sum().item())

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [20.0] * 100


def test_memory_stays_flat_over_many_calls(daemon: Daemon) -> None:
    run = add(daemon, (1000,))
    x = torch.ones(1000)
    run([x, x])
    live, resident = process.arena().live(), process.arena().resident_bytes()
    for _ in range(1000):
        run([x, x])
    assert process.arena().live() == live
    assert process.arena().resident_bytes() <= resident + 4096


def test_an_executor_killed_between_calls_is_replaced(daemon: Daemon) -> None:
    run = add(daemon)
    (kept,) = run([torch.ones(10), torch.ones(10)])
    first = executor_pid(daemon)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not alive(first), "the executor's end")
    assert run([kept, kept])[0].tolist() == [4.0] * 10
    assert kept.tolist() == [2.0] * 10
    assert executor_pid(daemon) != first


def test_an_executor_killed_between_other_requests_is_replaced(daemon: Daemon) -> None:
    run = add(daemon)
    x = torch.ones(10)
    for request in (
        lambda: run.observed([x, x], step=0, dump=False, references=[x + x])[1][0].kind == "match",
        lambda: add(daemon)([x, x])[0].tolist() == [2.0] * 10,
        lambda: daemon.client().status()["counters"] is not None,
    ):
        daemon.client().leased()
        pid = executor_pid(daemon)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: not alive(pid), "the executor's end")  # type: ignore[misc]
        time.sleep(0.05)
        assert request()


def test_an_executor_that_crashes_in_a_call_is_an_error_and_the_next_call_works(daemon: Daemon, hold: Path) -> None:
    run = add(daemon)
    (kept,) = run([torch.ones(10), torch.ones(10)])
    hold.touch()

    def kill() -> None:
        wait_until(lambda: held(hold), "the call in the executor")
        os.kill(executor_pid(daemon), signal.SIGABRT)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ExecutorLost) as caught:
        run([kept, kept])
    killer.join()
    hold.unlink()
    assert caught.value.graph == "0_0-inference"
    assert Path(caught.value.dump).is_dir()
    assert Path(caught.value.log).is_file()
    assert kept.tolist() == [2.0] * 10
    assert run([kept, kept])[0].tolist() == [4.0] * 10


def test_a_daemon_killed_in_a_call_is_an_error_and_the_next_call_works(daemon: Daemon, hold: Path) -> None:
    run = add(daemon)
    (kept,) = run([torch.ones(10), torch.ones(10)])
    hold.touch()

    def kill() -> None:
        wait_until(lambda: held(hold), "the call in the executor")
        pid = daemon.pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(DaemonLost, match="call again"):
        run([kept, kept])
    killer.join()
    hold.unlink()
    assert run([kept, kept])[0].tolist() == [4.0] * 10


def test_a_daemon_stopped_between_calls_is_started_again(daemon: Daemon) -> None:
    run = add(daemon)
    run([torch.ones(10), torch.ones(10)])
    executor = executor_pid(daemon)
    daemon.stop()
    # An executor that has not noticed yet may still take a call, and end in it.
    wait_until(lambda: not alive(executor), "the executor to follow its daemon")
    assert run([torch.ones(10), torch.ones(10)])[0].tolist() == [2.0] * 10


def test_an_interrupted_call_keeps_its_memory_until_it_is_answered(daemon: Daemon, hold: Path) -> None:
    run = add(daemon)
    run([torch.ones(10), torch.ones(10)])
    hold.touch()

    interrupted_while_held(hold, lambda: run([torch.ones(10), torch.ones(10)]))
    connection = daemon.client()._connection
    assert connection is not None
    assert connection.lanes is not None
    assert len(connection.lanes.in_flight()) == 1
    hold.unlink()
    wait_until(lambda: connection.lanes.in_flight() == [], "the abandoned call")  # type: ignore[union-attr]
    assert run([torch.ones(10), torch.ones(10)])[0].tolist() == [2.0] * 10


def test_a_forked_child_connects_anew_and_leaves_its_parent_alone(daemon: Daemon) -> None:
    run = add(daemon)
    (kept,) = run([torch.ones(10), torch.ones(10)])
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept.add_(1)
            (z,) = run([kept, kept])
            os.write(writer, str((z.tolist() == [6.0] * 10, kept.tolist() == [3.0] * 10)).encode())
        except BaseException as error:
            os.write(writer, repr(error).encode())
        os._exit(0)
    os.close(writer)
    assert os.read(reader, 1000) == b"(True, True)"
    os.close(reader)
    os.waitpid(pid, 0)
    assert kept.tolist() == [2.0] * 10
    assert run([kept, kept])[0].tolist() == [4.0] * 10


def test_an_observed_call_judges_each_output(daemon: Daemon) -> None:
    run = add(daemon)
    x, y = torch.arange(10.0), torch.ones(10)
    outputs, verdicts, folder = run.observed([x, y], step=0, dump=False, references=[x + y])
    assert outputs[0].tolist() == (x + y).tolist()
    assert [(v.name, v.kind, v.outside, v.max_abs) for v in verdicts] == [("z", "match", 0, 0.0)]
    assert folder == ""
    _, verdicts, _ = run.observed([x, y], step=1, dump=False, references=[x + y + 1])
    assert [(v.name, v.kind, v.outside, v.max_abs) for v in verdicts] == [("z", "mismatch", 10, 1.0)]
    _, verdicts, _ = run.observed(
        [x, y], step=2, dump=False, references=[x + y + 1], policy=Policy(given=Tolerance(atol=1.0))
    )
    assert verdicts[0].kind == "match"
    assert run.observed([x, y], step=3, dump=False, references=None)[1] == []


def test_a_dump_opened_after_the_part_holds_graph_model_and_tensors(daemon: Daemon, tmp_path: Path) -> None:
    run = add(daemon)
    client = daemon.client()
    x = torch.arange(10.0)
    run([x, x])
    path = Path(client.open_dump(folder=str(tmp_path), run="run", clean=True))
    _, _, folder = run.observed([x, x], step=0, dump=True, references=[x + x])
    client.flush_dump()
    assert (path / "0_0-inference" / "part_0" / "model.onnx").is_file()
    names = {entry.name for entry in Path(folder).iterdir()}
    assert {"input_0.pb", "input_1.pb", "output_0.pb", "actual_0.pb"} <= names
    client.close_dump()


def test_tensors_are_compared_without_a_run(daemon: Daemon) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    verdicts = daemon.client().compare(
        [
            ("equal", x, x.clone(), ""),
            ("strided", x.t(), x.t().contiguous(), ""),
            ("other", x, x + 1, ""),
            ("shape", x, x.reshape(6), ""),
            ("missing", x, None, ""),
            ("left out", None, None, "an int"),
        ]
    )
    kinds = {verdict.name: verdict.kind for verdict in verdicts}
    assert kinds["equal"] == kinds["strided"] == "match"
    assert kinds["other"] == "mismatch"
    assert kinds["shape"] != "match"
    assert kinds["missing"] == kinds["left out"] == "not_compared"
    assert verdicts[-1].reason == "an int"


def test_status_counts_runs(daemon: Daemon) -> None:
    run = add(daemon)
    for _ in range(3):
        run([torch.ones(10), torch.ones(10)], eager_nodes=2)
    status = daemon.client().status()
    assert status["counters"]["runs"] == 3
    assert status["counters"]["nodes_in_eager"] == 6


def test_two_processes_at_once_start_one_daemon(daemon: Daemon) -> None:
    code = (
        "from rust_ort.call.client import Client; from rust_ort.options import Options;"
        "print(Client.get(Options.parse({})).connection().daemon_pid)"
    )
    processes = [warm.start([sys.executable, "-c", code]) for _ in range(3)]
    said = {process.communicate()[0] for process in processes}
    assert len(said) == 1
    assert [process.returncode for process in processes] == [0, 0, 0]


def test_a_process_ends_with_live_tensors(daemon: Daemon) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_client, torch
from conftest import Daemon
from pathlib import Path
d = Daemon(socket=Path({str(daemon.socket)!r}), state=Path({str(daemon.state)!r}))
run = test_client.add(d)
kept = run([torch.ones(10), torch.ones(10)])
grad = torch.ones(10, requires_grad=True) * kept[0]
print(kept[0].sum().item())
"""
    ended = warm.run([sys.executable, "-c", code], timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "20.0\n"), ended.stderr


def test_a_missing_onnxruntime_says_what_to_install(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ClientError, match="pip install onnxruntime"):
        add(daemon)


def test_onnxruntime_is_not_imported(daemon: Daemon) -> None:
    code = (
        "import sys; from rust_ort.call.client import Client; from rust_ort.options import Options;"
        "Client.get(Options.parse({})).leased(); print('onnxruntime' in sys.modules)"
    )
    assert warm.run([sys.executable, "-c", code], check=True).stdout == "False\n"


def test_a_folder_open_to_others_is_refused(daemon: Daemon) -> None:
    daemon.socket.parent.chmod(0o755)
    with pytest.raises(ClientError, match="with mode 0700"):
        daemon.client().connection()
    daemon.socket.parent.chmod(0o700)


def test_a_program_that_does_not_serve_is_named(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUST_ORT_BINARY", "/bin/false")
    with pytest.raises(DaemonLost, match=r"/bin/false serve .* ended with 1"):
        daemon.client().connection()
    monkeypatch.setenv("RUST_ORT_BINARY", "/nowhere")
    with pytest.raises(ClientError, match="RUST_ORT_BINARY"):
        daemon.client().connection()


def test_a_slow_call_lets_other_threads_run(daemon: Daemon, hold: Path) -> None:
    run = add(daemon)
    run([torch.ones(10), torch.ones(10)])
    hold.touch()
    done: list[float] = []
    thread = threading.Thread(target=lambda: done.append(run([torch.ones(10), torch.ones(10)])[0].sum().item()))
    thread.start()
    wait_until(lambda: held(hold), "the call in the executor")
    time.sleep(0.3)
    assert done == []
    hold.unlink()
    thread.join()
    assert done == [20.0]


def test_the_daemons_build_is_the_program_that_answers(daemon: Daemon) -> None:
    found = os.stat(os.environ["RUST_ORT_BINARY"])
    assert f"{found.st_size} {found.st_mtime_ns}" in daemon.client().build()
