"""torch's own tools beside this backend: its structured trace (TORCH_TRACE, tlparse), other backends for graphs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

PROGRAM = """
import torch, rust_ort
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU())
torch.manual_seed(0)
x = torch.randn(3, 4)
plain = torch.compile(model, backend="rust_ort", options={"compare": "nodes"})
for _ in range(2):
    plain(x).sum().backward()


def wrong(proto):
    for node in proto.graph.node:
        node.op_type = "Sin" if node.op_type == "Cos" else node.op_type


torch.compile(lambda x: x.cos() + 1, backend=rust_ort.backend(compare="outputs", transforms=[wrong]))(x)
"""

BROKEN = """
import torch, rust_ort


def function(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


torch.compile(function, backend=BACKEND)(torch.ones(3))
print(*(graph.name for graph in rust_ort.graphs()))
"""

pytestmark = pytest.mark.usefixtures("daemon")


def run(folder: Path, **environment: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env={**os.environ, **environment}, cwd=folder)


def artifacts(folder: Path) -> dict[str, list[tuple[Mapping[str, Any], str]]]:
    """{name of an artifact of ours: (what torch says of it, its text) of each}."""
    found: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
    (path,) = folder.glob("*.log")
    said, text = None, list[str]()

    def end() -> None:
        name = (said or {}).get("artifact", {}).get("name", "")
        if name.startswith("rust_ort_"):
            found.setdefault(name.removeprefix("rust_ort_"), []).append((said or {}, "\n".join(text)))

    for line in path.read_text().splitlines():
        if line.startswith("\t"):
            text.append(line[1:])
            continue
        end()
        said, text = json.loads(line[line.index("{") :]), []
    end()
    return found


def test_a_trace_has_graphs_parts_reasons_and_verdicts(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    run(tmp_path, TORCH_TRACE=str(folder))
    found = artifacts(folder)
    ((said, text),) = found["0_0-forward"]
    assert (said["frame_id"], said["frame_compile_id"]) == (0, 0)
    assert "on ONNX Runtime in 1 part(s)" in text and "it draws random numbers" in text and "prepare" in text
    parts = json.loads(found["0_0-forward_parts"][0][1])
    assert "addmm" in parts["parts"][0] and {node["op"] for node in parts["eager"]} >= {"aten.bernoulli.p"}
    assert "Gemm" in found["0_0-forward_part_0"][0][1]
    assert found["0_0-backward"][0][0]["frame_id"] == 0
    for step in range(2):
        ((said, text),) = found[f"0_0-forward_step_{step}_nodes"]
        assert said["frame_id"] == 0
        assert {row["op"] for row in json.loads(text) if row["verdict"] == "match"} >= {"aten.addmm.default"}
    ((said, text),) = found["1_0-inference_step_0_outputs"]
    ((only),) = json.loads(text)
    assert said["frame_id"] == 1 and only["verdict"] == "mismatch" and "outside" in only["reason"]


def test_tlparse_shows_them(tmp_path: Path) -> None:
    tlparse = shutil.which("tlparse")
    if tlparse is None:
        pytest.skip("skipped: no tlparse; cargo install tlparse")
    folder, page = tmp_path / "trace", tmp_path / "page"
    run(tmp_path, TORCH_TRACE=str(folder))
    subprocess.run([tlparse, "--latest", str(folder), "-o", str(page), "--no-browser"], check=True)
    index = (page / "index.html").read_text()
    for name in ("0_0-forward", "0_0-backward_part_0", "1_0-inference_step_0_outputs"):
        assert f"rust_ort_{name}" in index
    (text,) = page.rglob("rust_ort_0_0-forward_[0-9]*.txt")
    assert "it draws random numbers" in text.read_text()


def test_without_a_trace_nothing_is_made(tmp_path: Path) -> None:
    run(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("backend", "rules", "ours"),
    [("eager", "1:rust_ort", "1_0-inference"), ("rust_ort", "0:eager", "1_0-inference")],
)
def test_torch_gives_some_graphs_another_backend(tmp_path: Path, backend: str, rules: str, ours: str) -> None:
    if not hasattr(torch._dynamo.config, "debug_backend_override"):
        pytest.skip(f"skipped: torch {torch.__version__} has no TORCH_COMPILE_OVERRIDE_BACKENDS")
    program = BROKEN.replace("BACKEND", repr(backend))
    environment = {**os.environ, "TORCH_COMPILE_OVERRIDE_BACKENDS": rules}
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.split() == [ours]
