"""Kinds of tensors and optimizers, against aot_eager: jagged, float8, int8, compiled steps, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import Compile, check, eager_nodes, gradients, scalar, state
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("served")


# --- jagged ----------------------------------------------------------------------------------------------------------


def jagged(*lengths: int, requires_grad: bool = False) -> Tensor:
    rows = [torch.randn(n, 4) for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def test_jagged_tensors_in_and_out() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8))
        call = compiled(lambda x: model(x) * 2)
        found = []
        for lengths in ((2, 3, 1), (4, 1)):
            x = jagged(*lengths, requires_grad=True)
            y = call(x)
            scalar(y.values()).backward()
            found += [y, x.grad]
        with torch.no_grad():
            found.append(call(jagged(1, 5)))
        return found, gradients(model)

    check(program)


def test_jagged_tensors_made_and_taken_apart_inside() -> None:
    """Sums without gradients: their backward is not implemented for jagged tensors, under aot_eager neither."""

    def program(compiled: Compile) -> Any:
        def function(values: Tensor, offsets: Tensor, w: Tensor) -> Tensor:
            x = torch.nested.nested_tensor_from_jagged(values * 2, offsets)
            return torch.nn.functional.silu(x @ w).values()

        def pooled(values: Tensor, offsets: Tensor) -> Tensor:
            return torch.nested.nested_tensor_from_jagged(values * 2, offsets).sum(dim=1) + 1

        w = torch.randn(4, 4, requires_grad=True)
        values, offsets = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 2, 5, 6])
        parts = compiled(function)(values, offsets, w)
        scalar(parts).backward()
        with torch.no_grad():
            return parts, values.grad, w.grad, compiled(pooled)(values, offsets)

    check(program, fullgraph=True)


def test_attention_over_jagged_tensors() -> None:
    def program(compiled: Compile) -> Any:
        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, [2, 2]).transpose(1, 2) for t in (q * 2, k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)

        x = jagged(2, 3, 1)
        with torch.no_grad():
            return compiled(function)(x, x, x)

    check(program)


# --- optimizers ------------------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), amsgrad=True),
    "Adam in one list": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_optimizers(name: str) -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 1), nn.Tanh())
        optimizer = OPTIMIZERS[name](model.parameters())
        step = compiled(lambda: optimizer.step())
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        x, y = torch.randn(8, 4), torch.randn(8, 1)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            step()
            schedule.step()
            found.append(loss)
        return found, state(model), optimizer.state_dict()["state"]

    check(program)


@pytest.mark.parametrize("name", ["SGD", "Adam in one list", "RMSprop in one list", "clipped"])
def test_lists_of_tensors_run_on_onnx_runtime(name: str) -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 1), nn.Tanh())
        made: dict[str, Callable[[], Any]] = {
            "SGD": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True).step,
            "Adam in one list": torch.optim.Adam(model.parameters(), lr=0.01, foreach=True).step,
            "RMSprop in one list": torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, foreach=True).step,
            "clipped": lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=True),
        }
        step = compiled(made[name])
        norms = []
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            norms.append(step())
        return norms, state(model)

    left = [node for graph in check(program) for node in graph.eager]
    assert not [node for node in left if "_foreach" in node.op], left


def test_a_whole_training_step_in_one_function() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        call = compiled(model)

        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(call(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        whole = compiled(step)
        return [whole(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(3)], state(model)

    check(program)


# --- casts -----------------------------------------------------------------------------------------------------------

FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16], ids=str)
def test_float8_casts(dtype: torch.dtype, given: torch.dtype) -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            scale = x.abs().amax() / torch.finfo(dtype).max
            small = (x / scale).to(dtype)
            return small, scale, (small.to(x.dtype) * scale) @ w.to(x.dtype), w.float().sum()

        x = torch.randn(3, 4, dtype=given)
        with torch.no_grad():
            return compiled(function)(x, torch.randn(4, 2).to(dtype))

    infos = check(program, tol=2e-2 if given is torch.bfloat16 else 2e-5)
    reasons = eager_nodes(infos).values()
    assert any("float8" in reason for reason in reasons), reasons


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_integer_quantization(dtype: torch.dtype) -> None:
    def program(compiled: Compile) -> Any:
        low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max

        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            scale = x.abs().amax(1, keepdim=True) / high
            quantized = torch.clamp(torch.round(x / scale), low, high).to(dtype)
            exact = quantized.to(torch.int32).sum(1)
            return (
                quantized,
                quantized.float() * scale @ (w.float() * 0.1),
                exact,
                (quantized + quantized),
                quantized >> 1,
            )

        call = compiled(function)
        w = torch.randint(0, 100, (4, 2)).to(dtype)
        return [call(torch.randn(rows, 4), w) for rows in (3, 5)]

    check(program)


def test_fake_quantization_trains() -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor, w: Tensor) -> Tensor:
            return torch.fake_quantize_per_tensor_affine(x * w, 0.1, 0, -128, 127).tanh()

        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        y = compiled(function)(x, w)
        scalar(y).backward()
        return y, x.grad, w.grad

    check(program)


# --- autocast --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["around", "inside", "only forward"])
def test_autocast_regions(where: str) -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 4))

        def region() -> Any:
            return torch.autocast("cpu", torch.bfloat16)

        def inside(x: Tensor) -> Tensor:
            with region():
                y = model[1](model[0](x))
            return model[3](y.float())

        x = torch.randn(3, 8, requires_grad=True)
        if where == "inside":
            y = compiled(inside)(x)
            scalar(y).backward()
        elif where == "around":
            with region():
                y = compiled(model)(x)
                scalar(y).backward()
        else:
            call = compiled(model)
            with region():
                y = call(x)
            scalar(y).backward()
        return y, x.grad, gradients(model)

    check(program, tol=4e-2)
