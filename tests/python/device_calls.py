"""What test_device.py runs in processes of their own, with the stand-in for CUDA's driver in the place of libcuda.so.1.

Device memory is memory that the host can read there, so that the CPU provider computes in it: what is shown is the way
of the tensors (allocations shared, never copied; events; what is freed), not CUDA's kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import onnx
import torch
from onnx import TensorProto, helper
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import rust_ort
from measure.cuda_graphs import trace
from rust_ort.call.client import Client
from rust_ort.call.part import Part
from rust_ort.errors import ClientError, DaemonFault, ExecutorLost
from rust_ort.export.partition import SEVERAL_DEVICES
from rust_ort.link.specs import GraphSpec, OutputSpec, PartSpec
from rust_ort.memory import device, process
from rust_ort.observe.placement import Placement
from rust_ort.options import Options
from rust_ort.torch_private import pytree

cuda = ctypes.CDLL("libcuda.so.1")
FOLDER = Path(os.environ["FAKE_CUDA_FOLDER"])
GRAPH = "0" * 64
UUIDS = ("GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", "GPU-20212223-2425-2627-2829-2a2b2c2d2e2f")


def checked(code: int) -> None:
    assert code == 0, code


def enter(ordinal: int = 0) -> None:
    """Makes a device the thread's, as torch.cuda.device does."""
    checked(cuda.cuInit(0))
    context = ctypes.c_void_p()
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
    checked(cuda.cuCtxSetCurrent(context))


class Allocation:
    """cudaMalloc's memory, as torch's allocator takes it, and tensors cut out of it. ordinal: of its device, which is
    the thread's from then on."""

    made: ClassVar[list[Allocation]] = []

    def __init__(self, len_bytes: int = 1 << 20, *, ordinal: int = 0) -> None:
        enter(ordinal)
        address = ctypes.c_uint64()
        checked(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(len_bytes)))
        self.address, self.len_bytes, self.used, self.ordinal = address.value, len_bytes, 0, ordinal
        self.made.append(self)

    def has(self, tensor: torch.Tensor) -> bool:
        return self.address <= tensor.data_ptr() < self.address + self.len_bytes

    def empty(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        n_bytes = max(1, torch.Size(shape).numel()) * dtype.itemsize
        at, self.used = self.used, -(-(self.used + n_bytes) // 512) * 512
        assert self.used <= self.len_bytes
        memory = (ctypes.c_char * n_bytes).from_address(self.address + at)
        return torch.frombuffer(memory, dtype=torch.uint8).view(dtype)[: torch.Size(shape).numel()].reshape(shape)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        return self.empty(values.shape, values.dtype).copy_(values)

    def free(self) -> None:
        self.made.remove(self)
        checked(cuda.cuMemFree_v2(ctypes.c_uint64(self.address)))


def client() -> Client:
    return Client.get(Options())


def affine() -> bytes:
    """y = x @ w + scale, and x as it is."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "scale"], ["y"]),
    ]
    inputs = [value("x", TensorProto.FLOAT, ["n", 4]), value("w", TensorProto.FLOAT, [4, 3])]
    inputs.append(value("scale", TensorProto.FLOAT, []))
    outputs = [value("y", TensorProto.FLOAT, ["n", 3]), value("x", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph(nodes, "affine", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()


def affine_part(provenance_json: str = "{}", options: Options | None = None) -> Part:
    def outputs(inputs: Any) -> list[OutputSpec]:
        n = inputs[0].shape[0]
        return [OutputSpec(dtype=torch.float32, shape=(n, size), device=0) for size in (3, 4)]

    graph = GraphSpec(graph_id=GRAPH, name="0_0-inference", direction="inference")
    spec = PartSpec(
        graph=graph, part=0, model=affine(), input_names=["x", "w", "scale"], output_names=["y", "x"],
        outputs=outputs, device=0, provenance_json=provenance_json,
    )  # fmt: skip
    client().register(graph)
    return client().part(spec, options or Options())


GRAPHS = Options.parse({"providers": [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]})


def same_outputs(made: Allocation) -> None:
    """Outputs of one shape lie where those of the call before did, as torch's allocator has it."""
    known: dict[tuple[int, ...], torch.Tensor] = {}
    device.empty = lambda shape, dtype, ordinal: known.setdefault(tuple(shape), made.empty(shape, dtype))


def logged(text: str) -> int:
    """How often executors wrote it into their logs."""
    logs = (Path(os.environ["RUST_ORT_STATE_DIR"]) / "log").glob("executor-*")
    return sum(log.read_text().count(text) for log in logs)


def journal(pid: int) -> Counter[str]:
    """How often each function of the driver succeeded in a process."""
    lines = (FOLDER / f"journal.{pid}").read_text().splitlines()
    return Counter(line.split()[0] for line in lines if line.split()[1] == "0")


def by_device(pid: int, function: str) -> list[tuple[int, int]]:
    """(how often a function of the driver succeeded in a process, bytes in all) on each of the stand-in's devices."""
    lines = [line.split() for line in (FOLDER / f"journal.{pid}").read_text().splitlines()]
    found = [(where, int(size)) for name, code, size, where in lines if name == function and code == "0"]
    sizes = [[size for where, size in found if where == place] for place in "01"]
    return [(len(each), sum(each)) for each in sizes]


def executor_pid() -> int:
    return client().leased().executor_pid


def values(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=made), torch.randn(4, 3, generator=made), torch.tensor(0.5)


def setup(len_bytes: int = 1 << 20) -> tuple[Allocation, Allocation]:
    """An allocation for what is given, and one that outputs come from."""
    given, made = Allocation(len_bytes), Allocation(len_bytes)
    device.ordinal = lambda tensor: 0 if any(allocation.has(tensor) for allocation in Allocation.made) else None
    device.stream = lambda ordinal: 0
    device.synchronize = synchronize
    device.empty = lambda shape, dtype, ordinal: made.empty(shape, dtype)
    return given, made


def synchronize(ordinal: int = 0) -> None:
    """Waits for the current stream, as whoever reads on the host what a call gave does."""
    checked(cuda.cuStreamSynchronize(ctypes.c_void_p(device.stream(ordinal))))


def stop(pid: int) -> None:
    """Stops a process and waits until each thread stands: one thread takes the signal, when its turn comes, and the
    others go on until then."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while any(one.read_text().rpartition(")")[2].split()[0] != "T" for one in Path(f"/proc/{pid}/task").glob("*/stat")):
        assert time.monotonic() < deadline, f"{pid} does not stop"
        time.sleep(0.001)


def answered() -> None:
    """Waits until the executor has put what was handed over on its stream."""
    queue = client().leased().order.queues[0]
    assert queue is not None
    while not queue.lane.is_answered():
        time.sleep(0.001)


def new_stream() -> int:
    """A stream of this process's, the current one from now on."""
    stream = ctypes.c_void_p()
    checked(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    assert stream.value is not None
    device.stream = lambda ordinal: stream.value
    return stream.value


BY_EVENTS = os.environ.get("FAKE_CUDA_VALUES") == "0" or "RUST_ORT_TEST_ORDER_BY_EVENTS" in os.environ
WAITS, TELLS = ("cuStreamWaitEvent", "cuEventRecord") if BY_EVENTS else ("cuStreamWaitValue32", "cuStreamWriteValue32")
"""What orders calls: has a stream wait, and tells others."""


def check(part: Part, inputs: Any, expected: Any = None) -> list[torch.Tensor]:
    y, z = part(inputs)
    synchronize()
    x, w, scale = [tensor.clone() for tensor in (expected or inputs)]
    torch.testing.assert_close(y, x @ w + scale, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z, x, rtol=0, atol=0)
    return [y, z]


# --- graphs on several devices ---------------------------------------------------------------------------------------


class Machine(TorchDispatchMode):
    """Two GPUs for torch, which has none here: where each tensor lies, streams, and eager between the parts. An
    operator gives tensors where it is told to, else where it reads them; it refuses those of several devices, but for
    copies."""

    def __init__(self, len_bytes: int = 1 << 20) -> None:
        super().__init__()
        self.memory = [Allocation((1 + ordinal) * len_bytes, ordinal=ordinal) for ordinal in range(2)]
        self.made = [Allocation((1 + ordinal) * len_bytes, ordinal=ordinal) for ordinal in range(2)]
        self.streams = [self.stream(ordinal) for ordinal in range(2)]
        self.copies: list[tuple[int | None, int | None]] = []
        """Between devices, of eager's: from where, to where."""
        device.ordinal = self.place
        device.stream = lambda ordinal: self.streams[ordinal]
        device.empty = lambda shape, dtype, ordinal: self.made[ordinal].empty(shape, dtype)

    @staticmethod
    def stream(ordinal: int) -> int:
        enter(ordinal)
        stream = ctypes.c_void_p()
        checked(cuda.cuStreamCreate(ctypes.byref(stream), 1))
        assert stream.value is not None
        return stream.value

    @staticmethod
    def place(tensor: torch.Tensor) -> int | None:
        return next((one.ordinal for one in Allocation.made if one.has(tensor)), None)

    def synchronize(self) -> None:
        """Eager's kernels come behind what is on the streams."""
        for stream in self.streams:
            checked(cuda.cuStreamSynchronize(ctypes.c_void_p(stream)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        read = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        places = [self.place(one) for one in read]
        on_devices = {place for one, place in zip(read, places, strict=True) if one.dim() or place is not None}
        if asked is None:
            goes = next((place for place in places if place is not None), None)
        else:
            goes = asked.index if asked.type == "cuda" else None
        is_copy = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        assert is_copy or len(on_devices) < 2, f"{func}: tensors on {on_devices}"
        if on_devices - {None}:
            self.synchronize()
        if func is torch.ops.aten._to_copy.default and places[0] != goes:
            self.copies.append((places[0], goes))
        made = func(*args, **kwargs)
        if goes is None:
            return made
        memories = {one.untyped_storage().data_ptr() for one in read}

        def there(value: torch.Tensor) -> torch.Tensor:
            is_view = value.untyped_storage().data_ptr() in memories
            return value if is_view else self.memory[goes].of(value)

        return pytree.tree_map_only(torch.Tensor, there, made)


def crossing(x: Any, y: Any, table: Any, number: Any, *, first: str = "cuda:0", second: str = "cuda:1") -> Any:
    """Goes from the device of x to that of y and back, uses a number of the CPU on both, and works on the CPU, too."""
    there = (x * 2 + number).relu().to(second)
    met = there @ y * number
    back = (met + 1).to(first) * x
    rows = table.exp() + 1
    return back, met.sum(), rows, rows.to(second) + y


def several_devices() -> None:
    """A compiled graph on two devices and the CPU, forward and backward: each part runs with tensors of its own device,
    through one client and one executor, which has the devices in another order where CUDA_VISIBLE_DEVICES says so."""
    asked: list[tuple[int | None, list[str]]] = []
    named: dict[int | None, Any] = {}
    request_of = Part._prepare_request

    def request(part: Part, held: list[object]) -> Any:
        made = request_of(part, held)
        asked.append((part.spec.device, [provider.name for provider in made.prepare_part.session.providers]))
        named[part.spec.device] = json.loads(part.spec.provenance_json)["device"]
        return made

    Part._prepare_request = request
    physical = [int(number) for number in os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")]
    machine = Machine()
    draw = torch.Generator().manual_seed(0)
    plain = [torch.randn(4, 4, generator=draw) for _ in range(3)] + [torch.tensor(0.5)]
    on: dict[int, str] = {}
    given = []
    for values, ordinal in zip(plain, (0, 1, None, None), strict=True):
        given.append(values.clone() if ordinal is None else machine.memory[ordinal].of(values))
        on[id(given[-1])] = "cpu" if ordinal is None else f"cuda:{ordinal}"
    for tensor in (*plain[:3], *given[:3]):
        tensor.requires_grad_()
    backend = rust_ort.backend(providers=["CUDAExecutionProvider"])
    traced = trace(crossing, given, backend, on=lambda tensor: on[id(tensor)])
    parts = Counter(number for number, _ in asked)
    assert parts == {0: 4, 1: 4, None: 3}, asked
    # What is on the CPU beside CUDA's parts stays there, whatever providers are asked for.
    assert all(names == ["CUDAExecutionProvider"] * (number is not None) for number, names in asked), asked
    assert named == {None: None} | {ordinal: UUIDS[place] for ordinal, place in enumerate(physical)}
    assert [node.reason for graph in backend.graphs for node in graph.eager] == [SEVERAL_DEVICES] * 7

    def step(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for plainly, there in zip(plain, given, strict=True):
                plainly.copy_(torch.randn(plainly.shape, generator=draw))
                there.copy_(plainly)  # in place: the executor sees it
        expected = crossing(*plain, first="cpu", second="cpu")
        grads = [torch.randn(one.shape, generator=draw) for one in expected]
        with machine:
            outputs = traced.run()
            assert [machine.place(one) for one in outputs] == [0, 1, None, 1]
            of_outputs = [
                one if place is None else machine.memory[place].of(one)
                for one, place in zip(grads, map(machine.place, outputs), strict=True)
            ]
            made = torch.autograd.grad(outputs, given[:3], of_outputs)
            machine.synchronize()
        assert [machine.place(one) for one in made] == [0, 1, None]
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(made, torch.autograd.grad(expected, plain[:3], grads))

    step(1)  # the first run of a session is watched: its outputs are looked at through the host
    pid, before = executor_pid(), client().status()["counters"]
    counted = (WAITS, TELLS, "cuIpcOpenMemHandle", "cuIpcOpenEventHandle", "cuMemHostRegister")
    earlier = {name: by_device(pid, name) for name in counted}
    copied = journal(pid)
    machine.copies.clear()
    step(2)
    assert Counter(machine.copies) == {(0, 1): 2, (1, 0): 3, (None, 1): 1, (1, None): 1}, machine.copies
    after = {name: by_device(pid, name) for name in counted}
    ordinals = [physical.index(place) for place in range(2)]
    for name in (WAITS, TELLS):
        more = [now - then for (now, _), (then, _) in zip(after[name], earlier[name], strict=True)]
        assert more == [parts[ordinal] for ordinal in ordinals], (name, earlier, after)
    # Each allocation and each event was opened once, on its own device: what is given and made there, ready and done.
    assert after["cuIpcOpenEventHandle"] == ([(2, 0), (2, 0)] if BY_EVENTS else [(0, 0), (0, 0)]), after
    registered = [n for n, _ in after["cuMemHostRegister"]]
    assert sum(registered) == (not BY_EVENTS), "one page for all devices"
    assert after["cuIpcOpenMemHandle"] == [(2, 2 * (1 + ordinal) << 20) for ordinal in ordinals], after
    through_host = {name: n - copied[name] for name, n in journal(pid).items() if name.startswith("cuMemcpy")}
    assert not any(through_host.values()), through_host
    now = client().status()
    (executor,) = now["executors"]
    assert executor["pid"] == pid and executor["sessions"] == len(asked), (executor, asked)
    assert now["counters"]["runs"] - before["runs"] == len(asked)
    numbers = 3  # forward on both devices, backward on one: nothing else went through the host
    assert now["counters"]["host_bytes"] - before["host_bytes"] == 4 * numbers, (before, now["counters"])


# --- attention --------------------------------------------------------------------------------------------------------


def attend(q: Any, k: Any, v: Any, *masks: Any) -> Any:
    """Of [batch, length, heads, size], as projections give it; causal where there is no mask."""
    heads = (tensor.transpose(1, 2) for tensor in (q, k, v))
    mask = masks[0] if masks else None
    made = functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=mask is None)
    return made.transpose(1, 2).flatten(2)


FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
JOURNAL = Path(os.environ.get("FAKE_LIBTORCH_JOURNAL", os.devnull))


def attention(machine: Machine, kernel: str, dtype: torch.dtype, *, masked: bool = False) -> list[str]:
    """Traced for CUDA with a kernel of torch's, forward and backward; the numbers are eager's. What the stand-in for
    libtorch was asked, if there is one."""
    torch._dynamo.reset()
    draw, before = torch.Generator().manual_seed(0), len(JOURNAL.read_text()) if JOURNAL.exists() else 0
    plain = [torch.randn(2, 9, 4, 16, generator=draw).to(dtype) for _ in range(3)]
    masks = [torch.randn(2, 1, 9, 9, generator=draw).to(dtype)] if masked else []
    given = [machine.memory[0].of(tensor) for tensor in (*plain, *masks)]
    for tensor in (*plain, *given[:3]):
        tensor.requires_grad_()
    backend = rust_ort.backend(providers=["CUDAExecutionProvider"])
    traced = trace(attend, given, backend, attention=kernel, on=lambda tensor: "cuda:0")
    assert [graph.eager for graph in backend.graphs] == [[], []]
    expected = attend(*plain, *masks)
    grad = torch.randn(expected.shape, generator=draw).to(dtype)
    with machine:
        output = traced.run()
        made = torch.autograd.grad(output, given[:3], machine.memory[0].of(grad))
        machine.synchronize()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(made, torch.autograd.grad(expected, plain, grad))
    return JOURNAL.read_text()[before:].splitlines()


def attention_by_libtorch() -> None:
    """Each call is one of the kernel that eager has, on heads where they lie; masks of rows that begin anywhere are
    handed over as the kernel reads them, and no handle is left."""
    machine = Machine()
    for kernel, dtypes in (("flash", "bfloat16 float16"), ("efficient", "float32 float16"), ("cudnn", "bfloat16")):
        for dtype, masked in itertools.product(dtypes.split(), (False, True)):
            if kernel == "flash" and masked:
                continue
            by_row, by_head = "2:576,4:16,9:64,16:1", "2:576,4:144,9:16,16:1"
            rows = {"efficient": "2:144,4:0,9:16,9:1", "cudnn": "2:81,1:0,9:9,9:1"}.get(kernel)
            bias = f" bias={rows}" if masked else ""
            # Forward reads what projections give, backward what forward saved, which is transposed.
            forward, backward = (
                f"causal={int(not masked)} scale=0.25 query={lies} key={lies}{bias}" for lies in (by_row, by_head)
            )
            asked = attention(machine, kernel, FLOATS[dtype], masked=masked)
            assert asked == [f"{kernel} {forward}", "left 0", f"{kernel} backward {backward}", "left 0"], asked
    assert logged("libtorch loaded, for attention on CUDA") == 1
    assert logged("plain ONNX nodes") == 0


def attention_without_libtorch() -> None:
    """The body of the function runs, which the log says once, with the reason."""
    machine = Machine()
    for masked in (False, True):
        assert attention(machine, "efficient", torch.float32, masked=masked) == []
    assert logged("attention on CUDA runs as the plain ONNX nodes of its function") == 1
    assert logged(sys.argv[2]) == 1


def fault(machine: Machine) -> str:
    try:
        attention(machine, "flash", torch.bfloat16)
    except DaemonFault as error:
        return str(error)
    raise AssertionError("it did not fail")


def attention_that_fails() -> None:
    """What libtorch says is in the error, with the operator's name; no handle is left, and the next call is none the
    worse."""
    machine, asked = Machine(), Path(os.environ["FAKE_LIBTORCH_FAIL"])
    kernel = "aoti_torch_cuda__scaled_dot_product_flash_attention"
    for function in (
        "aoti_torch_create_cuda_stream_guard", "aoti_torch_create_tensor_from_blob", "aoti_torch_empty_strided",
        "aoti_torch_copy_", kernel, f"{kernel}_backward",
    ):  # fmt: skip
        asked.write_text(function)
        said = fault(machine)
        of = "Gradient" if function in ("aoti_torch_empty_strided", f"{kernel}_backward") else ""
        assert f"LibtorchAttention{of}BFloat16: libtorch: {function} failed: {function} was told to" in said, said
    asked.write_text("")
    attention(machine, "flash", torch.bfloat16)
    left = {line for line in JOURNAL.read_text().splitlines() if line.startswith("left")}
    assert left == {"left 0"}, left


def attention_by_torchs_own_library() -> None:
    """Every function that is called is there, with a version that is known; what CUDA says without a device is told."""
    said = fault(Machine())
    assert re.search(r"LibtorchAttentionBFloat16: libtorch: aoti_torch_\w+ failed: .*CUDA", said), said
    assert logged("libtorch loaded, for attention on CUDA") == 1


# --- what is run ------------------------------------------------------------------------------------------------------


def shared_and_never_copied() -> None:
    """Thousand calls: inputs and outputs lie where they are, each allocation is opened once."""
    given, made = setup(8 << 20)
    x, w, scale = map(given.of, values(5))
    part = affine_part()
    first = check(part, [x, w, scale])
    assert all(map(made.has, first))
    before, host_bytes = journal(executor_pid()), client().status()["counters"]["host_bytes"]
    own_before = journal(os.getpid())
    for step in range(1000):
        x.fill_(step)  # in place: the executor sees it
        check(part, [x, w, scale])
    after = journal(executor_pid())
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    for copies in ("cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuMemHostAlloc"):
        assert copies not in grown, grown
    assert "cuIpcOpenMemHandle" not in grown, grown
    assert "cuIpcOpenEventHandle" not in grown, grown
    assert grown["cuMemcpyDtoDAsync"] == 1000, grown  # the output that is an input
    assert client().status()["counters"]["host_bytes"] == host_bytes
    assert grown[WAITS] == grown[TELLS] == 1000, grown
    assert BY_EVENTS or "cuEventRecord" not in grown, grown
    own = journal(os.getpid()) - own_before
    assert not any(name.startswith(("cuMemcpy", "cuIpc")) for name in own), own


def nodes_are_placed() -> None:
    """The library tells who has a session's nodes: the CPU, which stands for CUDA here. The log has it, too."""
    setup()
    part = affine_part()
    placed = [(entry.provider, entry.nodes, list(entry.ops)) for entry in part.prepared.placed]
    assert placed == [("CPUExecutionProvider", 2, [])] and not part.prepared.placement_unknown
    assert str(Placement.of([part.prepared])) == "nodes on the CPU 2, on no other provider"
    assert logged("nodes by provider") == logged("2 on CPUExecutionProvider") == 1


def half_precision_without_kernels() -> None:
    """Nodes of bfloat16 for which CUDA's provider has no kernel are done otherwise; what the library refuses besides,
    as the CPU's does an Expand, computes in float32. Without the pass the model is refused."""
    value, node, half = helper.make_tensor_value_info, helper.make_node, TensorProto.BFLOAT16
    nodes = [
        node("Constant", [], ["pads"], value_ints=[0, 1, 0, 2]),
        node("Pad", ["x", "pads"], ["padded"]),
        node("Floor", ["padded"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "padded", [value("x", half, [5, 4])], [value("y", half, [5, 7])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    known = GraphSpec(graph_id="b" * 64, name="1_0-inference", direction="inference")
    outputs = [OutputSpec(dtype=torch.bfloat16, shape=(5, 7), device=0)]
    spec = PartSpec(
        graph=known, part=0, model=model.SerializeToString(), input_names=["x"], output_names=["y"], outputs=outputs,
        device=0,
    )  # fmt: skip
    client().register(known)
    given, _ = setup()
    x = given.of((values(5)[0] * 100).bfloat16())
    y = client().part(spec, Options())([x])[0]
    torch.testing.assert_close(y, torch.nn.functional.pad(x, (1, 2)).floor(), rtol=0, atol=0)
    assert logged("refused: in half precision it is tried in float32") == logged('operator="Expand"') == 1
    try:
        client().part(spec, Options.parse({"disable_passes": ["missing-kernels"]}))
    except ClientError as error:
        assert error.code == "BAD_MODEL" and "Pad" in str(error), error
    else:
        raise AssertionError("the library has no kernel of it")


def scalars_of_the_host() -> None:
    """A scalar of the host beside tensors on a device, another value in each call."""
    given, _ = setup()
    x, w, _ = map(given.of, values(5))
    part = affine_part()
    before = client().status()["counters"]["host_bytes"]
    for number in (0.5, 2.0, -1.0):
        check(part, [x, w, torch.tensor(number)])
    assert client().status()["counters"]["host_bytes"] == before + 3 * 4


def strided_and_misaligned_inputs() -> None:
    """What is not row-major, or begins between two wide words, is copied on the device; the copy lives until the call
    is handed over."""
    given, _ = setup()
    x, w, scale = values(6)
    part = affine_part()
    strided = given.of(x.t().contiguous()).t()
    misaligned = given.of(torch.cat([torch.zeros(1), x.reshape(-1)]))[1:].reshape(x.shape)
    copies: list[Any] = []
    alive: list[bool] = []
    of_torch = {name: getattr(torch.Tensor, name) for name in ("contiguous", "clone")}

    def copied(name: str) -> Any:
        def copy(self: torch.Tensor, **how: Any) -> torch.Tensor:
            if device.ordinal(self) is None or (name == "contiguous" and self.is_contiguous()):
                made: torch.Tensor = of_torch[name](self, **how)
                return made
            made = given.empty(self.shape, self.dtype).copy_(self)
            copies.append(weakref.ref(made))
            return made

        return copy

    def stream(ordinal: int) -> int:
        alive.append(copies[-1]() is not None)
        return 0

    device.stream = stream
    for name in of_torch:
        setattr(torch.Tensor, name, copied(name))
    try:
        for tensor in (strided, misaligned):
            y, _ = part([tensor, given.of(w), given.of(scale)])
            checked(cuda.cuStreamSynchronize(None))
            assert torch.allclose(y, x @ w + scale, rtol=1e-5, atol=1e-5)
    finally:
        for name, function in of_torch.items():
            setattr(torch.Tensor, name, function)
    assert alive == [True, True]
    assert len(copies) == 2


def a_call_within_a_call() -> None:
    """What a call lets go of may call, too, in its finalizer: before the other's answer is looked at."""
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    check(part, inputs)
    within: list[Any] = []

    class Caller:
        def __del__(self) -> None:
            within.append(part(inputs))

    aligned = device.aligned

    def aligned_with_caller(tensor: torch.Tensor) -> torch.Tensor:
        made = given.of(aligned(tensor))
        made.caller = Caller()  # type: ignore[attr-defined]
        return made

    device.aligned = aligned_with_caller
    x = given.of(torch.cat([torch.zeros(1), values(5)[0].reshape(-1)]))[1:].reshape(5, 4)
    try:
        for _ in range(3):
            check(part, [x, *inputs[1:]])
    finally:
        device.aligned = aligned
    assert len(within) == 3
    for y, _ in within:
        torch.testing.assert_close(y, inputs[0] @ inputs[1] + inputs[2], rtol=1e-5, atol=1e-5)


def outputs_without_elements() -> None:
    """They are made on the device, too."""
    given, _ = setup()
    made = []

    def empty_strided(shape: Any, stride: Any, dtype: torch.dtype, ordinal: int) -> torch.Tensor:
        made.append((tuple(shape), ordinal))
        return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype)

    device.empty_strided = empty_strided
    affine_part()([given.of(values(1)[0])[:0], given.of(values(1)[1]), given.of(values(1)[2])])
    assert made == [((0, 3), 0), ((0, 4), 0)], made


def freed_before_another_executor_is_there() -> None:
    """What was freed is shown to nobody who comes later, and closed by who has it, without a new allocation."""
    given, _ = setup()
    w, scale = map(given.of, values(5)[1:])
    part = affine_part()
    own = Allocation(4096)
    x = own.of(values(5)[0])
    check(part, [x, w, scale])
    closed = journal(executor_pid())["cuIpcCloseMemHandle"]
    del x
    own.free()
    x = given.of(values(5)[0])
    time.sleep(device.LOOK_S)
    check(part, [x, w, scale])
    assert journal(executor_pid())["cuIpcCloseMemHandle"] == closed + 1
    own = Allocation(4096)
    check(part, [own.of(values(5)[0]), w, scale])
    own.free()
    other = Client.get(Options(threads=2))
    other.register(part.spec.graph)
    check(other.part(part.spec, Options(threads=2)), [x, w, scale])


def allocations_come_and_go() -> None:
    """Addresses are used again: another allocation at the same place is another one, and the old one is let go of."""
    given, _ = setup()
    part = affine_part()
    w, scale = map(given.of, values(5)[1:])
    addresses: set[int] = set()
    before: Counter[str] = Counter()
    for seed in range(20):
        own = Allocation(4096)
        addresses.add(own.address)
        x = own.of(values(5, seed)[0])
        check(part, [x, w, scale])
        before = before or journal(executor_pid())
        del x
        own.free()
    counts = journal(executor_pid()) - before
    assert len(addresses) < 20, "the stand-in gives addresses again"
    assert counts["cuIpcOpenMemHandle"] == 19, counts
    assert counts["cuIpcCloseMemHandle"] >= 18, counts


def memory_that_cannot_be_shared() -> None:
    """FAKE_CUDA_KIND says of which kind: refused with the setting to change, and nothing is lost."""
    given, _ = setup()
    part = affine_part()
    try:
        part(list(map(given.of, values(5))))
    except ClientError as error:
        assert sys.argv[2] in str(error), error
    else:
        raise AssertionError("it was sent")
    assert "cuIpcOpenMemHandle" not in journal(executor_pid())


def order_of_streams() -> None:
    """FAKE_CUDA_LAZY: work of this process's stream that is still to come is waited for by the executor."""
    given, _ = setup()
    x, w, scale = map(given.of, values(5))
    part = affine_part()
    check(part, [x, w, scale])
    fresh = values(5, 9)[0].contiguous()
    stream = ctypes.c_void_p(new_stream())
    size = ctypes.c_size_t(fresh.numel() * 4)
    checked(cuda.cuMemcpyHtoDAsync_v2(ctypes.c_uint64(x.data_ptr()), ctypes.c_void_p(fresh.data_ptr()), size, stream))
    assert not torch.equal(x, fresh), "the copy is still to come"
    waits = journal(os.getpid())[WAITS]
    y, z = part([x, w, scale])
    assert journal(os.getpid())[WAITS] == waits + 1
    checked(cuda.cuStreamSynchronize(stream))
    torch.testing.assert_close(y.clone(), fresh @ w.clone() + scale.clone(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(z.clone(), fresh, rtol=0, atol=0)  # copied on the executor's stream, late


def copied_bytes(pid: int) -> Counter[str]:
    """Bytes that a process had copied, by the driver's function."""
    copied: Counter[str] = Counter()
    for line in (FOLDER / f"journal.{pid}").read_text().splitlines():
        name, code, n_bytes, *_ = line.split()
        if name.startswith("cuMemcpy") and code == "0":
            copied[name] += int(n_bytes)
    return copied


def observed_setup(
    rows: int, *, host_scale: bool = False
) -> tuple[Allocation, Allocation, Part, list[torch.Tensor], list[torch.Tensor]]:
    """(where inputs are made, where outputs are, part, inputs, eager's outputs), after a first call. host_scale:
    one of the inputs is a scalar of the host."""
    given, made = setup(128 << 20)
    x, w, scale = values(rows)
    inputs = [given.of(x), given.of(w), scale if host_scale else given.of(scale)]
    part = affine_part()
    check(part, inputs)
    return given, made, part, inputs, [given.of(x @ w + scale), given.of(x)]


def on_the_host(name: str, reference: torch.Tensor, candidate: torch.Tensor) -> Any:
    """The verdict on copies."""
    return client().compare([(name, reference.clone(), candidate.clone(), "")])[0]


def same_verdict(one: Any, other: Any) -> None:
    """Equal, but for sums, which are added up in another order."""
    sums = {"mean_abs", "rmse", "cosine"}
    metrics = [dict(verdict.metrics) for verdict in (one, other)]
    differ = [{name: found.pop(name) for name in sums} | {"sum": found["max_diff"].pop("sum")} for found in metrics]
    assert metrics[0] == metrics[1], (one, other)
    for name, value in differ[0].items():
        assert abs(value - differ[1][name]) <= 1e-9 * abs(value), (name, value, differ[1][name])
    assert (one.kind, one.max_abs, one.outside) == (other.kind, other.max_abs, other.outside)


def observed_on_the_device() -> None:
    """A compared call stays on the device, and so do eager's outputs: numbers come back. What is found is what the host
    finds."""
    _, made, part, inputs, references = observed_setup(300_000)
    part.observed(inputs, step=0, dump=False, references=references)  # compiles the kernels
    before, host_bytes = copied_bytes(executor_pid()), client().status()["counters"]["host_bytes"]
    outputs, verdicts, _ = part.observed(inputs, step=0, dump=False, references=references)
    assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts
    assert all(map(made.has, outputs))
    torch.testing.assert_close(outputs[0], references[0], rtol=1e-5, atol=1e-5)
    copied = copied_bytes(executor_pid()) - before
    assert copied["cuMemcpyHtoDAsync"] < 4096, copied  # what is asked
    tensors = sum(tensor.nbytes for tensor in (*inputs, *references, *outputs))
    assert 0 < copied["cuMemcpyDtoHAsync"] < tensors / 50, (copied, tensors)
    assert client().status()["counters"]["host_bytes"] == host_bytes
    for name, verdict, reference, output in zip("yx", verdicts, references, outputs, strict=True):
        same_verdict(verdict, on_the_host(name, reference, output))
    references[0][7, 2] += 1
    references[0][9, 1] = float("nan")
    outputs, verdicts, _ = part.observed(inputs, step=1, dump=False, references=references)
    assert [verdict.kind for verdict in verdicts] == ["mismatch", "match"], verdicts
    assert verdicts[0].outside == 2
    assert verdicts[0].metrics is not None
    assert verdicts[0].metrics["first_outside"]["at"] == [7, 2], verdicts[0].metrics
    assert verdicts[0].metrics["reference_nan"] == 1
    same_verdict(verdicts[0], on_the_host("y", references[0], outputs[0]))


def observed_without_a_compiler() -> None:
    """Without NVRTC tensors are copied to the host to be judged, and the executor's log says so once."""
    _, _, part, inputs, references = observed_setup(5000)
    references[0][7, 2] += 1
    for step in range(2):
        outputs, verdicts, _ = part.observed(inputs, step=step, dump=False, references=references)
        assert [verdict.kind for verdict in verdicts] == ["mismatch", "match"], verdicts
        same_verdict(verdicts[0], on_the_host("y", references[0], outputs[0]))
    log = Path(client().leased().executor_log).read_text()
    assert log.count("tensors are compared on the host") == 1, log
    assert "install torch with CUDA" in log, log


def dumped_on_the_device() -> None:
    """Inputs are on disk before the run, outputs and eager's after it; tensors are copied to the host once each."""
    _, _, part, inputs, references = observed_setup(70_000, host_scale=True)
    path = Path(client().open_dump(folder=str(FOLDER.parent / "dumps"), run="run", clean=True))
    before = copied_bytes(executor_pid())
    outputs, verdicts, folder = part.observed(inputs, step=3, dump=True, references=references)
    client().close_dump()
    assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts
    copied = copied_bytes(executor_pid()) - before
    tensors = sum(tensor.nbytes for tensor in (*inputs[:2], *references, *outputs))
    assert tensors <= copied["cuMemcpyDtoHAsync"] <= tensors * 1.2, (copied, tensors)
    for kind, expected in (("input", inputs), ("output", references), ("actual", outputs)):
        for i, tensor in enumerate(expected):
            read = onnx.numpy_helper.to_array(onnx.load_tensor(Path(folder) / f"{kind}_{i}.pb"))
            assert torch.equal(torch.from_numpy(read.copy()), tensor), (kind, i)
    assert (path / "0_0-inference" / "part_0" / "comparison_3.json").is_file()
    empty = [inputs[0][:0], *inputs[1:]]
    device.empty_strided = lambda shape, stride, dtype, ordinal: torch.empty(tuple(shape), dtype=dtype)
    nothing = [references[0][:0], references[1][:0]]
    _, verdicts, _ = part.observed(empty, step=4, dump=False, references=nothing)
    assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts


def killed_while_observed() -> None:
    """The executor dies in a dumped call: its inputs are on disk, and the next call works."""
    _, _, part, inputs, references = observed_setup(500)
    client().open_dump(folder=str(FOLDER.parent / "dumps"), run="killed", clean=True)
    hold = Path(os.environ["RUST_ORT_TEST_HOLD"])
    hold.touch()
    killed = executor_pid()

    def kill() -> None:
        held = Path(f"{hold}.held")
        while not (held.exists() and held.stat().st_size > 0):
            time.sleep(0.01)
        os.kill(killed, signal.SIGABRT)  # a crash: of a kill nothing is kept
        hold.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        part.observed(inputs, step=0, dump=True, references=references)
    except ExecutorLost as error:
        assert "3 lie on a device; those of a call that is dumped are in the dump" in str(error), error
    else:
        raise AssertionError("it ran")
    thread.join()
    (written,) = (FOLDER.parent / "dumps/killed").glob("*/part_0/test_data_set_0/input_0.pb")
    read = onnx.numpy_helper.to_array(onnx.load_tensor(written))
    assert torch.equal(torch.from_numpy(read.copy()), inputs[0])
    _, verdicts, _ = part.observed(inputs, step=1, dump=True, references=references)
    assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts


def each_failure_while_observed() -> None:
    """FAKE_CUDA_FAIL: an error of this call that names the function, or the same verdict by another way. What is queued
    by then is done before the answer, and where the context lives the next call is served by the same executor."""
    _, _, part, inputs, references = observed_setup(500)
    before = executor_pid()
    function, _, number = sys.argv[2].partition(":")
    failed = False
    try:
        outputs, verdicts, _ = part.observed(inputs, step=0, dump=False, references=references)
    except DaemonFault as error:
        assert "executor" in str(error), error
    else:
        failed = all(verdict.kind == "failed" and function in verdict.reason for verdict in verdicts)
        assert failed or [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts
        torch.testing.assert_close(outputs[0], references[0], rtol=1e-5, atol=1e-5)
    if "FAKE_CUDA_CODE" not in os.environ:
        return
    assert executor_pid() == before
    calls = [line.split()[0] for line in (FOLDER / f"journal.{before}").read_text().splitlines()]
    if "cuLaunchKernel" in calls:
        last = len(calls) - 1 - calls[::-1].index("cuLaunchKernel")
        assert "cuStreamSynchronize" in calls[last:], calls[last:]
    if number:
        assert failed, "it came to that call"
        _, verdicts, _ = part.observed(inputs, step=1, dump=False, references=references)
        assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts


def references_that_are_the_outputs() -> None:
    """They are refused: a call is not compared with itself."""
    _, made, part, inputs, references = observed_setup(500)
    outputs = [made.empty(shape, torch.float32) for shape in ((500, 3), (500, 4))]
    taken = list(outputs)
    device.empty = lambda shape, dtype, ordinal: taken.pop(0)
    try:
        part.observed(inputs, step=0, dump=False, references=outputs)
    except ClientError as error:
        assert "overlaps" in str(error), error
    else:
        raise AssertionError("it was judged")
    device.empty = lambda shape, dtype, ordinal: made.empty(shape, dtype)
    _, verdicts, _ = part.observed(inputs, step=1, dump=False, references=references)
    assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts


def closed_with_work_on_its_stream() -> None:
    """FAKE_CUDA_LAZY: the connection is lost while the executor lives and works. It is waited for, not recorded for."""
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    stream = ctypes.c_void_p(new_stream())
    part(inputs)
    _, z = part(inputs)
    assert cuda.cuStreamQuery(stream) == 600, "its copy is still to come"
    rust_ort.shutdown()
    x, w, scale = (tensor.clone() for tensor in inputs)
    checked(cuda.cuStreamSynchronize(stream))
    torch.testing.assert_close(z.clone(), x, rtol=0, atol=0)
    y, _ = part(inputs)
    checked(cuda.cuStreamSynchronize(stream))
    torch.testing.assert_close(y.clone(), x @ w + scale, rtol=1e-5, atol=1e-5)


def dumped_with_all_options() -> None:
    """provenance.json has the options that nobody asked for, as sessions have them."""
    given, _ = setup()
    gc.collect()  # another part of the graph would be dumped in the place of this one
    x, w, scale = map(given.of, values(5))
    part = affine_part(json.dumps({"providers": [["CUDAExecutionProvider", {"device_id": "0"}]], "role": "kept"}))
    path = Path(client().open_dump(folder=str(FOLDER.parent / "dumps"), run="options", clean=True))
    references = [given.of(x.clone() @ w.clone() + scale.clone()), given.of(x.clone())]
    part.observed([x, w, scale], step=0, dump=True, references=references)
    client().flush_dump()
    provenance = json.loads((path / "0_0-inference" / "part_0" / "provenance.json").read_text())
    assert provenance["providers"] == [["CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"}]]
    assert provenance["role"] == "kept"
    client().close_dump()


def calls_become_cuda_graphs() -> None:
    """A call whose tensors lie where they did is captured at its third run; each one sees what its inputs hold."""
    given, made = setup()
    x, w, scale = map(given.of, values(5))
    same_outputs(made)
    part = affine_part(options=GRAPHS)
    for step in range(10):
        x.copy_(values(5, step)[0])
        check(part, [x, w, scale])
        assert logged("a call is a CUDA graph from now on") == (step > 1), step
    on_host, with_scalar = torch.tensor(0.25), affine_part(options=GRAPHS)
    for step in range(10):
        on_host.fill_(step)
        check(with_scalar, [x, w, on_host])
    assert logged("a call is a CUDA graph from now on") == 1, "a value of the host is none that a replay sees"
    others = [given.of(tensor) for tensor in values(7, 1)]
    for _ in range(5):
        check(part, others)
    assert logged("a call is a CUDA graph from now on") == 2, "other addresses are another graph"
    assert logged("cannot be captured") == 0
    for step in range(3):
        x.copy_(values(5, 100 + step)[0])
        references = [given.of(x.clone() @ w.clone() + scale.clone()), given.of(x.clone())]
        _, verdicts, _ = part.observed([x, w, scale], step=step, dump=False, references=references)
        assert [verdict.kind for verdict in verdicts] == ["match", "match"], verdicts
        check(part, [x, w, scale])


def row_part(options: Options = GRAPHS) -> Part:
    """A row of a table, by an index that may be none."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["row"])],
        "row",
        [value("table", TensorProto.FLOAT, [4, 3]), value("index", TensorProto.INT64, [1])],
        [value("row", TensorProto.FLOAT, [1, 3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString()
    spec = GraphSpec(graph_id=GRAPH, name="0_0-inference", direction="inference")
    client().register(spec)
    outputs = [OutputSpec(dtype=torch.float32, shape=(1, 3), device=0)]
    made = PartSpec(
        graph=spec, part=0, model=model, input_names=["table", "index"], output_names=["row"], outputs=outputs, device=0
    )
    return client().part(made, options)


def a_call_that_cannot_be_captured() -> None:
    """The run that captures fails: what it left on the stream is ended, and the call runs as any other."""
    n_ended = int(sys.argv[2])
    given, made = setup()
    table, index = given.of(torch.randn(4, 3)), given.of(torch.tensor([1]))
    same_outputs(made)
    part = row_part()
    for step in range(8):
        index.fill_(7 if step == 2 else step % 4)
        try:
            (row,) = part([table, index])
            synchronize()
        except ClientError as error:
            assert step == 3 and "out of data bounds" in str(error), error
            continue
        if step == 2:
            assert row.isnan().all()  # the next call says of what
            continue
        torch.testing.assert_close(row, table[step % 4 : step % 4 + 1], rtol=0, atol=0)
    assert logged("a call cannot be captured; it runs without a graph") == 1
    assert logged("a call is a CUDA graph from now on") == 0
    calls = journal(executor_pid())
    assert (calls["cuStreamIsCapturing"], calls["cuStreamEndCapture"]) == (2, n_ended), calls
    assert calls["cuGraphDestroy"] == n_ended, calls


def options_of_the_device() -> None:
    """What the tensors' device decides is refused with what to do."""
    setup()
    options = Options.parse({"providers": [("CUDAExecutionProvider", {"user_compute_stream": "7"})]})
    try:
        affine_part(options=options)
    except ClientError as error:
        assert error.code == "BAD_OPTION" and "leave user_compute_stream out" in str(error), error
    else:
        raise AssertionError("the option was accepted")


def normed(half: bool) -> bytes:
    """y = x / rms(x) · w in float32, and sigmoid(y) · x; of half precision where asked: x, y rounded to it, the product
    of what was rounded."""
    value = helper.make_tensor_value_info
    wide, narrow = TensorProto.FLOAT, TensorProto.BFLOAT16 if half else TensorProto.FLOAT
    make = helper.make_node
    nodes = [
        make("Cast", ["x"], ["a"], to=wide),
        make("Mul", ["a", "a"], ["squares"]),
        make("ReduceMean", ["squares"], ["mean"], axes=[-1]),
        make("Add", ["mean", "epsilon"], ["shifted"]),
        make("Sqrt", ["shifted"], ["root"]),
        make("Div", ["a", "root"], ["n"]),
        make("Mul", ["n", "w"], ["y"]),
        make("Sigmoid", ["y"], ["gate"]),
        make("Cast", ["gate"], ["g"], to=narrow),
        make("Mul", ["g", "x"], ["z"]),
    ]
    sizes = ["n", 3, 40]
    inputs = [value("x", narrow, sizes), value("w", wide, [40])]
    outputs = [value("y", wide, sizes), value("g", narrow, sizes), value("z", narrow, sizes)]
    between = [value(name, wide, sizes) for name in ("a", "squares", "n", "gate")]
    between += [value(name, wide, ["n", 3, 1]) for name in ("mean", "shifted", "root")]
    epsilon = helper.make_tensor("epsilon", wide, [], [1e-6])
    graph = helper.make_graph(nodes, "normed", inputs, outputs, [epsilon], value_info=between)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()


def normed_part(half: bool, **options: Any) -> Part:
    def outputs(inputs: Any) -> list[OutputSpec]:
        narrow = torch.bfloat16 if half else torch.float32
        shape = tuple(inputs[0].shape)
        return [OutputSpec(dtype=dtype, shape=shape, device=0) for dtype in (torch.float32, narrow, narrow)]

    graph = GraphSpec(graph_id=GRAPH, name="0_0-inference", direction="inference")
    spec = PartSpec(
        graph=graph, part=0, model=normed(half), input_names=["x", "w"], output_names=["y", "g", "z"],
        outputs=outputs, device=0, provenance_json="{}",
    )  # fmt: skip
    client().register(graph)
    return client().part(spec, Options.parse(options))


def check_normed(part: Part, given: Allocation, half: bool) -> None:
    made = torch.Generator().manual_seed(0)
    for n in (5, 1, 7):
        x, w = torch.randn(n, 3, 40, generator=made), torch.randn(40, generator=made)
        x = x.bfloat16() if half else x
        y, g, z = part([given.of(x), given.of(w)])
        wide = x.float()
        expected = wide / (wide * wide).mean(-1, keepdim=True).add(1e-6).sqrt() * w
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(g, y.sigmoid().to(x.dtype), rtol=8e-3 if half else 1e-5, atol=0)
        torch.testing.assert_close(z, (g.float() * wide).to(x.dtype), rtol=0, atol=0)


def compilations() -> int:
    """How often NVRTC's stand-in compiled something."""
    told = FOLDER / "compiled"
    return len(told.read_text().splitlines()) if told.exists() else 0


def regions_on_the_device() -> None:
    """Nodes are one kernel of ours, which reads and writes half precision as it is; its code is kept for the next
    executor, and is compiled again where it is damaged."""
    given, _ = setup()
    code = Path(os.environ["RUST_ORT_STATE_DIR"]) / "code"
    check_normed(normed_part(half=True), given, half=True)  # the CPU provider has no Mul of bfloat16
    (kept,) = code.glob("*.cubin")
    assert (compilations(), logged("kernels of regions are there")) == (1, 1)
    assert journal(executor_pid())["cuLaunchKernel"] == 3
    assert code.stat().st_mode & 0o777 == 0o700

    def another_executor() -> None:
        before = executor_pid()
        os.kill(before, signal.SIGKILL)
        for _ in range(100):
            try:
                check_normed(normed_part(half=True), given, half=True)
            except (ExecutorLost, ClientError, DaemonFault):
                time.sleep(0.05)
                continue
            break
        assert executor_pid() != before

    another_executor()
    assert compilations() == 1
    damaged = bytearray(kept.read_bytes())
    damaged[-1] ^= 1
    kept.write_bytes(damaged)
    another_executor()
    assert (compilations(), logged("compiled code is unusable")) == (2, 1)
    assert [*code.glob("*.cubin")] == [kept]
    assert kept.read_bytes() != damaged
    check_normed(normed_part(half=False), given, half=False)
    assert compilations() == 3
    for options in ({"disable_passes": ("regions",)}, {"ort_optimization": "disable"}, {"ort_optimization": "basic"}):
        check_normed(normed_part(half=False, **options), given, half=False)
    assert compilations() == 3


def gated_block(x: Any, scale: Any, gate: Any, up: Any, down: Any) -> Any:
    """A norm, a gated layer beside it, two ways out."""
    n = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
    y = x + (torch.nn.functional.silu(n @ gate) * (n @ up)) @ down
    return torch.log_softmax(y, -1), torch.nn.functional.gelu(y).softmax(-1)


def regions_of_a_training_step() -> None:
    """Forward and backward of a compiled function, whose regions are kernels of ours, give eager's numbers."""
    machine = Machine()
    draw = torch.Generator().manual_seed(0)
    sizes = ((2, 5, 24), (24,), (24, 40), (24, 40), (40, 24))
    plain = [torch.randn(size, generator=draw) / size[-1] ** 0.5 for size in sizes]
    given = [machine.memory[0].of(values) for values in plain]
    for tensor in (*plain, *given):
        tensor.requires_grad_()
    backend = rust_ort.backend(providers=["CUDAExecutionProvider"])
    traced = trace(gated_block, given, backend, on=lambda tensor: "cuda:0")
    expected = gated_block(*plain)
    grads = [torch.randn(one.shape, generator=draw) for one in expected]
    for _ in range(2):
        with machine:
            outputs = traced.run()
            made = torch.autograd.grad(outputs, given, [machine.memory[0].of(one) for one in grads])
            machine.synchronize()
        torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(made, torch.autograd.grad(expected, plain, grads))
    assert [node.reason for graph in backend.graphs for node in graph.eager] == []
    assert logged("kernels of regions are there") == 2
    assert compilations() >= 4


def regions_without_a_compiler() -> None:
    """The session is made without them, and the executor's log says why."""
    given, _ = setup()
    check_normed(normed_part(half=False), given, half=False)
    log = Path(client().leased().executor_log).read_text()
    assert log.count("the session is made without regions") == 1, log
    assert "cuLaunchKernel" not in journal(executor_pid())


def killed_executor() -> None:
    """The executor dies: an error, then another one opens all that is needed anew."""
    given, _ = setup()
    x, w, scale = map(given.of, values(5))
    part = affine_part()
    check(part, [x, w, scale])
    killed = executor_pid()
    os.kill(killed, 9)
    for _ in range(100):
        try:
            part([x, w, scale])  # is handed over, and gives nothing
        except ExecutorLost as error:
            assert "the executor died" in str(error), error
            break
    assert executor_pid() != killed
    check(part, [x, w, scale])
    assert journal(executor_pid())["cuIpcOpenMemHandle"] == len(process.device_memory().segments)


def killed_with_work_on_its_stream() -> None:
    """FAKE_CUDA_LAZY: the executor dies with calls on its stream, and with one that it has not read. This process's
    stream, which waits for all of them, comes to rest, and the next call says that what was given may be wrong."""
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    stream = ctypes.c_void_p(new_stream())
    part(inputs)  # is waited for: were its outputs written?
    late = [part(inputs)]
    killed = executor_pid()
    if not BY_EVENTS:
        answered()
        stop(killed)
        late.append(part(inputs))
    assert cuda.cuStreamQuery(stream) == 600, "its copy is still to come"
    os.kill(killed, 9)
    start = time.monotonic()
    checked(cuda.cuStreamSynchronize(stream))  # as torch.cuda.synchronize(): nobody calls meanwhile
    assert time.monotonic() - start < (15 if BY_EVENTS else 3), "it gave up by itself"
    try:
        part(inputs)
    except ExecutorLost as error:
        assert "what they gave may be wrong; do that step again" in str(error), error
    else:
        raise AssertionError("nothing was said")
    del late
    check(part, inputs)
    assert executor_pid() != killed


def handed_over_before_it_is_read() -> None:
    """A call is a part of the stream before the executor has seen it: Python goes on, and so does what comes behind."""
    given, made = setup()
    x, w, scale = map(given.of, values(5))
    part = affine_part()
    stream = ctypes.c_void_p(new_stream())
    check(part, [x, w, scale])  # is waited for
    pid = executor_pid()
    stop(pid)
    start = time.monotonic()
    y, z = part([x, w, scale])
    assert time.monotonic() - start < 1 and cuda.cuStreamQuery(stream) == 600
    # A copy of what it gives, queued behind it.
    copy = made.empty(y.shape, y.dtype).zero_()
    size = ctypes.c_size_t(y.nbytes)
    to, source = ctypes.c_uint64(copy.data_ptr()), ctypes.c_uint64(y.data_ptr())
    checked(cuda.cuMemcpyDtoDAsync_v2(to, source, size, stream))
    held = [weakref.ref(y), weakref.ref(z)]
    del y, z
    assert [one() for one in held] == [None, None], "the stream keeps the order of who gets their memory next"
    second: list[Any] = []
    caller = threading.Thread(target=lambda: second.append(part([x, w, scale])))
    caller.start()
    time.sleep(0.3)
    assert not second, "the next call waits for the answer"
    os.kill(pid, signal.SIGCONT)
    caller.join(30)
    synchronize()
    for given_back in (copy, second[0][0]):
        torch.testing.assert_close(given_back, x @ w + scale, rtol=1e-5, atol=1e-5)


def late_errors() -> None:
    """What a call failed of that was handed over is raised by the next use; what it gave is NaN until then."""
    given, _ = setup()
    table, index = given.of(torch.randn(4, 3)), given.of(torch.tensor([1]))
    part, other = row_part(Options()), affine_part()
    new_stream()
    blocking = "CUDA_LAUNCH_BLOCKING" in os.environ
    inputs = list(map(given.of, values(5)))
    check(other, inputs)

    def right() -> None:
        index.fill_(2)
        (row,) = part([table, index])
        synchronize()
        torch.testing.assert_close(row, table[2:3], rtol=0, atol=0)

    def wrong() -> None:
        index.fill_(7)
        try:
            (row,) = part([table, index])
        except ClientError as error:
            assert blocking and "earlier" not in str(error) and "out of data bounds" in str(error), error
            return
        assert not blocking
        synchronize()
        assert row.isnan().all(), row

    right()
    observed = functools.partial(other.observed, inputs, step=0, dump=False, references=None)
    uses = (right, lambda: other(inputs), observed, client().status)
    for use in uses:
        wrong()
        answered()
        try:
            use()
        except ClientError as error:
            assert not blocking and use is not client().status
            told = str(error)
            assert error.graph == "0_0-inference" and "out of data bounds" in told and "holds NaN" in told, told
            assert "CUDA_LAUNCH_BLOCKING=1" in told, told
        else:
            assert blocking or use == client().status
        if use != client().status:
            right()
            check(other, inputs)
    said: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rust_ort").addHandler(handler)
    if not blocking:
        try:
            right()
        except ClientError:
            right()
    wrong()
    rust_ort.shutdown()
    assert len(said) == (not blocking) and all("out of data bounds" in line for line in said), said
    right()


def two_threads_two_streams() -> None:
    """FAKE_CUDA_LAZY: calls of two threads on streams of their own, of one on another's in turn, stay in each stream's
    order; the executor has them in the order in which they were handed over."""
    given, _ = setup(32 << 20)
    part = affine_part()
    streams = []
    for _ in range(2):
        streams.append(new_stream())
    own = threading.local()
    device.stream = lambda ordinal: own.stream
    failures: list[BaseException] = []

    def work(number: int) -> None:
        enter()
        try:
            x, w, scale = map(given.of, values(5, number))
            for step in range(60):
                own.stream = streams[(number + (step // 20)) % 2 if number < 2 else step % 2]
                fresh = torch.full((5, 4), float(100 * number + step))
                size = ctypes.c_size_t(fresh.nbytes)
                to, source = ctypes.c_uint64(x.data_ptr()), ctypes.c_void_p(fresh.data_ptr())
                checked(cuda.cuMemcpyHtoDAsync_v2(to, source, size, ctypes.c_void_p(own.stream)))
                y, z = part([x, w, scale])
                synchronize()
                torch.testing.assert_close(z.clone(), fresh, rtol=0, atol=0)
                torch.testing.assert_close(y.clone(), fresh @ w + scale, rtol=1e-5, atol=1e-5)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures, failures[0]
    if not BY_EVENTS:
        assert len(client().leased().order.queues[0]._slots) == 2, "a pair of numbers a stream"


def forked_with_a_call_handed_over() -> None:
    """The child has nothing of it and asks the driver nothing; the parent goes on."""
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    new_stream()
    check(part, inputs)
    pid = executor_pid()
    stop(pid)
    y, _ = part(inputs)
    child = os.fork()
    if not child:
        ok = client()._connection is None and part._connection is None
        os._exit(0 if ok and not (FOLDER / f"journal.{os.getpid()}").exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    os.kill(pid, signal.SIGCONT)
    synchronize()
    x, w, scale = inputs
    torch.testing.assert_close(y.clone(), x @ w + scale, rtol=1e-5, atol=1e-5)
    check(part, inputs)


def dies_before_its_stream_comes_to_it() -> None:
    """A client that ends with a call in the executor's hands that its own stream never reached."""
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    stream = ctypes.c_void_p(new_stream())
    check(part, inputs)
    sleep = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(60))
    checked(cuda.cuLaunchHostFunc(stream, sleep, None))
    part(inputs)
    print(executor_pid(), flush=True)
    os.kill(os.getpid(), 9)


def executor_of_a_dead_client_goes_on() -> None:
    """It waits for nobody who is gone: the next client has it, soon."""
    own = [sys.executable, __file__, "dies_before_its_stream_comes_to_it"]
    died = subprocess.run(own, stdout=subprocess.PIPE, text=True, check=False)
    start = time.monotonic()
    assert died.returncode == -9, died
    # One that waits yet is no executor for the next client.
    while not any(executor["leased_to"] is None for executor in client().status()["executors"]):
        assert time.monotonic() - start < 3, client().status()["executors"]
        time.sleep(0.01)
    given, _ = setup()
    check(affine_part(), list(map(given.of, values(5))))
    assert executor_pid() == int(died.stdout)


def ordered_by_events() -> None:
    """Where the driver or a device has no such numbers: calls wait for their answers, and the log says why. arguments:
    what it says."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("rust_ort").addHandler(handler)
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    for _ in range(3):
        check(part, inputs)
    counts = journal(os.getpid())
    assert counts["cuEventRecord"] == counts["cuStreamWaitEvent"] == 3, counts
    assert len(said) == 1 and said[0].startswith("cuda:0: events order calls") and sys.argv[2] in said[0], said


def each_failure_of_the_order() -> None:
    """FAKE_CUDA_FAIL, once: an error that names the function, or events; nothing waits for ever, and later calls are
    right. arguments: the process where it fails, the function."""
    side, function = sys.argv[2:4]
    if side == "client":
        del os.environ["FAKE_CUDA_FAIL"]
    executor_pid()  # has its environment
    os.environ.pop("FAKE_CUDA_FAIL", None)
    if side == "client":
        os.environ["FAKE_CUDA_FAIL"] = function
    given, _ = setup()
    inputs = list(map(given.of, values(5)))
    part = affine_part()
    new_stream()
    told: list[str] = []
    wrong = 0
    for _ in range(12):
        try:
            check(part, inputs)
        except (ClientError, DaemonFault, ExecutorLost) as error:
            told.append(str(error))
            synchronize()
        except AssertionError:
            wrong += 1  # the next call says so
            assert not told
    check(part, inputs)
    assert Path(os.environ["FAKE_CUDA_ONCE"]).exists(), "it failed"
    assert wrong <= 1 and wrong <= len(told) <= 1, (wrong, told)
    name = function.partition(":")[0]
    by_events = None in client().leased().order.queues.values()
    assert by_events or logged(name) or any(name in text for text in told), told


def two_devices_in_one_call() -> None:
    given, _ = setup()
    x, w, scale = map(given.of, values(5))
    part = affine_part()
    ordinal = device.ordinal
    device.ordinal = lambda tensor: 1 if tensor is w else ordinal(tensor)
    try:
        part([x, w, scale])
    except ClientError as error:
        assert "one call runs on one device" in str(error), error
    else:
        raise AssertionError("it ran")
    device.ordinal = ordinal
    check(part, [x, w, scale])


# --- nodes of parts on a device --------------------------------------------------------------------------------------


def block(x: Any, w: Any, bias: Any, number: Any) -> Any:
    """Of everything that a comparison of nodes treats apart: products, sums, several results of one operator, indices,
    numbers of the host, and an infinity that is born."""
    hidden = torch.nn.functional.silu(x @ w + bias) * number
    chance = hidden.softmax(-1)
    most, places = chance.topk(2)
    poles = 1 / (hidden - hidden)
    return chance.to(torch.float16), most, places, poles, hidden.sum(0), hidden.t().reshape(-1)


def block_inputs() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    shapes = ((16, 8), (8, 12), (12,))
    return [*(torch.randn(shape, generator=draw) for shape in shapes), torch.tensor(0.75)]


def compared_block(machine: Machine | None, n_steps: int = 1, **options: Any) -> list[Any]:
    """What is known of each node of `block` in the last step: on the machine's first device, or on the CPU."""
    plain, given, on = block_inputs(), [], {}
    for values in plain:
        moved = machine is not None and values.dim() > 0
        given.append(machine.memory[0].of(values) if machine is not None and moved else values.clone())
        on[id(given[-1])] = "cuda:0" if moved else "cpu"
    providers = {} if machine is None else {"providers": ["CUDAExecutionProvider"]}
    backend = rust_ort.backend(compare="nodes", compare_float64="all", **providers, **options)
    traced = trace(block, given, backend, on=lambda tensor: on[id(tensor)])
    with machine or contextlib.nullcontext():
        for _ in range(n_steps):
            traced.run()
    (graph,) = backend.graphs
    last = max(step for step, _ in graph.nodes)
    return [node for step, node in graph.nodes if step == last]


def told_of(node: Any) -> dict[str, Any]:
    """All that is known of a node, but for sums, which the device adds up in another order, and times."""
    told: dict[str, Any] = {"name": node.name, "op": node.op, "births": node.births, "no_float64": node.no_float64}
    for what, verdict in (("local", node.local), ("cumulative", node.cumulative)):
        metrics = json.loads(json.dumps(verdict.metrics or {}))
        for key in ("mean_abs", "rmse", "cosine"):
            metrics.pop(key, None)
        metrics.get("max_diff", {}).pop("sum", None)
        noise = json.loads(json.dumps(verdict.noise or {}))
        for key in ("rounding", "reference_rms", "candidate_rms"):  # the host alone finds the last two
            noise.pop(key, None)
        told[what] = (verdict.kind, verdict.reason, metrics, noise)
    return told


def machine_of_nodes() -> Machine:
    machine = Machine(16 << 20)
    device.synchronize = lambda ordinal: machine.synchronize()
    device.free_bytes = lambda ordinal: 1 << 30
    return machine


def nodes_on_the_device() -> None:
    """Verdicts, metrics, float64 opinions, births and signatures are those of the host. But for scalars of the host
    nothing goes through it, and pieces are few: their sessions are kept."""
    expected = [told_of(node) for node in compared_block(None)]
    machine = machine_of_nodes()
    found = [told_of(node) for node in compared_block(machine)]
    assert len(found) > 10 and found == expected, [
        (one, other) for one, other in zip(found, expected, strict=True) if one != other
    ]
    kinds = Counter(node["local"][0] for node in found)
    assert kinds["match"] == len(found), kinds
    assert any(node["births"] for node in found)
    assert any(node["local"][3] for node in found) and any(node["cumulative"][3] for node in found)


def nodes_stay_on_the_device() -> None:
    machine = machine_of_nodes()
    compared_block(machine)
    pid = executor_pid()
    before, copied = client().status()["counters"], copied_bytes(pid)
    compared_block(machine, 2)
    after, now = client().status()["counters"], copied_bytes(pid) - copied
    n_bytes = after["host_bytes"] - before["host_bytes"]
    assert 0 < n_bytes <= 4 * 2 * 4, n_bytes  # a number: in the part, in pieces on eager's values and on drifted ones
    # What is asked, and what comes of it; the values themselves are float32 of 192 elements and more.
    assert now["cuMemcpyDtoHAsync"] > 0, now


def a_wrong_kernel_on_the_device_is_named() -> None:
    """A fault that is planted is found at its node, settled by float64 that was computed on the device; a dump has the
    node's reproduction and eager's values."""

    def wrong(model: onnx.ModelProto) -> onnx.ModelProto:
        for node in model.graph.node:
            if node.op_type == "Softmax":
                node.op_type = "LogSoftmax"
        return model

    machine = machine_of_nodes()
    folder = FOLDER.parent / "dumps"
    before = client().status()["counters"]["host_bytes"]
    with rust_ort.dump("nodes", folder=folder, calls="all"):
        found = compared_block(machine, transforms=[wrong], dump_values=True)
    mismatches = [node.name for node in found if node.local.kind == "mismatch"]
    assert mismatches == [node.name for node in found if "softmax" in node.op], [str(node) for node in found]
    assert len(mismatches) == 1
    assert client().status()["counters"]["host_bytes"] > before, "copies for the dump are counted"
    (part,) = (folder / "nodes").glob("*/part_0")
    rows = {row["name"]: row for row in json.loads((part / "nodes_0.json").read_text())["nodes"]}
    assert rows[mismatches[0]]["local"]["verdict"]["kind"] == "mismatch", rows[mismatches[0]]
    values = json.loads((part / "values_0" / "manifest.json").read_text())
    assert {node.name for node in found} == {one["name"] for one in values["nodes"]}, values
    of_node = next(iter(part.glob(f"**/*{mismatches[0]}*/model.onnx")), None)
    assert of_node is not None, sorted(str(path.relative_to(part)) for path in part.rglob("*"))
    # The dump is of the host: what runs it again copies, and says so.
    for command, code in (("replay", 1), ("blame", 1), ("sbs", 1)):
        free = [] if command == "sbs" else ["--no-confine"]  # a device cannot be confined, and the dump names it
        run = [os.environ["RUST_ORT_BINARY"], command, *free, str(part)]
        said = subprocess.run(run, capture_output=True, text=True, timeout=100, check=False)
        assert said.returncode == code, (command, said.returncode, said.stdout, said.stderr)
        if command != "sbs":
            assert "CUDAExecutionProvider copies what each run reads and gives" in said.stderr, (command, said.stderr)
        if command != "replay":
            assert mismatches[0] in said.stdout, (command, said.stdout)


def greedy_part() -> Part:
    """The sum of so many copies of its input that no allocator has room for them."""
    value = helper.make_tensor_value_info
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [1 << 44])
    nodes = [helper.make_node("Expand", ["x", "shape"], ["copies"]), helper.make_node("ReduceSum", ["copies"], ["y"])]
    nodes[1].attribute.append(helper.make_attribute("keepdims", 0))
    graph = helper.make_graph(
        nodes, "greedy", [value("x", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, [])], [shape]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    told = GraphSpec(graph_id="1" * 64, name="1_0-inference", direction="inference")
    spec = PartSpec(
        graph=told, part=0, model=model.SerializeToString(), input_names=["x"], output_names=["y"],
        outputs=[OutputSpec(dtype=torch.float32, shape=(), device=0)], device=0,
    )  # fmt: skip
    client().register(told)
    return client().part(spec, Options())


def who_holds_memory() -> None:
    """A run that no memory is left for tells who has it: the executor, this process, others. arguments: what is said
    of the executor's amount, of this process's, and of others."""
    given, _ = setup()
    part, x = greedy_part(), given.of(torch.ones(1))
    own, client_bytes, others = sys.argv[2:5]
    name = Path("/proc/self/comm").read_text().strip()
    for _ in range(2):
        try:
            part([x])
        except DaemonFault as fault:
            told = str(fault)
        else:
            raise AssertionError("it ran")
        held = f"held: this executor (pid {executor_pid()}) {own}, the client {name} (pid {os.getpid()}) {client_bytes}"
        assert "Failed to allocate memory" in told and " of Stand-in GPU 0 are free" in told, told
        assert f"{held}{others};" in told, (held, told)


def nobody_tells_who_holds_memory() -> None:
    """arguments: why. It is said, and status has no number in its place."""
    given, _ = setup()
    part, x = greedy_part(), given.of(torch.ones(1))
    try:
        part([x])
    except DaemonFault as fault:
        assert f"who holds the rest is not known ({sys.argv[2]}" in str(fault), fault
    else:
        raise AssertionError("it ran")
    now = client().status()
    assert [executor["device_bytes"] for executor in now["executors"]] == [None]
    assert now["memory"]["device_bytes"] is None


def device_memory_in_status() -> None:
    """Of an executor that computes on the CPU 0; of one with a context what NVIDIA's library tells, and as long as it
    has one. Without a client it ends sooner than the other (RUST_ORT_IDLE_DEVICE_TIMEOUT_S)."""
    given, _ = setup()
    on_cpu = Client.get(Options(threads=7))
    on_cpu.leased()
    cpu_pid = on_cpu.leased().executor_pid

    def held() -> dict[int, int | None]:
        now = client().status()
        found = {executor["pid"]: executor["device_bytes"] for executor in now["executors"]}
        assert now["memory"]["device_bytes"] == sum(found.values())
        return found

    pid = executor_pid()
    assert held() == {cpu_pid: 0, pid: 0}
    part = affine_part()
    part.prepare()
    assert held() == {cpu_pid: 0, pid: 1 << 20}
    check(part, [*map(given.of, values(5))])
    assert held() == {cpu_pid: 0, pid: 1 << 20}, "what a client allocated is the client's"
    # Since then it took more: whoever asks has it look.
    (FOLDER / f"used.{pid}.0").write_text(f"{5 << 20}\n")
    assert held() == {cpu_pid: 0, pid: 6 << 20}
    text = subprocess.run([os.environ["RUST_ORT_BINARY"], "status"], capture_output=True, text=True, check=True).stdout
    assert "executors; 6.0 MiB of devices" in text, text
    # One that does not answer is shown as it said last.
    stop(pid)
    (FOLDER / f"used.{pid}.0").write_text(f"{7 << 20}\n")
    assert held() == {cpu_pid: 0, pid: 6 << 20}
    os.kill(pid, signal.SIGCONT)
    assert held() == {cpu_pid: 0, pid: 8 << 20}
    # Once it is given back, the next client finds it warm.
    client().leased().close()
    while any(one["pid"] == pid and one["leased_to"] is not None for one in client().status()["executors"]):
        time.sleep(0.01)
    assert executor_pid() == pid
    for one in (client(), on_cpu):
        one.leased().close()
    deadline = time.monotonic() + 60
    while pid in (left := held()):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert left == {cpu_pid: 0}


if __name__ == "__main__":
    for name in sys.argv[1].split(","):
        globals()[name]()
        print(f"{name}: done", flush=True)
