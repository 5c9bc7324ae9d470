"""Answered calls of an open dump whose daemon is killed before it has written them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import wait_until

import rust_ort
from rust_ort.link.daemon import find_binary


def test_what_a_killed_daemon_had_not_written_is_told(daemon: Any, tmp_path: Path) -> None:
    double = torch.compile(lambda x: x * 2, backend="rust_ort")
    why = r"1 files could not be written, first .*test_data_set_1: it is not there whole"
    with pytest.warns(RuntimeWarning, match=why), rust_ort.dump("killed", folder=tmp_path, calls="all") as path:
        for n in range(3):
            double(torch.full((4,), float(n)))
        [part] = path.glob("*/part_0")
        wait_until(lambda: len(list(part.glob("test_data_set_*/manifest.json"))) == 3, "the data sets")
        daemon.stop()
        shutil.rmtree(part / "test_data_set_1")  # as where it was killed before it wrote that
    states = {step["step"]: step["state"]["kind"] for step in _listed(part)["steps"]}
    assert [state == "complete" for state in (states[0], states[1], states[2])] == [True, False, True]
    with rust_ort.dump("whole", folder=tmp_path, calls="all") as path:
        double(torch.ones(4))
        [part] = path.glob("*/part_0")
        wait_until(lambda: len(list(part.glob("test_data_set_*/manifest.json"))) == 1, "the data set")
        daemon.stop()


def _listed(part: Path) -> dict[str, Any]:
    listed: dict[str, Any] = json.loads(
        subprocess.run([find_binary(), "ls", "--json", part], capture_output=True).stdout
    )
    return listed
