"""Weights are never stale, whatever way they change between calls."""

import copy
from collections.abc import Callable

import pytest
import torch

pytestmark = pytest.mark.usefixtures("daemon")


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Tanh(), torch.nn.Linear(40, 8))


def assert_same(model: torch.nn.Module, compiled: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    """Forward and every gradient, against eager with the weights as they are now."""
    model.zero_grad()
    expected = model(x)
    expected.square().mean().backward()
    expected_grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    got = compiled(x)
    got.square().mean().backward()
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    got_grads = [p.grad for p in model.parameters()]
    assert len(expected_grads) == len(got_grads) > 0
    for got_grad, expected_grad in zip(got_grads, expected_grads, strict=True):
        # Rounding is relative to the largest sums; a stale weight changes everything.
        atol = 1e-5 * expected_grad.abs().max().item()
        torch.testing.assert_close(got_grad, expected_grad, atol=atol, rtol=1e-5)


@pytest.mark.parametrize(
    "make_optimizer",
    [
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.1, fused=True), id="fused-adam"),
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.1, foreach=True), id="foreach-adam"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), id="fused-sgd"),
        pytest.param(lambda p: torch.optim.SGD(p, lr=0.1), id="sgd"),
    ],
)
def test_optimizer_steps_are_seen(make_optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    optimizer = make_optimizer(model.parameters())
    x = torch.randn(5, 24)
    for _ in range(4):
        assert_same(model, compiled, x)
        before = model[0].weight.detach().clone()
        optimizer.step()
        assert not torch.equal(before, model[0].weight)
    assert_same(model, compiled, x)


def load_state_dict(model: torch.nn.Module) -> None:
    model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})


def data_copy(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn_like(parameter))


def data_swap(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter)


def numpy_write(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.detach().numpy()[...] *= -0.5


def ema_swap(model: torch.nn.Module) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    averaged.update_parameters(model)
    data_copy(model)
    averaged.update_parameters(model)
    for parameter, average in zip(model.parameters(), averaged.module.parameters(), strict=True):
        parameter.data, average.data = average.data, parameter.data


@pytest.mark.parametrize("change", [load_state_dict, data_copy, data_swap, numpy_write, ema_swap])
def test_change_is_seen(change: Callable[[torch.nn.Module], None]) -> None:
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(5, 24)
    assert_same(model, compiled, x)
    for _ in range(3):
        before = model(x).detach()
        change(model)
        assert not torch.allclose(before, model(x))
        assert_same(model, compiled, x)


def test_freed_and_reallocated_parameters_are_seen() -> None:
    """Fresh parameters land at freed addresses: neither address nor version tells them apart."""
    model = make_model()
    compiled = torch.compile(model, backend="rust_ort")
    x = torch.randn(5, 24)
    assert_same(model, compiled, x)
    addresses = set()
    for seed in range(10):
        for layer in (model[0], model[2]):
            shape = layer.weight.shape
            del layer.weight
            torch.manual_seed(seed)
            layer.weight = torch.nn.Parameter(torch.randn(shape))
        addresses.add(model[0].weight.data_ptr())
        assert_same(model, compiled, x)


def test_change_between_forward_and_backward_is_seen_as_in_eager() -> None:
    """`.data` writes between forward and backward reach eager's saved weights, so they must reach ours."""

    def grads(run: Callable[[torch.Tensor], torch.Tensor], model: torch.nn.Module) -> list[torch.Tensor]:
        torch.manual_seed(3)
        x = torch.randn(5, 24, requires_grad=True)
        loss = run(x).sum()
        model[2].weight.data.mul_(2.0)
        loss.backward()
        assert x.grad is not None
        return [x.grad]

    model = make_model()
    twin = copy.deepcopy(model)
    expected = grads(model, model)
    got = grads(torch.compile(twin, backend="rust_ort"), twin)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)


def test_one_graph_serves_three_modules() -> None:
    """Three modules of one class and shape share compiled code, not weights."""

    class Block(torch.nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.inner = torch.nn.Linear(12, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.inner(x))

    blocks = [Block(seed) for seed in range(3)]

    def run(block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return block(x)

    compiled = torch.compile(run, backend="rust_ort")
    x = torch.randn(4, 12)
    for _ in range(2):
        for block in blocks:
            assert_same(block, lambda x, block=block: compiled(block, x), x)
