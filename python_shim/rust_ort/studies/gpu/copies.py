"""Bytes that go through the host while something runs: in this process, by torch's profiler, and in the executors."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import rust_ort
from rust_ort.studies.gpu.record import CheckFailed

CONTROL_BYTES = 12_345
"""Of a copy that is made on purpose: where the profiler does not see that one, it does not see others either."""
UNSEEN = "the profiler sees no copies here"
NO_COUNTER = "no counter"


def counted_by_executors() -> dict[str, int]:
    """The daemon's counters of bytes through the host; {} where it has none."""
    counters = rust_ort.status().get("counters", {})
    return {name: int(n) for name, n in counters.items() if "host" in name}


def through_host(run: Callable[[], object]) -> dict[str, Any]:
    """{"host bytes": of this process, "executor's": of the executors} while `run` runs on the GPU; a text where nobody
    tells. Errors: CheckFailed when this process copied anything."""
    before = counted_by_executors()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        control = torch.empty(CONTROL_BYTES, dtype=torch.uint8, device="cuda")
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
            with torch.enable_grad():
                run()
            control.cpu()
            torch.cuda.synchronize()
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        copied = host_copies(json.loads(path.read_text())["traceEvents"])
    after = counted_by_executors()
    executors = sum(after.values()) - sum(before.values()) if after else NO_COUNTER
    if CONTROL_BYTES not in copied:
        return {"host bytes": UNSEEN, "executor's": executors}
    copied.remove(CONTROL_BYTES)
    if copied:
        raise CheckFailed(f"{sum(copied)} bytes through the host in {len(copied)} copies of this process")
    return {"host bytes": 0, "executor's": executors}


def host_copies(events: Sequence[dict[str, Any]]) -> list[int]:
    """Bytes of each copy between host and device among the events of a trace."""
    copies = [event for event in events if re.match(r"Memcpy (HtoD|DtoH)", event.get("name", ""))]
    return [int(event["args"]["bytes"]) for event in copies]
