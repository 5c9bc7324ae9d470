"""Frames and messages of docs/design/protocol.md, from the descriptor set that ships with the package."""

from __future__ import annotations

import importlib.resources
import struct
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rust_ort.errors import (
    BadIndex,
    BadOperand,
    ClientError,
    DaemonFault,
    ExecutorLost,
    OutOfMemory,
    RustOrtError,
)

PROTOCOL = 1
MAGIC = b"RORT"
REQUEST, REPLY, NOTICE = 1, 2, 3
HEADER = struct.Struct("<4sHHII")
MAX_BODY_BYTES = 1 << 30


def _load() -> tuple[dict[str, Any], Any]:
    text = (importlib.resources.files("rust_ort") / "rust_ort.binpb").read_bytes()
    files = descriptor_pb2.FileDescriptorSet.FromString(text)
    # A pool of our own: another package may register a file or message of the same name in the default one.
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    own = next(file for file in files.file if file.package == "rust_ort")
    classes = {
        entry.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"rust_ort.{entry.name}"))
        for entry in own.message_type
    }
    return classes, pool


_classes, _pool = _load()


def _names(enum: str, prefix: str) -> dict[int, str]:
    """{number: name without the prefix} of an enum."""
    values = _pool.FindEnumTypeByName(f"rust_ort.{enum}").values
    return {value.number: value.name.removeprefix(prefix) for value in values}


def _numbers(enum: str, prefix: str) -> dict[str, int]:
    """{name in lower case without the prefix: number} of an enum."""
    return {name.lower(): number for number, name in _names(enum, prefix).items()}


Request: Any = _classes["Request"]
Reply: Any = _classes["Reply"]
Notice: Any = _classes["Notice"]
TensorRef: Any = _classes["TensorRef"]
TensorPair: Any = _classes["TensorPair"]
ExportPlan: Any = _classes["ExportPlan"]

_TYPES: dict[str, type[RustOrtError]] = {
    "EXECUTOR_LOST": ExecutorLost,
    "BAD_INDEX": BadIndex,
    "BAD_OPERAND": BadOperand,
    "OUT_OF_MEMORY": OutOfMemory,
}
_CODES = _names("ErrorCode", "ERROR_CODE_")
_CLIENT = _numbers("ErrorKind", "ERROR_KIND_")["client"]
VERDICT_KINDS = {number: name for name, number in _numbers("VerdictKind", "VERDICT_KIND_").items() if number}
DIRECTIONS = _numbers("Direction", "DIRECTION_")
DUMP_CALLS = _numbers("DumpCalls", "DUMP_CALLS_")


def encode_frame(kind: int, body: bytes) -> bytes:
    """A whole frame. Errors: ClientError when the body is longer than a frame may be."""
    if len(body) > MAX_BODY_BYTES:
        raise ClientError(
            f"a message of {len(body)} bytes: expected at most {MAX_BODY_BYTES}; "
            "keep large constants out of the model, as parameters or buffers"
        )
    return HEADER.pack(MAGIC, PROTOCOL, kind, len(body), 0) + body


def decode_header(header: bytes) -> tuple[int, int]:
    """(kind, bytes of the body). Errors: DaemonFault for anything but a frame of this version."""
    magic, version, kind, len_bytes, reserved = HEADER.unpack(header)
    if magic != MAGIC:
        raise DaemonFault(f"what answers on the socket is no rust-ort daemon: expected magic {MAGIC!r}, got {magic!r}")
    if version != PROTOCOL:
        raise DaemonFault(
            f"the daemon speaks protocol {version}, this package {PROTOCOL}; install equal versions "
            "and run `rust-ort stop`",
            code="PROTOCOL_VERSION",
        )
    if kind not in (REPLY, NOTICE) or reserved != 0 or len_bytes > MAX_BODY_BYTES:
        raise DaemonFault(
            f"bad frame from the daemon: kind {kind}, {len_bytes} bytes, reserved {reserved}", code="BAD_FRAME"
        )
    return kind, len_bytes


def error_from(error: Any) -> RustOrtError:
    """The exception for an Error message."""
    return make_error(
        kind=error.kind,
        code=error.code,
        message=error.message,
        graph=error.graph,
        node=error.node,
        dump=error.dump,
        log=error.log,
    )


def make_error(
    *, kind: int, code: int, message: str, graph: str = "", node: str = "", dump: str = "", log: str = ""
) -> RustOrtError:
    """The exception for an error's fields."""
    name = _CODES.get(code, str(code))
    wanted: type[RustOrtError] = DaemonFault
    if name in _TYPES:
        wanted = _TYPES[name]
    elif kind == _CLIENT:
        wanted = ClientError
    return wanted(message, code=name, graph=graph, node=node, dump=dump, log=log)
