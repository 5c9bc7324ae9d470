"""transformers' Llama in pieces: forward without gradients, and a training step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from measure.bench.timing import Timing, alternating
from rust_ort.studies.llama_models import PARTS, Size, build

VARIANTS = ("eager", "inductor", "rust_ort")
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast to this, or none."""
SIZE = Size(vocabulary=32_000, layers=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """part: of PARTS; way: "forward" or "step"; precision: of PRECISIONS."""

    part: str
    way: str
    precision: str
    size: Size = SIZE

    @property
    def name(self) -> str:
        return f"{self.part} {self.way} {self.precision}"


def cases() -> list[Case]:
    """Every part, forward and step, in each precision."""
    return [
        Case(part=part, way=way, precision=precision)
        for precision in PRECISIONS
        for part in PARTS
        for way in ("forward", "step")
    ]


def measure(case: Case, variants: Sequence[str], *, rounds: int) -> list[Timing]:
    """Each variant's time, of the same module. Raises AssertionError when a result is far from eager's."""
    torch.compiler.reset()
    study = build(case.part, case.size)
    dtype = PRECISIONS[case.precision]
    calls: dict[str, Callable[[], Tensor]] = {}
    expected = None
    for variant in variants:
        call = study.module if variant == "eager" else torch.compile(study.module, backend=variant, dynamic=False)
        run = functools.partial(_forward, call, study.inputs, dtype)
        if case.way == "step":
            run = functools.partial(_step, call, study.inputs, dtype, [*study.module.parameters()])
        for _ in range(2):
            got = run()
        expected = got if expected is None else expected
        torch.testing.assert_close(
            got, expected, rtol=1e-3 if dtype is None else 0.1, atol=1e-3 if dtype is None else 0.1
        )
        calls[variant] = run
    return alternating(case.name, calls, rounds=rounds)


def _autocast(dtype: torch.dtype | None) -> Any:
    return torch.autocast("cpu", dtype=dtype) if dtype is not None else contextlib.nullcontext()


def _forward(call: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype | None) -> Tensor:
    with torch.no_grad(), _autocast(dtype):
        return call(*inputs)


def _step(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype | None, parameters: Sequence[Tensor]
) -> Tensor:
    """Forward and backward; every gradient is made anew, as after `zero_grad()`."""
    with _autocast(dtype):
        loss = call(*inputs).sum()
    wanted = [*parameters, *(value for value in inputs if value.requires_grad)]
    for value in wanted:
        value.grad = None
    loss.backward()
    return loss.detach()
