"""Inputs into shared memory: which may be sent, what a call of given dtypes and shapes needs, and the copies."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import torch

from rust_ort import _native
from rust_ort._native import Call
from rust_ort.errors import ClientError
from rust_ort.link import wire
from rust_ort.link.specs import OutputSpec
from rust_ort.memory import device, process
from rust_ort.memory.arena import Arena
from rust_ort.memory.layout import ONNX_CODE, Layout
from rust_ort.memory.parameters import is_state, left, let_go, may_write_elsewhere, move_in, why_not
from rust_ort.memory.segment import LOCATION_BITS, OFFSET_MASK
from rust_ort.torch_private import (
    foreach_copy,
    has_no_storage,
    is_functorch_wrapped,
    no_torch_function,
    reinterpret,
)

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
            "compile the function that calls torch.func, not the one that is given to it"
        )
    if not (tensor.is_cpu or tensor.is_cuda):
        return ClientError(f"{what}: a tensor on {tensor.device}; move it to the CPU or to a CUDA device")
    if tensor.layout is not torch.strided:
        return ClientError(f"{what}: layout {tensor.layout} cannot be sent; call .to_dense() before")
    if tensor.is_nested:
        return ClientError(f"{what}: a nested tensor cannot be sent; call .to_padded_tensor() before")
    if tensor.dtype not in ONNX_CODE:
        return ClientError(f"{what}: dtype {tensor.dtype} does not exist in ONNX; cast it or leave the node to eager")
    if has_no_storage(tensor):
        return ClientError(
            f"{what}: a tensor of many gradients at once (is_grads_batched=True, or vectorize=True of "
            "torch.autograd.functional) has no data of its own; ask for them one after the other, or compile the "
            "function that calls torch.func.jacrev or vmap"
        )
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
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and tensor.dtype in ONNX_CODE
        and not has_no_storage(tensor)
        and (tensor.data_ptr() or tensor.numel() == 0 or tensor._is_zerotensor())
    ):
        return tensor
    raise refusal(what, tensor)


def check_has_no_tangent(what: str, value: object) -> None:
    """Errors: ClientError for a tensor with a tangent, which would be lost."""
    if isinstance(value, torch.Tensor) and torch.autograd.forward_ad.unpack_dual(value).tangent is not None:
        raise ClientError(
            f"{what}: a dual tensor (torch.autograd.forward_ad) has a tangent, which ONNX Runtime does not carry on; "
            "compile the function that calls torch.func.jvp"
        )


def location_in(arena: Arena, tensor: torch.Tensor, address: int) -> int:
    """Location of a dense row-major tensor in the arena, else 0."""
    location = arena.locate(address)
    if location == 0 or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return 0
    return 0 if location % tensor.dtype.itemsize else location


def stage(tensor: torch.Tensor, held: list[object]) -> int:
    """Location of the tensor's values in memory of the host; held keeps the memory."""
    arena = process.arena()
    location = 0 if tensor.is_cuda else location_in(arena, tensor, tensor.data_ptr())
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


def placed_ref(what: str, tensor: object, held: list[object]) -> Any:
    """As `staged_ref`; the values of a tensor on a device stay there. Errors: ClientError."""
    if not isinstance(tensor, torch.Tensor) or device.ordinal(tensor) is None:
        return staged_ref(what, tensor, held)
    dense = device.aligned(as_sent(what, tensor))
    held.append(dense)
    location = process.device_memory().locate(what, dense) if dense.numel() else 0
    return tensor_ref(location, ONNX_CODE[dense.dtype], dense.shape)


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
    memory = torch.empty(span, dtype=dense.dtype, device=dense.device)
    where = torch.zeros((), dtype=torch.int64, device=dense.device)
    if span < distinct.numel():
        for dim, (size, step) in enumerate(zip(own, stride, strict=True)):
            index = torch.arange(size, device=dense.device) * step
            where = where + index.reshape([-1 if k == dim else 1 for k in range(len(own))])
        memory[where.expand(own).reshape(-1)] = distinct.reshape(-1)
    else:
        memory.as_strided(own, stride).copy_(distinct)
    return reinterpret(memory, shape, stride)


class InputSlot:
    """What one input of a plan looks like. value: of a number whose value decides the outputs' shapes. device: number
    of the CUDA device that it lies on. Errors: ClientError for what cannot be sent."""

    __slots__ = ("bits", "code", "device", "kind", "shape", "value", "what")

    def __init__(self, what: str, value: object, *, keep_value: bool) -> None:
        self.what = what
        self.device: int | None = None
        self.value: int | float | None = None
        self.bits = b""  # of the value
        if isinstance(value, int | float):
            dtype, self.kind = (torch.float64, "float") if isinstance(value, float) else (torch.int64, "int")
            self.shape: tuple[int, ...] = ()
            if self.kind == "int" and not -(2**63) <= value < 2**63:
                raise ClientError(f"a SymInt of value {value} does not fit int64")
            if keep_value:
                self.value = float(value) if self.kind == "float" else int(value)
                self.bits = struct.pack("<d" if self.kind == "float" else "<q", self.value)
        else:
            tensor = check_tensor(what, value)
            dtype, self.kind = tensor.dtype, "state" if is_state(value) else "tensor"
            self.device, self.shape = device.ordinal(tensor), tuple(tensor.shape)
        self.code = ONNX_CODE[dtype]


def as_sent(what: str, value: Any) -> Any:
    """An input as the native call takes it: a plain tensor with memory, a number of Python's own types. Errors:
    ClientError for what cannot be sent."""
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    tensor = check_tensor(what, value)
    # Autograd's efficient zeros have no memory.
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device) if tensor._is_zerotensor() else tensor


class CallPlan:
    """Everything about a call that depends on the inputs' dtypes, shapes and devices alone."""

    __slots__ = ("all_on_device", "device", "fixups", "native", "on_device", "outputs", "served", "slots")

    def __init__(self, slots: list[InputSlot], outputs: list[OutputSpec]) -> None:
        self.slots = slots
        self.outputs = [Layout(spec.dtype, spec.shape, spec.stride) for spec in outputs]
        self.device = self._device(slots, outputs)
        """Number of the CUDA device that some of its tensors lie on; None: all are the host's."""
        self.all_on_device = all(
            spec.device is not None or not layout.count for spec, layout in zip(outputs, self.outputs, strict=True)
        )
        """Whether no output lies on the host."""
        self.served = 0
        """Number of the connection over which a call of it was done."""
        self.on_device = [(i, self.outputs[i]) for i, spec in enumerate(outputs) if spec.device is not None]
        self.fixups = [
            (i, layout, spec.device)
            for i, (layout, spec) in enumerate(zip(self.outputs, outputs, strict=True))
            if not layout.dense or not layout.count
        ]
        try:
            self.native = _native.Plan(
                [(slot.code, slot.shape, slot.kind, slot.value, slot.device) for slot in slots],
                [
                    (layout.code, layout.shape, layout.in_block, spec.device is not None)
                    for layout, spec in zip(self.outputs, outputs, strict=True)
                ],
            )
        except ValueError as error:
            raise ClientError(str(error)) from None

    @staticmethod
    def _device(slots: Sequence[InputSlot], outputs: Sequence[OutputSpec]) -> int | None:
        """Errors: ClientError where tensors lie on several devices."""
        found = {slot.device: slot.what for slot in slots if slot.device is not None}
        found |= {spec.device: "an output" for spec in outputs if spec.device is not None and spec.device not in found}
        if len(found) > 1:
            where = ", ".join(f"{what} on cuda:{number}" for number, what in found.items())
            raise ClientError(
                f"one call runs on one device: {where}; move its tensors to one of them", code="BAD_TENSOR"
            )
        return next(iter(found), None)

    def gather(
        self, arena: Arena, inputs: Sequence[Any], *, share: bool | str, given: Sequence[Any] | None = None
    ) -> Call | None:
        """The call with these inputs, all of them placed; None where they are not the plan's, or not `as_sent`. share:
        whether parameters and buffers are moved into the arena: "auto" those that can be, True all. given: the inputs
        before `as_sent`. Errors: ClientError."""
        if left:
            let_go()
        devices = process.device_memory()
        call = self.native.gather(arena, arena.blocks, devices.blocks, inputs, bool(share))
        if call is None:
            return None
        if call.left:
            self._place(call, arena, inputs, given or inputs, share=share)
        for i, layout in self.on_device:
            if layout.count:
                assert self.device is not None
                made = device.empty(layout.shape, layout.dtype, self.device)
                call.set_output(i, made, devices.locate("an output", made))
        return call

    def _place(
        self, call: Call, arena: Arena, inputs: Sequence[Any], given: Sequence[Any], *, share: bool | str
    ) -> None:
        """Places what the native call left: states outside of the arena, strided and large inputs."""
        may_move: bool | None = None if share == "auto" else bool(share)
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        seen: dict[object, int] = {}
        # An inference tensor could not be written outside inference mode.
        with torch.inference_mode(False):
            for i in call.left:
                value, slot = inputs[i], self.slots[i]
                if slot.device is not None:
                    dense = device.aligned(value)
                    call.place(i, process.device_memory().locate(slot.what, dense), None)
                    call.hold(dense)
                    continue
                if slot.kind == "state":
                    if may_move is None:
                        may_move = not may_write_elsewhere()
                    location = location_in(arena, value, value.data_ptr())  # moved for an input before
                    if not location and may_move:
                        location = _moved(arena, slot, given[i], must=share is True)
                    if location:
                        call.place(i, location, arena.holder(location))
                        continue
                    if call.copied_here(arena, arena.blocks, i, value):
                        continue
                # One copy for all inputs that are the same memory seen alike.
                key = value.data_ptr(), value.shape, value.stride(), value.dtype, value.is_neg(), value.is_conj()
                if key in seen:
                    call.place(i, call.locations[seen[key]], None)
                    continue
                seen[key] = i
                targets.append(call.target(arena, arena.blocks, i))
                sources.append(value)
        if targets:
            with torch.no_grad():
                _copy(targets, sources)

    def finish(self, call: Call) -> list[torch.Tensor]:
        """The outputs of a call that was done, with the strides that they must have."""
        outputs: list[torch.Tensor] = call.take_outputs()
        if self.fixups:
            with torch.no_grad():
                for i, layout, number in self.fixups:
                    if layout.count:
                        outputs[i] = restrided(outputs[i], layout.stride)
                    else:
                        outputs[i] = _without_elements(layout, number)
        return outputs


def _without_elements(layout: Layout, number: int | None) -> torch.Tensor:
    """The output of a layout without elements. number: of the CUDA device that it belongs on; None: the host."""
    if number is None:
        return layout.without_elements()
    return device.empty_strided(layout.shape, layout.stride, layout.dtype, number)


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
    """Copies each source to its target; the targets are dense."""
    if len(targets) == 1:
        targets[0].copy_(sources[0])
    else:
        foreach_copy(targets, sources)
