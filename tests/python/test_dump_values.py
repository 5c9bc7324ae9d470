"""dump_values: eager's value of every node that is compared lies in the dump, and a part runs on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from onnx import numpy_helper
from torch import Tensor, nn

import rust_ort


class Block(nn.Module):
    """Two parts: what is between them stays in eager."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return torch.linalg.inv(hidden.T @ hidden + 4 * torch.eye(4)).exp() * 2


def dumped(folder: Path, **options: Any) -> Path:
    torch.manual_seed(0)
    with rust_ort.dump("run", folder=folder, calls="all"):
        compiled = torch.compile(Block(), backend="rust_ort", options={"compare": "nodes", **options})
        compiled(torch.randn(5, 4)).sum().backward()
    return folder / "run"


def values_of(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {path.stem: numpy_helper.to_array(onnx.load_tensor(str(path))) for path in folder.glob("*.pb")}


@pytest.mark.usefixtures("daemon")
def test_every_compared_node_has_a_value_and_a_part_runs_on_them(tmp_path: Path) -> None:
    run = dumped(tmp_path, dump_values=True)
    parts = [path.parent for path in sorted(run.glob("*/part_*/nodes_0.json"))]
    assert {path.parent.name.split("-")[1] for path in parts} == {"forward", "backward"} and len(parts) > 2
    for part in parts:
        table = json.loads((part / "nodes_0.json").read_text())["nodes"]
        compared = {row["name"] for row in table if row["local"]["verdict"]["kind"] != "not_compared"}
        manifest = json.loads((part / "values_0" / "manifest.json").read_text())
        assert (manifest["schema"], manifest["lost"]) == ("rust_ort/values/3", [])
        assert {entry["name"] for entry in manifest["nodes"]} == compared
        values = values_of(part / "values_0")
        assert set(values) == compared | {entry["name"] for entry in manifest["inputs"]}
        # The part on eager's inputs gives eager's outputs.
        model = onnx.load(part / "model.onnx")
        given = (numpy_helper.to_array, lambda path: onnx.load_tensor(str(path)))
        inputs = {
            tensor.name: given[0](tensor) for tensor in map(given[1], (part / "test_data_set_0").glob("input_*.pb"))
        }
        inputs |= {name: value for name, value in values.items() if name in inputs}
        made = onnx.reference.ReferenceEvaluator(model).run(None, inputs)
        for name, value in zip((output.name for output in model.graph.output), made, strict=True):
            if name in values:
                np.testing.assert_allclose(value, values[name], rtol=1e-4, atol=1e-5)
    # What eager put between the parts: the second one's input, which drifted.
    drifted = [json.loads((part / "values_0" / "manifest.json").read_text())["inputs"] for part in parts]
    assert sum(map(len, drifted)) > 0


@pytest.mark.usefixtures("daemon")
def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    run = dumped(tmp_path)
    assert list(run.glob("*/part_*/nodes_0.json")) and not list(run.glob("*/part_*/values_*"))
