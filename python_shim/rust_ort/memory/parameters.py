"""Parameters and buffers in shared memory: moved there where nobody but their tensor can tell, and back before a fork.

A tensor that is alone with its storage gets another storage with the same values, by `.data =`: the tensor object, its
strides, `grad`, hooks and optimizer state stay. What is not in the arena at a call is staged, so nothing can be stale.
No kernel may write into a tensor while it moves: what the kernel writes later would be lost. So nothing moves where
another thread of Python runs, but for those that are known to write into no parameter.
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
from rust_ort.torch_private import plainly, reinterpret, static_input_kind, storage_owners, threads_of_inductor

GRACE_S = 10.0
"""How long memory that a tensor left is kept where torch.distributed runs: its threads may be sending it."""

READING = (
    "TMonitor",
    "_pin_memory_loop",
    "QueueFeederThread",
    "pytest_timeout",
    "InductorSubproc",
    "subproc_worker_timer",
)
"""In the class or the name of a thread that writes into no parameter: of tqdm, DataLoader, multiprocessing, pytest,
inductor."""

_memcpy = ctypes.PyDLL(None).memcpy  # holds the GIL: no thread begins to write into what is being moved
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p

_moved = False
"""Whether any may be in the arena. Which is not kept: torch.utils.swap_tensors refuses tensors with weakrefs."""

left: deque[tuple[float, torch.UntypedStorage]] = deque()
"""What tensors left and is still kept: (until when, memory)."""


def _users(tensor: torch.Tensor) -> tuple[int, int]:
    """How many have the tensor's storage, and how many the object that stands for it in Python."""
    storage = tensor.untyped_storage()
    return storage_owners(storage), sys.getrefcount(storage)


ALONE = _users(torch.empty(1, device="cpu"))


def is_alone(tensor: torch.Tensor) -> bool:
    """Whether nothing but the tensor has its storage, as far as torch and Python know."""
    users = _users(tensor)
    return users == ALONE and users[0] > 0


def is_state(value: object) -> bool:
    """Whether it is a parameter, or a buffer of a module that Dynamo compiled."""
    return isinstance(value, torch.nn.Parameter) or static_input_kind(value) == "unguarded"


def why_not(tensor: torch.Tensor) -> str:
    """Why the tensor's memory cannot be another; "" where it can."""
    if type(tensor) not in (torch.nn.Parameter, torch.Tensor):
        return f"it is a {type(tensor).__qualname__}"
    if tensor.numel() == 0 or tensor.is_inference():
        return "it has no elements, or was made in inference mode"
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return f"its strides {tensor.stride()} are not row-major"
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes:
        return f"its storage has {storage.nbytes()} bytes, and the tensor {tensor.nbytes}"
    pinned = torch.cuda.is_initialized() and tensor.is_pinned()
    if tensor.is_shared() or pinned or not storage.resizable():
        return "its memory is pinned, came with a fork, is shared among processes, or was not allocated by torch"
    del storage  # which would count
    if not is_alone(tensor):
        return "another tensor, a NumPy array or a storage object has the same memory"
    return ""


def other_threads() -> set[int]:
    """Of Python, this one left out; also those that `threading` does not know."""
    return sys._current_frames().keys() - {threading.get_ident()}


def may_write_elsewhere() -> bool:
    """Whether another thread runs that could be writing into a parameter."""
    others = other_threads()
    if not others:
        return False
    known = {thread.ident for thread in threads_of_inductor()}
    known.update(
        thread.ident
        for thread in threading.enumerate()
        if any(word in text for word in READING for text in (type(thread).__name__, thread.name))
    )
    return not others <= known


def move_in(arena: Arena, tensor: torch.Tensor) -> int:
    """The location in the arena to which the tensor was moved; 0 where it cannot be, or is there already and seen by
    other strides. The caller knows that no other thread writes."""
    global _moved
    if not is_alone(tensor):
        return 0
    with plainly():
        if why_not(tensor) or arena.locate(tensor.data_ptr()):
            return 0
        flat, location = arena.empty(Layout(tensor.dtype, torch.Size([tensor.numel()]), None))
        # The arena may have grown, which lets other threads run.
        if flat.nbytes != tensor.nbytes or flat.dtype is not tensor.dtype or why_not(tensor):
            return 0
        _moved = True
        _replace(tensor, reinterpret(flat, tuple(tensor.shape), tensor.stride()))
        return location


def _replace(tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Gives the tensor the target's memory, with its values."""
    memory = tensor.untyped_storage()
    _memcpy(target.data_ptr(), tensor.data_ptr(), tensor.nbytes)
    tensor.data = target
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        left.append((time.monotonic() + GRACE_S, memory))


def let_go() -> None:
    """Gives back what was left long enough ago."""
    now = time.monotonic()
    while left and left[0][0] < now:
        left.popleft()


def _move_out() -> None:
    """Before a fork: what is in the arena would be copied into the child, where ordinary memory is copied on write.
    What cannot be moved stays: the child gets its copy."""
    global _moved
    if not _moved or may_write_elsewhere():
        return
    arena = process.arena()
    kinds = (torch.nn.Parameter, torch.Tensor)
    stayed = False
    with plainly():
        for tensor in [value for value in gc.get_objects() if type(value) in kinds and is_state(value)]:
            if tensor.layout is not torch.strided or not tensor.is_cpu or not tensor.numel():
                continue
            if not arena.locate(tensor.data_ptr()):
                continue
            if is_alone(tensor) and tensor.is_contiguous():
                _replace(tensor, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu"))
            else:
                stayed = True
    _moved = stayed


process.before_fork.append(_move_out)
