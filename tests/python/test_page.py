"""`rust_ort.report`: the page of a dump, by Python; the page itself: tests/cli/report.rs and test_report_page.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

import rust_ort
from rust_ort.errors import ClientError

pytestmark = pytest.mark.usefixtures("daemon")


def wrong(proto: Any) -> None:
    for node in proto.graph.node:
        node.op_type = "Sin" if node.op_type == "Tanh" else node.op_type


def dumped(folder: Path, **options: Any) -> Path:
    backend = rust_ort.backend(compare="nodes", dump_values=True, **options)
    with rust_ort.dump("run", folder=folder) as path:
        torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend=backend)(torch.randn(2, 4)).sum().backward()
    return path


def test_a_clean_run_accuses_nobody(tmp_path: Path) -> None:
    page = rust_ort.report(dumped(tmp_path), output=tmp_path / "page.html")
    assert page.verdict == "match" and page.data["culprit"]["kind"] == "clear"
    assert page.path.read_text().startswith("<!doctype html>") and page.data["name"] == "run"
    assert str(tmp_path / "page.html") in str(page) and "match" in repr(page)


def test_a_planted_fault_is_on_the_card(tmp_path: Path) -> None:
    page = rust_ort.report(str(dumped(tmp_path, transforms=[wrong])), output=os.fspath(tmp_path / "page.html"))
    assert page.verdict == "mismatch" and page.data["culprit"]["node"] == "tanh"
    card = page._repr_html_()
    assert "<td>tanh</td>" in card and "aten.tanh.default" in card and "rust-ort " in card


def test_model_explorer_is_given_each_nodes_error(tmp_path: Path) -> None:
    """Keys are nodes of model.onnx, as its adapter of ONNX names them."""
    path = dumped(tmp_path, transforms=[wrong])
    page = rust_ort.report(path, output=tmp_path / "page.html")
    graph = page.data["graphs"][0]["name"]
    data = page.node_data(graph)
    nodes = {node.name: node.op_type for node in onnx.load(path / graph / "part_0" / "model.onnx").graph.node}
    assert set(data["results"]) <= set(nodes) and json.loads(json.dumps(data, allow_nan=False)) == data
    red = {nodes[name] for name, found in data["results"].items() if "bgColor" in found}
    (gemm,) = (found for name, found in data["results"].items() if nodes[name] == "Gemm")
    assert "Sin" in red and "Gemm" not in red and 0 <= gemm["value"] < 1e-5
    assert page.node_data(graph, error="cumulative")["results"]["node_addmm"] == gemm
    for asked, said in (
        ({"graph": "nowhere"}, f"no part 0 of a graph 'nowhere'; the dump has '{graph}' part 0"),
        ({"graph": graph, "part": 7}, "no part 7"),
        ({"graph": graph, "error": "own"}, "expected 'local' or 'cumulative', got 'own'"),
    ):
        with pytest.raises(ClientError, match=said):
            page.node_data(**asked)  # type: ignore[arg-type]


def test_a_page_of_a_relative_path_is_asked_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = dumped(Path("dumps"))
    page = rust_ort.report("dumps/run", output="page.html")
    monkeypatch.chdir("/")
    graph = page.data["graphs"][0]["name"]
    assert page.node_data(graph)["results"]
    (tmp_path / path / graph / "part_0" / "provenance.json").unlink()
    with pytest.raises(ClientError, match=r"provenance\.json: .*the dump is not whole"):
        page.node_data(graph)


def test_nodes_that_were_not_compared_have_no_data(tmp_path: Path) -> None:
    with rust_ort.dump("run", folder=tmp_path) as path:
        torch.compile(nn.Tanh(), backend="rust_ort")(torch.randn(2, 4))
    page = rust_ort.report(path, output=tmp_path / "page.html")
    assert page.verdict == "nothing_compared"
    graph = page.data["graphs"][0]["name"]
    with pytest.raises(ClientError, match=f"no node of '{graph}' part 0 was compared; dump with compare='nodes'"):
        page.node_data(graph)


def test_a_notebook_shows_a_models_names_as_text(tmp_path: Path) -> None:
    data = {"verdict": {"kind": "mismatch", "text": "<b>1</b>"}, "culprit": {"text": "<script>", "node": "<i>n</i>"}}
    card = rust_ort.Page(path=tmp_path / "page.html", data=data)._repr_html_()
    assert not any(tag in card for tag in ("<b>", "<i>", "<script>")) and "&lt;i&gt;n" in card


def test_what_is_no_dump_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"report: .*nothing"):
        rust_ort.report(tmp_path / "nothing", output=tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
    for given, what in ((3, "path"), ("", "path")):
        with pytest.raises(ClientError, match=f"report {what}: expected a path"):
            rust_ort.report(given)  # type: ignore[arg-type]
    with pytest.raises(ClientError, match="report output: expected a path, got '-'"):
        rust_ort.report(dumped(tmp_path), output="-")
