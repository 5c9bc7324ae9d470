"""`rust-ort replay` and the folders it writes: they run with onnx, numpy and onnxruntime, and nothing else."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from conftest import Daemon, binary
from onnx import helper, numpy_helper

import rust_ort

WATCHDOG_S = 120

# What -I and -S leave is the standard library; `packages` has what pip installs with the three packages.
RUN = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for name in ("torch", "rust_ort", "onnxscript"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported")
sys.argv = [sys.argv[2]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def requirements(name: str, seen: dict[str, importlib.metadata.Distribution]) -> None:
    """`name` and what it needs without extras, into `seen`."""
    if name in seen:
        return
    try:
        seen[name] = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in seen[name].requires or ():
        if "extra ==" not in requirement:
            requirements(re.split(r"[^\w.-]", requirement)[0].lower(), seen)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with links to the packages of onnx, numpy and onnxruntime and their requirements."""
    folder = tmp_path_factory.mktemp("packages")
    found: dict[str, importlib.metadata.Distribution] = {}
    for name in ("onnx", "numpy", "onnxruntime"):
        requirements(name, found)
    assert {"onnx", "numpy", "onnxruntime", "ml_dtypes", "protobuf"} <= found.keys()
    for distribution in found.values():
        for file in distribution.files or ():
            # `google` is a namespace of several distributions: what is ours in it is linked, not the whole.
            n_parts = 2 if file.parts[0] == "google" else 1
            link = folder.joinpath(*file.parts[:n_parts])
            if file.parts[0] == ".." or link.exists():
                continue
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(Path(str(distribution.locate_file(Path(*file.parts[:n_parts])))))
    return folder


def run_alone(packages: Path, repro: Path, script: str = "run.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", RUN, str(packages), str(repro / script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False, env={})


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_program("replay", *arguments)


def run_program(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = binary()
    assert program is not None
    environment = {key: value for key, value in os.environ.items() if key != "RUST_ORT_ONNXRUNTIME"}
    command = [program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False, env=environment)


def dumped_part(folder: Path, dtype: torch.dtype) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 2)).to(dtype)
    with rust_ort.dump("run", folder=folder), torch.no_grad():
        torch.compile(model, backend="rust_ort", options={"compare": "outputs"})(torch.randn(3, 512, dtype=dtype))
    (part,) = folder.glob("run/*/part_0")
    return part


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_folder_of_a_part_runs_alone_and_tells_a_wrong_value(
    daemon: Daemon, tmp_path: Path, packages: Path, dtype: torch.dtype
) -> None:
    part, repro = dumped_part(tmp_path, dtype), tmp_path / "repro"
    done = replay(part, "--repro", repro)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits" in done.stdout
    names = sorted(path.name for path in repro.iterdir())
    assert names == ["README.md", "files.json", "model.onnx", "run.py", "test_data_set_0"]
    alone = run_alone(packages, repro)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert re.search(r" 0/6 +(0|\d\.\d+e-\d+) +match", alone.stdout), alone.stdout

    script = repro / "run.py"
    on_cuda = 'PROVIDERS = [["CUDAExecutionProvider", {}]]'
    (repro / "on_cuda.py").write_text(script.read_text().replace("PROVIDERS = []", on_cuda))
    elsewhere = run_alone(packages, repro, "on_cuda.py")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        assert elsewhere.returncode == 2 and "has no CUDAExecutionProvider" in elsewhere.stderr, elsewhere

    path = repro / "test_data_set_0" / "output_0.pb"
    proto = onnx.load_tensor(path)
    wrong = np.array(numpy_helper.to_array(proto))
    wrong.flat[1] += wrong.dtype.type(1)
    onnx.save_tensor(numpy_helper.from_array(wrong, proto.name), path)
    alone = run_alone(packages, repro)
    assert alone.returncode == 1 and " 1/6 " in alone.stdout and "MISMATCH" in alone.stdout, alone.stdout + alone.stderr


def test_a_folder_of_one_node_runs_alone(daemon: Daemon, tmp_path: Path, packages: Path) -> None:
    part, repro = dumped_part(tmp_path, torch.float32), tmp_path / "repro"
    done = replay(part, "--nodes", "gelu", "--repro", repro, "--optimization", "disable")
    # Eager's value of a node inside was not dumped: what agrees with ONNX Runtime's own is no match.
    assert done.returncode == 3 and "not compared" in done.stdout, done.stdout + done.stderr
    model = onnx.load(repro / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert "Gemm" not in {node.op_type for node in model.graph.node}
    alone = run_alone(packages, repro)
    assert alone.returncode == 3 and " 0/3072 " in alone.stdout, alone.stdout + alone.stderr
    assert "not compared" in alone.stdout and " match" not in alone.stdout, alone.stdout


def a_hundredth_more(proto: onnx.ModelProto) -> None:
    """What Tanh gives, times 1.01."""
    for index, node in enumerate(proto.graph.node):
        if node.op_type == "Tanh":
            (value,) = node.output
            node.output[0] = f"{value}_planted"
            proto.graph.initializer.append(numpy_helper.from_array(np.float32(1.01), "planted"))
            proto.graph.node.insert(index + 1, helper.make_node("Mul", [node.output[0], "planted"], [value]))
            return


def test_an_accused_node_is_reproduced_with_eagers_values(daemon: Daemon, tmp_path: Path, packages: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    options = {"compare": "nodes", "transforms": [a_hundredth_more], "ort_optimization": "basic"}
    with rust_ort.dump("run", folder=tmp_path), torch.no_grad():
        torch.compile(model, backend="rust_ort", options=options)(torch.randn(3, 4))
    (part,) = tmp_path.glob("run/*/part_0")
    told = json.loads((part.parent / "parts.json").read_text())["options"]
    assert (told["compare"], told["ort_optimization"]) == ("nodes", "basic")
    assert told["transforms"] == [f"{__name__}.a_hundredth_more"]
    assert "options" not in json.loads((tmp_path / "run" / "run.json").read_text())

    repro = tmp_path / "repro"
    done = replay(part, "--nodes", "tanh", "--repro", repro)
    assert done.returncode == 1 and "against eager's, from node_tanh_0" in done.stdout, done.stdout + done.stderr
    assert "optimization basic" in done.stdout, done.stdout
    alone = run_alone(packages, repro)
    assert alone.returncode == 1 and " 24/24 " in alone.stdout and "MISMATCH" in alone.stdout, alone.stdout
    # The folder in the dump is the same without rust_ort's help, and every command takes it.
    for command in ("replay", "compare"):
        done = run_program(command, part / "node_tanh_0")
        assert done.returncode == 1 and "incomplete" not in done.stdout, done.stdout + done.stderr


def test_an_unpacked_value_is_told_by_a_name_that_can_be_written(daemon: Daemon, tmp_path: Path) -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        first, second = x.split(2, 1)
        return first.exp() + second

    with rust_ort.dump("run", folder=tmp_path), torch.no_grad():
        torch.compile(halves, backend="rust_ort", options={"compare": "nodes"})(torch.randn(3, 4))
    (part,) = tmp_path.glob("run/*/part_0")
    ops = {node["op"] for node in json.loads((part / "nodes_0.json").read_text())["nodes"]}
    ops |= {value["op"] for value in json.loads((part / "provenance.json").read_text())["values"].values()}
    assert "aten.split.Tensor" in ops and not [op for op in ops if "<" in op], ops


@pytest.mark.parametrize(
    ("expected", "got", "outside"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0),
        ([1.0, 2.0], [1.0, 2.1], 1),
        ([1.0, np.nan], [1.0, np.nan], 1),
        ([1.0, np.inf], [1.0, np.inf], 0),
        ([1.0, np.inf], [1.0, -np.inf], 1),
        ([1.0, 2.0], [1.0, np.inf], 1),
        ([1.0, np.inf], [1.0, 2.0], 1),
        # The fill value does not count in max|expected|.
        ([0.0, -3.4e38], [1e-3, -3.4e38], 1),
        ([], [], 0),
    ],
)
def test_the_script_judges_as_the_program_does(expected: list[float], got: list[float], outside: int) -> None:
    import importlib.util

    path = Path(__file__).parents[2] / "src" / "cli" / "replay" / "run.py"
    spec = importlib.util.spec_from_file_location("repro_run", path)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rule = {"atol": 1e-12, "rtol": 2.0**-15, "scale": 2.0**-16, "fill": 1e30, "equal_nan": False}
    arrays = [np.array(values, dtype=np.float32) for values in (expected, got)]
    assert script.outside(*arrays, **rule)[0] == outside
