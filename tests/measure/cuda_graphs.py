"""Graphs traced for CUDA tensors on a machine without a GPU: fake tensors need none.

A module and its inputs get twins that are fake and on CUDA; Dynamo and AOTAutograd trace those, and what the backend
makes of the graphs is called with the real ones, on the CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from rust_ort.torch_private import backward_at_once, fake_mode, no_constants_of_traces, pytree

aten = torch.ops.aten

Backend = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]

ALIGNED = {torch.float32: 4, torch.float16: 8, torch.bfloat16: 8}
"""Of how many elements the size of a head is a multiple for the memory-efficient kernel: 16 bytes."""


class Twins:
    """Fake CUDA tensors in the place of real ones, one for each. on: the device of a real one's twin."""

    def __init__(self, on: Callable[[Tensor], str]) -> None:
        self.mode = fake_mode()
        self._on = on
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._real: dict[int, Tensor] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """The twin of a real tensor."""
        if id(tensor) not in self._made:
            with torch.no_grad():
                twin: Tensor = self.mode.from_tensor(tensor.detach())
                with self.mode:
                    twin = twin.to(self._on(tensor))
            made = nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else twin
            self._made[id(tensor)] = made.requires_grad_(tensor.requires_grad), tensor
            self._real[id(made)] = tensor
        return self._made[id(tensor)][0]

    def real(self, value: Any) -> Any:
        """What a twin is of; anything else, as what an earlier graph gave, is itself."""
        return self._real.get(id(value), value)

    @contextlib.contextmanager
    def in_place(self, module: nn.Module) -> Iterator[None]:
        """Inside, the module's parameters and buffers are twins."""
        held: list[dict[str, Any]] = [
            members for owner in module.modules() for members in (owner._parameters, owner._buffers)
        ]
        before = [dict(members) for members in held]
        for members in held:
            members.update({name: self.of(one) for name, one in members.items() if one is not None})
        try:
            yield
        finally:
            for members, real in zip(held, before, strict=True):
                members.update(real)


@dataclass(kw_only=True)
class Graph:
    """A Dynamo graph. compiled: what the backend made of it; inputs: the real ones, in its order."""

    compiled: Callable[..., Any]
    inputs: list[Any]
    outputs: list[Any]


@dataclass(kw_only=True)
class Trace:
    """What a call with fake CUDA tensors compiled and returned."""

    graphs: list[Graph] = field(default_factory=list)
    result: Any = None

    def run(self) -> Any:
        """The call's result from real tensors on the CPU. Errors: ValueError where a graph reads what no graph gave, as
        eager between two does."""
        real: dict[int, Any] = {}
        for graph in self.graphs:
            inputs = [real.get(id(value), value) for value in graph.inputs]
            if any(isinstance(value, Tensor) and value.is_cuda for value in inputs):
                raise ValueError("a graph reads what the program computed between two graphs")
            made = graph.compiled(*inputs)
            pairs = zip(graph.outputs, made, strict=True)
            real |= {id(fake): value for fake, value in pairs if isinstance(fake, Tensor)}
        return pytree.tree_map_only(Tensor, lambda fake: real[id(fake)], self.result)


def trace(
    function: Callable[..., Any], inputs: Any, backend: Backend, *, autocast: torch.dtype | None = None,
    attention: str = "", dynamic: bool = False, on: Callable[[Tensor], str] = lambda tensor: "cuda",
) -> Trace:  # fmt: skip
    """Compiles a call for CUDA. inputs: a list or a dictionary of keywords, of real tensors. attention: the kernel,
    "flash", "efficient", "cudnn" or "math"; by default the one that torch takes. on: what each is traced for."""
    twins, made = Twins(on), Trace()

    def capture(gm: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        choose_attention(gm, attention)
        compiled = backend(gm, given)

        def call(*args: Any) -> Any:
            outputs = gm(*args)
            made.graphs.append(Graph(compiled=compiled, inputs=[*map(twins.real, args)], outputs=[*outputs]))
            return outputs

        return call

    module = function if isinstance(function, nn.Module) else nn.Module()
    fake = pytree.tree_map_only(Tensor, twins.of, inputs)
    compiled = torch.compile(function, backend=capture, dynamic=dynamic)
    with twins.in_place(module), twins.mode, _autocast(autocast), backward_at_once(), without_gpu():
        made.result = compiled(**fake) if isinstance(fake, dict) else compiled(*fake)
    return made


@contextlib.contextmanager
def _autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """torch.autocast("cuda"), which turns itself off where there is no GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", dtype is not None)
    torch.set_autocast_dtype("cuda", dtype or before[1])
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        torch.clear_autocast_cache()


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """Inside, gradients are made node by node, as torch's engine asks the GPU for its streams, and a number that the
    program has in a tensor is traced as any other value: tracing computes with it beside, on its device."""
    before = torch.autograd.grad
    setattr(torch.autograd, before.__name__, gradients)
    try:
        with no_constants_of_traces():
            yield
    finally:
        setattr(torch.autograd, before.__name__, before)


@torch.no_grad()
def gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor], allow_unused: bool = True
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad of fake tensors. Later nodes of the forward come first, as the engine has it."""
    given: dict[Any, list[Tensor | None]] = {}

    def add(node: Any, place: int, gradient: Tensor | None) -> None:
        metadata = node._input_metadata
        slots = given.setdefault(node, [None] * len(metadata))
        if gradient is None:
            return
        gradient = gradient.sum_to_size(metadata[place].shape).to(metadata[place].dtype)
        before = slots[place]
        slots[place] = gradient if before is None else before + gradient

    edge_of = torch.autograd.graph.get_gradient_edge
    for edge, gradient in zip(map(edge_of, outputs), grad_outputs, strict=True):
        add(edge.node, edge.output_nr, gradient)
    wanted = [*map(edge_of, inputs)]
    ends, behind = {edge.node for edge in wanted}, set[Any]()
    order = _latest_first([*given])
    for node in reversed(order):
        if any(after in ends or after in behind for after, _ in node.next_functions):
            behind.add(node)
    for node in order:
        slots = given.get(node, [])
        if node not in behind or all(slot is None for slot in slots):
            continue
        for (after, place), made in zip(node.next_functions, _run(node, slots), strict=True):
            if after in ends or after in behind:
                add(after, place, made)
    return tuple(given[edge.node][edge.output_nr] if edge.node in given else None for edge in wanted)


def _run(node: Any, slots: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What a node gives backwards, one for each of its `next_functions`."""
    if callable(node):
        made = node(*slots)
        return list(made) if isinstance(made, tuple) else [made]
    # One of Python's, as a custom operator has it. As the engine does: zeros for what is None, and what comes back for
    # arguments that are no tensors, which are no next function, is left out.
    filled = [
        torch.zeros(told.shape, dtype=told.dtype, device=told.device) if slot is None else slot
        for slot, told in zip(slots, node._input_metadata, strict=True)
    ]
    made = node.apply(*filled)
    gradients = made if isinstance(made, tuple) else (made,)
    needed = iter([gradient for gradient, needs in zip(gradients, node.needs_input_grad, strict=False) if needs])
    return [next(needed) if after is not None else None for after, _ in node.next_functions]


def _latest_first(roots: Sequence[Any]) -> list[Any]:
    """All nodes behind the roots: each after those that it is behind."""
    seen, order, waiting = set[Any](), list[Any](), [(root, False) for root in roots]
    while waiting:
        node, is_left = waiting.pop()
        if is_left:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            waiting += [(node, True), *((after, False) for after, _ in node.next_functions if after is not None)]
    return order[::-1]


def choose_attention(gm: fx.GraphModule, kernel: str = "") -> None:
    """Has attention take the kernel that it takes on a GPU of compute capability 8.0 or more: torch asks the GPU."""
    for node in gm.graph.find_nodes(op="call_function", target=functional.scaled_dot_product_attention):
        node.target, node.kwargs = attend, {**node.kwargs, "kernel": kernel}
    gm.recompile()


def attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, kernel: str = "",
) -> Tensor:  # fmt: skip
    """torch's composite operator, of ATen/native/transformers/attention.cpp, but for the choice of the kernel."""
    size, length, keys = query.shape[-1], query.shape[-2], key.shape[-2]
    half = query.dtype in (torch.float16, torch.bfloat16)
    flash = half and attn_mask is None and not (is_causal and length != keys)
    efficient = not enable_gqa and size % ALIGNED.get(query.dtype, size + 1) == 0
    chosen = kernel or ("flash" if flash else "efficient" if efficient else "math")
    scale = 1 / math.sqrt(size) if scale is None else scale
    made: Tensor
    bias = _as_bias(attn_mask, query)
    if chosen == "math":
        made = aten._scaled_dot_product_attention_math(
            query, key, value, bias, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
        return made
    if chosen == "flash":
        query, key, value = (functional.pad(each, (0, -size % 8)) if size % 8 else each for each in (query, key, value))
        made = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
        return made[..., :size]
    if bias is not None:
        if chosen == "efficient" and keys % 16:
            bias = functional.pad(bias, (0, -keys % 16))[..., :keys]
        bias = bias.expand(*query.shape[:2], length, keys)
    wanted = any(each.requires_grad for each in (query, key, value))
    operator = getattr(aten, f"_scaled_dot_product_{chosen}_attention")
    made = operator(query, key, value, bias, wanted, dropout_p, is_causal, scale=scale)[0]
    return made


def _as_bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), -math.inf)
