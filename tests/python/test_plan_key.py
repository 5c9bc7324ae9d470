"""A kept plan serves only what it was made with: packages, runtime library and daemon; no GIL, no run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support import FakeClient

import rust_ort
from rust_ort.errors import ClientError
from rust_ort.export import hash as content
from rust_ort.link.daemon import find_onnxruntime

pytestmark = pytest.mark.usefixtures("client")


def key() -> str:
    torch._dynamo.reset()
    backend = rust_ort.backend()
    torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.ones(3))
    return backend.graphs[0].graph_id


def test_a_plans_key_holds_the_versions_of_everything_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {entry.split("=")[0] for entry in content.versions().split(" ")}
    assert {"torch", "onnxscript", "onnx-ir", "onnx", "onnxruntime", "rust-ort"} <= known
    keys = [key(), key()]
    monkeypatch.setattr(content, "versions", lambda: "onnx-ir=0.0.0")
    keys.append(key())
    assert (keys[0] == keys[1], keys[0] == keys[2]) == (True, False)


def test_a_plans_key_holds_the_runtime_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = Path(shutil.copy2(find_onnxruntime(), tmp_path))
    keys = [key()]
    monkeypatch.setenv("RUST_ORT_ONNXRUNTIME", str(copy))
    keys.append(key())
    os.utime(copy, ns=(1, 1))
    keys.append(key())
    with copy.open("ab") as file:
        file.write(b"\0")
    os.utime(copy, ns=(1, 1))
    keys.append(key())
    assert len(set(keys)) == 4


def test_a_plans_key_holds_the_daemons_build(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [key()]
    monkeypatch.setattr(FakeClient, "build", lambda self: "another")
    assert key() not in keys


def test_a_python_without_the_gil_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from rust_ort.link.platform import check_platform

    check_platform()
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    with pytest.raises(ClientError, match="free-threaded"):
        check_platform()
