"""DDP, FSDP2 and FSDP1 on two gloo ranks under torchrun, against aot_eager: each runs structures_rank.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("served")

RANK = Path(__file__).with_name("structures_rank.py")
WATCHDOG_S = 300.0


@pytest.mark.parametrize("program", ["ddp", "fsdp", "blocks", "flat"])
def test_two_ranks_train_as_with_aot_eager(program: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(RANK), program, str(tmp_path)], env=environment, capture_output=True, text=True,
        timeout=WATCHDOG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for rank in range(2):
        ran = json.loads((tmp_path / f"rank_{rank}.json").read_text())
        assert ran["nodes"] > 0 and {"forward", "backward"} <= set(ran["graphs"]), ran
