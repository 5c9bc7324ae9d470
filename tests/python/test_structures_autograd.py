"""What programs do around autograd, against aot_eager: checkpoints, hooks, compiled autograd, own backwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import Compile, check, gradients, scalar, state
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import rust_ort

pytestmark = pytest.mark.usefixtures("served")


class Block(nn.Module):
    """A linear layer, dropout and a norm, as in a transformer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.3)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(torch.tanh(self.linear(x))))


def save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "not reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "without the generator's state": {"use_reentrant": False, "preserve_rng_state": False},
    "selective": {
        "use_reentrant": False,
        "context_fn": lambda: create_selective_checkpoint_contexts(save_products),
    },
}


class Checkpointed(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, **self.options)
        return x


def steps(model: nn.Module, call: Callable[..., Tensor], sizes: tuple[int, ...]) -> list[Any]:
    """Output, gradients and generator of a training step with each number of rows, gradients adding up."""
    found: list[Any] = []
    for rows in sizes:
        x = torch.randn(rows, 8, requires_grad=True)
        y = call(x)
        scalar(y).backward()
        found += [y, x.grad, {name: g.clone() for name, g in gradients(model).items() if g is not None}]
    return [*found, torch.get_rng_state()]


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_with_dropout(kind: str) -> None:
    def program(compiled: Compile) -> Any:
        model = Checkpointed(**CHECKPOINTS[kind])
        call = compiled(model)
        found = steps(model, call, (4, 4, 5) if kind == "reentrant" else (4, 4))
        if kind == "not reentrant":
            model.eval()
            found.append(call(torch.randn(3, 8)))
        return found

    infos = check(program)
    draws = {node.op for info in infos for node in info.eager}
    assert draws == {f"{how}(aten.bernoulli.p)" for how in ("run_and_save_rng_state", "run_with_rng_state")} | {
        "aten.empty_strided.default"
    }, draws


def test_compiled_blocks_inside_eager_checkpoints() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(*(Block() for _ in range(3)))
        call = nn.Sequential(*(compiled(block) for block in model))
        return steps(model, lambda x: checkpoint_sequential(call, 2, x, use_reentrant=False), (4, 4))

    check(program)


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_hooks_of_modules() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))
        seen: list[Any] = []
        model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        model[0].register_forward_hook(lambda module, args, out: out + args[0].mean())
        model[2].register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))
        model[2].register_full_backward_hook(lambda module, given, grads: seen.append(grads[0].detach().clone()))
        model[1].register_full_backward_hook(lambda module, given, grads: (given[0].clamp(max=0.5),))
        call = compiled(model)
        x = torch.randn(5, 4, requires_grad=True)
        y = call(x)
        scalar(y).backward()
        return y, x.grad, gradients(model), seen

    check(program)


def test_hooks_of_tensors() -> None:
    def program(compiled: Compile) -> Any:
        weight, seen = torch.randn(4, 4, requires_grad=True), []
        weight.register_hook(lambda grad: grad * 2)
        weight.register_post_accumulate_grad_hook(lambda tensor: seen.append(tensor.grad.clone()))

        def function(x: Tensor) -> Tensor:
            hidden = torch.tanh(x @ weight)
            hidden.register_hook(lambda grad: grad.clamp(-0.5, 0.5))
            return hidden * x

        call = compiled(function)
        found = []
        for rows in (3, 6):
            x = torch.randn(rows, 4, requires_grad=True)
            handle = x.register_hook(lambda grad: grad + 1)
            y = call(x)
            y.register_hook(lambda grad: grad * 0.5)
            scalar(y).backward()
            handle.remove()
            found += [y, x.grad]
        return found, weight.grad, seen

    check(program)


@pytest.mark.parametrize("where", ["around", "inside"])
def test_hooks_of_saved_tensors(where: str) -> None:
    def program(compiled: Compile) -> Any:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2)
        weight = torch.randn(4, 4, requires_grad=True)

        def inside(x: Tensor) -> Tensor:
            with hooks:
                return torch.tanh(x @ weight).exp()

        def plain(x: Tensor) -> Tensor:
            return torch.tanh(x @ weight).exp()

        x = torch.randn(3, 4, requires_grad=True)
        if where == "inside":
            y = compiled(inside)(x)
        else:
            call = compiled(plain)
            with hooks:
                y = call(x)
        scalar(y).backward()
        return y, x.grad, weight.grad

    check(program)


def test_saved_tensors_on_disk(tmp_path: Any) -> None:
    """torch.autograd.graph.save_on_cpu and a hook that writes files: what is saved may come back as another tensor."""

    def program(compiled: Compile) -> Any:
        def pack(x: Tensor) -> str:
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
            torch.save(x, path)
            return str(path)

        weight = torch.randn(4, 4, requires_grad=True)
        call = compiled(lambda x: torch.softmax(x @ weight, -1).log())
        x = torch.randn(3, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.load):
            y = call(x)
        with torch.autograd.graph.save_on_cpu():
            z = call(x)
        (y.sum() + z.square().sum()).backward()
        return y, z, x.grad, weight.grad

    check(program)


# --- compiled autograd -----------------------------------------------------------------------------------------------


def test_compiled_autograd() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        model[0].weight.register_hook(lambda grad: grad * 2)

        def step(x: Tensor) -> Tensor:
            y = model(x)
            scalar(y).backward()
            return y

        with torch._dynamo.config.patch(compiled_autograd=True):
            call = compiled(step)
            found = []
            for rows in (3, 5):
                found += [call(torch.randn(rows, 8)), {n: g.clone() for n, g in gradients(model).items()}]
        return found

    infos = check(program)
    assert len(infos) > 1


def test_compiled_autograd_of_a_compiled_backward() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.4), nn.Linear(8, 8))
        call = compiled(model)
        y = call(torch.randn(3, 8))
        with torch._dynamo.compiled_autograd._enable(lambda gm: compiled(gm)):
            y.exp().sum().backward()  # a loss with numbers in it fails inside torch 2.13, under aot_eager as well
        return y, gradients(model)

    infos = check(program)
    assert sum(bool(info.parts) for info in infos) > 1


# --- autograd by hand ------------------------------------------------------------------------------------------------


class ClippedExp(torch.autograd.Function):
    """exp whose gradient is cut off, with an output that has no gradient and a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.limit = limit
        signs = x > 0
        ctx.mark_non_differentiable(signs)
        return y, signs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (y,) = ctx.saved_tensors
        return grad * y.clamp(max=ctx.limit), None


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 3


def test_functions_with_a_backward_of_their_own() -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor) -> tuple[Tensor, Tensor]:
            y, signs = ClippedExp.apply(x * 2, 1.5)
            return InPlace.apply(y + 1), signs

        call = compiled(function)
        found = []
        for rows in (3, 5):
            x = torch.randn(rows, 4, requires_grad=True)
            y, signs = call(x)
            scalar(y).backward()
            found += [y, signs, x.grad]
        return found

    check(program)


def test_gradients_without_backward() -> None:
    """autograd.grad of some inputs, with retained graphs, of outputs one by one."""

    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.Softplus())
        call = compiled(lambda x, s: (model(x) * s, x.sin()))
        x, s = torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
        y, z = call(x, s)
        only = torch.autograd.grad(y.sum(), [s], retain_graph=True)
        both = torch.autograd.grad(z.sum(), [x, s], retain_graph=True, allow_unused=True)
        rows = [torch.autograd.grad(y[i].sum(), list(model.parameters()), retain_graph=True) for i in range(2)]
        penalty = torch.autograd.grad([y, z], [x], grad_outputs=[torch.ones_like(y), z.detach()])
        return y, z, only, both, rows, penalty

    check(program)


def test_gradients_of_gradients_inside_the_compiled_function() -> None:
    """Outside, AOTAutograd refuses a second backward, under aot_eager as well."""

    def program(compiled: Compile) -> Any:
        def penalty(x: Tensor) -> Tensor:
            (grad,) = torch.autograd.grad((x.tanh() ** 2).sum(), x, create_graph=True)
            return grad.square().sum()

        def norm(x: Tensor) -> tuple[Tensor, Tensor]:
            return torch.func.vjp(penalty, x)[1](torch.ones(()))[0], torch.func.grad(lambda y: y.cos().prod())(x)

        return compiled(norm)(torch.randn(5))

    check(program)


def test_a_second_backward_is_refused_as_by_aot_eager() -> None:
    def program(compiled: Compile) -> Any:
        x = torch.randn(3, requires_grad=True)
        y = compiled(lambda x: x.exp())(x)
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        with pytest.raises(RuntimeError) as refused:  # until torch 2.12 it is torch.autograd that does
            grad.sum().backward()
        return y, grad.detach(), str(refused.value)

    check(program)


def test_forward_mode() -> None:
    def program(compiled: Compile) -> Any:
        def function(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            return torch.func.jvp(lambda v: v.sin() * v, (x,), (t,))

        return compiled(function)(torch.randn(4), torch.randn(4))

    check(program)


def test_vmap_of_grad() -> None:
    def program(compiled: Compile) -> Any:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
        parameters = {name: p.detach() for name, p in model.named_parameters()}

        def loss(parameters: Any, x: Tensor, y: Tensor) -> Tensor:
            return (torch.func.functional_call(model, parameters, (x,)) - y).square().sum()

        def function(parameters: Any, x: Tensor, y: Tensor) -> Any:
            return torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)

        def jacobians(x: Tensor) -> Any:
            return torch.func.jacrev(model)(x), torch.func.jacfwd(model)(x)

        call = compiled(function)
        found = [call(parameters, torch.randn(n, 4), torch.randn(n, 1)) for n in (3, 5)]
        with torch.no_grad():
            return found, compiled(jacobians)(torch.randn(4)), state(model)

    check(program)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_row_written_under_no_grad_that_backward_reads_is_an_error_and_no_other_number(is_leaf: bool) -> None:
    """Writes to inputs come after the graph, where autograd sees them. In it, as under aot_eager, they come before what
    is saved, and gradients are of what was written."""
    weight, scale = nn.Parameter(torch.arange(6.0).reshape(2, 3)), nn.Parameter(torch.ones(3))
    rows = weight if is_leaf else weight * 1

    def function(row: Tensor) -> Tensor:
        kept = (row + 1).sin() * scale
        with torch.no_grad():
            row.mul_(2)
        return kept

    made = torch.compile(function, backend=rust_ort.backend())
    with pytest.raises(RuntimeError, match=r"a view of a leaf Variable|modified by an inplace operation"):
        made(rows[1]).sum().backward()


@pytest.mark.parametrize("compare", ["off", "outputs", "nodes"])
def test_a_buffer_written_in_backward_is_written_once(compare: str) -> None:
    seen = torch.zeros(3)

    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, seen: Tensor) -> Tensor:
            ctx.save_for_backward(seen)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            (seen,) = ctx.saved_tensors
            seen.add_(grads[0])
            return grads[0] * 2, None

    backend = rust_ort.backend(compare=compare)
    made = torch.compile(lambda x: Counting.apply(x, seen), backend=backend)
    x = torch.ones(3, requires_grad=True)
    for count in (1, 2):
        made(x).sum().backward()
        assert seen.tolist() == [count] * 3
    if compare != "off":
        backend.report().check()


def _gradient_after_a_write(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    made = function(x)
    made.mul_(3)
    return torch.autograd.grad(made.sum(), x)[0]


@pytest.mark.parametrize("function", [torch.sigmoid, torch.exp], ids=lambda function: function.__name__)
def test_an_output_that_backward_reads_may_not_be_written(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    torch._dynamo.reset()
    for one in (function, torch.compile(function, backend="rust_ort")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _gradient_after_a_write(one, x)


def test_an_output_that_backward_reads_in_eager_alone_may_be_written() -> None:
    """The compiled backward of relu keeps where the output was positive, and the gradient is that of what was computed
    and written; docs/guide/troubleshooting.md says so."""
    x = torch.tensor([-1.0, 0.5, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _gradient_after_a_write(torch.relu, x)
    torch._dynamo.reset()
    made = _gradient_after_a_write(torch.compile(torch.relu, backend="rust_ort"), x)
    torch.testing.assert_close(made, torch.autograd.grad(3 * torch.relu(x).sum(), x)[0])
