"""Inputs into shared memory: which may be sent, what a call of given dtypes and shapes needs, and the copies."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

import torch

from rust_ort.errors import ClientError
from rust_ort.link import wire
from rust_ort.link.lanes import descriptor
from rust_ort.link.specs import OutputSpec
from rust_ort.memory import process
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import ONNX_CODE, Layout, block_bytes, contiguous_strides
from rust_ort.memory.parameters import is_state, left, let_go, may_write_elsewhere, move_in, why_not
from rust_ort.memory.segment import LOCATION_BITS, OFFSET_MASK
from rust_ort.torch_private import foreach_copy, is_functorch_wrapped, no_torch_function, reinterpret

POOLED_BUFFER_BYTES = 4 << 20

ONE_THREAD_ELEMENTS = 32768  # torch's grain: above it a copy is shared among its threads
ONE_THREAD_BYTES = 8 << 20

_memcpy = ctypes.CDLL(None).memcpy
_memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcpy.restype = ctypes.c_void_p

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def over_own_memory(kind: type) -> bool:
    """Whether tensors of this type are memory like a plain tensor: a subclass with operators of its own, as every
    wrapper and FakeTensor are, is not."""
    return issubclass(kind, torch.Tensor) and kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def as_plain(value: Any) -> Any:
    """A tensor of a subclass over memory of its own as a plain tensor over the same; anything else as it is."""
    if type(value) in _PLAIN or not over_own_memory(type(value)):
        return value
    with no_torch_function():
        return value.as_subclass(torch.Tensor)


def refusal(what: str, tensor: object) -> ClientError:
    """Why the tensor cannot be sent."""
    kind = type(tensor)
    if not isinstance(tensor, torch.Tensor):
        return ClientError(f"{what}: expected a tensor, an int or a float, got {kind.__module__}.{kind.__qualname__}")
    if not over_own_memory(kind):
        advice = "call the compiled function with plain tensors"
        if kind.__name__ == "FakeTensor":
            advice = "a FakeTensor has no data: call the compiled function outside FakeTensorMode"
        return ClientError(f"{what}: {kind.__module__}.{kind.__qualname__} cannot be sent to ONNX Runtime; {advice}")
    if is_functorch_wrapped(tensor):
        return ClientError(
            f"{what}: a tensor wrapped by torch.func (vmap, grad, jvp, functionalize) has no data of its own; "
            "compile the function that torch.func transforms, not the other way round"
        )
    if not tensor.is_cpu:
        return ClientError(
            f"{what}: a tensor on {tensor.device}; move it to the CPU: other devices are not available yet"
        )
    if tensor.layout is not torch.strided:
        return ClientError(f"{what}: layout {tensor.layout} cannot be sent; call .to_dense() before")
    if tensor.is_nested:
        return ClientError(f"{what}: a nested tensor cannot be sent; call .to_padded_tensor() before")
    if tensor.dtype not in ONNX_CODE:
        return ClientError(f"{what}: dtype {tensor.dtype} does not exist in ONNX; cast it or leave the node to eager")
    return ClientError(
        f"{what}: a tensor without memory (its storage was freed, or never was) cannot be sent; call with one that "
        "holds its values"
    )


def check_tensor(what: str, tensor: object) -> torch.Tensor:
    """The tensor as a plain one, when its memory may be read. Errors: ClientError."""
    tensor = as_plain(tensor)
    if (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in _PLAIN
        and not is_functorch_wrapped(tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dtype in ONNX_CODE
        and (tensor.data_ptr() or tensor.numel() == 0 or tensor._is_zerotensor())
    ):
        return tensor
    raise refusal(what, tensor)


def location_in(arena: Arena, tensor: torch.Tensor, address: int) -> int:
    """Location of a dense row-major tensor in the arena, else 0."""
    location = arena.locate(address)
    if location == 0 or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return 0
    return 0 if location % tensor.dtype.itemsize else location


def stage(tensor: torch.Tensor, held: list[object]) -> int:
    """Location of the tensor's values; held keeps the memory."""
    arena = process.arena()
    location = location_in(arena, tensor, tensor.data_ptr())
    if location:
        held += (tensor, arena.holder(location))
        return location
    copy, location = arena.empty(Layout(tensor.dtype, tensor.shape, None))
    with torch.no_grad():
        copy.copy_(tensor)
    held.append(copy)
    return location


def staged_ref(what: str, tensor: object, held: list[object]) -> Any:
    """The message for a tensor whose values are in shared memory while held lives. Errors: ClientError."""
    tensor = check_tensor(what, tensor)
    location = stage(tensor, held)
    return tensor_ref(location, ONNX_CODE[tensor.dtype], tensor.shape)


def tensor_ref(location: int, code: int, shape: Sequence[int]) -> Any:
    """The message for a tensor at a location."""
    return wire.TensorRef(
        segment=location >> LOCATION_BITS, offset=location & OFFSET_MASK, dtype=code, dims=list(shape)
    )


def restrided(dense: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor with the values of dense and these strides, expanded and overlapping ones included."""
    shape = tuple(dense.shape)
    # Of an expanded dimension one index is enough: the others are the same memory.
    own = tuple(1 if step == 0 else size for size, step in zip(shape, stride, strict=True))
    distinct = dense[tuple(slice(0, size) for size in own)]
    span = 1 + sum((size - 1) * step for size, step in zip(own, stride, strict=True))
    memory = torch.empty(span, dtype=dense.dtype, device="cpu")
    where = torch.zeros((), dtype=torch.int64, device="cpu")
    if span < distinct.numel():
        for dim, (size, step) in enumerate(zip(own, stride, strict=True)):
            index = torch.arange(size, device="cpu") * step
            where = where + index.reshape([-1 if k == dim else 1 for k in range(len(own))])
        memory[where.expand(own).reshape(-1)] = distinct.reshape(-1)
    else:
        memory.as_strided(own, stride).copy_(distinct)
    return reinterpret(memory, shape, stride)


class PlanMismatch(Exception):
    """The inputs are not those of the plan."""


class InputSlot:
    """What one input of a plan looks like. value: of a number whose value decides the outputs' shapes."""

    __slots__ = ("code", "dtype", "is_number", "is_state", "itemsize", "pooled_at", "shape", "value", "what")

    def __init__(self, what: str, value: object, *, keep_value: bool) -> None:
        self.what = what
        self.is_number = isinstance(value, int | float)
        self.value: object = None
        self.is_state = is_state(value)
        self.pooled_at = -1
        if isinstance(value, int | float):
            self.dtype = torch.float64 if isinstance(value, float) else torch.int64
            self.shape: torch.Size = torch.Size(())
            self.value = value if keep_value else None
        else:
            tensor = check_tensor(what, value)
            self.dtype = tensor.dtype
            self.shape = tensor.shape
        self.itemsize = self.dtype.itemsize
        self.code = ONNX_CODE[self.dtype]

    def plain(self, value: object) -> torch.Tensor:
        """A tensor of a subclass as a plain one. Errors: ClientError."""
        value = as_plain(value)
        if type(value) not in _PLAIN:
            raise refusal(self.what, value)
        assert isinstance(value, torch.Tensor)
        return value

    def filled(self, value: torch.Tensor) -> torch.Tensor:
        """What stands for elements without an address: autograd's efficient zeros are zeros. Errors: ClientError."""
        if not value._is_zerotensor():
            raise refusal(self.what, value)
        return torch.zeros(self.shape, dtype=self.dtype, device="cpu")

    def write_number(self, value: int | float, buffer: StagingBuffer) -> None:
        """Writes a SymInt or a float where the buffer has its place. Errors: PlanMismatch, ClientError."""
        is_float = isinstance(value, float)
        same_value = self.value is None or self.value == value
        if not self.is_number or self.dtype.is_floating_point != is_float or not same_value:
            raise PlanMismatch
        try:
            struct.pack_into("<d" if is_float else "<q", buffer.memory, self.pooled_at, value)
        except struct.error:
            raise ClientError(f"a SymInt of value {value} does not fit int64") from None


class StagingBuffer:
    """Memory for the small inputs of one call: used by one call at a time, then by the next."""

    __slots__ = ("locations", "memory", "targets")

    def __init__(self, slots: list[InputSlot], pooled_bytes: int) -> None:
        self.targets: list[torch.Tensor | None] = [None] * len(slots)
        self.locations = [0] * len(slots)
        self.memory: Any = None
        if pooled_bytes == 0:
            return
        # An inference tensor could not be written outside inference mode.
        with torch.inference_mode(False):
            self.memory, base = process.arena().block(block_bytes(pooled_bytes))
            for i, slot in enumerate(slots):
                if slot.pooled_at < 0:
                    continue
                flat = torch.frombuffer(
                    self.memory, dtype=slot.dtype, count=max(1, slot.shape.numel()), offset=slot.pooled_at
                )
                self.targets[i] = reinterpret(flat, tuple(slot.shape), contiguous_strides(slot.shape))
                self.locations[i] = base + slot.pooled_at


class CallPlan:
    """Everything about a call that depends on the inputs' dtypes and shapes alone."""

    __slots__ = ("buffers", "descriptors", "fixups", "n_inputs", "outputs", "pack", "pooled_bytes", "slots")

    def __init__(self, slots: list[InputSlot], outputs: list[OutputSpec]) -> None:
        self.slots = slots
        self.n_inputs = len(slots)
        self.outputs = [Layout(spec.dtype, spec.shape, spec.stride) for spec in outputs]
        self.fixups = [(i, layout) for i, layout in enumerate(self.outputs) if not layout.dense]
        described = [descriptor(slot.code, slot.shape) for slot in slots]
        described += [descriptor(layout.code, layout.shape) for layout in self.outputs]
        self.descriptors = b"".join(described)
        self.pack = struct.Struct(f"<{len(described)}Q")
        self.buffers: list[StagingBuffer] = []
        self.pooled_bytes = 0
        for slot in sorted(slots, key=lambda slot: slot.shape.numel() * slot.itemsize):
            size = block_bytes(slot.shape.numel() * slot.itemsize)
            if slot.shape.numel() and self.pooled_bytes + size <= POOLED_BUFFER_BYTES:
                slot.pooled_at = self.pooled_bytes
                self.pooled_bytes += size

    def gather(
        self, arena: Arena, inputs: Sequence[Any], *, share: bool | str
    ) -> tuple[StagingBuffer, list[int], list[object]]:
        """A buffer, a location for each input, what else keeps memory. share: whether parameters and buffers are moved
        into the arena: "auto" those that can be, True all. Errors: PlanMismatch, ClientError."""
        if len(inputs) != self.n_inputs:
            raise PlanMismatch
        try:
            buffer = self.buffers.pop()
        except IndexError:
            buffer = StagingBuffer(self.slots, self.pooled_bytes)
        low, high = arena.index[0], arena.index[1]
        locations = buffer.locations.copy()
        buffer_targets = buffer.targets
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        held: list[object] = []
        if left:
            let_go()
        may_move: bool | None = None if share == "auto" else bool(share)
        large: dict[object, int] = {}
        try:
            for i, (slot, given) in enumerate(zip(self.slots, inputs, strict=True)):
                value = given
                if type(value) not in _PLAIN:
                    if isinstance(value, int | float):
                        slot.write_number(value, buffer)
                        continue
                    value = slot.plain(value)
                try:
                    if value.shape != slot.shape or value.dtype is not slot.dtype or not value.is_cpu or slot.is_number:
                        raise PlanMismatch
                    address = value.data_ptr()
                except RuntimeError:  # it has no storage, or no shape
                    raise refusal(slot.what, value) from None
                if not address and slot.shape.numel():
                    value = slot.filled(value)
                    address = value.data_ptr()
                target = buffer_targets[i]
                location = location_in(arena, value, address) if low <= address < high else 0
                if slot.is_state:
                    if not location and may_move is None:
                        may_move = not may_write_elsewhere()
                    if not location and may_move:
                        location = _moved(arena, slot, given, must=share is True)
                    held.append(arena.holder(location))
                if location:
                    locations[i] = location
                elif target is not None:
                    targets.append(target)
                    sources.append(value)
                elif address or slot.shape.numel():
                    locations[i] = _stage_large(arena, value, address, large, targets, sources, held)
            if targets:
                _copy(targets, sources)
        except BaseException:
            self.buffers.append(buffer)
            raise
        return buffer, locations, held


def _moved(arena: Arena, slot: InputSlot, value: torch.Tensor, *, must: bool) -> int:
    """Location of a parameter that is moved into the arena; 0 where it cannot be. Errors: ClientError where it must."""
    if not is_state(value) or not value.numel():  # another tensor comes to where one was
        return 0
    location = move_in(arena, value)
    if not location and must:
        raise ClientError(
            f"{slot.what}: share_parameters is True, and it cannot be moved into shared memory: "
            f"{why_not(value)}; call with a parameter that has memory of its own (p.data = p.detach().clone()), or "
            'take share_parameters="auto", which copies such ones in each call',
            code="BAD_OPTION",
        )
    return location


def _copy(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies each source to its target; the targets are dense.

    torch wakes its thread pool for each tensor of more than 32,768 elements, and that pool then spins for milliseconds
    on the cores where the executor is about to run. Up to a few MiB, one thread is as fast and disturbs nobody.
    """
    large = [i for i, source in enumerate(sources) if source.numel() > ONE_THREAD_ELEMENTS]
    if large and sum(sources[i].nbytes for i in large) <= ONE_THREAD_BYTES:
        for i in reversed(large):
            source = sources[i]
            if source.is_contiguous() and not source.is_neg() and not source.is_conj():
                _memcpy(targets[i].data_ptr(), source.data_ptr(), source.nbytes)
                del targets[i], sources[i]
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    elif targets:
        foreach_copy(targets, sources)


def _stage_large(
    arena: Arena,
    tensor: torch.Tensor,
    address: int,
    large: dict[object, int],
    targets: list[torch.Tensor],
    sources: list[torch.Tensor],
    held: list[object],
) -> int:
    """Location of a block for this call, one for all inputs that are the same memory seen alike."""
    if tensor.numel() == 0:
        return 0
    key = (address, tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg(), tensor.is_conj())
    location = large.get(key)
    if location is None:
        with torch.inference_mode(False):
            target, location = arena.empty(Layout(tensor.dtype, tensor.shape, None))
        targets.append(target)
        sources.append(tensor)
        held.append(target)
        large[key] = location
    return location
