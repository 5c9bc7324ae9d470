"""DDP, FSDP2 and FSDP1 on two gloo ranks under torchrun, against aot_eager: each runs structures_rank.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import warm

pytestmark = pytest.mark.usefixtures("served")

RANK = Path(__file__).with_name("structures_rank.py")
WATCHDOG_S = 280.0  # before pytest ends the process


@pytest.fixture(scope="module")
def trained(served: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Where the two ranks wrote what they found of every program, and how they ended. Started once: importing torch
    and making it ready to compile takes most of the time."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # torchrun's is 1
    return folder, warm.run([*command, str(RANK), str(folder)], env=environment, timeout=WATCHDOG_S)


@pytest.mark.parametrize("program", ["ddp", "fsdp", "blocks", "flat"])
def test_two_ranks_train_as_with_aot_eager(
    program: str, trained: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    folder, done = trained
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(2):
        ran = json.loads((folder / f"{program}_{rank}.json").read_text())
        assert "wrong" not in ran, ran["wrong"]
        assert ran["nodes"] > 0 and {"forward", "backward"} <= set(ran["graphs"]), ran
