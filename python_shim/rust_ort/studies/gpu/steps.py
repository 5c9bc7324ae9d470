"""The steps in their order: what a step is called, what it shows, how long it takes whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rust_ort.studies.gpu import calls, culprits, memory, models, nodes, numerics, speed
from rust_ort.studies.gpu.record import Record


@dataclass(frozen=True, kw_only=True)
class Step:
    """run: writes rows; given the device, "cuda", or "cpu" in a rehearsal. seconds: that it takes on 16 cores and one
    GPU, and in a rehearsal on two cores. alone: what it measures is time, or what all processes hold."""

    name: str
    title: str
    seconds: tuple[float, float]
    run: Callable[[Record, str], None]
    alone: bool = False


LLAMA = tuple(
    Step(
        name=f"llama-{precision}",
        title=f"Llama through two exporters, {precision}",
        seconds=(40, 25),
        run=partial(models.llama, precision),
    )
    for precision in ("bfloat16", "float16", "float32")
)

STEPS = (
    Step(
        name="main-job",
        title="the main job: Llama forward and backward, dumped and compared",
        seconds=(45, 30),
        run=models.main_job,
    ),
    Step(name="calls", title="compiled calls against eager on the device", seconds=(75, 60), run=calls.run),
    Step(
        name="blame",
        title="blame, dumped values, replay, sbs and keep_in_float32 of a causal LM",
        seconds=(75, 45),
        run=culprits.run,
    ),
    Step(
        name="nodes",
        title="every node of a causal LM compared, and its time",
        seconds=(50, 25),
        run=nodes.run,
        alone=True,
    ),
    Step(
        name="memory",
        title="device memory: 1,000 training steps, a killed client",
        seconds=(60, 40),
        run=memory.run,
        alone=True,
    ),
    Step(
        name="deaths",
        title="an executor killed with work on the device",
        seconds=(30, 25),
        run=memory.deaths,
        alone=True,
    ),
    Step(
        name="bench",
        title="time and memory against eager, inductor and ONNX Runtime in the process",
        seconds=(180, 60),
        run=speed.run,
        alone=True,
    ),
    *LLAMA,
    Step(name="study", title="`rust-ort study` on the CUDA provider", seconds=(20, 12), run=numerics.run),
)
