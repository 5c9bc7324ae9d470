"""Tensors on CUDA devices: the allocations that they lie in, which the executor maps, and the stream of a call."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch

from rust_ort import _native
from rust_ort._native import DeviceBlocks, DeviceSegment
from rust_ort.errors import ClientError
from rust_ort.torch_private import raw_stream

LOOK_S = 1.0
"""Between two looks for allocations that were freed."""


class DeviceMemory:
    """Allocations of this process that calls' tensors lie in. An executor is shown each once, whole: torch cuts its
    tensors out of large ones and keeps them, so that new ones are seldom met."""

    def __init__(self) -> None:
        self.blocks = DeviceBlocks()
        self.lock = threading.RLock()
        self.segments: dict[int, DeviceSegment] = {}
        self.version = 0
        """Another one whenever `segments` changed."""

        self._look_again = 0.0

    def locate(self, what: str, tensor: torch.Tensor) -> int:
        """Location of a dense row-major tensor on a device. Errors: ClientError where its memory cannot be shared."""
        with self.lock:
            try:
                location, new = self.blocks.locate(tensor.data_ptr())
            except (RuntimeError, ValueError) as error:
                raise ClientError(f"{what}: {error}", code="BAD_TENSOR") from None
            if new is not None:
                self.forget_freed()  # those that made room for it
                self.segments[new.id] = new
                self.version += 1
                self.blocks.add(new)
            return location

    def look(self) -> None:
        """Forgets what was freed, now and then: as long as an executor maps it, the memory is nobody else's."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + LOOK_S
            self.forget_freed()

    def forget_freed(self) -> None:
        with self.lock:
            freed = self.blocks.forget_freed()
            for segment in freed:
                self.segments.pop(segment, None)
            self.version += bool(freed)


def ordinal(tensor: torch.Tensor) -> int | None:
    """Number of the CUDA device that a plain tensor lies on; None: the host."""
    return tensor.get_device() if tensor.is_cuda else None


def uuid(ordinal: int) -> bytes:
    """The device's UUID, by which every process knows it. Errors: ClientError with what CUDA says."""
    try:
        return bytes(_native.device_uuid(ordinal))
    except RuntimeError as error:
        raise ClientError(f"cuda:{ordinal}: {error}", code="BAD_OPTION") from None


def free_bytes(ordinal: int) -> int:
    """What this process can have of the device's memory: what nobody has, and what torch keeps for nothing now."""
    free, _ = torch.cuda.mem_get_info(ordinal)
    return int(free) + torch.cuda.memory_reserved(ordinal) - torch.cuda.memory_allocated(ordinal)


def free_bytes_beside(tensor: torch.Tensor) -> int:
    """What this process can have of the memory that a tensor lies in."""
    if tensor.is_cuda:
        return free_bytes(tensor.get_device())
    with open("/proc/meminfo") as facts:
        available = next((line for line in facts if line.startswith("MemAvailable:")), "MemAvailable: 0")
    return int(available.split()[1]) << 10


def empty(shape: Sequence[int], dtype: torch.dtype, ordinal: int) -> torch.Tensor:
    """A row-major tensor on the device, of the current stream's memory."""
    return torch.empty(tuple(shape), dtype=dtype, device=torch.device("cuda", ordinal))


def empty_strided(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, ordinal: int) -> torch.Tensor:
    """As `empty`, with these strides."""
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=torch.device("cuda", ordinal))


def stream(ordinal: int) -> int:
    """The current stream's number. Errors: ClientError while it is captured in a CUDA graph."""
    if torch.cuda.is_current_stream_capturing():
        raise ClientError(
            "a call cannot be captured in a CUDA graph, which replays no work of another process; call it outside of "
            "torch.cuda.graph",
            code="UNSUPPORTED",
        )
    return raw_stream(ordinal)


def synchronize(ordinal: int) -> None:
    """Waits for what is on the current stream. Errors: ClientError while it is captured in a CUDA graph, RuntimeError
    with what earlier work failed of."""
    stream(ordinal)
    torch.cuda.current_stream(ordinal).synchronize()


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor on a device, row-major, where its kernels may read wide words."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    return dense.clone() if dense.data_ptr() % _native.DEVICE_ALIGN_BYTES else dense
