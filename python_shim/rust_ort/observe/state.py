"""What a comparison leaves as it found it: a model's state is put back, arguments are copied with what they share."""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rust_ort.errors import ClientError
from rust_ort.observe.reference import rng_kept
from rust_ort.observe.values import PLAIN, attributes_of, same
from rust_ort.options import arguments
from rust_ort.torch_private import has_no_storage

Bytes = tuple[Tensor, Tensor]
"""(the memory that a tensor spans, a copy of it), as uint8."""


UNINITIALIZED = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


class State:
    """Parameters, buffers, gradients and training mode of a module, and Python's and numpy's random state, as they were
    when it was made. Of a function: the random state."""

    def __init__(self, model: Any) -> None:
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        modules = [module for module in modules if isinstance(module._parameters, dict)]  # no TorchScript
        self._modules = [(m, dict(m._parameters), dict(m._buffers), m.training) for m in modules]
        held = [*_held(modules)]
        if any(isinstance(tensor, UNINITIALIZED) for tensor in held):
            what = f"{arguments.shown(model)} has parameters that its first call makes; call it once before"
            raise ClientError(what, code="BAD_ARGUMENT")
        tensors = {id(tensor): tensor for tensor in held}
        self.tensors = list(tensors.values())
        self._memory: dict[tuple[object, ...], Bytes] = {}
        self._saved = {id(tensor): self._save(tensor) for tensor in self.tensors}
        self._grads = [(tensor, tensor.grad) for tensor in self.tensors if tensor.is_leaf]
        self._python = random.getstate()
        self._numpy = _numpy_random().get_state() if _numpy_random() is not None else None

    def _save(self, tensor: Tensor) -> tuple[Tensor, Tensor | None, Bytes | None]:
        """(the tensor, the same memory under another, its content); where its memory cannot be read as bytes: (the
        tensor, a copy, None)."""
        if not is_plain(tensor):
            return tensor, None if tensor.is_meta else tensor.detach().clone(), None
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        start, n_bytes = (n * tensor.element_size() for n in (tensor.storage_offset(), reach if tensor.numel() else 0))
        storage = tensor.untyped_storage()
        key = storage.data_ptr(), start, n_bytes, tensor.device
        if key not in self._memory:
            spanned = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, start, (n_bytes,), (1,))
            self._memory[key] = spanned, spanned.clone()
        return tensor, tensor.detach(), self._memory[key]

    def restore(self) -> None:
        """Puts back what changed, and nothing else: the tensors that were registered, what they hold, the random state.
        Gradients are None."""
        for module, parameters, buffers, training in self._modules:
            tables: list[tuple[dict[str, Any], dict[str, Any]]]
            tables = [(module._parameters, parameters), (module._buffers, buffers)]
            for now, then in tables:
                if {name: id(entry) for name, entry in now.items()} != {
                    name: id(entry) for name, entry in then.items()
                }:
                    now.clear()
                    now.update(then)
            if module.training is not training:
                module.training = training
        with torch.no_grad():
            for tensor, before, memory in self._saved.values():
                _put_back(tensor, before, memory)
        for tensor, _ in self._grads:
            tensor.grad = None
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy_random().set_state(self._numpy)

    def close(self) -> None:
        """restore(), and the gradients as they were."""
        self.restore()
        for tensor, grad in self._grads:
            tensor.grad = grad

    def unchanged(self, tensor: Tensor) -> bool:
        """Whether a parameter or buffer is the one that was registered, and holds what it held."""
        _, before, memory = self._saved.get(id(tensor), (None, None, None))
        if before is None:
            return False
        return same(tensor, before) if memory is None else _is_over(tensor, before) and torch.equal(*memory)


def _held(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """Parameters and buffers of the modules themselves."""
    for module in modules:
        yield from (tensor for tensor in module._parameters.values() if tensor is not None)
        yield from (tensor for tensor in module._buffers.values() if tensor is not None)


def _put_back(tensor: Tensor, before: Tensor | None, memory: Bytes | None) -> None:
    if before is None:
        return
    if memory is None:
        if not same(tensor, before):
            tensor.copy_(before)
        return
    if not _is_over(tensor, before):
        tensor.data = before
    spanned, content = memory
    if not torch.equal(spanned, content):
        spanned.copy_(content)


def _is_over(tensor: Tensor, before: Tensor) -> bool:
    """Whether a tensor is still what it was but for its content."""
    return (
        is_plain(tensor)
        and (tensor.dtype, tensor.shape, tensor.stride()) == (before.dtype, before.shape, before.stride())
        and tensor.data_ptr() == before.data_ptr()
    )


def _numpy_random() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random


def is_plain(tensor: Tensor) -> bool:
    """Whether it is memory and strides, and nothing beside."""
    return (
        tensor.layout is torch.strided
        and type(tensor) in (Tensor, nn.Parameter)
        and not (tensor.is_meta or tensor.is_quantized or has_no_storage(tensor) or tensor.is_conj() or tensor.is_neg())
    )


@contextlib.contextmanager
def kept_state(model: Any) -> Iterator[State]:
    """Restores parameters, buffers, gradients, training mode and random state; gradients are None inside."""
    state = State(model)
    try:
        with rng_kept():
            for tensor, _ in state._grads:
                tensor.grad = None
            yield state
    finally:
        state.close()


class Copies:
    """Copies of arguments that share memory as the arguments do. The tensors and modules of `model` stay themselves.

    tensors: (argument's tensor, its copy). shared: {path: why} of objects that could not be copied.
    """

    def __init__(self, model: Any = None) -> None:
        own = [model, *(model.modules() if isinstance(model, nn.Module) else [])]
        state = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
        self._memo: dict[int, Any] = {id(entry): entry for entry in [*own, *state]}
        self._storages: dict[tuple[object, int], torch.UntypedStorage] = {}
        self._looked_at: dict[int, object] = {}
        self.tensors: list[tuple[Tensor, Tensor]] = []
        self.shared: dict[str, str] = {}

    def of(self, value: Any, path: str = "") -> Any:
        """A copy of `value`: containers, tensors with what they share, parameters, generators, objects with attributes.
        Functions, classes and what has no attributes stay themselves."""
        self._look(value)
        try:
            return copy.deepcopy(value, self._memo)
        except Exception as error:  # whatever an object's own way of being copied raises
            return self._in_parts(value, path, error)

    def _in_parts(self, value: Any, path: str, error: Exception) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self.of(item, f"{path}[{index}]") for index, item in enumerate(value))
        if type(value) is dict:
            return {key: self.of(item, f"{path}.{key}") for key, item in value.items()}
        self.shared[path] = f"a {type(value).__name__} cannot be copied ({type(error).__name__}: {error})"
        self._memo[id(value)] = value
        return value

    def _look(self, value: Any) -> None:
        """Makes the copies that copy.deepcopy would not make, or not so."""
        if isinstance(value, PLAIN) or id(value) in self._memo or id(value) in self._looked_at:
            return
        self._looked_at[id(value)] = value
        if isinstance(value, Tensor):
            self._memo[id(value)] = made = self._tensor(value)
            self.tensors.append((value, made))
        elif isinstance(value, torch.Generator):
            self._memo[id(value)] = torch.Generator(value.device)
            self._memo[id(value)].set_state(value.get_state())
        elif isinstance(value, nn.Module):
            for held in vars(value).values():
                self._look(held)
        elif isinstance(value, (Mapping, list, tuple, set, frozenset, deque)):
            for item in value.values() if isinstance(value, Mapping) else value:
                self._look(item)
            for held in attributes_of(value).values():
                self._look(held)
        elif attributes := attributes_of(value):
            for held in attributes.values():
                self._look(held)
        elif not _is_copied_whole(value):
            self._memo[id(value)] = value

    def _tensor(self, value: Tensor) -> Tensor:
        if not is_plain(value):
            strided = value.layout is torch.strided
            made = value.detach().clone(memory_format=torch.preserve_format) if strided else value.detach().clone()
            return made.requires_grad_(value.requires_grad)
        storage = value.untyped_storage()
        key = value.device, storage.data_ptr() or id(storage)
        if key not in self._storages:
            self._storages[key] = storage.clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made.set_(self._storages[key], value.storage_offset(), value.size(), value.stride())
        if isinstance(value, nn.Parameter):
            return nn.Parameter(made, requires_grad=value.requires_grad)
        return made.requires_grad_(value.requires_grad)


def _is_copied_whole(value: Any) -> bool:
    """Arrays and generators of random numbers, which copy.deepcopy copies as they are."""
    return type(value).__module__.partition(".")[0] in ("numpy", "random") and not callable(value)
