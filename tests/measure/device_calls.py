"""What a call on a device costs client and executor, over the stand-in for CUDA's driver: no GPU, no kernels.

    PYTHONPATH=tests python -m measure.device_calls [--calls 2000] [--tensors 1,32] [--addresses 1,8]

For graphs of so many inputs and outputs, whose outputs go round among so many addresses:

- alone: µs of the client for a call, a millisecond after the one before: what the program waits for
- best: the same, one after the other, of the best 20: what client and executor take where nobody disturbs them
- call, run: the median of all, and what of it is inside ONNX Runtime
- bound: of 100 calls those whose tensors lay where none of the last 16 calls' did, so that the session was bound anew
- CPU: µs of processor that client and executor take for a call, polling included

Three ways: handed over; waited for (CUDA_LAUNCH_BLOCKING=1); ordered by events, which waits, too. The stand-in's
streams are threads that poll: with few cores it is they who are measured where calls come one after the other.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parents[2]
IN_BLOCK = 20
ALONE = 200
WARM = 200


def model(n: int) -> bytes:
    """y_i = x_i + x_i, n times."""
    value = helper.make_tensor_value_info
    names = [str(i) for i in range(n)]
    graph = helper.make_graph(
        [helper.make_node("Add", [f"x{i}", f"x{i}"], [f"y{i}"]) for i in names], "adds",
        [value(f"x{i}", TensorProto.FLOAT, [10]) for i in names],
        [value(f"y{i}", TensorProto.FLOAT, [10]) for i in names],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(made.SerializeToString())


def checked(code: int) -> None:
    assert code == 0, code


def measured(n_tensors: int, n_addresses: int, n_calls: int) -> dict[str, float]:
    """In a process of its own."""
    from rust_ort.call.client import Client
    from rust_ort.link.specs import GraphSpec, OutputSpec, PartSpec
    from rust_ort.memory import device
    from rust_ort.options import Options

    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    checked(cuda.cuInit(0))
    checked(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    checked(cuda.cuCtxSetCurrent(context))
    checked(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(64 << 20)))
    stream = ctypes.c_void_p()
    checked(cuda.cuStreamCreate(ctypes.byref(stream), 1))

    def cut(at: int) -> torch.Tensor:
        memory = (ctypes.c_char * 40).from_address(address.value + 512 * at)
        return torch.frombuffer(memory, dtype=torch.float32)

    inputs = [cut(i).fill_(i) for i in range(n_tensors)]
    outputs = [cut(n_tensors + i) for i in range(n_tensors * n_addresses)]
    turn = itertools.cycle(outputs)
    device.ordinal = lambda tensor: 0
    device.stream = lambda ordinal: stream.value or 0
    device.synchronize = lambda ordinal: checked(cuda.cuStreamSynchronize(stream))
    device.empty = lambda shape, dtype, ordinal: next(turn)
    names = [f"x{i}" for i in range(n_tensors)], [f"y{i}" for i in range(n_tensors)]
    spec = PartSpec(
        graph=GraphSpec(graph_id="0" * 64, name="0_0-inference", direction="inference"), part=0,
        model=model(n_tensors), input_names=names[0], output_names=names[1], device=0,
        outputs=[OutputSpec(dtype=torch.float32, shape=(10,), device=0)] * n_tensors,
    )  # fmt: skip
    client = Client.get(Options(threads=1))
    client.register(spec.graph)
    part = client.part(spec, Options(threads=1))
    leased = client.leased()
    executor, log = Path(f"/proc/{leased.executor_pid}/stat"), Path(leased.executor_log)

    def cpu() -> tuple[float, float]:
        spent = sum(map(int, executor.read_text().rsplit(")", 1)[1].split()[11:13]))
        return time.process_time(), spent / os.sysconf("SC_CLK_TCK")

    for _ in range(WARM):
        part(inputs)
    device.synchronize(0)
    before, counters, bound = cpu(), client.status()["counters"], log.read_text().count(" bound handle=")
    blocks = []
    for _ in range(n_calls // IN_BLOCK):
        start = time.perf_counter()
        for _ in range(IN_BLOCK):
            part(inputs)
        blocks.append((time.perf_counter() - start) / IN_BLOCK)
        device.synchronize(0)
    after, now = cpu(), client.status()["counters"]
    assert torch.equal(outputs[0], 2 * inputs[0])
    runs, bound = now["runs"] - counters["runs"], log.read_text().count(" bound handle=") - bound
    alone = []
    for _ in range(ALONE):
        time.sleep(1e-3)
        start = time.perf_counter()
        part(inputs)
        alone.append(time.perf_counter() - start)
    return {
        "alone": 1e6 * statistics.median(alone),
        "best": 1e6 * min(blocks),
        "call": 1e6 * statistics.median(blocks),
        "bound": 100 * bound / runs,
        "run": (now["run_ns"] - counters["run_ns"]) / runs / 1e3,
        "client_cpu": 1e6 * (after[0] - before[0]) / n_calls,
        "executor_cpu": 1e6 * (after[1] - before[1]) / n_calls,
    }


def in_process(arguments: list[int], **environment: str) -> dict[str, float]:
    """What `measured` gives in a process with the stand-in and a daemon of its own."""
    with tempfile.TemporaryDirectory(prefix="rust-ort-measure-") as folder:
        home = Path(folder)
        (home / "cuda").mkdir()
        library = home / "libcuda.so.1"
        source = ROOT / "tests/fixtures/fake_libcuda.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-pthread", "-o", str(library), str(source)], check=True)
        own = {
            **os.environ, "LD_LIBRARY_PATH": folder, "FAKE_CUDA_FOLDER": str(home / "cuda"), "FAKE_CUDA_QUIET": "1",
            "RUST_ORT_LOG": "info,rust_ort::executor::lane=debug",
            "RUST_ORT_TEST_CUDA_ON_HOST": "1", "RUST_ORT_SOCKET": str(home / "v1.sock"),
            "RUST_ORT_STATE_DIR": str(home / "state"), **environment,
        }  # fmt: skip
        program = [sys.executable, "-m", "measure.device_calls", "--one", *map(str, arguments)]
        try:
            done = subprocess.run(program, env=own, capture_output=True, text=True, timeout=300, check=False)
        finally:
            binary = own.get("RUST_ORT_BINARY", "rust-ort")
            subprocess.run([binary, "stop", "--force"], env=own, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-4000:]
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--tensors", type=numbers, default=[1, 32])
    parser.add_argument("--addresses", type=numbers, default=[1, 8])
    parser.add_argument("--one", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(*given.one)))
        return
    print("| inputs and outputs | addresses | way | alone | best | call | run | bound | client CPU | executor CPU |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    ways = {
        "handed over": {},
        "waited": {"CUDA_LAUNCH_BLOCKING": "1"},
        "events": {"RUST_ORT_TEST_ORDER_BY_EVENTS": "1"},
    }
    for n_tensors in given.tensors:
        for n_addresses in given.addresses:
            for way, environment in ways.items():
                found = in_process([n_tensors, n_addresses, given.calls], **environment)
                columns = [
                    found[name] for name in ("alone", "best", "call", "run", "bound", "client_cpu", "executor_cpu")
                ]
                print(
                    f"| {n_tensors} | {n_addresses} | {way} | " + " | ".join(f"{c:.1f}" for c in columns) + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
