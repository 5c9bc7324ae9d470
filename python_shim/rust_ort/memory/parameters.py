"""Parameters and buffers in shared memory: moved there where nobody but their tensor can tell, and back before a fork.

A tensor that is alone with its storage gets another storage with the same values, by `.data =`: the tensor object, its
`grad`, hooks and optimizer state stay. What is not in the arena at a call is staged, so nothing can be stale.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections import deque

import torch

from rust_ort.memory import process
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import Layout
from rust_ort.torch_private import no_torch_function, static_input_kind, storage_owners

GRACE_S = 10.0
"""How long memory that a tensor left is kept where other threads run: a kernel of theirs may be reading it."""

_memcpy = ctypes.PyDLL(None).memcpy  # holds the GIL: no thread begins to write into what is being moved
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p

_moved = False
"""Whether any were since the last fork. Which is not kept: torch.utils.swap_tensors refuses tensors with weakrefs."""

_left: deque[tuple[float, torch.UntypedStorage]] = deque()


def _users(tensor: torch.Tensor) -> tuple[int, int]:
    """How many have the tensor's storage, and how many the object that stands for it in Python."""
    storage = tensor.untyped_storage()
    return storage_owners(storage), sys.getrefcount(storage)


ALONE = _users(torch.empty(1, device="cpu"))


def _is_alone(tensor: torch.Tensor) -> bool:
    users = _users(tensor)
    return users == ALONE and users[0] > 0


def is_state(value: object) -> bool:
    """Whether it is a parameter, or a buffer of a module that Dynamo compiled."""
    return type(value) is torch.nn.Parameter or static_input_kind(value) == "unguarded"


def why_not(tensor: torch.Tensor) -> str:
    """Why the tensor's memory cannot be another; "" where it can."""
    if tensor.numel() == 0 or tensor.is_inference():
        return "it has no elements, or was made in inference mode"
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return f"its strides {tensor.stride()} are not row-major"
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes:
        return f"its storage has {storage.nbytes()} bytes, and the tensor {tensor.nbytes}"
    if tensor.is_shared() or not storage.resizable():
        return "its memory was not allocated by torch, or is shared among processes"
    del storage  # which would count
    if not _is_alone(tensor):
        return "another tensor, a NumPy array or a storage object has the same memory"
    return ""


def move_in(arena: Arena, tensor: torch.Tensor) -> int:
    """The tensor's location in the arena, to which it is moved where it is not there; 0 where that cannot be."""
    global _moved
    if _left:
        _let_go()
    location = arena.locate(tensor.data_ptr())
    if location or why_not(tensor):
        return location
    with torch.inference_mode(False):
        target, location = arena.empty(Layout(tensor.dtype, tensor.shape, None))
    _replace(tensor, target)
    _moved = True
    return location


def _replace(tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Gives the tensor the target's memory, with its values."""
    left = tensor.untyped_storage()
    _memcpy(target.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    with no_torch_function():
        tensor.data = target
    if threading.active_count() > 1:
        _left.append((time.monotonic() + GRACE_S, left))


def _let_go() -> None:
    now = time.monotonic()
    while _left and _left[0][0] < now:
        _left.popleft()


def _move_out() -> None:
    """Before a fork: what is in the arena would be copied into the child, where ordinary memory is copied on write."""
    global _moved
    if not _moved:
        return
    _moved = False
    arena = process.arena()
    tensors = [value for value in gc.get_objects() if type(value) in (torch.nn.Parameter, torch.Tensor)]
    for tensor in filter(is_state, tensors):
        if not (arena.locate(tensor.data_ptr()) and tensor.numel() and _is_alone(tensor)):
            continue
        arena.retire(tensor.untyped_storage())
        with torch.inference_mode(False):
            target = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        _replace(tensor, target)


process.before_fork.append(_move_out)
