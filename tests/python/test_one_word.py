"""One verdict on one model, whoever gives it: training with batch norm on a small batch, which rounding alone moves."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rust_ort

pytestmark = pytest.mark.usefixtures("daemon")


def block(stride: int) -> list[nn.Module]:
    depthwise = nn.Conv2d(16, 16, 3, stride, 1, groups=16, bias=False)
    return [depthwise, nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]


def small_net() -> tuple[nn.Module, Tensor]:
    """Its last batch norms are over 2 elements a channel, some of which are nearly equal: they make rounding larger,
    eager's by luck less than ONNX Runtime's (5 times as much, on the CPU that it was found on)."""
    torch.manual_seed(0)
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [layer for index in range(6) for layer in block(2 if index % 2 else 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    return model, torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(7))


def said(*arguments: str | Path) -> tuple[int, str]:
    """(exit code, text) of the program."""
    command = [os.environ["RUST_ORT_BINARY"], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["outputs", "nodes"])
def test_the_commands_say_of_its_dump_what_the_report_says(mode: str, tmp_path: Path) -> None:
    model, x = small_net()
    options = {"compare": mode}
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(model, x, options=options)
    assert report.ok and report.first_wrong_node is None, report
    assert {verdict.kind for verdict in report.verdicts} <= {"match", "noise", "tie"}
    graphs = [verdict.kind for graph in report.graphs for _, verdict in graph.verdicts]
    assert graphs and set(graphs) <= {"match", "noise", "tie"}
    for command in ("compare", "replay", "sbs") if mode == "nodes" else ("compare", "replay"):
        code, text = said(command, tmp_path / "run")
        assert code == 0, (command, text)
    code, text = said("ls", tmp_path / "run")
    assert code == 0 and "mismatch" not in text, text


def test_blame_says_of_a_small_batch_that_nobody_is_to_blame() -> None:
    model, x = small_net()
    blamed = rust_ort.blame(model, x)
    assert blamed.culprit is None and blamed.report.ok, blamed
    assert str(blamed).startswith("nobody is to blame: every output is as right as eager's"), blamed


def routed(x: Tensor) -> tuple[Tensor, Tensor]:
    """As a mixture of experts is: rows in the order of a key that many share, computed with, and one more result."""
    order = x.abs().gt(0.5).sum(1).sort().indices
    rows = x[order].exp() * 2
    return rows + 1, rows.sum(1)


def test_what_follows_from_a_choice_is_no_mismatch_in_between(tmp_path: Path) -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(3))
    with rust_ort.dump("run", folder=tmp_path):
        report = rust_ort.compare(routed, x, options={"compare": "nodes"})
    assert report.ok and {verdict.kind for verdict in report.verdicts} == {"tie"}, report
    code, text = said("sbs", tmp_path / "run", "--json")
    (table,) = json.loads(text)["tables"]
    kinds = {node["name"]: node["cumulative"]["verdict"]["kind"] for node in table["nodes"]}
    assert code == 0 and kinds["exp"] == "tie" and set(kinds.values()) == {"match", "tie"}, kinds
    assert table["first_cumulative_mismatch"] is None
