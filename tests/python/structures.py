"""A program compiled twice, by `aot_eager` and by us: the same values, and ONNX Runtime computed some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import rust_ort
from rust_ort.observe.graph_info import GraphInfo

Compile = Callable[[Any], Any]
Program = Callable[[Compile], Any]
"""Given what compiles a function or module, runs it and returns all that is to be equal, as a pytree of tensors,
numbers and strings: outputs, gradients, what was written."""


def gradients(*modules: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """{parameter: its gradient} of the modules."""
    return {f"{index}.{name}": p.grad for index, m in enumerate(modules) for name, p in m.named_parameters()}


def state(*modules: torch.nn.Module) -> dict[str, torch.Tensor]:
    """{name: parameter or buffer} of the modules."""
    return {
        f"{index}.{name}": value.detach().clone()
        for index, module in enumerate(modules)
        for name, value in module.state_dict(keep_vars=True).items()
    }


def scalar(*values: torch.Tensor) -> torch.Tensor:
    """A loss to which no two elements contribute alike: a plain sum of squares has no gradient behind a norm."""
    total = torch.zeros(())
    for value in values:
        flat = value.reshape(-1).float()
        total = total + (flat * torch.linspace(0.5, 1.5, flat.numel())).sum() + 0.1 * flat.square().sum()
    return total


def check(program: Program, *, tol: float = 2e-5, **compile_options: Any) -> list[GraphInfo]:
    """Equal under both backends: values, dtypes, shapes, strides, what requires grad. The AOT graphs that
    this compiled for ONNX Runtime; at least one part ran on it."""
    expected = run(program, "aot_eager", **compile_options)
    known = rust_ort.graphs()
    got = run(program, rust_ort, **compile_options)
    new = [info for info in rust_ort.graphs() if not any(info is old for old in known)]
    same(got, expected, tol=tol)
    called = [info for info in new if info.calls]
    assert any(info.parts for info in called), f"ONNX Runtime ran nothing of {[info.name for info in new]}"
    assert all(info.daemon_fallbacks == 0 and info.unreachable is None for info in new)
    return new


def run(program: Program, backend: Any, **compile_options: Any) -> Any:
    """What the program returns, with its own compilations and random numbers."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return program(lambda target: torch.compile(target, backend=backend, **compile_options))


def same(got: Any, expected: Any, *, tol: float) -> None:
    """Two pytrees alike, leaf by leaf."""
    reference, spec = pytree.tree_flatten_with_path(expected)
    candidate, candidate_spec = pytree.tree_flatten_with_path(got)
    assert candidate_spec == spec
    assert any(isinstance(leaf, torch.Tensor) for _, leaf in reference), "the program returned no tensor"
    for (path, r), (_, c) in zip(reference, candidate, strict=True):
        _same_leaf(c, r, where=pytree.keystr(path) or "the result", tol=tol)


def _same_leaf(candidate: Any, reference: Any, *, where: str, tol: float) -> None:
    assert type(candidate) is type(reference), where
    if not isinstance(reference, torch.Tensor):
        assert candidate == reference, where
        return
    assert candidate.requires_grad == reference.requires_grad, where
    assert candidate.layout is reference.layout, where
    if reference.layout is torch.strided:
        seen = [step for step, size in zip(reference.stride(), reference.shape, strict=True) if size > 1]
        got = [step for step, size in zip(candidate.stride(), candidate.shape, strict=True) if size > 1]
        assert got == seen or 0 in seen or not reference.numel(), f"{where}: strides {got}, expected {seen}"
    if reference.is_nested:
        assert torch.equal(candidate.offsets(), reference.offsets()), where
        candidate, reference = candidate.values(), reference.values()
    if reference.dtype.itemsize == 1 and reference.dtype.is_floating_point:
        assert candidate.dtype is reference.dtype, where
        assert torch.equal(candidate.view(torch.uint8), reference.view(torch.uint8)), where
        return
    torch.testing.assert_close(
        candidate, reference, atol=tol, rtol=tol, equal_nan=True, msg=lambda text: f"{where}: {text}"
    )


def eager_nodes(infos: Iterable[GraphInfo]) -> dict[str, str]:
    """{node left to eager: why} of the graphs."""
    return {node.name: node.reason for info in infos for node in info.eager}
