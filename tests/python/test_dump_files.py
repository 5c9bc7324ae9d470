"""A dump read with nothing but onnx and the standard library.

The dump is written by tests/fixtures/write_dump.rs; RUST_ORT_WRITE_DUMP names the built program, else cargo builds it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("dumps")
    if program := os.environ.get("RUST_ORT_WRITE_DUMP"):
        command = [program]
    elif shutil.which("cargo"):
        command = ["cargo", "run", "--quiet", "--example", "write_dump", "--"]
    else:
        pytest.skip("no cargo and no RUST_ORT_WRITE_DUMP: nothing to write a dump with")
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True)
    return folder


def part(dump: Path) -> Path:
    return dump / "example" / "0_0-forward" / "part_0"


def tensors(folder: Path, prefix: str) -> dict[str, np.ndarray]:
    files = sorted(folder.glob(f"{prefix}_*.pb"))
    protos = [onnx.load_tensor(str(path)) for path in files]
    return {proto.name: numpy_helper.to_array(proto) for proto in protos}


def test_the_model_passes_onnx_checker(dump: Path) -> None:
    model = onnx.load(part(dump) / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Add"]


def test_the_data_sets_run_as_onnx_own_test_layout(dump: Path) -> None:
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(part(dump) / "model.onnx"))
    for step, matches in ((0, True), (1, False)):
        folder = part(dump) / f"test_data_set_{step}"
        (got,) = evaluator.run(None, tensors(folder, "input"))
        np.testing.assert_array_equal(got, tensors(folder, "output")["y"])
        assert np.array_equal(got, tensors(folder, "actual")["y"]) is matches


def test_the_manifest_names_every_file_and_its_content(dump: Path) -> None:
    for step in (0, 1):
        folder = part(dump) / f"test_data_set_{step}"
        manifest = json.loads((folder / "manifest.json").read_text())
        entries = manifest["inputs"] + manifest["references"] + manifest["actuals"]
        assert {entry["file"] for entry in entries} == {path.name for path in folder.glob("*.pb")}
        for entry in entries:
            proto = onnx.load_tensor(str(folder / entry["file"]))
            assert (proto.name, list(proto.dims)) == (entry["name"], entry["dims"])
            assert (folder / entry["file"]).samefile(dump / "tensors" / f"{entry['hash']}.pb")


def test_an_unfinished_data_set_has_inputs_and_no_manifest(dump: Path) -> None:
    folder = part(dump) / "test_data_set_2"
    assert sorted(path.name for path in folder.iterdir()) == ["input_0.pb", "input_1.pb"]


def test_verdicts_are_json(dump: Path) -> None:
    comparison = json.loads((part(dump) / "comparison_1.json").read_text())
    (verdict,) = comparison["verdicts"]
    assert (comparison["schema"], verdict["verdict"]["kind"]) == ("rust_ort/comparison/4", "mismatch")
    assert verdict["metrics"]["max_abs"] == 0.5
