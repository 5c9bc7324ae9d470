"""custom_op_libraries: operators of a shared library, forward and backward, in dumps and replays, and what goes wrong.

The library is tests/fixtures/custom_ops.rs; RUST_ORT_CUSTOM_OPS names it as built, else cargo builds it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxscript
import pytest
import torch
from conftest import Daemon, wait_until
from onnxscript import opset18
from torch import Tensor

import rust_ort
from rust_ort.errors import ClientError, DaemonFault
from rust_ort.link.connection import Connection

ROOT = Path(__file__).parents[2]
X = torch.arange(12.0).cos().reshape(3, 4)
custom = onnxscript.values.Opset("test.custom", 1)
local = onnxscript.values.Opset("rust_ort_test.library", 1)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@torch.library.custom_op("rust_ort_test::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("rust_ort_test::cube_backward", mutates_args=())
def cube_backward(grad: Tensor, x: Tensor) -> Tensor:
    return 3 * x**2 * grad


@cube_backward.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


cube.register_autograd(
    lambda ctx, grad: cube_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


@onnxscript.script(local, default_opset=opset18)
def onnx_cube(x):  # type: ignore[no-untyped-def]
    return custom.Cube(x)


@onnxscript.script(local, default_opset=opset18)
def onnx_cube_backward(grad, x):  # type: ignore[no-untyped-def]
    return custom.CubeBackward(grad, x)


@onnxscript.script(local, default_opset=opset18)
def onnx_forget(x):  # type: ignore[no-untyped-def]
    return custom.Forget(x)


for function in (onnx_cube, onnx_cube_backward, onnx_forget):
    function.cache_key = "1"  # type: ignore[attr-defined]

TRANSLATIONS = {cube: onnx_cube, cube_backward: onnx_cube_backward}


@pytest.fixture(scope="session")
def library() -> Path:
    if path := os.environ.get("RUST_ORT_CUSTOM_OPS"):
        return Path(path)
    if not shutil.which("cargo"):
        pytest.skip("no cargo and no RUST_ORT_CUSTOM_OPS: nothing to build the library with")
    subprocess.run(["cargo", "build", "--quiet", "--example", "custom_ops"], cwd=ROOT, check=True)
    return ROOT / "target/debug/examples/libcustom_ops.so"


def model(x: Tensor) -> Tensor:
    return cube(torch.sin(x)) * 2


def results(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = X.clone().requires_grad_()
    out = function(x)
    return [out, *torch.autograd.grad((out * X).sum(), [x])]


def compiled(*libraries: Path, **options: Any) -> Callable[[Tensor], Tensor]:
    torch._dynamo.reset()
    given = {"custom_translations": TRANSLATIONS, "custom_op_libraries": libraries, **options}
    return torch.compile(model, backend=rust_ort.backend(**given), fullgraph=True)


def test_operators_of_a_library_run_forward_and_backward(daemon: Daemon, library: Path) -> None:
    known = len(rust_ort.graphs())
    made = results(compiled(library, on_unsupported="error", compare="nodes"))
    torch.testing.assert_close(made, results(model))
    graphs = rust_ort.graphs()[known:]
    assert [graph.direction for graph in graphs] == ["forward", "backward"]
    for graph, name in zip(graphs, ["cube", "cube_backward"], strict=True):
        assert graph.eager == [] and name in graph.parts[0]
        nodes = {node.name: node for _, node in graph.nodes}
        assert name in nodes and not any(node.is_wrong for node in nodes.values())


def test_the_next_client_gets_a_warm_executor_where_it_names_the_library(daemon: Daemon, library: Path) -> None:
    def executors() -> list[int]:
        found = daemon.client().status()["executors"]
        return [executor["pid"] for executor in found if executor["leased_to"] is None]

    def lease(*libraries: Path) -> int:
        connection = Connection(str(daemon.socket))
        connection.lease(daemon.options(custom_op_libraries=[str(library) for library in libraries]))
        connection.close()
        wait_until(lambda: connection.executor_pid in executors(), "the lease's end")
        return connection.executor_pid

    results(compiled(library))
    daemon.client().close()
    wait_until(executors, "the lease's end")
    (used,) = executors()
    assert (lease() == used, lease(library) == used) == (False, True)


def test_without_the_library_its_operators_run_in_eager(daemon: Daemon) -> None:
    known = len(rust_ort.graphs())
    torch.testing.assert_close(results(compiled()), results(model))
    forward, backward = rust_ort.graphs()[known:]
    assert [(node.name, "ONNX Runtime refused cube" in node.reason) for node in forward.eager] == [("cube", True)]
    assert [node.name for node in backward.eager] == ["cube_backward"]


def test_a_dump_names_the_library_and_can_be_replayed(
    daemon: Daemon, library: Path, tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "copied.so"
    shutil.copy(library, copied)
    with rust_ort.dump("run", folder=tmp_path):
        results(compiled(copied, compare="outputs"))
    runtime = os.environ.get("RUST_ORT_TEST_ONNXRUNTIME")
    if runtime:
        monkeypatch.setenv("RUST_ORT_ONNXRUNTIME", runtime)
    forward, backward = sorted((tmp_path / "run").glob("*-*ward"), reverse=True)
    for graph in (forward, backward):
        provenance = json.loads((graph / "part_0/provenance.json").read_text())
        assert provenance["custom_op_libraries"] == [str(copied)]
    run = str(tmp_path / "run")
    replayed = run_cli("replay", run, "--all")
    outputs = len(list((tmp_path / "run").glob("*/part_0/test_data_set_0/actual_*.pb")))
    assert replayed.returncode == 0 and replayed.stdout.count("same bits") == outputs >= 2, replayed
    repro = run_cli("replay", str(forward), "--repro", str(tmp_path / "repro"))
    assert repro.returncode == 0, repro
    ran = subprocess.run([sys.executable, tmp_path / "repro/run.py"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "match" in ran.stdout, ran
    copied.unlink()
    missing = run_cli("replay", run)
    assert missing.returncode == 2
    assert f"custom operators of {copied}, which is not here" in missing.stderr
    assert "--custom-op-library" in missing.stderr
    shutil.copy(library, copied)
    with copied.open("r+b") as file:  # the same length, other content
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    changed = run_cli("replay", run)
    assert changed.returncode == 2, changed
    assert f"{copied}, which is not what an executor of yours has loaded from there" in changed.stderr
    named = run_cli("replay", run, "--custom-op-library", str(library))
    assert named.returncode == 0 and "same bits" in named.stdout, named


def test_an_output_that_nothing_wrote_is_an_error_by_its_name(daemon: Daemon, library: Path) -> None:
    torch._dynamo.reset()
    backend = rust_ort.backend(custom_op_libraries=[library], custom_translations={cube: onnx_forget})
    # Straight from the operator, and so into the memory of the output itself.
    with pytest.raises(DaemonFault, match='onnxruntime did not write output "cube"') as raised:
        torch.compile(lambda x: (cube(x), x + 1), backend=backend)(X)
    assert raised.value.node == "cube"
    torch.testing.assert_close(results(compiled(library)), results(model))


def test_a_bad_library_is_an_error_with_its_path_and_the_executor_lives(
    daemon: Daemon, library: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.so"
    bad.write_bytes(b"no library")
    with pytest.raises(ClientError, match=f"custom_op_libraries.*{bad}: onnxruntime does not take it") as raised:
        compiled(bad)(X)
    assert raised.value.code in ("BAD_OPTION", "ERROR_CODE_BAD_OPTION")
    runtime = Path(os.environ["RUST_ORT_TEST_ONNXRUNTIME"]) if "RUST_ORT_TEST_ONNXRUNTIME" in os.environ else None
    if runtime is not None:  # a library, of something else
        with pytest.raises(ClientError, match=f"{runtime}: onnxruntime does not take it"):
            compiled(runtime)(X)
    torch.testing.assert_close(results(compiled(library)), results(model))
    (executor,) = daemon.client().status()["executors"]
    assert executor["pid"] > 0


def test_a_library_that_is_gone_or_changed_is_never_used_as_if_it_were_the_same(
    daemon: Daemon, library: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "copied.so"
    shutil.copy(library, copied)
    function = compiled(copied, on_unsupported="error")
    torch.testing.assert_close(results(function), results(model))
    exports = daemon.client().status()["counters"]["exports"]
    torch.testing.assert_close(results(compiled(copied, on_unsupported="error")), results(model))
    assert daemon.client().status()["counters"]["exports"] == exports, "an unchanged library keeps its plans"
    copied.unlink()
    shutil.copy(library, copied)
    os.utime(copied, ns=(1, 1))
    with pytest.raises(ClientError, match=f"{copied}: it changed since this executor loaded it.*rust-ort stop"):
        compiled(copied)(X)
    backend = rust_ort.backend(custom_op_libraries=[copied])
    copied.unlink()
    torch._dynamo.reset()
    with pytest.raises(ClientError, match=f"custom operator library {copied}: No such file"):
        torch.compile(torch.tanh, backend=backend)(X)
