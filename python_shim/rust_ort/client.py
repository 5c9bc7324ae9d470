"""The process's way to a daemon: a connection that is made anew after a loss, and what is asked of it."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch

from rust_ort.errors import DaemonFault, DaemonLost, ExecutorLost, RustOrtError
from rust_ort.options import Options, Tolerance
from rust_ort.transport import daemon, process, wire
from rust_ort.transport.connection import Connection, allow_spinning, bury, connected, threads
from rust_ort.transport.futex import check_platform
from rust_ort.transport.part import Part
from rust_ort.transport.releases import Releases
from rust_ort.transport.specs import (
    CustomOpLibrary,
    DumpSpec,
    GraphSpec,
    OutputSpec,
    PartSpec,
    Verdict,
    set_tolerance,
    verdicts_from,
)
from rust_ort.transport.staging import staged_ref

__all__ = ["Client", "CustomOpLibrary", "GraphSpec", "OutputSpec", "Part", "PartSpec", "Verdict"]

log = logging.getLogger("rust_ort")

_clients: dict[tuple[str, int, bool], Client] = {}
_clients_lock = threading.Lock()


class Client:
    """A process's way to one daemon. Thread-safe; after a loss or a fork the next use connects anew."""

    @staticmethod
    def get(options: Options) -> Client:
        """The client of this socket and these lease settings; nothing is connected yet."""
        check_platform()
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
        self.releases = Releases()
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
            arena = process.arena()
            if old is not None:
                if old.announce in arena.listeners:
                    arena.listeners.remove(old.announce)
                bury(old)
            fresh = connected(self.path)
            try:
                with arena.lock:
                    for segment in list(arena.segments.values()):
                        fresh.attach(segment)
                    arena.listeners.append(fresh.announce)
                if self._dump is not None:
                    self._open(fresh, self._dump, clean=False)
            except BaseException:
                with contextlib.suppress(ValueError):
                    arena.listeners.remove(fresh.announce)
                fresh.close()
                raise
            self._connection = fresh
            return fresh

    def build(self) -> str:
        """Which build of the daemon answers; "" when none does."""
        with contextlib.suppress(DaemonFault):
            return self.connection().daemon_build
        return ""

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
                listeners = process.arena().listeners
                if connection.announce in listeners:
                    listeners.remove(connection.announce)
                connection.close()

    def part(self, spec: PartSpec, options: Options) -> Part:
        """A prepared part. Errors: ClientError for a model the runtime refuses, DaemonFault."""
        part = Part(self, spec, options)
        part.prepare()
        return part

    def release_dead(self) -> None:
        """Tells the daemon which graphs died; when another thread prepares something, a later request does. What fails
        is told by whatever is asked next."""
        connection = self._connection
        if connection is None or not (self.releases.dead or connection.orphans):
            return
        if not self.lock.acquire(blocking=False):
            return
        try:
            if connection is self._connection and connection.dead is None:
                self.releases.tell(connection)
        except RustOrtError as error:
            log.debug("graphs could not be released: %s", error)
        finally:
            self.lock.release()

    def compare(
        self,
        pairs: Sequence[tuple[str, torch.Tensor | None, torch.Tensor | None, str]],
        tolerance: Tolerance | None = None,
    ) -> list[Verdict]:
        """A verdict for each (name, reference, candidate, why there is nothing to compare or "")."""
        connection = self.connection()
        request = wire.Request()
        request.compare_tensors.SetInParent()
        held: list[object] = []
        for name, reference, candidate, reason in pairs:
            pair = wire.TensorPair(name=name, not_compared=reason)
            for side, tensor in (("reference", reference), ("candidate", candidate)):
                if tensor is not None and not reason:
                    getattr(pair, side).CopyFrom(staged_ref(f"{side} of {name!r}", tensor, held))
            if not reason and (reference is None or candidate is None):
                pair.not_compared = f"there is no {'reference' if reference is None else 'candidate'}"
            request.compare_tensors.pairs.append(pair)
        set_tolerance(request.compare_tensors.tolerance, tolerance)
        return verdicts_from(connection.ask(request, keep=held))

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
        request = wire.Request()
        request.open_dump.folder = spec.folder
        request.open_dump.run = spec.run
        request.open_dump.clean = clean
        request.open_dump.calls = wire.DUMP_CALLS[spec.calls]
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
        request = wire.Request()
        getattr(request, name).SetInParent()
        connection.ask(request)

    def register(self, graph: GraphSpec) -> None:
        """Tells the daemon of a graph; for graphs without any part. Parts do it by themselves."""
        self.register_on(self.connection(), graph)

    def register_on(self, connection: Connection, graph: GraphSpec) -> None:
        """As `register`, on this connection. An open dump gets the graph and those of its parts that are prepared."""
        if graph.watched is None:
            graph.watched = self.releases.watch(graph, graph.graph_id)
        request = wire.Request()
        message = request.register_graph
        message.graph_id = graph.graph_id
        message.name = graph.name
        message.direction = wire.DIRECTIONS[graph.direction]
        for name in ("dynamo_text", "joint_text", "fx_text", "parts_json", "compute_nodes", "eager_nodes"):
            setattr(message, name, getattr(graph, name))
        connection.ask(request)
        connection.graphs.add((graph.graph_id, graph.name))

    def plan(self, key: str) -> bytes | None:
        """What `put_plan` kept under 64 hex digits, in whatever process; None: nothing."""
        request = wire.Request()
        request.get_plan.graph_id = key
        answer = self.connection().ask(request)
        return bytes(answer.plan) if answer.found else None

    def put_plan(self, key: str, plan: bytes) -> None:
        """Keeps what was exported of a graph for later processes. Empty: it is counted as exported, not kept."""
        request = wire.Request()
        request.put_plan.graph_id = key
        request.put_plan.plan = plan
        self.connection().ask(request)

    def report_eager(self, graph: GraphSpec | str, eager_nodes: int) -> None:
        """Counts eager nodes of a graph that ran without any part."""
        self.release_dead()
        request = wire.Request()
        request.report_eager.graph_id = graph if isinstance(graph, str) else graph.graph_id
        request.report_eager.eager_nodes = eager_nodes
        connection = self.connection()
        if isinstance(graph, GraphSpec) and (graph.graph_id, graph.name) not in connection.graphs:
            self.register_on(connection, graph)
        connection.ask(request)

    def status(self) -> dict[str, Any]:
        """What `rust-ort status --json` prints."""
        self.release_dead()
        request = wire.Request()
        request.get_status.SetInParent()
        status: dict[str, Any] = json.loads(self.connection().ask(request).json)
        return status


def _after_fork_in_child() -> None:
    global _clients_lock
    _clients_lock = threading.Lock()
    for client in _clients.values():
        client.lock = threading.RLock()
        connection, client._connection = client._connection, None
        client._dump = None  # it goes on in the process that opened it
        if connection is not None:
            connection.forget()


process.after_fork_in_child.append(_after_fork_in_child)


@atexit.register
def _close_all() -> None:
    for client in list(_clients.values()):
        connection = client._connection
        if connection is not None:
            connection.close()
