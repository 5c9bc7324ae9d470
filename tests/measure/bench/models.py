"""transformers' Llama in pieces: forward without gradients, and a training step."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from measure.bench.timing import Timing, alternating
from rust_ort.studies.llama_models import PARTS, Size, Study, build

VARIANTS = ("eager", "inductor", "rust_ort")
PRECISIONS: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Autocast to this, or none."""
SIZE = Size(vocabulary=32_000, layers=2)


@dataclass(frozen=True, kw_only=True)
class Case:
    """part: of PARTS; way: "forward" or "step"; precision: of PRECISIONS; device: "cpu" or "cuda"."""

    part: str
    way: str
    precision: str
    size: Size = SIZE
    device: str = "cpu"

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


def measure(
    case: Case,
    variants: Sequence[str],
    *,
    rounds: int,
    backends: Mapping[str, Any] | None = None,
    around: Mapping[str, Callable[[Callable[[], list[Tensor]]], list[Tensor]]] | None = None,
) -> list[Timing]:
    """Each variant's time, of a module of its own. backends: {variant: torch.compile's backend}, of those that are not
    backends by their names. around: {variant: what makes its call, given that}. Raises AssertionError when the result
    or a gradient is far from eager's."""
    torch.compiler.reset()
    study = build(case.part, case.size, device=case.device)
    import rust_ort

    known = {"rust_ort": rust_ort.Backend(), **(backends or {})}  # from sources no name is known
    named = {variant: known.get(variant, variant) for variant in variants}
    expected = _run(case, "eager", study)
    wanted = expected()
    close = 1e-3 if PRECISIONS[case.precision] is None else 0.1
    calls: dict[str, Callable[[], list[Tensor]]] = {}
    for variant in variants:
        run = _run(case, named[variant], study)
        if around and variant in around:
            run = functools.partial(around[variant], run)
        calls[variant] = run
        for _ in range(2):
            got = run()
        for one, other in zip(got, wanted, strict=True):
            # Elements near 0 by the largest: gradients of parameters are of many sizes.
            torch.testing.assert_close(one, other, rtol=close, atol=close * float(other.abs().max()))
    return alternating(case.name, calls, rounds=rounds, device=case.device)


def _run(case: Case, backend: Any, study: Study) -> Callable[[], list[Tensor]]:
    """One call of a copy of the module under `backend`, "eager" for none."""
    module = copy.deepcopy(study.module)
    autocast = functools.partial(_autocast, case.device, PRECISIONS[case.precision])
    call = module if backend == "eager" else torch.compile(module, backend=backend, dynamic=False)
    if case.way == "forward":
        return functools.partial(_forward, call, study.inputs, autocast)
    return functools.partial(_step, call, study.inputs, autocast, [*module.parameters()])


def _autocast(device: str, dtype: torch.dtype | None) -> Any:
    return torch.autocast(device, dtype=dtype) if dtype is not None else contextlib.nullcontext()


def _forward(call: Callable[..., Tensor], inputs: Sequence[Tensor], autocast: Callable[[], Any]) -> list[Tensor]:
    with torch.no_grad(), autocast():
        return [call(*inputs)]


def _step(
    call: Callable[..., Tensor], inputs: Sequence[Tensor], autocast: Callable[[], Any], parameters: Sequence[Tensor]
) -> list[Tensor]:
    """Forward and backward; every gradient is made anew, as after `zero_grad()`. The loss and the gradients."""
    with autocast():
        loss = call(*inputs).sum()
    wanted = [*parameters, *(value for value in inputs if value.requires_grad)]
    for value in wanted:
        value.grad = None
    loss.backward()
    return [loss.detach(), *(value.grad for value in wanted if value.grad is not None)]
