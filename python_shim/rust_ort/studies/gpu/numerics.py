"""`rust-ort study` on a provider: the published findings, and how many hold here."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from functools import partial
from typing import Any

from rust_ort.link.daemon import find_binary, find_onnxruntime
from rust_ort.studies.gpu.record import CheckFailed, MissingHere, Record

STUDIES = {
    "gemm": ("--rows", "256", "--size", "256"),
    "layernorm": ("--batch", "2", "--rows", "64", "--size", "256"),
    "reduction": ("--size", "16384", "--orders", "16"),
}
"""{study: its size here}."""
SECONDS = 60
NOT_RUN = 3
"""Exit code of a study that had nothing to compare."""


def run(record: Record, device: str) -> None:
    for study, size in STUDIES.items():
        record.row(study, partial(findings, study, size, device))


def findings(study: str, size: tuple[str, ...], device: str, numbers: dict[str, Any]) -> None:
    """Fills in how many findings hold, do not, and were not examined. Errors: MissingHere, CheckFailed."""
    command = [
        find_binary(),
        "study",
        study,
        "--provider",
        device,
        "--json",
        "--onnxruntime",
        find_onnxruntime(),
        *size,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.stdout:
        held = Counter(finding["holds"] for finding in json.loads(done.stdout)["result"]["findings"])
        numbers |= {name.replace("_", " "): n for name, n in sorted(held.items())}
    reason = done.stderr.strip().removeprefix("rust-ort: ")
    if done.returncode == NOT_RUN:
        raise MissingHere(reason)
    if done.returncode:
        raise CheckFailed(f"exit code {done.returncode}: {reason}")
