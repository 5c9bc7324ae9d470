"""A process that measures one variant on a device: `python -m measure.bench.variant <variant> <device> <case>`.

It says when it has imported all it needs, and then does what each line of stdin asks, as JSON: `prepare`, `first`,
`round`. What fails is told, and ends it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from measure.bench import calls
from measure.bench.in_process import InProcess
from rust_ort.studies.gpu.device import synchronize
from rust_ort.studies.llama_models import Size, language_model

EAGER, INDUCTOR, IN_PROCESS, OURS, CAPTURED = (
    "eager",
    "inductor",
    "in-process ONNX Runtime",
    "rust_ort",
    "rust_ort, CUDA graph",
)
DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
SHOWN = 16
"""Elements of a result that are held against eager's."""

Call = Callable[[], Tensor]


def backend(variant: str, device: str) -> Any:
    """torch.compile's, as an object: from sources no name is known. Errors: RuntimeError."""
    import rust_ort

    if variant == IN_PROCESS:
        import onnxruntime

        if device == "cuda" and "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            raise RuntimeError("the module onnxruntime has no CUDAExecutionProvider")
        return InProcess()
    captured: Any = [("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]
    return {
        INDUCTOR: "inductor",
        OURS: rust_ort.Backend(),
        CAPTURED: rust_ort.Backend({"providers": captured} if device == "cuda" else None),
    }[variant]


def small(name: str, variant: str, device: str) -> dict[str, Call]:
    """{"call": a call without gradients} of `calls.cases`."""
    case = next(case for case in calls.cases(device) if case.name == name)

    def function(*inputs: Tensor) -> Tensor:  # torch.add itself is no code that Dynamo traces
        return case.function(*inputs)

    made: Callable[..., Tensor] = case.function
    if variant != EAGER:
        made = torch.compile(function, backend=backend(variant, device), fullgraph=True, dynamic=False)

    def call() -> Tensor:
        with torch.no_grad():
            return made(*case.inputs)

    return {"call": call}


def model(size: Size, precision: str, variant: str, device: str) -> dict[str, Call]:
    """{"step": one of AdamW, "forward": without gradients} of a causal LM under autocast, whose loss they give."""
    made, tokens = language_model(size, device=device)
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-4)
    call: Any = made if variant == EAGER else torch.compile(made, backend=backend(variant, device), dynamic=False)

    @contextlib.contextmanager
    def lowered() -> Iterator[None]:
        with torch.autocast(device, dtype=DTYPES[precision]) if DTYPES[precision] else contextlib.nullcontext():
            yield

    def loss() -> Tensor:
        with lowered():
            found: Tensor = call(input_ids=tokens, labels=tokens).loss
        return found

    def step() -> Tensor:
        found = loss()
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.detach()

    def forward() -> Tensor:
        with torch.no_grad():
            return loss()

    return {"step": step, "forward": forward}


class Served:
    """What the lines of stdin ask for, of one case."""

    def __init__(self, variant: str, device: str, case: dict[str, Any]) -> None:
        self._variant, self._device, self._case = variant, device, case
        self._calls: dict[str, Call] = {}

    @property
    def is_model(self) -> bool:
        return self._case.get("size") is not None

    def prepare(self) -> dict[str, Any]:
        """Model and inputs on the device; once."""
        if self._calls:
            return {}
        if self._device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        size = self._case.get("size")
        self._calls = (
            small(self._case["name"], self._variant, self._device)
            if size is None
            else model(Size(**size), self._case["precision"], self._variant, self._device)
        )
        synchronize(self._device)
        return {}

    def first(self, way: str) -> dict[str, Any]:
        """Seconds of the first call, compilation included, and what it gave."""
        begin = time.perf_counter()
        result = self._calls[way]()
        synchronize(self._device)
        return {"s": time.perf_counter() - begin, "result": result.detach().double().flatten()[:SHOWN].tolist()}

    def again(self, way: str, n: int) -> dict[str, Any]:
        """n calls, and what the last one gave."""
        for _ in range(n):
            result = self._calls[way]()
        synchronize(self._device)
        return {"result": result.detach().double().flatten()[:SHOWN].tolist()}

    def round(self, way: str, n: int) -> dict[str, Any]:
        """Microseconds of a call, of n: until the call returns, until all that were queued are done, and where each is
        waited for."""
        call = self._calls[way]
        for _ in range(max(1, n // 10)):  # the first calls after another variant's round pay for its caches
            call()
        synchronize(self._device)
        begin = time.perf_counter()
        for _ in range(n):
            call()
        returned = time.perf_counter()
        synchronize(self._device)
        done = time.perf_counter()
        for _ in range(n):
            call()
            synchronize(self._device)
        waited = time.perf_counter()
        spans = {"host": returned - begin, "queued": done - begin, "synced": waited - done}
        return {name: seconds / n * 1e6 for name, seconds in spans.items()}


def main(variant: str, device: str, case: str) -> int:
    served = Served(variant, device, json.loads(case))
    if served.is_model:
        import transformers  # noqa: F401  # it takes long, and is no part of a first step

    said = sys.stdout
    sys.stdout = sys.stderr  # for what compilers print
    print(json.dumps({}), file=said, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = getattr(served, asked.pop("do"))(**asked)
        except Exception as error:  # a peer's fault or ours: it is told
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=said, flush=True)
        if "error" in answer:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
