"""The steps in their order: what a step is called, what it shows, how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rust_ort.studies.gpu import calls, memory, models, numerics, speed
from rust_ort.studies.gpu.record import Record


@dataclass(frozen=True, kw_only=True)
class Step:
    """run: writes rows; given the device, "cuda", or "cpu" in a rehearsal."""

    name: str
    title: str
    limit_s: float
    run: Callable[[Record, str], None]


STEPS = (
    Step(name="calls", title="compiled calls against eager on the device", limit_s=180, run=calls.run),
    Step(name="memory", title="device memory: 1,000 training steps, a killed client", limit_s=120, run=memory.run),
    Step(name="bench", title="time of a call against eager, inductor and ONNX Runtime in the process", limit_s=150,
         run=speed.run),
    Step(name="llama", title="Llama through two exporters, verdicts in each precision", limit_s=240, run=models.llama),
    Step(name="main-job", title="the main job: Llama forward and backward, dumped and compared", limit_s=90,
         run=models.main_job),
    Step(name="study", title="`rust-ort study` on the CUDA provider", limit_s=60, run=numerics.run),
)  # fmt: skip
