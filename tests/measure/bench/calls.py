"""Small calls, where what a call costs beside its kernels is most of it: no gradients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from measure.bench.in_process import InProcess
from measure.bench.timing import Timing, alternating

IN_PROCESS = "in-process ONNX Runtime"
VARIANTS = ("eager", "inductor", IN_PROCESS, "rust_ort")
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One function and its inputs."""

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    @property
    def is_half(self) -> bool:
        """ONNX Runtime's CPU has no product of half precision: it is no peer by itself."""
        return self.inputs[0].dtype in HALVES.values()


def cases(device: str = "cpu") -> list[Case]:
    """Add of 10 floats; a perceptron of two 512 x 512 layers on 1 and on 32 rows, in float32; eight 1024 x 1024 layers
    on 3 rows in half precision. The same numbers on each device."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval().to(device)
        deep = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).eval().to(device)
    two = torch.randn(2, 10, generator=generator).to(device).unbind()
    add = Case(name="Add of 10", function=torch.add, inputs=tuple(two))
    rows = [
        Case(name=f"MLP {n}x512", function=mlp, inputs=(torch.randn(n, 512, generator=generator).to(device),))
        for n in (1, 32)
    ]
    three = torch.randn(3, 1024, generator=generator).to(device)
    halves = [
        Case(name=f"8 layers 3x1024 {name}", function=copy.deepcopy(deep).to(dtype), inputs=(three.to(dtype),))
        for name, dtype in HALVES.items()
    ]
    return [add, *rows, *halves]


def compiled(variant: str, case: Case, *, spinning: bool) -> Callable[..., Tensor]:
    """`case.function` under `variant`, a module as a copy of its own: what one peer has made of the parameters, such as
    NumPy arrays over them, keeps rust_ort from sharing them."""
    called = copy.deepcopy(case.function)
    if variant == "eager":
        return called

    def function(*inputs: Tensor) -> Tensor:  # torch.add itself is no code that Dynamo traces
        return called(*inputs)

    # Dynamo's cache hangs on the code object: with one of its own, no variant looks through the others' entries first.
    function.__code__ = function.__code__.replace(co_name=variant.replace("-", "_").replace(" ", "_"))
    import rust_ort

    backends: dict[str, Any] = {
        "inductor": "inductor",
        IN_PROCESS: InProcess(spinning=spinning),
        "rust_ort": rust_ort.Backend(),
    }
    call: Callable[..., Tensor] = torch.compile(function, backend=backends[variant], fullgraph=True, dynamic=False)
    return call


@torch.no_grad()
def measure(case: Case, variants: Sequence[str], *, rounds: int, spinning: bool) -> list[Timing]:
    """Each variant's time. Raises AssertionError when a result differs from eager's."""
    torch.compiler.reset()
    expected = case.function(*case.inputs)
    calls = {}
    for variant in variants:
        if variant == IN_PROCESS and case.is_half:
            continue
        call = compiled(variant, case, spinning=spinning)
        # Eight layers in half precision add up roundings.
        atol, rtol = (0.02 * float(expected.abs().max()), 0.0) if case.is_half else (None, None)
        torch.testing.assert_close(call(*case.inputs), expected, atol=atol, rtol=rtol)
        calls[variant] = functools.partial(call, *case.inputs)
    return alternating(case.name, calls, rounds=rounds, device=expected.device.type)
