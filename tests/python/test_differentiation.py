"""Derivatives around compiled functions, of every kind torch has: eager's numbers, or an error that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, func
from torch.autograd import forward_ad, functional, grad, gradcheck

import rust_ort
from rust_ort.errors import ClientError
from rust_ort.torch_private import pytree

pytestmark = [pytest.mark.usefixtures("served"), pytest.mark.filterwarnings("ignore::UserWarning")]

Compile = Callable[..., Callable[..., Any]]


@pytest.fixture(autouse=True)
def each_compiles() -> None:
    torch._dynamo.reset()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def curve(x: Tensor) -> Tensor:
    return torch.tanh(x) * x + 1


X, T, MATRIX = numbers(4), numbers(4, seed=1), numbers(4, 4, seed=2)
LINEAR = torch.nn.Sequential(torch.nn.Linear(4, 4))


def ours(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, backend="rust_ort", options=options)
    return made


def as_is(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
    return function


def after_a_call(compiled: Compile, *given: Tensor) -> Callable[..., Any]:
    """One whose plans are made."""
    function = compiled(curve)
    function(*given)
    return function


AROUND: dict[str, Callable[[Compile], Any]] = {
    "jvp": lambda c: func.jvp(c(curve), (X,), (T,)),
    "jvp after a call": lambda c: func.jvp(after_a_call(c, X), (X,), (T,)),
    "vjp": lambda c: func.vjp(c(curve), X)[1](T),
    "grad": lambda c: func.grad(lambda v: c(curve)(v).sum())(X),
    "vmap": lambda c: func.vmap(c(curve))(MATRIX),
    "jacrev": lambda c: func.jacrev(c(curve))(X),
    "jacfwd": lambda c: func.jacfwd(c(curve))(X),
    "hessian": lambda c: func.hessian(c(curve))(X),
}
"""What torch.func is given. Dynamo leaves a compiled function alone inside."""
PLAIN: dict[str, Callable[[Compile], Any]] = {
    "functional_call": lambda c: func.functional_call(c(LINEAR), {"0.weight": MATRIX, "0.bias": T}, (X,)),
    "functional.jacobian": lambda c: functional.jacobian(c(curve), X),
    "functional.vjp": lambda c: functional.vjp(c(curve), X, T),
}
INSIDE: dict[str, Callable[..., Any]] = {
    "jvp": lambda x, t: func.jvp(curve, (x,), (t,)),
    "linearize": lambda x, t: func.linearize(curve, x)[1](t),
    "vmap of grad": lambda x, t: func.vmap(func.grad(lambda v: curve(v).sum()))(torch.stack([x, t])),
    "jacrev": lambda x, t: func.jacrev(curve)(x),
    "jacfwd": lambda x, t: func.jacfwd(curve)(t),
    "hessian": lambda x, t: func.hessian(curve)(x),
    "grad of grad": lambda x, t: func.grad(lambda v: func.grad(lambda w: curve(w).prod())(v).sum())(x),
}


def check(program: Callable[[Compile], Any], *, in_eager: bool = False) -> None:
    known = len(rust_ort.graphs())
    for made, wanted in zip(*map(pytree.tree_leaves, (program(ours), program(as_is))), strict=True):
        torch.testing.assert_close(made, wanted)
    assert any(graph.parts for graph in rust_ort.graphs()[known:]) != in_eager


@pytest.mark.parametrize("name", AROUND)
def test_a_compiled_function_that_is_transformed_runs_in_eager(name: str) -> None:
    check(AROUND[name], in_eager="after a call" not in name)


@pytest.mark.parametrize("name", PLAIN)
def test_what_differentiates_a_compiled_function_from_outside(name: str) -> None:
    check(PLAIN[name])


@pytest.mark.parametrize("name", INSIDE)
def test_transforms_that_are_compiled(name: str) -> None:
    check(lambda compiled: compiled(INSIDE[name])(X, T))


@pytest.mark.parametrize("fast_mode", [False, True])
def test_gradcheck(fast_mode: bool) -> None:
    x = X.double().requires_grad_()
    assert gradcheck(ours(curve), (x,), fast_mode=fast_mode)


# --- what ONNX Runtime has no place for ------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"compare": "outputs"}, {"compare": "nodes"}], ids=str)
@pytest.mark.parametrize("called_before", [False, True])
def test_a_tangent_is_refused_and_never_lost(called_before: bool, options: dict[str, str]) -> None:
    function = ours(curve, **options)
    if called_before:
        function(X)
    with forward_ad.dual_level():
        with pytest.raises(
            ClientError, match=r"input 0 .* has a tangent.*; compile the function that calls torch\.func\.jvp"
        ):
            function(forward_ad.make_dual(X, T))
        torch.testing.assert_close(function(X), curve(X))  # what has none is served
    torch.testing.assert_close(function(X), curve(X))


@pytest.mark.parametrize("kind", ["closed over", "parameter", "beside eager nodes"])
def test_the_tangent_of_what_is_no_argument_is_refused_too(kind: str) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(MATRIX, torch.ones(4, 4))
        programs: dict[str, Callable[[], Any]] = {
            "closed over": lambda: ours(lambda x: x @ dual)(X),
            "parameter": lambda: func.functional_call(ours(LINEAR), {"0.weight": dual, "0.bias": T}, (X,)),
            "beside eager nodes": lambda: ours(lambda x: torch.linalg.inv(x) * 2)(dual),
        }
        with pytest.raises(ClientError, match="has a tangent"):
            programs[kind]()


def test_forward_mode_by_torch_autograd_is_refused() -> None:
    with pytest.raises(ClientError, match=r"has a tangent|of many gradients at once"):
        functional.jacobian(ours(curve), X, vectorize=True, strategy="forward-mode")


@pytest.mark.parametrize("called_before", [False, True])
@pytest.mark.parametrize("size", [4, 300_000], ids=["small", "staged"])
def test_batched_gradients_are_refused_with_what_to_do(size: int, called_before: bool) -> None:
    x = torch.ones(size, requires_grad=True)
    y = ours(curve)(x)
    if called_before:
        grad(y, x, torch.ones(size), retain_graph=True)
    with pytest.raises(ClientError, match=r"many gradients at once.*; ask for them one after the other, or compile"):
        grad(y, x, torch.ones(2, size), is_grads_batched=True, retain_graph=True)
    torch.testing.assert_close(*grad(y, x, torch.ones(size)), *grad(curve(x), x, torch.ones(size)))


def test_a_jacobian_of_vectorized_gradients_is_refused() -> None:
    with pytest.raises(ClientError, match="many gradients at once"):
        functional.jacobian(ours(curve), X, vectorize=True)


def test_a_second_derivative_outside_is_an_error_of_torchs() -> None:
    """AOTAutograd cuts the graph there, with any backend."""
    x = X.clone().requires_grad_()
    (first,) = grad(ours(curve)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"double backward|not to have been used"):
        grad(first.sum(), x)


def test_where_unused_inputs_are_allowed_a_second_derivative_is_zeros_as_by_aot_eager() -> None:
    """Of a function that AOTAutograd cuts off: torch's own, which docs/guide/troubleshooting.md tells."""

    def second(backend: str) -> Any:
        compiled = torch.compile(lambda x: torch.tanh(x) * 2, backend=backend)
        return functional.hessian(lambda x: compiled(x).sum(), X)

    zeros = second("rust_ort")
    assert torch.equal(zeros, second("aot_eager")) and not zeros.any()
