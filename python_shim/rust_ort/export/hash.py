"""The content hash of an AOT graph: what its ONNX models are a function of, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import TypeGuard

import torch
from torch import fx

from rust_ort import export
from rust_ort.export import rules
from rust_ort.export.arguments import may_lack_elements
from rust_ort.export.kernels import MANY
from rust_ort.export.shapes import hint
from rust_ort.torch_private import OperatorBase, bounds, outside_fake_mode, pytree

PLAIN = frozenset({bool, int, float, str, type(None), torch.dtype})
"""Most of what a node is given beside other nodes."""

FORMAT = 1
"""Raised when the text below changes its meaning."""


def graph_hash(gm: fx.GraphModule, *, extra: Sequence[str] = ()) -> str:
    """SHA-256 of `gm` as 64 lowercase hex digits.

    Part of it: op, name, target, arguments, dtype, shape, stride and device of every value, how large sizes may be and
    which tensors may have no elements (asking keeps it so, by guards), the bytes of constant tensors, the versions of
    torch, onnxscript, onnx-ir, onnx, onnxruntime and this package, the sources of `rust_ort.export`, `extra` (opset,
    cache keys of transforms, what decides whether the runtime takes a model).
    Not part of it: source lines, module paths, parameter names. The same in every process.
    """
    digest = _digest("graph", extra)
    for name, module in gm.named_modules():
        if isinstance(module, fx.GraphModule):
            digest.update(f"module {name}\n".encode())
            for piece in (*_graph_pieces(module), *_ranges(module)):
                digest.update(piece)
            digest.update(f"without elements {may_lack_elements(module)}\n".encode())
    return digest.hexdigest()


def operators_key() -> str:
    """Where the names of `exporter.whole_operators` are kept: 64 lowercase hex digits."""
    return _digest("operators", ()).hexdigest()


def _digest(what: str, extra: Sequence[str]) -> hashlib._Hash:
    digest = hashlib.sha256()
    without = f"without {sorted(rules.masked())}"
    for text in (f"rust_ort {what} {FORMAT}", versions(), export.SOURCES, without, *extra):
        digest.update(text.encode() + b"\0")
    return digest


@functools.cache
def versions() -> str:
    """Versions that decide what is exported and how it runs, as one line."""
    return " ".join(
        f"{name}={_version(name)}"
        for name in (
            "torch",
            "torchvision",
            "onnxscript",
            "onnx-ir",
            "onnx",
            "onnxruntime",
            "onnxruntime-gpu",
            "rust-ort",
        )
    )


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _graph_pieces(gm: fx.GraphModule) -> Iterator[bytes]:
    for node in gm.graph.nodes:
        line = f"{node.op}|{node.name}|{_target(node)}|{_text(node.args)}|{_text(node.kwargs)}|{_value(node)}\n"
        yield line.encode()
        if node.op == "get_attr":
            constant = attribute(gm, node.target)
            if isinstance(constant, torch.Tensor):
                yield tensor_bytes(constant)


def _ranges(gm: fx.GraphModule) -> Iterator[bytes]:
    """From where to where the guards let the sizes of the inputs go."""
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        for size in value.shape if isinstance(value, torch.Tensor) else [value]:
            if _is_size(size):
                yield f"{size} {bounds(size)}\n".encode()


def attribute(gm: fx.GraphModule, target: str) -> object:
    """The object a `get_attr` node of `gm` names."""
    found: object = gm
    for step in target.split("."):
        found = getattr(found, step)
    return found


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Elements of `tensor` in row-major order."""
    with outside_fake_mode():  # compilers are called under the tracer's fake mode
        dense = tensor.detach().cpu().contiguous().reshape(-1)
        return bytes(dense.view(torch.uint8).numpy()) if dense.numel() else b""


def _target(node: fx.Node) -> str:
    target = node.target
    if isinstance(target, str):
        return target
    if isinstance(target, OperatorBase):
        return str(target)
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', type(target).__qualname__)}"


def _value(node: fx.Node) -> str:
    return _text(node.meta.get("val"))


def _text(value: object) -> str:
    """A text that is equal in two processes if and only if the values are: no addresses, no set or hash order."""
    if type(value) in PLAIN:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, fx.Node):
        return f"%{value.name}"
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return f"{value.dtype}{_sizes(value.shape)}{value.layout}@{value.device}"
        return f"{value.dtype}{_sizes(value.shape)}{_sizes(value.stride())}@{value.device}"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return f"{type(value).__name__}({_symbolic(value)})"
    if isinstance(value, (list, tuple)):
        return "(" + ",".join(_text(item) for item in value) + ")"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_text(item)}" for key, item in sorted(value.items(), key=_key)) + "}"
    if isinstance(value, slice):
        return f"slice({_text(value.start)},{_text(value.stop)},{_text(value.step)})"
    if value is None or isinstance(
        value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
    ):
        return f"{type(value).__name__}:{value!r}"
    if pytree.tree_flatten(value)[1].num_leaves != 1:
        return _text(pytree.tree_leaves(value))
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _key(item: tuple[object, object]) -> str:
    return str(item[0])


def _sizes(sizes: Sequence[int | torch.SymInt]) -> str:
    return f"[{','.join([_symbolic(size) if isinstance(size, torch.SymInt) else str(size) for size in sizes])}]"


def _symbolic(number: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
    """Its expression, and, as far as kernels are chosen by it, what it is in the call that is traced."""
    return f"{number}~{min(hint(number), MANY)}" if _is_size(number) else str(number)


def _is_size(number: object) -> TypeGuard[torch.SymInt]:
    """Not of jagged tensors, whose sizes along the jagged dimension have a name and no number."""
    return isinstance(number, torch.SymInt) and isinstance(number.node.hint, int | None)
