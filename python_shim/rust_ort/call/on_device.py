"""What a request of tensors on a device needs before it is sent: the executor has the memory mapped, and what the
tensors' values come from is done."""

from __future__ import annotations

from collections.abc import Callable

from rust_ort.errors import DaemonFault
from rust_ort.link.connection import Connection
from rust_ort.memory import device, process


def show(connection: Connection) -> None:
    """Has the executor map the allocations on devices that calls name."""
    devices = process.device_memory()
    devices.look()
    connection.show(devices)


def on_stream(act: Callable[[int], None], stream: int) -> None:
    """Errors: DaemonFault with what CUDA says, of this call's or of earlier work."""
    try:
        act(stream)
    except RuntimeError as error:
        raise of_stream(error) from None


def of_stream(error: RuntimeError) -> DaemonFault:
    """What CUDA says of the current stream, as the error of a call."""
    return DaemonFault(f"the current CUDA stream: {error}", code="RUN_FAILED")


def shown(connection: Connection, ordinal: int | None) -> None:
    """Before a request that names tensors on this device, or on none. Who copies and judges has no part in this
    process's streams."""
    if ordinal is not None:
        show(connection)
        on_stream(device.synchronize, ordinal)
