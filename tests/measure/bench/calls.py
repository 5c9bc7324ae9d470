"""Small calls, where what a call costs beside its kernels is most of it: no gradients, float32."""

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

VARIANTS = ("eager", "inductor", "in-process ONNX Runtime", "rust_ort")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One function and its inputs."""

    name: str
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]


def cases(device: str = "cpu") -> list[Case]:
    """Add of 10 floats; a perceptron of two 512 x 512 layers on 1 and on 32 rows. float32, of the same numbers on each
    device."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mlp = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).eval().to(device)
    two = torch.randn(2, 10, generator=generator).to(device).unbind()
    add = Case(name="Add of 10", function=torch.add, inputs=tuple(two))
    rows = [
        Case(name=f"MLP {n}x512", function=mlp, inputs=(torch.randn(n, 512, generator=generator).to(device),))
        for n in (1, 32)
    ]
    return [add, *rows]


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
        "in-process ONNX Runtime": InProcess(spinning=spinning),
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
        call = compiled(variant, case, spinning=spinning)
        torch.testing.assert_close(call(*case.inputs), expected)
        calls[variant] = functools.partial(call, *case.inputs)
    return alternating(case.name, calls, rounds=rounds, device=expected.device.type)
