"""The connection to the daemon and the calls over it: transport alone, no export and no comparison."""

from __future__ import annotations

import atexit
import contextlib
import importlib.metadata
import itertools
import json
import os
import select
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from . import _wire, daemon, shm
from .errors import ClientError, DaemonFault, DaemonLost, ExecutorLost, RustOrtError
from .options import Options, Tolerance
from .shm import ONNX_CODE, Layout, block_bytes, contiguous_strides

POOLED_FRAME_BYTES = 4 << 20
MAX_PLANS = 32
HANDSHAKE_TIMEOUT_S = 30.0
EXECUTOR_EXIT_WAIT_MS = 2000

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_call_ids = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class OutputSpec:
    """An output's tensor. stride: None for row-major, else the strides that eager gives."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None = None


@dataclass(kw_only=True)
class GraphSpec:
    """One AOT graph, as RegisterGraph sends it. direction: "forward", "backward" or "inference"."""

    graph_id: str
    name: str
    direction: str
    dynamo_text: str = ""
    joint_text: str = ""
    fx_text: str = ""
    parts_json: str = ""
    compute_nodes: int = 0
    eager_nodes: int = 0


@dataclass(kw_only=True)
class PartSpec:
    """One model of a graph, as PreparePart sends it, and the tensors it gives.

    outputs: one spec an output, or a function of the inputs of a call (SymInts are plain ints) that returns them.
    """

    graph: GraphSpec
    part: int
    model: bytes
    provenance_json: str = "{}"
    fx_values: dict[str, str] = field(default_factory=dict)
    input_names: list[str]
    output_names: list[str]
    outputs: list[OutputSpec] | Callable[[Sequence[object]], list[OutputSpec]]
    disabled_optimizers: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a comparison found. kind: "match", "mismatch", "not_compared" or "failed"."""

    name: str
    kind: str
    reason: str
    metrics: dict[str, Any] | None
    max_abs: float
    max_rel_to_max: float
    outside: int


def _verdicts(comparison: Any) -> list[Verdict]:
    return [
        Verdict(
            name=entry.name,
            kind=_wire.VERDICT_KINDS.get(entry.verdict, "failed"),
            reason=entry.reason,
            metrics=json.loads(entry.metrics_json) if entry.metrics_json else None,
            max_abs=entry.max_abs,
            max_rel_to_max=entry.max_rel_to_max,
            outside=entry.outside,
        )
        for entry in comparison.verdicts
    ]


@dataclass(frozen=True, kw_only=True)
class DumpSpec:
    """An open dump, as it is opened again after a loss."""

    folder: str
    run: str
    calls: str
    run_json: str


# --- connection ------------------------------------------------------------------------------------------------------


class Connection:
    """One handshake's worth: what the daemon knows of this process. When it is lost nothing of it is used again."""

    def __init__(self, path: str) -> None:
        self.dead: RustOrtError | None = None
        self.lanes: shm.Lanes | None = None
        self.graphs: set[tuple[str, str]] = set()
        self.dump_epoch = 0
        self.dump_spec: DumpSpec | None = None
        self.executor_log = ""
        self._lost_calls: list[Any] = []
        self._shutting_down = ""
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._ids = itertools.count(1)
        self._kept: dict[int, object] = {}  # request -> what an interrupted one may still read and write
        self._pidfd = -1
        self._socket = daemon.connect(path)
        try:
            self._hello(path)
        except BaseException:
            self._socket.close()
            raise

    def _hello(self, path: str) -> None:
        request = _wire.Request()
        request.hello.protocol = _wire.PROTOCOL
        request.hello.shim_version = shim_version()
        request.hello.pid = os.getpid()
        request.hello.python_version = sys.version.split()[0]
        request.hello.torch_version = str(torch.__version__)
        request.hello.program = (sys.argv[0] if sys.argv else "")[:1024]
        self._socket.settimeout(HANDSHAKE_TIMEOUT_S)
        try:
            welcome = self.ask(request)
        except TimeoutError:
            raise DaemonLost(
                f"the daemon on {path} did not answer in {HANDSHAKE_TIMEOUT_S:.0f} s; run `rust-ort doctor`"
            ) from None
        self._socket.settimeout(None)
        self.log = str(welcome.log)
        self.daemon_pid = int(welcome.daemon_pid)
        self.client_id = int(welcome.client_id)
        if welcome.protocol != _wire.PROTOCOL:
            raise DaemonFault(
                f"the daemon {welcome.daemon_version} speaks protocol {welcome.protocol}, this package "
                f"{_wire.PROTOCOL}; install equal versions and run `rust-ort stop`",
                code="PROTOCOL_VERSION",
                log=self.log,
            )

    def ask(self, request: Any, *, fd: int | None = None, keep: object = None) -> Any:
        """The answer's message. keep: what must live until the answer is here. Errors: the daemon's, DaemonLost."""
        with self._lock:
            if self.dead is not None:
                raise self.error()
            number = request.request_id = next(self._ids)
            self._send(_wire.encode_frame(_wire.REQUEST, request.SerializeToString()), fd)
            try:
                reply = self._await(number)
            except BaseException:
                if keep is not None:
                    self._kept[number] = keep
                raise
        if reply.WhichOneof("body") == "error":
            error = _wire.error_from(reply.error)
            if isinstance(error, ExecutorLost):
                self.dead = self.dead or error
            raise error
        return getattr(reply, reply.WhichOneof("body"))

    def _send(self, frame: bytes, fd: int | None) -> None:
        try:
            sent = 0 if fd is None else socket.send_fds(self._socket, [frame], [fd])
            self._socket.sendall(memoryview(frame)[sent:])
        except OSError:
            # It may have said why before it closed.
            with contextlib.suppress(OSError, RustOrtError):
                self._receive_ready()
            self._lose("the daemon closed the connection")
            raise self.error() from None
        except BaseException:
            self._lose("a request was interrupted halfway")
            raise

    def _await(self, number: int) -> Any:
        while True:
            for reply in self._frames():
                if reply.request_id == number:
                    return reply
                self._kept.pop(reply.request_id, None)
                if reply.request_id == 0 and reply.WhichOneof("body") == "error":
                    self._lose(reply.error.message)
            if self.dead is not None and not isinstance(self.dead, ExecutorLost):
                raise self.error()
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionError:
                data = b""
            if not data:
                self._lose("the daemon is gone")
                raise self.error()
            self._buffer += data

    def _frames(self) -> Iterator[Any]:
        """Replies in the buffer; notices are handled on the way."""
        size = _wire.HEADER.size
        while len(self._buffer) >= size:
            try:
                kind, len_bytes = _wire.decode_header(bytes(self._buffer[:size]))
            except DaemonFault as error:
                self.dead = self.dead or error
                self._socket.close()
                raise
            if len(self._buffer) < size + len_bytes:
                return
            body = bytes(memoryview(self._buffer)[size : size + len_bytes])
            del self._buffer[: size + len_bytes]
            if kind == _wire.NOTICE:
                self._notice(_wire.Notice.FromString(body))
            else:
                yield _wire.Reply.FromString(body)

    def _notice(self, notice: Any) -> None:
        if notice.WhichOneof("body") == "executor_lost":
            lost = notice.executor_lost
            self._lost_calls = list(lost.calls)
            self.dead = self.dead or ExecutorLost(
                f"the executor died: {lost.cause}; call again: a new one is leased by itself",
                code="EXECUTOR_LOST",
                log=self.executor_log,
            )
        elif notice.WhichOneof("body") == "shutting_down":
            self._shutting_down = f" ({notice.shutting_down.reason})"

    def _receive_ready(self) -> None:
        while True:
            try:
                data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._buffer += data
            for reply in self._frames():
                self._kept.pop(reply.request_id, None)
            if not data:
                self._lose("the daemon is gone")
                break

    def _lose(self, why: str) -> None:
        if self.dead is None:
            self.dead = DaemonLost(
                f"{why}{self._shutting_down}; call again: a daemon is started by itself",
                log=getattr(self, "log", ""),
            )
        self._socket.close()

    def check(self) -> None:
        """Looks for notices without waiting. Errors: ExecutorLost, DaemonLost."""
        if self.dead is None and self._lock.acquire(blocking=False):
            try:
                self._receive_ready()
            finally:
                self._lock.release()
        if self.dead is not None:
            raise self.error()

    def error(self, graph: str = "") -> RustOrtError:
        """Why the connection is dead, for one caller; with the post-mortem of a call of graph when there is one."""
        assert self.dead is not None
        for call in self._lost_calls:
            if graph and call.graph == graph:
                error = _wire.error_from(call)
                error.log = error.log or self.executor_log
                return error
        dead = self.dead
        return type(dead)(
            str(dead.args[0]), code=dead.code, graph=dead.graph or graph, node=dead.node, dump=dead.dump, log=dead.log
        )

    def loss(self, error: RustOrtError, graph: str) -> RustOrtError:
        """The post-mortem of a call of graph where there is one, else error with graph."""
        if self.dead is not None and any(call.graph == graph for call in self._lost_calls):
            return self.error(graph)
        error.graph = error.graph or graph
        return error

    # --- what a lease needs ---

    def lease(self, options: Options) -> None:
        """An executor and the lanes to it, once."""
        if self.lanes is not None:
            return
        request = _wire.Request()
        request.lease_executor.onnxruntime_library = daemon.find_onnxruntime()
        request.lease_executor.threads = threads(options)
        request.lease_executor.allow_spinning = allow_spinning(options)
        leased = self.ask(request)
        self.executor_log = str(leased.log)
        self.executor_pid = int(leased.pid)
        self.onnxruntime_version = str(leased.onnxruntime_version)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self.executor_pid)
        lanes = shm.Lanes()
        self.attach(lanes.segment, lanes=True)
        self.lanes = lanes

    def attach(self, segment: shm.Segment, *, lanes: bool = False) -> None:
        """Shows a segment to the daemon and the executor."""
        request = _wire.Request()
        request.attach_segment.segment = segment.id
        request.attach_segment.len_bytes = segment.len_bytes
        request.attach_segment.kind = 2 if lanes else 1
        self.ask(request, fd=segment.fd)

    def announce(self, segment: shm.Segment) -> None:
        """The arena's listener: a connection that cannot learn of a new segment is of no more use."""
        if self.dead is None:
            self.attach(segment)

    def open_lane(self, lane: shm.Lane) -> None:
        request = _wire.Request()
        request.open_lane.lane = lane.index
        self.ask(request)
        lane.open = True

    # --- the end ---

    def executor_is_gone(self, wait_ms: int = 0) -> bool:
        """Whether the executor can write no more."""
        if isinstance(self.dead, ExecutorLost) or self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(wait_ms))

    def in_flight(self) -> list[object]:
        held = self.lanes.in_flight() if self.lanes is not None else []
        return held + list(self._kept.values())

    def close(self) -> None:
        """Ends the connection; what was not handed over is lost, tensors are not."""
        self._lose("the connection was closed here")
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def forget(self) -> None:
        """In a forked child: closes this process's copies without a word to the daemon."""
        self._lock = threading.Lock()
        self.dead = DaemonLost("this connection belongs to the process that forked; call again")
        with contextlib.suppress(OSError):
            self._socket.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


# Dead connections whose executor may still write into what abandoned calls hold.
_condemned: list[Connection] = []


def _bury(connection: Connection) -> None:
    """Keeps what calls in flight hold until the executor is gone."""
    for old in list(_condemned):
        if old.executor_is_gone():
            _condemned.remove(old)
            old.close()
    if connection.in_flight() and not connection.executor_is_gone(EXECUTOR_EXIT_WAIT_MS):
        _condemned.append(connection)
    else:
        connection.close()


def threads(options: Options) -> int:
    """Threads of the executor's pool: as asked for, else one a usable core."""
    return options.threads or len(os.sched_getaffinity(0))


def allow_spinning(options: Options) -> bool:
    """Whether the pool's threads spin between operators; off unless asked for: spinning starves torch's own threads."""
    return options.session_options.get("session.intra_op.allow_spinning", "0") == "1"


def shim_version() -> str:
    """Version of this package, "0" when it runs from a source tree."""
    try:
        return importlib.metadata.version("rust-ort")
    except importlib.metadata.PackageNotFoundError:
        return "0"


# --- client ----------------------------------------------------------------------------------------------------------

_clients: dict[tuple[str, int, bool], Client] = {}
_clients_lock = threading.Lock()


class Client:
    """A process's way to one daemon. Thread-safe; after a loss or a fork the next use connects anew."""

    @staticmethod
    def get(options: Options) -> Client:
        """The client of this socket and these lease settings; nothing is connected yet."""
        shm.check_platform()
        key = (daemon.socket_path(options.socket), threads(options), allow_spinning(options))
        with _clients_lock:
            client = _clients.get(key)
            if client is None:
                client = _clients[key] = Client(key[0], options)
            return client

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.options = options
        self.lock = threading.RLock()
        self._connection: Connection | None = None
        self._dump: DumpSpec | None = None

    def connection(self) -> Connection:
        """The live connection, made when there is none. Errors: ClientError, DaemonLost, DaemonFault."""
        connection = self._connection
        if connection is not None:
            # A loss may wait unread on the socket: what is asked now shall not fail for it.
            with contextlib.suppress(DaemonLost, ExecutorLost):
                connection.check()
                return connection
        with self.lock:
            old = self._connection
            if old is not None and old.dead is None:
                return old
            self._connection = None
            arena = shm.arena()
            if old is not None:
                if old.announce in arena.listeners:
                    arena.listeners.remove(old.announce)
                _bury(old)
            fresh = Connection(self.path)
            with arena.lock:
                for segment in list(arena.segments.values()):
                    fresh.attach(segment)
                arena.listeners.append(fresh.announce)
            if self._dump is not None:
                self._open(fresh, self._dump, clean=False)
            self._connection = fresh
            return fresh

    def leased(self) -> Connection:
        """A connection with an executor."""
        connection = self.connection()
        if connection.lanes is None:
            with self.lock:
                connection = self.connection()
                connection.lease(self.options)
        return connection

    def close(self) -> None:
        """Disconnects; the next use connects anew."""
        with self.lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                listeners = shm.arena().listeners
                if connection.announce in listeners:
                    listeners.remove(connection.announce)
                connection.close()

    def part(self, spec: PartSpec, options: Options) -> Part:
        """A prepared part. Errors: ClientError for a model the runtime refuses, DaemonFault."""
        part = Part(self, spec, options)
        part.prepare()
        return part

    def compare(
        self,
        pairs: Sequence[tuple[str, torch.Tensor | None, torch.Tensor | None, str]],
        tolerance: Tolerance | None = None,
    ) -> list[Verdict]:
        """A verdict for each (name, reference, candidate, why there is nothing to compare or "")."""
        connection = self.connection()
        request = _wire.Request()
        request.compare_tensors.SetInParent()
        held: list[object] = []
        for name, reference, candidate, reason in pairs:
            pair = _wire.TensorPair(name=name, not_compared=reason)
            for side, tensor in (("reference", reference), ("candidate", candidate)):
                if tensor is not None and not reason:
                    getattr(pair, side).CopyFrom(_tensor_ref(f"{side} of {name!r}", tensor, held))
            if not reason and (reference is None or candidate is None):
                pair.not_compared = f"there is no {'reference' if reference is None else 'candidate'}"
            request.compare_tensors.pairs.append(pair)
        _set_tolerance(request.compare_tensors, tolerance)
        return _verdicts(connection.ask(request, keep=held))

    # --- dumps and counters ---

    def open_dump(
        self, *, folder: str, run: str, clean: bool = False, calls: str = "first", run_json: str = "{}"
    ) -> str:
        """Opens a dump of everything that follows; its path. calls: "none", "first" or "all"."""
        spec = DumpSpec(folder=os.path.abspath(folder), run=run, calls=calls, run_json=run_json)
        with self.lock:
            path = self._open(self.connection(), spec, clean=clean)
            self._dump = spec
        return path

    @staticmethod
    def _open(connection: Connection, spec: DumpSpec, *, clean: bool) -> str:
        request = _wire.Request()
        request.open_dump.folder = spec.folder
        request.open_dump.run = spec.run
        request.open_dump.clean = clean
        request.open_dump.calls = _wire.DUMP_CALLS[spec.calls]
        request.open_dump.run_json = spec.run_json
        path = str(connection.ask(request).path)
        connection.dump_epoch += 1
        connection.dump_spec = spec
        return path

    def close_dump(self) -> None:
        """Ends the dump; everything handed over is on disk or reported lost when this returns."""
        with self.lock:
            spec, self._dump = self._dump, None
            connection = self._connection
            # After a loss there is nothing open: the daemon that had it wrote what it was given.
            if spec is not None and connection is not None and connection.dead is None:
                connection.dump_spec = None
                self._empty("close_dump", connection)

    def flush_dump(self) -> None:
        """Returns when everything handed over so far is on disk. Errors: DaemonFault saying what was lost."""
        if self._dump is not None:
            self._empty("flush_dump", self.connection())

    @staticmethod
    def _empty(name: str, connection: Connection) -> None:
        request = _wire.Request()
        getattr(request, name).SetInParent()
        connection.ask(request)

    def register(self, graph: GraphSpec) -> None:
        """Tells the daemon of a graph; for graphs without any part. Parts do it by themselves."""
        self.register_on(self.connection(), graph)

    @staticmethod
    def register_on(connection: Connection, graph: GraphSpec) -> None:
        request = _wire.Request()
        message = request.register_graph
        message.graph_id = graph.graph_id
        message.name = graph.name
        message.direction = _wire.DIRECTIONS[graph.direction]
        for name in ("dynamo_text", "joint_text", "fx_text", "parts_json", "compute_nodes", "eager_nodes"):
            setattr(message, name, getattr(graph, name))
        connection.ask(request)
        connection.graphs.add((graph.graph_id, graph.name))

    def report_eager(self, graph: GraphSpec | str, eager_nodes: int) -> None:
        """Counts eager nodes of a graph that ran without any part."""
        request = _wire.Request()
        request.report_eager.graph_id = graph if isinstance(graph, str) else graph.graph_id
        request.report_eager.eager_nodes = eager_nodes
        connection = self.connection()
        if isinstance(graph, GraphSpec) and (graph.graph_id, graph.name) not in connection.graphs:
            self.register_on(connection, graph)
        connection.ask(request)

    def status(self) -> dict[str, Any]:
        """What `rust-ort status --json` prints."""
        request = _wire.Request()
        request.get_status.SetInParent()
        status: dict[str, Any] = json.loads(self.connection().ask(request).json)
        return status


# --- tensors ---------------------------------------------------------------------------------------------------------


def _refuse(what: str, tensor: object) -> ClientError:
    kind = type(tensor)
    if not isinstance(tensor, torch.Tensor):
        return ClientError(f"{what}: expected a tensor, an int or a float, got {kind.__module__}.{kind.__qualname__}")
    if kind not in _PLAIN:
        advice = "call the compiled function with plain tensors"
        if kind.__name__ == "FakeTensor":
            advice = "a FakeTensor has no data: call the compiled function outside FakeTensorMode"
        return ClientError(f"{what}: {kind.__module__}.{kind.__qualname__} cannot be sent to ONNX Runtime; {advice}")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
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
    if tensor.dtype not in ONNX_CODE:
        return ClientError(f"{what}: dtype {tensor.dtype} does not exist in ONNX; cast it or leave the node to eager")
    return ClientError(f"{what}: a tensor without memory of its own cannot be sent; call .clone() on it before")


def _check_tensor(what: str, tensor: object) -> torch.Tensor:
    """The tensor, when its memory may be read."""
    if (
        isinstance(tensor, torch.Tensor)
        and type(tensor) in _PLAIN
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and tensor.dtype in ONNX_CODE
    ):
        return tensor
    raise _refuse(what, tensor)


def _in_arena(arena: shm.Arena, tensor: torch.Tensor, address: int) -> int:
    """Location of a dense row-major tensor in the arena, else 0."""
    location = arena.locate(address)
    if location == 0 or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
        return 0
    return 0 if location % tensor.dtype.itemsize else location


def _stage(tensor: torch.Tensor, held: list[object]) -> int:
    """Location of the tensor's values; held keeps the memory."""
    location = _in_arena(shm.arena(), tensor, tensor.data_ptr())
    if location:
        held.append(tensor)
        return location
    copy, location = shm.arena().empty(Layout(tensor.dtype, tensor.shape, None))
    with torch.no_grad():
        copy.copy_(tensor)
    held.append(copy)
    return location


def _tensor_ref(what: str, tensor: object, held: list[object]) -> Any:
    tensor = _check_tensor(what, tensor)
    location = _stage(tensor, held)
    return _ref(location, ONNX_CODE[tensor.dtype], tensor.shape)


def _ref(location: int, code: int, shape: Sequence[int]) -> Any:
    return _wire.TensorRef(
        segment=location >> shm.LOCATION_BITS, offset=location & shm.OFFSET_MASK, dtype=code, dims=list(shape)
    )


def _set_tolerance(message: Any, tolerance: Tolerance | None) -> None:
    if tolerance is not None:
        message.tolerance.SetInParent()
        for name in ("atol", "rtol", "scale", "equal_nan"):
            setattr(message.tolerance, name, getattr(tolerance, name))


def _restride(dense: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
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
    return shm._reinterpret(memory, shape, stride)


# --- parts -----------------------------------------------------------------------------------------------------------


class _Slot:
    """What one input of a plan looks like. value: of a number whose value decides the outputs' shapes."""

    __slots__ = ("code", "dtype", "is_number", "itemsize", "pooled_at", "shape", "value")

    def __init__(self, what: str, value: object, *, keep_value: bool) -> None:
        self.is_number = isinstance(value, int | float)
        self.value: object = None
        self.pooled_at = -1
        if isinstance(value, int | float):
            self.dtype = torch.float64 if isinstance(value, float) else torch.int64
            self.shape: torch.Size = torch.Size(())
            self.value = value if keep_value else None
        else:
            tensor = _check_tensor(what, value)
            self.dtype = tensor.dtype
            self.shape = tensor.shape
        self.itemsize = self.dtype.itemsize
        self.code = ONNX_CODE[self.dtype]


class _Frame:
    """Memory for the small inputs of one call: used by one call at a time, then by the next."""

    __slots__ = ("address", "locations", "memory", "targets")

    def __init__(self, slots: list[_Slot], pooled_bytes: int) -> None:
        self.targets: list[torch.Tensor | None] = [None] * len(slots)
        self.locations = [0] * len(slots)
        self.memory: Any = None
        if pooled_bytes == 0:
            return
        # An inference tensor could not be written outside inference mode.
        with torch.inference_mode(False):
            self.memory, base = shm.arena().block(block_bytes(pooled_bytes))
            for i, slot in enumerate(slots):
                if slot.pooled_at < 0:
                    continue
                flat = torch.frombuffer(
                    self.memory, dtype=slot.dtype, count=max(1, slot.shape.numel()), offset=slot.pooled_at
                )
                self.targets[i] = shm._reinterpret(flat, slot.shape, contiguous_strides(slot.shape))
                self.locations[i] = base + slot.pooled_at


class _Plan:
    """Everything about a call that depends on the inputs' dtypes and shapes alone."""

    __slots__ = ("descriptors", "fixups", "frames", "n_inputs", "outputs", "pack", "pooled_bytes", "slots")

    def __init__(self, slots: list[_Slot], outputs: list[OutputSpec]) -> None:
        self.slots = slots
        self.n_inputs = len(slots)
        self.outputs = [Layout(spec.dtype, spec.shape, spec.stride) for spec in outputs]
        self.fixups = [(i, layout) for i, layout in enumerate(self.outputs) if not layout.dense]
        described = [shm.descriptor(slot.code, slot.shape) for slot in slots]
        described += [shm.descriptor(layout.code, layout.shape) for layout in self.outputs]
        self.descriptors = b"".join(described)
        self.pack = struct.Struct(f"<{len(described)}Q")
        self.frames: list[_Frame] = []
        self.pooled_bytes = 0
        for slot in sorted(slots, key=lambda slot: slot.shape.numel() * slot.itemsize):
            size = block_bytes(slot.shape.numel() * slot.itemsize)
            if slot.shape.numel() and self.pooled_bytes + size <= POOLED_FRAME_BYTES:
                slot.pooled_at = self.pooled_bytes
                self.pooled_bytes += size


class _Mismatch(Exception):
    """The inputs are not those of the plan."""


_parts: weakref.WeakSet[Part] = weakref.WeakSet()


class Part:
    """A prepared model. Calls from several threads run side by side."""

    def __init__(self, client: Client, spec: PartSpec, options: Options) -> None:
        self.client = client
        self.spec = spec
        self.options = options
        self.prepared: Any = None  # the Prepared message of the newest preparation
        self._handle = 0
        self._dump_epoch = 0
        self._connection: Connection | None = None
        self._arena: shm.Arena | None = None
        self._plans: dict[object, _Plan] = {}
        self._plan: _Plan | None = None
        _parts.add(self)

    # --- preparation ---

    def prepare(self, *, again: bool = False) -> Connection:
        """Sends graph and model to the current connection, unless it has them."""
        with self.client.lock:
            connection = self.client.leased()
            if connection is self._connection and not again:
                return connection
            if (self.spec.graph.graph_id, self.spec.graph.name) not in connection.graphs or again:
                self.client.register_on(connection, self.spec.graph)
            epoch = connection.dump_epoch
            prepared = connection.ask(self._prepare_request())
            got = [value.name for value in prepared.inputs], [value.name for value in prepared.outputs]
            if got != (self.spec.input_names, self.spec.output_names):
                raise ClientError(
                    f"the model's inputs and outputs are {got[0]} and {got[1]}, "
                    f"expected {self.spec.input_names} and {self.spec.output_names}",
                    graph=self.spec.graph.name,
                )
            if self._arena is not shm.arena():
                self._plans.clear()
                self._plan = None
                self._arena = shm.arena()
            self.prepared = prepared
            self._handle = prepared.handle
            self._dump_epoch = epoch
            self._connection = connection
            return connection

    def _prepare_request(self) -> Any:
        request = _wire.Request()
        message = request.prepare_part
        message.graph_id = self.spec.graph.graph_id
        message.part = self.spec.part
        message.model = self.spec.model
        message.provenance_json = self.spec.provenance_json
        message.fx_values.update(self.spec.fx_values)
        message.session.optimization = self.options.ort_optimization
        message.session.config.update(self.options.session_options)
        message.session.disabled_optimizers.extend(self.spec.disabled_optimizers)
        for name, entries in self.options.providers or ():
            message.session.providers.add(name=name).options.update(entries)
        return request

    # --- the call ---

    def __call__(self, inputs: Sequence[torch.Tensor | int | float], *, eager_nodes: int = 0) -> list[torch.Tensor]:
        """The outputs. eager_nodes: eager compute nodes that ran beside this part since the graph's last call.

        Errors: ClientError for an input that cannot be sent, DaemonFault, ExecutorLost, DaemonLost; after a loss the
        next call works. A peer that was lost before it began with this call is replaced within it.
        """
        try:
            return self._call(inputs, eager_nodes)
        except _NotBegun:
            pass
        try:
            return self._call(inputs, eager_nodes)
        except _NotBegun as lost:
            raise lost.error from None

    def _call(self, inputs: Sequence[torch.Tensor | int | float], eager_nodes: int) -> list[torch.Tensor]:
        connection = self._connection
        if connection is None or connection.dead is not None:
            connection = self.prepare()
        handle = self._handle
        grad = torch.is_grad_enabled()
        if grad:
            torch._C._set_grad_enabled(False)
        try:
            plan = self._plan
            if plan is None:
                plan = self._planned(inputs)
            try:
                frame, locations, held = self._gather(plan, inputs)
            except _Mismatch:
                plan = self._planned(inputs)
                frame, locations, held = self._gather(plan, inputs)
            arena = self._arena
            assert arena is not None
            outputs = []
            for layout in plan.outputs:
                tensor, location = arena.empty(layout)
                outputs.append(tensor)
                locations.append(location)
            if connection.dead is not None:
                # Announcing a new segment found the peer lost.
                raise _NotBegun(connection.error(self.spec.graph.name))
            self._exchange(connection, handle, plan, locations, eager_nodes, (inputs, frame, held, outputs))
            plan.frames.append(frame)
            if plan.fixups:
                for i, layout in plan.fixups:
                    outputs[i] = _restride(outputs[i], layout.stride)
            return outputs
        finally:
            if grad:
                torch._C._set_grad_enabled(True)

    def _gather(self, plan: _Plan, inputs: Sequence[Any]) -> tuple[_Frame, list[int], list[object]]:
        """A frame, a location for each input, what keeps memory beside the frame. Errors: _Mismatch, ClientError."""
        if len(inputs) != plan.n_inputs:
            raise _Mismatch
        try:
            frame = plan.frames.pop()
        except IndexError:
            frame = _Frame(plan.slots, plan.pooled_bytes)
        arena = self._arena
        assert arena is not None
        low, high = arena.index[0], arena.index[1]
        locations = frame.locations.copy()
        frame_targets = frame.targets
        targets: list[torch.Tensor] = []
        sources: list[torch.Tensor] = []
        held: list[object] = []
        large: dict[object, int] = {}
        try:
            for i, (slot, value) in enumerate(zip(plan.slots, inputs, strict=True)):
                if type(value) not in _PLAIN:
                    if not isinstance(value, int | float):
                        raise _refuse(self._input(i), value)
                    self._write_number(slot, value, frame)
                    continue
                if value.shape != slot.shape or value.dtype is not slot.dtype or not value.is_cpu or slot.is_number:
                    raise _Mismatch
                try:
                    address = value.data_ptr()
                except RuntimeError:
                    raise _refuse(self._input(i), value) from None
                target = frame_targets[i]
                if low <= address < high and (location := _in_arena(arena, value, address)):
                    locations[i] = location
                elif target is not None:
                    targets.append(target)
                    sources.append(value)
                elif address or slot.shape.numel():
                    locations[i] = self._stage_large(value, address, large, targets, sources, held)
            if len(targets) == 1:
                targets[0].copy_(sources[0])
            elif targets:
                torch._foreach_copy_(targets, sources)
        except BaseException:
            plan.frames.append(frame)
            raise
        return frame, locations, held

    @staticmethod
    def _write_number(slot: _Slot, value: int | float, frame: _Frame) -> None:
        is_float = isinstance(value, float)
        same_value = slot.value is None or slot.value == value
        if not slot.is_number or slot.dtype.is_floating_point != is_float or not same_value:
            raise _Mismatch
        try:
            struct.pack_into("<d" if is_float else "<q", frame.memory, slot.pooled_at, value)
        except struct.error:
            raise ClientError(f"a SymInt of value {value} does not fit int64") from None

    def _stage_large(
        self,
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
            assert self._arena is not None
            with torch.inference_mode(False):
                target, location = self._arena.empty(Layout(tensor.dtype, tensor.shape, None))
            targets.append(target)
            sources.append(tensor)
            held.append(target)
            large[key] = location
        return location

    def _exchange(
        self, connection: Connection, handle: int, plan: _Plan, locations: list[int], eager_nodes: int, holds: object
    ) -> None:
        """One call over a lane. holds: everything the executor reads and writes."""
        lanes = connection.lanes
        assert lanes is not None
        try:
            lane = lanes.take(connection)
            try:
                if not lane.open:
                    connection.open_lane(lane)
                n_outputs = len(plan.outputs)
                record = (next(_call_ids), handle, plan.n_inputs, n_outputs, eager_nodes, len(plan.descriptors), 0)
                lane.write(plan, plan.descriptors, plan.pack, locations, record)
            except BaseException:
                lanes.give(lane)
                raise
        except (ExecutorLost, DaemonLost) as error:
            raise _NotBegun(error) from None
        try:
            lane.publish()
            lane.wait(connection)
        except BaseException as error:
            lanes.abandon(lane, holds)
            if isinstance(error, ExecutorLost | DaemonLost):
                if not lane.words[shm.RUNNING]:
                    raise _NotBegun(error) from None
                raise connection.error(self.spec.graph.name) from None
            raise
        status = lane.status()
        if status == 0:
            lanes.give(lane)
            return
        kind, code, text = lane.error()
        lanes.give(lane)
        raise _wire.make_error(
            kind=kind, code=code, message=text, graph=self.spec.graph.name, log=connection.executor_log
        )

    def _planned(self, inputs: Sequence[object]) -> _Plan:
        names = self.spec.input_names
        if len(inputs) != len(names):
            raise ClientError(f"expected {len(names)} inputs ({', '.join(names)}), got {len(inputs)}")
        dynamic = callable(self.spec.outputs)
        slots = [_Slot(self._input(i), value, keep_value=dynamic) for i, value in enumerate(inputs)]
        key = tuple((slot.dtype, slot.shape, slot.is_number, slot.value) for slot in slots)
        plan = self._plans.get(key)
        if plan is None:
            outputs = self.spec.outputs
            specs = outputs(inputs) if callable(outputs) else outputs
            if len(specs) != len(self.spec.output_names):
                raise ClientError(f"expected {len(self.spec.output_names)} output specs, got {len(specs)}")
            plan = _Plan(slots, specs)
            with self.client.lock:
                while len(self._plans) >= MAX_PLANS:
                    self._plans.pop(next(iter(self._plans)))
                self._plans[key] = plan
        self._plan = plan
        return plan

    def _input(self, i: int) -> str:
        return f"input {i} {self.spec.input_names[i]!r} of {self.spec.graph.name}"

    # --- the observed call ---

    def observed(
        self,
        inputs: Sequence[torch.Tensor | int | float],
        *,
        step: int,
        dump: bool,
        references: Sequence[torch.Tensor] | None,
        tolerance: Tolerance | None = None,
        eager_nodes: int = 0,
    ) -> tuple[list[torch.Tensor], list[Verdict], str]:
        """One call through the daemon: (outputs, a verdict for each output, the folder of the data set or "").

        references: eager's outputs; None compares nothing and gives no verdicts. Errors: as of a call.
        """
        connection = self.prepare()
        if dump and self._dump_epoch != connection.dump_epoch:
            # The dump was opened since: it has neither graph nor model yet.
            connection = self.prepare(again=True)
        with torch.no_grad():
            plan = self._planned(inputs)
            frame, locations, held = self._gather(plan, inputs)
            allocated = [shm.arena().empty(layout) for layout in plan.outputs]
            request = _wire.Request()
            run = request.run_observed
            run.call.call_id = next(_call_ids)
            run.call.handle = self._handle
            run.call.eager_nodes = eager_nodes
            for location, slot in zip(locations, plan.slots, strict=True):
                run.call.inputs.append(_ref(location, slot.code, slot.shape))
            for (_, location), layout in zip(allocated, plan.outputs, strict=True):
                run.call.outputs.append(_ref(location, layout.code, layout.shape))
            run.graph_id, run.part, run.step = self.spec.graph.graph_id, self.spec.part, step
            run.dump, run.compare = dump, references is not None
            for name, reference in zip(self.spec.output_names, references or (), strict=references is not None):
                run.references.append(_tensor_ref(f"reference of {name!r}", reference, held))
            _set_tolerance(run, tolerance)
            try:
                answer = connection.ask(request, keep=(inputs, frame, held, allocated))
            except (ExecutorLost, DaemonLost) as lost:
                connection._kept[-run.call.call_id] = (inputs, frame, held, allocated)
                raise connection.loss(lost, self.spec.graph.name) from None
            plan.frames.append(frame)
            outputs = [tensor for tensor, _ in allocated]
            for i, layout in plan.fixups:
                outputs[i] = _restride(outputs[i], layout.stride)
            return outputs, _verdicts(answer.comparison), str(answer.dump)


class _NotBegun(Exception):
    """The peer was lost before it looked at the call."""

    def __init__(self, error: RustOrtError) -> None:
        super().__init__(error)
        self.error = error


# --- the process's life ----------------------------------------------------------------------------------------------


def _after_fork_in_child() -> None:
    global _clients_lock
    _clients_lock = threading.Lock()
    for client in _clients.values():
        client.lock = threading.RLock()
        connection, client._connection = client._connection, None
        client._dump = None  # it goes on in the process that opened it
        if connection is not None:
            connection.forget()
    for connection in _condemned:
        connection.forget()
    _condemned.clear()
    for part in list(_parts):
        part._connection = None
        part._plans = {}
        part._plan = None


shm.after_fork_in_child.append(_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for client in list(_clients.values()):
        connection = client._connection
        if connection is not None:
            connection.close()
