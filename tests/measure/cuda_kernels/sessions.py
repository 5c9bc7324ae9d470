"""Makes a session of each model and prints what the CUDA provider does with it, a line of JSON each.

Run by its path with the Python, and beside the libraries, that onnxruntime-gpu's wheel needs: sessions.py <file>, the
models one after the other, each after its length as eight bytes; <first> is how many are left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnxruntime

CUDA = "CUDAExecutionProvider"
NO_KERNEL = re.compile(r"CUDA kernel not found in registries for Op type: (\S+)")
PLACED = re.compile(r"(All nodes|Node\(s\)) placed on \[(\w+)\]|  (\S+) \(.*\)$")


def told(model: bytes) -> dict[str, object]:
    """asked: the provider was asked; missing: operators that it has no kernel for; on_cpu: those that the CPU has, or
    "all"; error: why there is no session."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 0
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    error = ""
    with tempfile.TemporaryFile() as log:
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            made = onnxruntime.InferenceSession(model, options, providers=[CUDA])
            is_loaded = made.get_providers()[0] == CUDA
        except Exception as refusal:  # the wheel's own classes are in no module that has a name for them
            error, is_loaded = str(refusal), True
        finally:
            os.dup2(before, 2)
            os.close(before)
        log.seek(0)
        text = log.read().decode(errors="replace")
    if not is_loaded or "Failed to create CUDAExecutionProvider" in text:
        raise SystemExit(f"the CUDA provider was not loaded: {text}")
    on_cpu, provider = set[str](), ""
    for line in text.splitlines():
        if match := PLACED.search(line.partition("VerifyEachNodeIsAssignedToAnEp] ")[2]):
            provider = match[2] or provider
            if provider != CUDA and (match[3] or match[1] == "All nodes"):
                on_cpu.add(match[3] or "all")
    asked = "Initializing session" in text and "Adding default CPU execution provider" in text
    return {"asked": asked, "missing": NO_KERNEL.findall(text), "on_cpu": sorted(on_cpu), "error": error}


def models(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while length := file.read(8):
            yield file.read(int.from_bytes(length, "little"))


def main() -> int:
    path, first = Path(sys.argv[1]), int(sys.argv[2])
    for at, model in enumerate(models(path)):
        if at >= first:
            print(json.dumps({"at": at, **told(model)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
