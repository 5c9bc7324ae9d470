"""The reference: an FX graph run node by node in eager, with the values that are asked for by name."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from rust_ort.export.shapes import hint
from rust_ort.export.unwritten import is_unwritten
from rust_ort.memory import process
from rust_ort.torch_private import autocast_off, torchs_own_compiles


def as_traced(node: fx.Node, value: Any) -> Any:
    """The value of `node` in the memory layout that the trace says, which views of it rely on: kernels give others
    (batch norm of a transposed tensor). With zeros for chance, as ONNX Runtime has them."""
    if is_unwritten(node):
        value = value.zero_()
    traced = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not isinstance(traced, torch.Tensor) or value.dim() < 2:
        return value
    order = _dense_order(list(map(hint, traced.shape)), list(map(hint, traced.stride())))
    if order is None or order == _dense_order(list(value.shape), list(value.stride())):
        return value
    return torch.empty_permuted(value.shape, order, dtype=value.dtype, device=value.device).copy_(value)


def _dense_order(sizes: list[int], strides: list[int]) -> list[int] | None:
    """Axes from the outermost in memory to the innermost; those of one element, whose strides say nothing, come first.
    None where elements overlap or memory has gaps."""
    order = sorted(range(len(sizes)), key=lambda axis: (sizes[axis] != 1, -strides[axis] if sizes[axis] != 1 else axis))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] == 1:
            break
        if strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return order


def writes_an_input(node: fx.Node) -> bool:
    """Whether `node` writes into one of the graph's inputs: what AOTAutograd leaves of writes to them in a backward."""
    return node.target is torch.ops.aten.copy_.default and getattr(node.args[0], "op", "") == "placeholder"


class Reference(fx.Interpreter):
    """Eager interpreter of an AOT graph, which writes into none of its inputs: that is for the graph that counts.
    `capture`: FX names whose values are kept in `values`."""

    def __init__(self, gm: fx.GraphModule, *, capture: Collection[str]) -> None:
        super().__init__(gm)
        self._capture = frozenset(capture)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = self._copied(n) if writes_an_input(n) else as_traced(n, super().run_node(n))
        if n.name in self._capture:
            self.values[n.name] = value
        return value

    def _copied(self, node: fx.Node) -> torch.Tensor:
        target, source = self.fetch_args_kwargs_from_env(node)[0][:2]
        return torch.empty_like(target).copy_(source)


def run_reference(
    gm: fx.GraphModule, inputs: Sequence[object], *, capture: Collection[str]
) -> tuple[Any, dict[str, Any]]:
    """(outputs, {FX name: value}) of `gm` in eager. The random generators are left as they were found."""
    interpreter = Reference(gm, capture=capture)
    with rng_kept(), torch.no_grad(), autocast_off():
        outputs = interpreter.run(*inputs)
    return outputs, interpreter.values


@contextmanager
def in_eager() -> Iterator[None]:
    """Inside, nothing compiles and nothing compiled runs, in any thread: no module that `torch.compile` or
    `model.compile()` made, no function decorated with it further down. The reference is never the backend itself.
    Only what torch's higher-order operators compile to run in eager, they compile as ever.

    torch has one stance a process: of threads that are inside at once, the last to leave gives it back.
    """
    global _inside, _stance
    with _stance_lock:
        if _inside == 0:
            with ExitStack() as stack:
                stack.enter_context(torchs_own_compiles())
                stack.callback(torch.compiler.set_stance("force_eager").__exit__, None, None, None)
                _stance = stack.pop_all()
        _inside += 1
    try:
        yield
    finally:
        with _stance_lock:
            _inside -= 1
            if _inside == 0:
                _stance.close()


_inside = 0
_stance = ExitStack()
_stance_lock = threading.Lock()


@contextmanager
def rng_kept() -> Iterator[None]:
    """Restores the state of every generator on exit, so that what follows draws the same numbers."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)


Generators = tuple[torch.Tensor, list[torch.Tensor] | None]


def generators() -> Generators:
    """State of every generator."""
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None


def same_generators(states: Generators, others: Generators) -> bool:
    """Whether whoever left them so drew as many random numbers."""
    (cpu, cuda), (other, others_cuda) = states, others
    return torch.equal(cpu, other) and all(map(torch.equal, cuda or (), others_cuda or ()))


def set_generators(states: Generators) -> None:
    """Sets the state of every generator."""
    cpu, cuda = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)


_one_at_a_time = threading.RLock()


def one_at_a_time() -> AbstractContextManager[Any]:
    """The lock of comparisons and explanations: while one has its reference, nothing compiled runs in this process."""
    return _one_at_a_time


def _after_fork_in_child() -> None:
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


process.after_fork_in_child.append(_after_fork_in_child)
