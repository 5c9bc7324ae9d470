"""`rust-ort dot --svg`: what a browser makes of the pictures."""

from __future__ import annotations

import html
import itertools
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from conftest import binary
from onnx import TensorProto, helper

WATCHDOG_S = 120

HOSTILE = '</title><script>document.title="run"</script>&x;"\u202e\x1b[31m'


@pytest.fixture
def chromium(tmp_path: Path) -> list[str]:
    """A command line of headless Chromium, which keeps its profile in the test's folder."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("skipped: no Chromium")
    # The test may run as root, for whom Chromium has no sandbox; the picture is our own, and the network is off.
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--proxy-server=127.0.0.1:9"]
    return [program, *flags, f"--user-data-dir={tmp_path / 'profile'}"]


def drawn(model: onnx.ModelProto, folder: Path, *flags: str) -> Path:
    """The picture of a model."""
    program = binary()
    if program is None:
        pytest.fail("no rust-ort binary: build it and set RUST_ORT_BINARY")
    path, picture = folder / "model.onnx", folder / "model.svg"
    onnx.save(model, path)
    command = [program, "dot", path, "--svg", picture, *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=WATCHDOG_S)
    return picture


def chain(names: list[str]) -> onnx.ModelProto:
    """Each value is made of the one before; the first is the input."""
    nodes = [helper.make_node("Neg", [before], [name]) for before, name in itertools.pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (names[0], names[-1])]
    return helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:]))


def seen(chromium: list[str], picture: Path) -> str:
    """The document as the browser has it once it is loaded."""
    command = [*chromium, "--virtual-time-budget=5000", "--dump-dom", picture.as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=WATCHDOG_S).stdout


def test_a_browser_shows_every_box(chromium: list[str], tmp_path: Path) -> None:
    dom = seen(chromium, drawn(chain([f"v{at}" for at in range(300)]), tmp_path))
    assert "parsererror" not in dom
    assert dom.count("<rect") == 300
    assert dom.count("<path") == 299
    assert "Neg(v0) -&gt; v1" in dom


def test_a_hostile_name_runs_nothing_and_stays_text(chromium: list[str], tmp_path: Path) -> None:
    dom = seen(chromium, drawn(chain(["x", HOSTILE, "n" * 10_000, "y"]), tmp_path))
    assert "parsererror" not in dom
    assert "<script" not in dom
    assert 'document.title="run"' in html.unescape(dom)
    assert dom.count("<rect") == 4


def test_a_folded_picture_has_a_box_for_each_module(chromium: list[str], tmp_path: Path) -> None:
    model = chain([f"v{at}" for at in range(301)])
    for at, node in enumerate(model.graph.node):
        module = f"layers.{at // 100}" if at % 100 < 50 else f"layers.{at // 100}.{HOSTILE}"
        entry = node.metadata_props.add()
        entry.key, entry.value = "pkg.torch.onnx.name_scopes", repr(["", module, "neg"])
    dom = seen(chromium, drawn(model, tmp_path, "--fold", "2"))
    assert "parsererror" not in dom
    assert dom.count("<rect") == 5  # the input, three modules, a frame
    assert dom.count("<path") == 3
    assert ">layers.2</text>" in dom
    assert "100 nodes: 100 Neg" in dom
    assert "to layers.1: v100" in dom
    dom = seen(chromium, drawn(model, tmp_path, "--fold", "layers.?.*"))
    assert "parsererror" not in dom
    assert "<script" not in dom
    assert "<script>document" in html.unescape(dom)


def test_a_picture_can_be_photographed(chromium: list[str], tmp_path: Path) -> None:
    picture = drawn(chain(["x", "a", "y"]), tmp_path)
    photograph = tmp_path / "model.png"
    command = [*chromium, f"--screenshot={photograph}", "--window-size=800,400", picture.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=WATCHDOG_S)
    assert photograph.read_bytes().startswith(b"\x89PNG")
