"""One connection to the daemon: handshake, requests and replies, the lease of an executor, and what a loss leaves."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import Any

import torch

from rust_ort import _native
from rust_ort._native import LaneEvents, StreamSlot
from rust_ort._version import __version__
from rust_ort.errors import ClientError, DaemonFault, DaemonLost, ExecutorLost, RustOrtError
from rust_ort.link import daemon, wire
from rust_ort.link.device_order import DeviceOrder, DeviceQueue, events_wanted
from rust_ort.link.lanes import Lane, LaneMemory, Lanes
from rust_ort.link.pool import allow_spinning, cuda_folders, libtorch, threads
from rust_ort.link.specs import CustomOpLibrary, DumpSpec
from rust_ort.link.waiting import Waiting
from rust_ort.memory import process
from rust_ort.memory.device import DeviceMemory
from rust_ort.memory.segment import Segment
from rust_ort.options import Options

log = logging.getLogger("rust_ort")

HANDSHAKE_TIMEOUT_S = 30.0
EXECUTOR_EXIT_WAIT_MS = 2000
_numbers = itertools.count(1)
CANCELLED = frozenset({"prepare_part", "compare_nodes", "register_graph"})
"""Requests that the executor ends when who asked is interrupted, beside calls."""

DAEMON_ENDED = "DAEMON_ENDED"
"""Code of a loss that the next daemon mends: the connection stood, and ended."""
INTERRUPTED_READER_S = 0.1
"""After so long a thread that said it reads, and does not, was interrupted in between."""


class Connection:
    """One handshake's worth: what the daemon knows of this process. When it is lost nothing of it is used again."""

    def __init__(self, path: str, *, starts: bool = True) -> None:
        self.dead: RustOrtError | None = None
        self.lanes: Lanes | None = None
        self.graphs: set[tuple[str, str]] = set()
        self.dump_epoch = 0
        self.dump_spec: DumpSpec | None = None
        self.executor_log = ""
        self.orphans: deque[int] = deque()
        """Handles of parts that no object here has."""
        self._lost_calls: list[Any] = []
        self._shutting_down = ""
        self._shown: set[int] = set()
        self._shown_version = 0
        self._showing = threading.RLock()
        self._unmapped: dict[int, RustOrtError] = {}
        self.order = DeviceOrder()
        self.number = next(_numbers)
        """Unlike any other connection's of this process."""
        self._make_locks()
        self._awaited: dict[int, Any] = {}  # request -> its reply, None as long as there is none
        self._chunks: deque[bytes] = deque()  # received, and not yet taken apart
        self._wanted = wire.HEADER.size
        self._ids = itertools.count(1)
        self._kept: dict[int, object] = {}  # request -> what an interrupted one may still read and write
        self._pidfd = -1
        self.daemon_pid = self.executor_pid = 0
        self._sees_pids = True
        """The daemon's and its executors' are those that this process sees."""
        self._socket = daemon.connect(path, starts=starts)
        try:
            self._hello(path)
        except BaseException:
            self._socket.close()
            raise

    def _make_locks(self) -> None:
        # The lock guards replies and reader; who waits for a reply waits for a change, while one of them reads for all.
        # `with` on a lock is never interrupted halfway; on a Condition, which is Python, it may be.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        """Held by the thread that does read."""
        self._reader: int | None = None
        """The thread that reads, or was interrupted before it could take itself back."""
        self._claimed_at = 0.0

    def _hello(self, path: str) -> None:
        request = wire.Request()
        request.hello.protocol = wire.PROTOCOL
        request.hello.shim_version = __version__
        request.hello.pid = os.getpid()
        request.hello.pid_namespace = _native.pid_namespace()
        self.own_process = (int(request.hello.pid), int(request.hello.pid_namespace))
        """As the daemon's status tells it."""
        request.hello.cpus = bytes(_native.cpus())
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
        self._sees_pids = _native.pid_namespace() == welcome.pid_namespace != 0
        program = _program_of(self.daemon_pid) if self._sees_pids else ""
        self.daemon_build = f"{welcome.daemon_version} {program}"
        if welcome.protocol != wire.PROTOCOL:
            raise DaemonFault(
                f"the daemon {welcome.daemon_version} speaks protocol {welcome.protocol}, this package "
                f"{wire.PROTOCOL}; install equal versions and run `rust-ort stop`",
                code="PROTOCOL_VERSION",
                log=self.log,
            )
        _tell_of_other_version(str(welcome.daemon_version), self.daemon_pid)

    def ask(self, request: Any, *, fd: int | None = None, keep: object = None, about: str = "") -> Any:
        """The answer's message. keep: what must live until the answer is here. about: what a long wait is for, the
        request unless told otherwise. Errors: the daemon's, DaemonLost.

        Several threads may ask at once: the daemon answers what is quick, such as a new segment, while it still works
        on another thread's session.
        """
        number = next(self._ids)
        request.request_id = number
        self._awaited[number] = None
        reply = None
        try:
            frame = wire.encode_frame(wire.REQUEST, request.SerializeToString())
            try:
                self._send(frame, fd)
                reply = self._await(number, Waiting(self, about or str(request.WhichOneof("body")).replace("_", " ")))
            except BaseException:
                self._kept[number] = keep
                if request.HasField("run_observed"):
                    self.cancel(call_id=request.run_observed.call.call_id)
                elif request.WhichOneof("body") in CANCELLED:
                    self.cancel(request_id=number)
                raise
        finally:
            with self._lock:
                self._stop_reading()
                came = self._awaited.pop(number, None)
                if came is not None:
                    self._kept.pop(number, None)
                    if reply is None:
                        self._nobody_takes(came)
        if reply.WhichOneof("body") == "error":
            error = wire.error_from(reply.error)
            if isinstance(error, ExecutorLost):
                self.dead = self.dead or error
            raise error
        return getattr(reply, reply.WhichOneof("body"))

    def cancel(self, *, call_id: int = 0, request_id: int = 0) -> None:
        """Has the executor end what nobody waits for: a call, at its next node, or one of the requests of CANCELLED, at
        its next step. Waits for nothing."""
        if self.dead is not None:
            return
        request = wire.Request(request_id=next(self._ids))
        request.cancel_call.call_id, request.cancel_call.request_id = call_id, request_id
        with contextlib.suppress(RustOrtError):
            self._send(wire.encode_frame(wire.REQUEST, request.SerializeToString()), None)

    def whom(self) -> str:
        """Who answers, in words."""
        executor = f"executor {self.executor_pid} of " if self.executor_pid else ""
        return f"{executor}daemon {self.daemon_pid}"

    def _send(self, frame: bytes, fd: int | None) -> None:
        with self._sending:
            if self.dead is not None:
                raise self.error()
            sent: list[int] = []
            try:
                if fd is not None:
                    sent.append(socket.send_fds(self._socket, [frame], [fd]))
                while (n_bytes := sum(sent)) < len(frame):
                    # In one go, without Python in between: what was sent before an interrupt is counted. `sendall`
                    # looks for signals when all of it is out.
                    sent.extend(map(self._socket.send, (memoryview(frame)[n_bytes:],)))
                return
            except OSError:
                # It may have said why before it closed.
                with contextlib.suppress(OSError, RustOrtError):
                    self._receive_ready()
                self._lose("the daemon closed the connection")
                raise self.error() from None
            except BaseException:
                if sum(sent) < len(frame):
                    self._lose("a request was interrupted halfway")
                raise

    def _await(self, number: int, waiting: Waiting) -> Any:
        while True:
            waiting.tell()
            try:
                with self._lock:
                    while (reply := self._awaited[number]) is None and self._may_wait() and self._another_reads():
                        self._changed.wait(INTERRUPTED_READER_S)
                        waiting.tell()
                    if reply is not None:
                        return reply
                    if not self._may_wait():
                        raise self.error()
                    self._claim()
                with self._reading:
                    self._take_frames()  # what an interrupted reader left
                    if self._awaited[number] is None and self._may_wait() and self._readable(waiting.left_s()):
                        self._read()
            finally:
                self._stop_reading()

    def _claim(self) -> None:
        """This thread is the reader from now on."""
        self._reader = threading.get_ident()
        self._claimed_at = time.monotonic()

    def _another_reads(self) -> bool:
        """Whether another thread is to read, and does."""
        if self._reader in (None, threading.get_ident()):
            return False
        return self._reading.locked() or time.monotonic() - self._claimed_at < INTERRUPTED_READER_S

    def _may_wait(self) -> bool:
        """Replies may still come: those of a lost executor do."""
        return self.dead is None or isinstance(self.dead, ExecutorLost)

    def _readable(self, wait_s: float) -> bool:
        """Whether something came within so many seconds; at once where the socket itself has a limit."""
        if self._socket.gettimeout() is not None:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * wait_s + 1))

    def _read(self, flags: int = 0) -> None:
        """Reads once, for all who wait; this thread holds `_reading`. Errors: BlockingIOError, TimeoutError."""
        try:
            # In one go, without Python in between: what was received before an interrupt is kept.
            self._chunks.extend(map(self._socket.recv, (1 << 20,), (flags,)))
        except (BlockingIOError, TimeoutError):
            raise
        except OSError:
            self._chunks.append(b"")
        self._take_frames()

    def _stop_reading(self) -> None:
        """Lets another thread read. Also where an interrupt came before this one did."""
        with self._lock:
            if self._reader == threading.get_ident():
                self._reader = None
                if not self._may_wait():
                    self._socket.close()
                self._changed.notify_all()

    def _take_frames(self) -> None:
        """Hands the replies that were received to those who wait; this thread holds `_reading`. After an interrupt it
        hands over again what it had begun with, which does no harm."""
        if not self._chunks:
            return
        with self._lock:
            ended = b"" in self._chunks
            if sum(map(len, self._chunks)) >= self._wanted:
                data = memoryview(b"".join(self._chunks))
                done = self._hand_over(data)
                self._chunks = deque((bytes(data[done:]),) if done < len(data) else ())
            if ended:
                self._lose("the daemon is gone")

    def _hand_over(self, data: memoryview) -> int:
        """Takes whole frames; how many bytes they are."""
        size, done = wire.HEADER.size, 0
        while True:
            self._wanted = size
            if len(data) - done < size:
                return done
            try:
                kind, len_bytes = wire.decode_header(bytes(data[done : done + size]))
            except DaemonFault as error:
                self.dead = self.dead or error
                return done
            self._wanted += len_bytes
            if len(data) - done < self._wanted:
                return done
            body = bytes(data[done + size : done + self._wanted])
            done += self._wanted
            if kind == wire.NOTICE:
                self._notice(wire.Notice.FromString(body))
            else:
                self._take_reply(wire.Reply.FromString(body))

    def _take_reply(self, reply: Any) -> None:
        number = reply.request_id
        if number in self._awaited:
            self._awaited[number] = reply
        elif number in self._kept:
            del self._kept[number]
            self._nobody_takes(reply)
        if number == 0 and reply.WhichOneof("body") == "error":
            self._lose(reply.error.message)

    def _nobody_takes(self, reply: Any) -> None:
        """Whoever asked was interrupted: what the daemon prepared for them is for nobody."""
        if reply.WhichOneof("body") == "prepared":
            self.orphans.append(reply.prepared.handle)

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
        """Takes what has come, without waiting; nothing when another thread reads."""
        while self.dead is None:
            try:
                with self._lock:
                    if self._another_reads():
                        return
                    self._claim()
                with self._reading:
                    self._take_frames()  # what an interrupted reader left
                    self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            finally:
                self._stop_reading()

    def _lose(self, why: str) -> None:
        with self._lock:
            if self.dead is None:
                self.dead = DaemonLost(
                    f"{why}{self._shutting_down}; call again: a daemon is started by itself",
                    code=DAEMON_ENDED,
                    log=getattr(self, "log", ""),
                )
            # Whoever reads wakes up, and closes the socket: its number may be another's before that thread looks.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            if self._reader is None:
                self._socket.close()
            self._changed.notify_all()

    def check(self) -> None:
        """Looks for notices without waiting. Errors: ExecutorLost, DaemonLost."""
        self._receive_ready()
        if self.dead is not None:
            raise self.error()

    def lost_executor(self) -> RustOrtError:
        """Why the executor died, whose end is known here before the daemon has told it."""
        deadline = time.monotonic() + EXECUTOR_EXIT_WAIT_MS / 1000
        while self.lives() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.dead is None:
            self.dead = ExecutorLost(
                "the executor died; call again: a new one is leased by itself",
                code="EXECUTOR_LOST",
                log=self.executor_log,
            )
        return self.error()

    def lives(self) -> bool:
        """Whether nothing is known of a loss, neither that of the daemon nor that of the executor."""
        self._receive_ready()
        return self.dead is None

    def error(self, graph: str = "") -> RustOrtError:
        """Why the connection is dead, for one caller; with the post-mortem of a call of graph when there is one."""
        assert self.dead is not None
        for call in self._lost_calls:
            if graph and call.graph == graph:
                error = wire.error_from(call)
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
        request = wire.Request()
        request.lease_executor.onnxruntime_library = daemon.find_onnxruntime()
        request.lease_executor.threads = threads(options)
        request.lease_executor.allow_spinning = allow_spinning(options)
        request.lease_executor.libtorch = libtorch(options)
        folders = cuda_folders(request.lease_executor.onnxruntime_library)
        request.lease_executor.library_folders.extend(folders)
        if folders and "CUDA_VISIBLE_DEVICES" in os.environ:
            request.lease_executor.cuda_visible_devices = os.environ["CUDA_VISIBLE_DEVICES"]
        request.lease_executor.niceness = os.getpriority(os.PRIO_PROCESS, 0)
        environment = request.lease_executor.environment
        environment.SetInParent()  # one without variables is not none
        environment.variables.update(_native.environment())
        for path in options.custom_op_libraries:
            with contextlib.suppress(ClientError):  # whoever compiles with it is told
                request.lease_executor.custom_op_libraries.add(**vars(CustomOpLibrary.at(path)))
        leased = self.ask(request)
        self.executor_log = str(leased.log)
        self.executor_pid = int(leased.pid)
        self.onnxruntime_version = str(leased.onnxruntime_version)
        if self._sees_pids:
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self.executor_pid)
        lanes = Lanes(threads=threads(options))
        self.attach(lanes.memory, lanes=True)
        self.lanes = lanes

    def attach(self, segment: Segment | LaneMemory, *, lanes: bool = False) -> None:
        """Shows a segment to the daemon and the executor."""
        request = wire.Request()
        request.attach_segment.segment = segment.id
        request.attach_segment.len_bytes = segment.len_bytes
        request.attach_segment.kind = 2 if lanes else 1
        self.ask(request, fd=segment.fd)

    def announce(self, segment: Segment) -> None:
        """The arena's listener. A connection found lost here is marked so; its own next call replaces it.

        The segment is grown for whichever client asked: another client's lost daemon is no error of that call.
        """
        if self.dead is None:
            with contextlib.suppress(DaemonLost, ExecutorLost):
                self.attach(segment)

    def open_lane(self, lane: Lane) -> None:
        request = wire.Request()
        request.open_lane.lane = lane.index
        self.ask(request)
        lane.open = True

    def show(self, devices: DeviceMemory) -> None:
        """Shows the executor allocations on devices that it has not seen, and has it forget those that were freed. One
        that it cannot map is an error of the calls that name it."""
        if self._shown_version == devices.version:
            return
        with self._showing:
            if not self._shown:
                devices.forget_freed()  # another connection may have been shown them when they were there
            with devices.lock:
                version, segments = devices.version, dict(devices.segments)
            if self._shown - segments.keys():
                self.order.wait_answers(self)  # calls may name them that the executor has not read yet
            for freed in self._shown - segments.keys():
                self._shown.discard(freed)
                if self._unmapped.pop(freed, None) is None:
                    request = wire.Request()
                    request.detach_segment.segment = freed
                    self.ask(request)
            for number in segments.keys() - self._shown:
                request = wire.Request()
                message = request.attach_device_segment
                message.segment, message.len_bytes = number, segments[number].len_bytes
                message.device, message.handle = bytes(segments[number].device), bytes(segments[number].handle)
                try:
                    self.ask(request)
                except (DaemonLost, ExecutorLost):
                    raise
                except RustOrtError as error:
                    self._unmapped[number] = error
                self._shown.add(number)
            self._shown_version = version

    def why_unmapped(self, text: str) -> str:
        """Of an error that names a segment: why the executor could not map it, or ""."""
        return next((str(e.args[0]) for number, e in self._unmapped.items() if f"segment {number} " in text), "")

    def left_unfinished(self) -> bool:
        """Of a lost executor, once: whether work on a device that it had answered was not done when it ended."""
        return self.order.left_unfinished()

    def maps_all(self) -> bool:
        """Whether the executor has every allocation that was shown to it."""
        return not self._unmapped

    def queue(self, ordinal: int, stream: int) -> DeviceQueue | None:
        """What orders the calls on a device by numbers; None: events do. stream: the first one that asks."""
        queues = self.order.queues
        if ordinal not in queues:
            with self._showing:
                if ordinal not in queues:
                    queues[ordinal] = self._opened_queue(ordinal, stream)
        return queues[ordinal]

    def _opened_queue(self, ordinal: int, stream: int) -> DeviceQueue | None:
        assert self.lanes is not None
        self.order.watch(self.executor_pid, self.executor_is_gone)
        lane = self.lanes.take(self)
        try:
            if events_wanted():
                raise RuntimeError("RUST_ORT_TEST_ORDER_BY_EVENTS is set")
            numbers = self.lanes.memory.numbers(ordinal)
            if not lane.open:
                self.open_lane(lane)
            queue = DeviceQueue(numbers, lane, self.order)
            self.slot(queue, stream)
        except (DaemonLost, ExecutorLost):
            self.lanes.give(lane)
            raise
        except (RuntimeError, RustOrtError) as error:
            self.lanes.give(lane)
            log.warning("cuda:%d: events order calls, which wait for their answers: %s", ordinal, error)
            return None
        log.info("cuda:%d: numbers in memory order calls", ordinal)
        return queue

    def slot(self, queue: DeviceQueue, stream: int) -> StreamSlot:
        """The numbers of a stream. Errors: ClientError where there are none, the executor's."""
        return queue.slot(stream, self._open_slot)

    def _open_slot(self, slot: int, device: bytes) -> None:
        request = wire.Request()
        request.open_slot.slot, request.open_slot.device = slot, device
        self.ask(request)

    def events(self, lane: Lane, ordinal: int) -> LaneEvents:
        """What orders the calls of an open lane on a device."""
        events = self.order.events(lane.index, ordinal)
        if events is None:
            try:
                events = LaneEvents(ordinal)
                device, ready, done = events.told()
            except RuntimeError as error:
                raise ClientError(f"cuda:{ordinal}: {error}", code="BAD_OPTION") from None
            request = wire.Request()
            message = request.open_lane_events
            message.lane, message.device = lane.index, bytes(device)
            message.ready, message.done = bytes(ready), bytes(done)
            self.ask(request)
            self.order.add_events(lane.index, ordinal, events)
        return events

    # --- the end ---

    def executor_is_gone(self, wait_ms: int = 0) -> bool:
        """Whether the executor can write no more. In another namespace of pids the daemon alone can tell; where that is
        lost, too, nobody can, and what the calls hold is kept."""
        if isinstance(self.dead, ExecutorLost):
            return True
        if not self._sees_pids:
            return self._heard_of_its_end(wait_ms)
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(wait_ms))

    def _heard_of_its_end(self, wait_ms: int) -> bool:
        deadline = time.monotonic() + wait_ms / 1000
        while self.lives() and time.monotonic() < deadline:
            time.sleep(0.001)
        return isinstance(self.dead, ExecutorLost)

    def hold(self, holds: object) -> None:
        """Keeps what a call of the lost executor may still read and write."""
        self._kept[-next(self._ids)] = holds

    def in_flight(self) -> list[object]:
        held = self.lanes.in_flight() if self.lanes is not None else []
        return held + self.order.in_flight() + [kept for kept in self._kept.values() if kept is not None]

    def close(self) -> None:
        """Ends the connection; what was not handed over is lost, tensors are not."""
        if self.dead is None:
            self.order.end()
        self._lose("the connection was closed here")
        self._close_pidfd()

    def _close_pidfd(self) -> None:
        pidfd, self._pidfd = self._pidfd, -1  # one thread closes it
        if pidfd >= 0:
            os.close(pidfd)

    def forget(self) -> None:
        """In a forked child: closes this process's copies without a word to the daemon."""
        self._make_locks()
        self.order.forget()
        self.dead = DaemonLost("this connection belongs to the process that forked; call again")
        with contextlib.suppress(OSError):
            self._socket.close()
        self._close_pidfd()


# Dead connections whose executor may still write into what abandoned calls hold.
_condemned: list[Connection] = []


def bury(connection: Connection) -> None:
    """Closes a dead connection, but keeps what its calls in flight hold until the executor is gone."""
    for old in list(_condemned):
        if old.executor_is_gone():
            _condemned.remove(old)
            old.close()
    if connection.in_flight() and not connection.executor_is_gone(EXECUTOR_EXIT_WAIT_MS):
        _condemned.append(connection)
    else:
        connection.close()


def _program_of(pid: int) -> str:
    """Size and time of the program that a process runs, also when its file was replaced since; "" where unknown."""
    try:
        found = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


_other_versions: set[str] = set()


def _tell_of_other_version(daemon_version: str, pid: int) -> None:
    """One protocol is one contract, so it serves; but what this package mends in the daemon is not mended there."""
    if daemon_version in (__version__, *_other_versions) or __version__ == "0":
        return
    _other_versions.add(daemon_version)
    log.warning(
        "rust_ort %s talks to a daemon of version %s (pid %d), which speaks the same protocol; for one of this version "
        "run `rust-ort stop` when its clients are done: the next client starts it",
        __version__,
        daemon_version,
        pid,
    )


def _after_fork_in_child() -> None:
    for connection in _condemned:
        connection.forget()
    _condemned.clear()


process.after_fork_in_child.append(_after_fork_in_child)
