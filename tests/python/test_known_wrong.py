"""Operators that torchlib or ONNX Runtime gets wrong without an error: the result is eager's all the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import FakeClient, use_client
from torch import Tensor
from torch.nn import functional

import rust_ort
from rust_ort.export.partition import WRONG_IN_TORCHLIB

nan, inf = math.nan, math.inf
SPECIAL = [nan, inf, -inf, -0.0, 0.0, 1.0, -1.0, 0.5, 100.0, -100.0, 1e20, 6.0]
PAIRS = torch.cartesian_prod(torch.tensor(SPECIAL), torch.tensor(SPECIAL))
X, Y = PAIRS[:, 0], PAIRS[:, 1]
ROWS = torch.tensor([[1.0, nan, 2.0], [inf, 1.0, -inf], [-inf, -inf, -inf], [nan, nan, nan]])
POWERS = torch.arange(40)
IMAGE = torch.arange(2 * 3 * 9 * 7, dtype=torch.float32).sin().reshape(2, 3, 9, 7)
IDS = torch.tensor([1, 2, 2, 0, 3])


def case(name: str, function: Callable[..., Any], *inputs: Tensor) -> Any:
    return pytest.param(name, function, inputs, id=name or None)


LEFT_TO_EAGER = [
    case("aten::addmm", lambda c, x: torch.addmm(c, x, x.t(), beta=0.5), torch.ones(2, 2), torch.ones(2, 0)),
    case("aten::angle", torch.angle, torch.tensor(SPECIAL)),
    case("aten::argmax", lambda x: torch.argmax(x, 1), ROWS),
    case("aten::argmin", lambda x: torch.argmin(x, 1), ROWS),
    case("aten::atan2", torch.atan2, X, Y),
    case("aten::avg_pool2d", lambda x: functional.avg_pool2d(x, 2, divisor_override=3), IMAGE),
    case("aten::avg_pool3d", lambda x: functional.avg_pool3d(x, 2, ceil_mode=True, padding=1), IMAGE),
    case("aten::div", lambda x, y: torch.div(x, y, rounding_mode="floor"), torch.ones(1), torch.tensor([0.1])),
    case("aten::floor_divide", lambda x: torch.ops.aten.floor_divide(x.detach(), 0.1), torch.ones(1)),
    case("aten::heaviside", lambda x, y: torch.heaviside(x.detach(), y.detach()), X, Y),
    case("aten::logcumsumexp", lambda x: torch.logcumsumexp(x, 0), torch.tensor([-200.0, -201.0, 0.0])),
    case("aten::max", lambda x: torch.max(x, 1), ROWS),
    case("aten::min", lambda x: torch.min(x, 1), ROWS),
    case("aten::pow", lambda x: torch.pow(3, x), POWERS),
    case("aten::remainder", torch.remainder, X, Y),
    case("aten::replication_pad2d", lambda x: functional.pad(x, (-3, 1, 1, -9), mode="replicate"), IMAGE[:, :, :, :5]),
    case("aten::scatter_add", lambda x: torch.zeros(()).scatter_add(0, torch.tensor(0), x), torch.tensor(2.0)),
    case("aten::scatter_reduce", lambda x: torch.zeros(4).scatter_reduce(0, IDS, x, "mean"), torch.ones(5)),
    case("aten::signbit", torch.signbit, torch.tensor(SPECIAL)),
    case("aten::special_erfcx", torch.special.erfcx, torch.tensor([-3.0, 0.0, 30.0])),
    case(
        "aten::_embedding_bag",
        lambda w: functional.embedding_bag(IDS, w, torch.tensor([0, 3]), mode="max"),
        torch.arange(12.0).reshape(4, 3).cos(),
    ),
    *(
        case(
            f"aten::_upsample_{mode}2d_aa",
            lambda x, mode=mode: functional.interpolate(x, (4, 3), mode=mode, antialias=True, align_corners=True),
            IMAGE,
        )
        for mode in ("bilinear", "bicubic")
    ),
]  # fmt: skip

RIGHT_ON_ONNXRUNTIME = [
    case("amax", lambda x: torch.amax(x, 1), ROWS),
    case("amin", lambda x: torch.amin(x, (0, 1)), ROWS),
    case("abs", torch.abs, torch.tensor(SPECIAL)),
    case("baddbmm", lambda c, x: torch.baddbmm(c, x, x, beta=0), torch.full((2, 3, 3), nan), torch.ones(2, 3, 3)),
    case("copysign", torch.copysign, X, Y),
    case("diagonal", lambda x: torch.diagonal_copy(x), torch.ones(3, 3)),
    case("new_full", lambda x: x.new_full((3,), 1e300, dtype=torch.float64), torch.ones(3)),
    case("hardtanh", functional.hardtanh, torch.tensor(SPECIAL)),
    case("isinf", torch.isinf, torch.tensor([1e300, inf], dtype=torch.float64)),
    case("isneginf", torch.isneginf, torch.tensor([-1e300, -inf], dtype=torch.float64)),
    case("isposinf", torch.isposinf, torch.tensor([1e300, inf], dtype=torch.float64)),
    case("logaddexp", torch.logaddexp, torch.tensor([100.0, -200.0]), torch.tensor([100.0, -200.0])),
    case("logaddexp2", torch.logaddexp2, torch.tensor([200.0, -200.0]), torch.tensor([200.0, -200.0])),
    case("relu6", functional.relu6, torch.tensor(SPECIAL)),
    case("sign", torch.sign, torch.tensor(SPECIAL)),
    case("xlogy", torch.xlogy, X, Y),
]


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    torch._dynamo.reset()
    made = FakeClient()
    use_client(monkeypatch, made)
    return made


def results(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs and gradients."""
    given = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in inputs]
    made = function(*given)
    outputs = list(made) if isinstance(made, tuple) else [made]
    summed = [out for out in outputs if out.requires_grad]
    if not summed:
        return outputs
    wanted = [tensor for tensor in given if tensor.requires_grad]
    gradients = torch.autograd.grad(summed, wanted, [torch.ones_like(out) for out in summed], allow_unused=True)
    return [*outputs, *(gradient for gradient in gradients if gradient is not None)]


def check(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    reference = results(function, inputs)
    candidate = results(torch.compile(function, backend="rust_ort", dynamic=False), inputs)
    torch.testing.assert_close(candidate, reference, equal_nan=True)


@pytest.mark.parametrize(("name", "function", "inputs"), LEFT_TO_EAGER)
def test_left_to_eager_it_is_right(name: str, function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> None:
    before = len(rust_ort.graphs())
    check(function, inputs)
    reasons = {node.reason for info in rust_ort.graphs()[before:] for node in info.eager}
    assert WRONG_IN_TORCHLIB[name][1] in reasons


@pytest.mark.parametrize(("name", "function", "inputs"), RIGHT_ON_ONNXRUNTIME)
def test_decomposed_or_corrected_it_is_right(
    name: str, function: Callable[..., Any], inputs: tuple[Tensor, ...]
) -> None:
    check(function, inputs)
