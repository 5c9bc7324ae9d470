"""The bench's calls on the device, in a process of its own: what measures is no part of what is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rust_ort.studies.gpu.record import FAILED, MISSING, Record, Row, short

TESTS = Path(__file__).resolve().parents[4] / "tests"
OURS = "rust_ort"


def run(record: Record, device: str) -> None:
    """A row a case, as the bench tells of them."""
    what = "time of a call"
    if not (TESTS / "measure").is_dir():
        record.add(Row(what=what, verdict=MISSING, why=f"tests/measure, which lies beside the sources: not in {TESTS}"))
        return
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "measure.bench.on_device", "--device", device]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path})
    assert process.stdout is not None
    for line in process.stdout:
        record.add(row_of(line))
    if process.wait():
        record.add(Row(what=what, verdict=FAILED, why=f"the bench ended with {process.returncode}; the log says why"))


def row_of(line: str) -> Row:
    """The row of one case: microseconds of each variant, our time by the others', what was not measured and why."""
    told = json.loads(line)
    us: dict[str, float] = told["us"]
    numbers = {f"{variant} µs": value for variant, value in us.items()}
    if OURS in us:
        numbers |= {f"ours / {variant}": us[OURS] / value for variant, value in us.items() if variant != OURS}
    left_out = {variant: short(why) for variant, why in told["left_out"].items()}
    failed = left_out.pop(OURS, "")
    return Row(
        what=told["case"],
        verdict=FAILED if failed else "works",
        why=failed,
        numbers={**numbers, **{f"{variant} not measured": why for variant, why in left_out.items()}},
    )
