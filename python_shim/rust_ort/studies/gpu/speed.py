"""The bench on the device, in processes of its own: what measures is no part of what is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rust_ort.studies.gpu.record import FAILED, MISSING, Record, Row

TESTS = Path(__file__).resolve().parents[4] / "tests"
WHAT = "the bench"


def run(record: Record, device: str) -> None:
    """The rows that measure.bench.on_device writes into the record."""
    if not (TESTS / "measure").is_dir():
        record.add(Row(what=WHAT, verdict=MISSING, why=f"tests/measure, which lies beside the sources: not in {TESTS}"))
        return
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    given = ["--device", device, "--record", str(record.path), "--until", repr(record.until)]
    command = [sys.executable, "-m", "measure.bench.on_device", *given]
    code = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False).returncode
    if code:
        record.add(Row(what=WHAT, verdict=FAILED, why=f"it ended with {code}; the log says why"))
