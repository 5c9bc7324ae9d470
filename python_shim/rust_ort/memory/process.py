"""The arena of this process, and what a fork does to it: the child gets private copies of its parent's live blocks."""

from __future__ import annotations

import _thread
import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable

from rust_ort.memory.arena import Arena
from rust_ort.memory.device import DeviceMemory

FORK_TIMEOUT_MS = 10_000

before_fork: list[Callable[[], None]] = []
after_fork_in_child: list[Callable[[], None]] = []  # run in order, after the blocks are private
_handshakes: dict[int, tuple[int, int]] = {}
_arena: Arena | None = None
_device_memory: DeviceMemory | None = None


def arena() -> Arena:
    """This process's arena."""
    global _arena
    if _arena is None:
        _arena = Arena()
    return _arena


def device_memory() -> DeviceMemory:
    """What of this process's tensors on devices was sent."""
    global _device_memory
    if _device_memory is None:
        _device_memory = DeviceMemory()
    return _device_memory


class _PollFd(ctypes.Structure):
    _fields_ = (("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short))


_poll = ctypes.PyDLL(None, use_errno=True).poll  # holds the GIL
_poll.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_int]


def _before_fork() -> None:
    if _arena is None or not _arena.live():
        return
    # First: whatever becomes of the rest, the parent waits for its child's copies.
    _handshakes[threading.get_ident()] = os.pipe()
    try:
        for callback in before_fork:
            callback()
    except KeyboardInterrupt:  # a hook's exception is printed and gone
        _thread.interrupt_main()


def _after_fork_in_parent() -> None:
    pipe = _handshakes.pop(threading.get_ident(), None)
    if pipe is None:
        return
    reader, writer = pipe
    os.close(writer)
    try:
        # Until the child has its copies no Python code may run here: it could free a block and write into it anew.
        # The end of the pipe comes when the child is done, or dead, or was never born.
        entry = _PollFd(reader, 1, 0)
        end = time.monotonic() + FORK_TIMEOUT_MS / 1000
        while _poll(ctypes.addressof(entry), 1, max(0, int((end - time.monotonic()) * 1000))) < 0:
            if ctypes.get_errno() != errno.EINTR:
                break
    finally:
        os.close(reader)


def _after_fork_in_child() -> None:
    global _arena, _device_memory
    inherited, _arena = _arena, None
    _device_memory = None  # CUDA does not survive a fork
    pipe = _handshakes.pop(threading.get_ident(), None)
    try:
        if inherited is not None:
            inherited.privatize()
    except BaseException as error:
        # Going on would let this process and its parent write into each other's tensors.
        os.write(2, f"rust_ort: forked child {os.getpid()} ends: {error}\n".encode())
        os._exit(70)
    for callback in after_fork_in_child:
        callback()
    if pipe is not None:
        os.write(pipe[1], b"1")
    for reader, writer in [*_handshakes.values(), *([pipe] if pipe is not None else [])]:
        os.close(reader)
        os.close(writer)
    _handshakes.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
