"""`rust-ort replay` and the folders it writes: they run with onnx, numpy and onnxruntime, and nothing else."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import Daemon, binary
from onnx import numpy_helper

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


def run_alone(packages: Path, repro: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", "-c", RUN, str(packages), str(repro / "run.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False, env={})


def replay(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = binary()
    assert program is not None
    environment = {key: value for key, value in os.environ.items() if key != "RUST_ORT_ONNXRUNTIME"}
    command = [program, "replay", *map(str, arguments)]
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
    assert sorted(path.name for path in repro.iterdir()) == ["README.md", "model.onnx", "run.py", "test_data_set_0"]
    alone = run_alone(packages, repro)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    assert re.search(r" 0/6 +\d\.\d+e[-+]\d+ +match", alone.stdout), alone.stdout

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
    assert done.returncode == 0, done.stdout + done.stderr
    model = onnx.load(repro / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert "Gemm" not in {node.op_type for node in model.graph.node}
    alone = run_alone(packages, repro)
    assert alone.returncode == 0 and " 0/3072 " in alone.stdout, alone.stdout + alone.stderr


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
