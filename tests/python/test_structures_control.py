"""Higher-order operators and ways to compile, against aot_eager: cond, loops, flex_attention, regions, exports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import Compile, check, gradients, scalar, state
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

pytestmark = pytest.mark.usefixtures("served")


# --- control flow ----------------------------------------------------------------------------------------------------


def branches(x: Tensor, w: Tensor) -> Tensor:
    def positive(x: Tensor) -> Tensor:
        return torch.sin(x @ w) * 2

    def negative(x: Tensor) -> Tensor:
        return torch.cos(x @ w).exp() - 1

    return torch.cond(x.sum() > 0, positive, negative, (x * 1.5,)) + 1


def test_cond() -> None:
    def program(compiled: Compile) -> Any:
        w = torch.randn(4, 4, requires_grad=True)
        call = compiled(branches)
        found = []
        for rows, sign in ((3, 1), (3, -1), (5, 1)):
            x = (torch.rand(rows, 4) * sign).requires_grad_()
            y = call(x, w)
            scalar(y).backward()
            found += [y, x.grad, w.grad.clone()]
        with torch.no_grad():
            found.append(call(torch.rand(2, 4), w))
        return found

    infos = check(program)
    assert any("cond" in node.op for info in infos for node in info.eager)


def test_nested_cond_with_size_and_constant() -> None:
    def program(compiled: Compile) -> Any:
        def inner(x: Tensor, scale: Tensor) -> Tensor:
            return torch.cond(x.mean() > 1, lambda y: y * scale, lambda y: y + scale, (x,))

        def function(x: Tensor, scale: Tensor) -> Tensor:
            x = x * 2
            return torch.cond(x.sum() > 0, lambda y: inner(y, scale).tanh(), lambda y: y.abs() + x.shape[0], (x,)) * 3

        call = compiled(function)
        with torch.no_grad():
            return [
                call(torch.full((rows, 2), value), torch.tensor(0.5)) for rows, value in ((3, 1.0), (3, 0.1), (4, -1.0))
            ]

    check(program, dynamic=True)


def test_while_loop() -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor, w: Tensor) -> Any:
            def going(i: Tensor, x: Tensor) -> Tensor:
                return (i < 5) & (x.norm() < 100)

            def body(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
                return i + 1, torch.relu(x @ w) * 1.5

            from torch._higher_order_ops.while_loop import while_loop

            return while_loop(going, body, (torch.tensor(0), x * 2))

        call = compiled(function)
        with torch.no_grad():
            return [call(torch.rand(rows, 3), torch.rand(3, 3)) for rows in (2, 4)]

    infos = check(program)
    assert any("while_loop" in node.op for info in infos for node in info.eager)


def test_scan() -> None:
    from torch._higher_order_ops.scan import scan

    def program(compiled: Compile) -> Any:
        def function(start: Tensor, xs: Tensor, w: Tensor) -> Any:
            def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
                carry = torch.tanh(carry @ w + x)
                return carry, carry * 2

            last, every = scan(step, start, xs * 0.5, dim=0)
            return last + 1, every

        call = compiled(function)
        found = []
        for length in (4, 6):
            given = [torch.randn(*shape, requires_grad=True) for shape in ((2, 3), (length, 2, 3), (3, 3))]
            last, every = call(*given)
            (last.sum() + every.square().sum()).backward()
            found += [last, every, *(tensor.grad for tensor in given)]
        return found

    infos = check(program)
    assert any("scan" in node.op for info in infos for node in info.eager)


def test_map_and_associative_scan() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as torch_map

    def program(compiled: Compile) -> Any:
        def function(xs: Tensor, y: Tensor) -> Any:
            mapped = torch_map(lambda x, y: torch.sin(x) * y, xs * 2, y)
            summed = associative_scan(lambda a, b: a * b + a, mapped, 0, combine_mode="generic")
            return mapped + 1, summed

        with torch.no_grad():
            return compiled(function)(torch.randn(4, 3), torch.randn(3))

    check(program)


# --- flex_attention --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "score", "block mask", "grouped"])
def test_flex_attention(kind: str) -> None:
    """Without gradients: torch has no backward of it on the CPU."""

    def program(compiled: Compile) -> Any:
        bias = torch.randn(4)
        options: dict[str, Any] = {}
        if kind == "score":
            options = {"score_mod": lambda score, b, h, i, j: score + bias[h] * (i - j)}
        elif kind == "block mask":
            options = {"block_mask": create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 128, 128, device="cpu")}
        elif kind == "grouped":
            options = {"enable_gqa": True}

        def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return flex_attention(q * 0.5, k, v, **options) * 2

        call = compiled(function)
        n_keys = 2 if kind == "grouped" else 4
        with torch.no_grad():
            return [call(*(torch.randn(n, h, 128, 16) for h in (4, n_keys, n_keys))) for n in (1, 2)]

    infos = check(program)
    assert any("flex_attention" in node.op for info in infos for node in info.eager)


# --- modes and ways to compile ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_inference_modes(mode: Callable[[], Any]) -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        call = compiled(model)
        found = []
        with mode():
            model.train()
            found.append(call(torch.randn(3, 4)))
            model.eval()
            made = torch.randn(3, 4)
            found += [call(made), call(made[:2]), call(torch.randn(6, 4).t()[:, :].t())]
        y = call(torch.randn(3, 4, requires_grad=True))
        scalar(y).backward()
        inferred = [leaf.is_inference() for leaf in found]
        return found, y, gradients(model), state(model), inferred

    check(program)


def test_inference_tensors_written_in_place() -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor, cache: Tensor) -> Tensor:
            cache[1:3].copy_(x.exp())
            return cache.sum(0) + x

        call = compiled(function)
        with torch.inference_mode():
            cache = torch.zeros(4, 3)
            found = [call(torch.randn(2, 3), cache) for _ in range(2)]
            return found, cache.clone()

    check(program)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls.add_(1)
        return x + scale * self.down(torch.relu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x


def train(model: nn.Module, call: Callable[[Tensor], Tensor]) -> Any:
    found = []
    for rows in (3, 5):
        x = torch.randn(rows, 8, requires_grad=True)
        y = call(x)
        scalar(y).backward()
        found += [y, x.grad]
    return found, gradients(model), state(model)


def test_compiled_blocks_in_an_eager_model_share_one_graph() -> None:
    def program(compiled: Compile) -> Any:
        model = Stack()
        for layer in model.layers:
            layer.forward = compiled(layer.forward)  # type: ignore[method-assign]
        return train(model, model)

    infos = check(program)
    assert {info.direction for info in infos} == {"forward", "backward"}


def test_blocks_compiled_in_place() -> None:
    """nn.Module.compile, as regional compilation in the documentation of torch has it."""

    def program(compiled: Compile) -> Any:
        model = Stack()
        for layer in model.layers:
            layer._compiled_call_impl = compiled(layer._call_impl)
        return train(model, model)

    check(program)


def test_a_compiled_module_inside_a_compiled_module() -> None:
    def program(compiled: Compile) -> Any:
        model = Stack()
        inner = compiled(model.layers[1])
        outer = compiled(lambda x: model.layers[2](inner(model.layers[0](x))))
        return train(model, outer)

    check(program)


def test_a_nested_compile_region() -> None:
    def program(compiled: Compile) -> Any:
        model = Stack()
        region = torch.compiler.nested_compile_region(
            lambda x, up, down: torch.tanh(x @ up.weight.t()) @ down.weight.t()
        )

        def function(x: Tensor) -> Tensor:
            for layer in model.layers:
                x = x + region(x, layer.up, layer.down)
            return x

        return train(model, compiled(function))

    infos = check(program, fullgraph=True)
    assert any("invoke_subgraph" in node.op for info in infos for node in info.eager)


def test_disabled_and_skipped_functions_between_graphs() -> None:
    def program(compiled: Compile) -> Any:
        @torch.compiler.disable
        def outside(x: Tensor) -> Tensor:
            return x * float(x.detach().sum() > 0) + 1

        model = Stack()

        def function(x: Tensor) -> Tensor:
            y = outside(model.layers[0](x))
            if y.sum() > 0:
                y = y * 2
            return model.layers[1](y) + torch.tensor(y.detach().numpy().sum())

        return train(model, compiled(function))

    check(program)


# --- torch.export ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_modules_of_torch_export(dynamic: bool) -> None:
    def program(compiled: Compile) -> Any:
        model = Stack()
        rows = torch.export.Dim("rows", min=2, max=16)
        shapes = {"x": {0: rows}} if dynamic else None
        exported = torch.export.export(model, (torch.randn(3, 8),), dynamic_shapes=shapes)
        module = exported.module()
        call = compiled(module)
        found = []
        for size in (3, 5) if dynamic else (3, 3):
            y = call(torch.randn(size, 8))
            scalar(y).backward()
            found.append(y)
        decomposed = compiled(exported.run_decompositions().module())
        with torch.no_grad():
            found.append(decomposed(torch.randn(3, 8)))
        return found, gradients(module), state(module, model)

    check(program)


# --- threads ---------------------------------------------------------------------------------------------------------


def test_two_threads_through_control_flow() -> None:
    def program(compiled: Compile) -> Any:
        call = compiled(branches)
        found: dict[int, Any] = {}
        inputs = [torch.rand(3, 4) - index for index in range(2)]
        weights = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]

        def work(index: int) -> None:
            for _ in range(3):
                y = call(inputs[index], weights[index])
                scalar(y).backward()
            found[index] = y

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return [found[index] for index in range(2)], [w.grad for w in weights]

    check(program)
