"""What can go wrong: the caller's mistake, the daemon's or executor's fault, a numeric mismatch. One type for each."""

from __future__ import annotations

import torch


class RustOrtError(Exception):
    """Base of every error raised here.

    code: stable name for programs, e.g. "BAD_MODEL". graph: e.g. "0_0-forward". node: FX node. dump: folder that holds
    the reproduction. log: file that tells more. Each is "" where it does not apply. part: number of the graph's part.
    """

    part: int | None = None

    def __init__(
        self, message: str, *, code: str = "", graph: str = "", node: str = "", dump: str = "", log: str = ""
    ) -> None:
        super().__init__(message)
        self.message = message  # Dynamo appends advice about itself to args
        self.code = code
        self.graph = graph
        self.node = node
        self.dump = dump
        self.log = log

    def __str__(self) -> str:
        where = [("graph", self.graph), ("node", self.node), ("reproduction", self.dump), ("log", self.log)]
        return self.message + "".join(f"\n  {name}: {value}" for name, value in where if value)


class ClientError(RustOrtError):
    """The caller's mistake: correct the call."""


class OptionError(ClientError, ValueError):
    """An option's name or value."""


class NotAvailableYet(ClientError):
    """An option or feature that this version names but does not have."""


class BadIndex(ClientError, IndexError, RuntimeError):
    """An element of an index tensor is beyond its dimension: eager raises IndexError or RuntimeError for it."""


class BadOperand(ClientError, RuntimeError):
    """Elements that an operator refuses, where eager raises RuntimeError: an integer divided by zero; another number of
    values than a mask has places for."""


class DaemonFault(RustOrtError):
    """The daemon's or the executor's fault: see the log."""


class DaemonLost(DaemonFault):
    """The daemon went away, or none could be reached. The next call starts one and sends everything again."""


class ExecutorLost(DaemonFault):
    """The executor died in this call. Every tensor stays valid; the next call leases another executor."""


class OutOfMemory(DaemonFault, torch.OutOfMemoryError):
    """A call needs more memory than there is: in shared memory, in the executor, or on a device. Eager raises
    RuntimeError for it on the CPU, torch.OutOfMemoryError on a device."""


class NumericMismatch(RustOrtError):
    """ONNX Runtime's result is outside tolerance of eager's: raised by `Report.check()`."""
