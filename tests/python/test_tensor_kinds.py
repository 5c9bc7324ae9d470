"""Inputs that are not plain memory: each gives eager's result or a ClientError; no pointer is followed that is null."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import Daemon
from test_client import add

import rust_ort
from rust_ort.errors import ClientError

pytestmark = [pytest.mark.usefixtures("daemon"), pytest.mark.filterwarnings("ignore::UserWarning")]


class Plain(torch.Tensor):
    """A Python subclass over memory of its own."""


class Silent(torch.Tensor):
    """A plain subclass that may not be called back while its values are read."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called on a tensor that is only to be read")


class Weight(torch.nn.Parameter):
    """A subclass of Parameter, as quantization and sharding libraries have them."""


class Wrapper(torch.Tensor):
    """A wrapper without memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore[attr-defined]
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("its operators are its own")


def freed(shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor whose storage was given back, as FSDP does between layers."""
    made = torch.ones(shape)
    made.untyped_storage().resize_(0)
    return made


@pytest.mark.parametrize("shape", [(3, 4), (200, 200), (1200, 1200)], ids=["pooled", "copied-alone", "staged"])
def test_a_gradient_that_is_all_zeros_has_no_memory_and_is_zero(shape: tuple[int, int]) -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="rust_ort")
    x = torch.randn(shape, requires_grad=True)
    torch.sgn(compiled(x)).sum().backward()
    assert torch.equal(x.grad, torch.zeros(shape))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"compare": "outputs"}, {"compare": "nodes"}], ids=str)
def test_inputs_with_lazy_values_are_eagers(options: dict[str, str]) -> None:
    torch.manual_seed(0)
    imaginary = torch.randn(40, 5, dtype=torch.complex64).conj().imag
    kinds = {
        "zero": torch._efficientzerotensor((40, 5)),
        "negative": torch._neg_view(torch.randn(40, 5)),
        "imaginary part of a conjugate": imaginary,
        "expanded": torch.randn(5).expand(40, 5),
    }
    compiled = torch.compile(lambda x: torch.tanh(x) * 2 + 1, backend="rust_ort", options=options)
    with torch.no_grad():
        for name, x in kinds.items():
            for _ in range(2):
                torch.testing.assert_close(compiled(x), torch.tanh(x) * 2 + 1, msg=lambda text, name=name: name + text)


def test_a_conjugate_view_is_eagers() -> None:
    x = torch.randn(6, dtype=torch.complex64).conj()
    compiled = torch.compile(lambda x: (x * 2).real + 1, backend="rust_ort")
    torch.testing.assert_close(compiled(x), (x * 2).real + 1)


def with_parameter(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2


def with_eager_nodes(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.solve(torch.tanh(x) + 5 * torch.eye(4), x) + 1


@pytest.mark.parametrize("function", [with_parameter, with_eager_nodes])
@pytest.mark.parametrize("options", [{}, {"compare": "outputs"}, {"compare": "nodes"}], ids=str)
@pytest.mark.parametrize("kind", [Weight, Plain])
def test_subclasses_over_memory_of_their_own_are_sent(
    kind: type, options: dict[str, str], function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    torch.manual_seed(0)
    plain = torch.randn(4, 4)
    x = kind(plain.clone()) if kind is Weight else plain.clone().as_subclass(kind)
    compiled = torch.compile(function, backend=(backend := rust_ort.backend(**options)))
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(compiled(x).as_subclass(torch.Tensor), function(plain))
    leaf = plain.clone().requires_grad_()
    function(leaf).sum().backward()
    x.grad = None
    x.requires_grad_()
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad.as_subclass(torch.Tensor), leaf.grad)
    kinds = {verdict.kind for graph in backend.graphs for _, verdict in graph.verdicts}
    assert kinds <= {"match"}
    assert bool(kinds) == bool(options)


def test_a_module_with_parameters_of_a_subclass_trains() -> None:
    torch.manual_seed(0)
    plain, module = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)
    module.weight = Weight(plain.weight.detach().clone())
    module.bias = Weight(plain.bias.detach().clone())
    x = torch.randn(5, 4)
    plain(x).square().sum().backward()
    torch.compile(module, backend="rust_ort")(x).square().sum().backward()
    torch.testing.assert_close(module.weight.grad, plain.weight.grad)


@pytest.mark.parametrize("shape", [(2, 3), (2000, 1000)], ids=["small", "large"])
def test_a_subclass_is_read_without_calling_it(daemon: Daemon, shape: tuple[int, int]) -> None:
    run = add(daemon, shape)
    x = torch.full(shape, 3.0)
    for _ in range(2):
        assert torch.equal(run([x.as_subclass(Silent), x])[0], torch.full(shape, 6.0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.ones(2, 3).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.ones(2, 3).to_sparse_csr(), "layout torch.sparse_csr"),
        (lambda: torch.ones(2, 3).to_mkldnn(), "layout torch._mkldnn"),
        (lambda: torch.ones(2, 3, device="meta"), "a tensor on meta"),
        (lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.quint8), "dtype torch.quint8"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "NestedTensor"),
        (lambda: Wrapper(torch.ones(2, 3)), "Wrapper cannot be sent"),
        (lambda: freed((2, 3)), "without memory"),
        (lambda: freed((2000, 1000)), "without memory"),
    ],
    ids=["coo", "csr", "mkldnn", "meta", "quantized", "nested", "jagged", "wrapper", "freed", "freed-large"],
)
def test_what_has_no_memory_to_read_is_refused_before_a_pointer_is_touched(
    daemon: Daemon, make: Callable[[], torch.Tensor], says: str
) -> None:
    bad = make()
    shape = (2000, 1000) if not bad.is_nested and bad.numel() == 2_000_000 else (2, 3)
    good = torch.ones(shape)
    for first in ([bad, good], [good, good]):  # before a plan of the call is made, and after
        run = add(daemon, shape)
        with contextlib.suppress(ClientError):
            run(first)
        with pytest.raises(ClientError, match=f"input 1 'y' of 0_0-inference: .*{says}"):
            run([good, bad])
        with pytest.raises(ClientError, match=says):
            daemon.client().compare([("x", good, bad, "")])
    assert torch.equal(run([good, good])[0], good + good)
