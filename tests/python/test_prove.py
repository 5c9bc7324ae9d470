"""`rust-ort prove`: faults planted in a dump are found, and the program says what it could not do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

import rust_ort
from rust_ort.link.daemon import find_binary, find_onnxruntime
from rust_ort.studies import prove

pytestmark = pytest.mark.usefixtures("daemon")


def run_cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RUST_ORT_ONNXRUNTIME": find_onnxruntime()}
    command = [find_binary(), "prove", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_planted_in_llamas_own_graphs_is_found(precision: str, tmp_path: Path) -> None:
    run = prove.dumped(precision, size="small", folder=tmp_path)
    done = run_cli(run, "--faults", "8", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["summary"] == {"planted": 16, "found_by_sbs": 16, "found_by_blame": 16, "accused": 0}
    assert {part["graph"].split("-")[1] for part in said["parts"]} == {"forward", "backward"}
    for part in said["parts"]:
        same, outputs = part["same_bits"]
        assert same == outputs > 0 and part["unplanted"]["kind"] == "nobody"
        kinds = {proof["site"]["kind"] for proof in part["proofs"] if proof["effect"]["kind"] == "wrong"}
        assert len(kinds) >= 3
    other = json.loads(run_cli(run, "--faults", "2", "--seed", "7", "--json").stdout)
    places = [[proof["site"]["value"] for part in each["parts"] for proof in part["proofs"]] for each in (said, other)]
    assert places[0][: len(places[1])] != places[1]
    text = run_cli(run, "--faults", "1").stdout
    assert "not found:" not in text and "2 of 2" in text


def test_a_dump_without_eagers_values_is_left_out_and_said(tmp_path: Path) -> None:
    with rust_ort.dump("plain", folder=tmp_path):
        rust_ort.compare(torch.nn.Linear(4, 4), torch.randn(2, 4), options={"compare": "nodes"})
    done = run_cli(tmp_path / "plain")
    assert done.returncode == 3 and "dump_values=True" in done.stderr, done.stdout + done.stderr
    assert run_cli(tmp_path / "nothing").returncode == 2
