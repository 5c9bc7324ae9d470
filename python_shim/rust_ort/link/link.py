"""The process's way to a daemon: a connection that is made anew after a loss, and what is asked of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from rust_ort import _native
from rust_ort.errors import DaemonFault, DaemonLost, ExecutorLost, RustOrtError
from rust_ort.link import wire
from rust_ort.link.connection import DAEMON_ENDED, Connection, bury
from rust_ort.link.releases import Releases
from rust_ort.link.specs import DumpSpec, GraphSpec
from rust_ort.memory import process
from rust_ort.options import Options

log = logging.getLogger("rust_ort")
T = TypeVar("T")


class Link:
    """A process's way to one daemon. Thread-safe; after a loss or a fork the next use connects anew."""

    def __init__(self, path: str, options: Options) -> None:
        self.path = path
        self.options = options
        self.lock = threading.RLock()
        self.releases = Releases()
        self._connection: Connection | None = None
        self._dump: DumpSpec | None = None
        # The daemon takes no more, and holds none that are older in its queue.
        self._answered: deque[str] = deque(maxlen=_native.ANSWERED_STEPS)
        """Data sets of the open dump that may not be on disk yet."""

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
            if old is not None:
                listeners = process.arena().listeners
                if old.announce in listeners:
                    listeners.remove(old.announce)
                bury(old)
            fresh = self._connection = self._made_anew()
            return fresh

    def _made_anew(self) -> Connection:
        """As `_made`, also where the daemon that answers is about to end: idle, replaced, stopped, killed."""
        for _ in range(2):
            try:
                return self._made()
            except DaemonLost as lost:
                if lost.code != DAEMON_ENDED:
                    raise
        # A process that ends may close a connection before its listener, so the second try may have reached it, too.
        # What it did not accept ends with the listener: the third reaches another.
        return self._made()

    def _made(self) -> Connection:
        """A new connection whose daemon knows the segments and has the dump open. The caller holds the lock."""
        arena = process.arena()
        fresh = Connection(self.path)
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

    def asked(self, ask: Callable[[Connection], T]) -> T:
        """What `ask` gives of the connection; where the daemon ends meanwhile, `ask` is done again with the one that
        follows, once. For what may be asked twice: what a daemon knew of this process went with it."""
        connection = self.connection()
        try:
            return ask(connection)
        except DaemonLost as lost:
            if lost.code != DAEMON_ENDED:
                raise
            return ask(self.connection())

    def close(self) -> None:
        """Disconnects; the next use connects anew."""
        with self.lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                listeners = process.arena().listeners
                if connection.announce in listeners:
                    listeners.remove(connection.announce)
                connection.close()

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

    # --- dumps and counters ---

    def open_dump(
        self, *, folder: str, run: str, clean: bool = False, calls: str = "first", run_json: str = "{}"
    ) -> str:
        """Opens a dump of everything that follows; its path. calls: "none", "first" or "all"."""
        spec = DumpSpec(folder=os.path.abspath(folder), run=run, calls=calls, run_json=run_json)
        with self.lock:
            connection = self.connection()
            self._answered.clear()
            with self._known_after(connection):
                path = self._open(connection, spec, clean=clean)
                self._dump = spec
        return path

    @contextlib.contextmanager
    def _known_after(self, connection: Connection) -> Iterator[None]:
        """Who is interrupted here does not know whether the daemon has a dump open: the connection ends, and that."""
        try:
            yield
        except RustOrtError:
            raise  # its answer
        except BaseException:
            self._dump = None
            connection.close()
            raise

    def answered(self, folder: str) -> None:
        """An answer told of a data set of the open dump, which its daemon may not have written yet."""
        self._answered.append(folder)

    def _open(self, connection: Connection, spec: DumpSpec, *, clean: bool) -> str:
        request = wire.Request()
        request.open_dump.folder = spec.folder
        request.open_dump.run = spec.run
        request.open_dump.clean = clean
        request.open_dump.calls = wire.DUMP_CALLS[spec.calls]
        request.open_dump.run_json = spec.run_json
        if (umask := _native.umask()) is not None:
            request.open_dump.umask = umask
        request.open_dump.answered.extend(self._answered)
        path = str(connection.ask(request).path)
        connection.dump_epoch += 1
        connection.dump_spec = spec
        return path

    def close_dump(self) -> None:
        """Ends the dump; everything handed over is on disk or reported lost when this returns."""
        with self.lock:
            spec, self._dump = self._dump, None
            connection = self._connection
            if spec is None or connection is None:
                return
            if not connection.lives() and self._answered:
                # Only a daemon can tell which of them the one before has written.
                self._dump = spec
                connection, self._dump = self.connection(), None
            if connection.dead is None:
                connection.dump_spec = None
                with self._known_after(connection):
                    self._empty("close_dump", connection)

    def flush_dump(self) -> None:
        """Returns when everything handed over so far is on disk. Errors: DaemonFault saying what was lost."""
        connection = self._connection
        is_lost = connection is None or not connection.lives()
        # After a loss a daemon is asked, and started, only where something may not be on disk.
        if self._dump is not None and not (is_lost and not self._answered):
            self._empty("flush_dump", self.connection())

    def _empty(self, name: str, connection: Connection) -> None:
        request, told = wire.Request(), len(self._answered)
        getattr(request, name).SetInParent()
        try:
            connection.ask(request)
        except DaemonLost:
            raise
        except DaemonFault:
            self._forget_answered(told)  # told once
            raise
        self._forget_answered(told)

    def _forget_answered(self, n: int) -> None:
        for _ in range(min(n, len(self._answered))):
            self._answered.popleft()

    def register(self, graph: GraphSpec) -> None:
        """Tells the daemon of a graph; for graphs without any part. Parts do it by themselves."""
        self.asked(lambda connection: self.register_on(connection, graph))

    def register_on(self, connection: Connection, graph: GraphSpec) -> None:
        """As `register`, on this connection. An open dump gets the graph and those of its parts that are prepared."""
        if graph.watched is None:
            graph.watched = self.releases.watch(graph, graph.graph_id)
        request = wire.Request()
        message = request.register_graph
        message.graph_id = graph.graph_id
        message.name = graph.name
        message.direction = wire.DIRECTIONS[graph.direction]
        for name in ("dynamo_text", "joint_text", "fx_text", "parts_json"):
            setattr(message, name, getattr(graph, name))
        connection.ask(request)
        connection.graphs.add((graph.graph_id, graph.name))

    def plan(self, key: str) -> bytes | None:
        """What `put_plan` kept under 64 hex digits, in whatever process; None: nothing."""
        request = wire.Request()
        request.get_plan.graph_id = key
        answer = self.asked(lambda connection: connection.ask(request))
        return bytes(answer.plan) if answer.found else None

    def put_plan(self, key: str, plan: bytes) -> None:
        """Keeps what was exported of a graph for later processes. Empty: it is counted as exported, not kept."""
        request = wire.Request()
        request.put_plan.graph_id = key
        request.put_plan.plan = plan
        self.asked(lambda connection: connection.ask(request))

    def report_eager(self, graph: GraphSpec | str, eager_nodes: int) -> None:
        """Counts eager nodes of a graph that ran without any part."""
        self.release_dead()
        request = wire.Request()
        request.report_eager.graph_id = graph if isinstance(graph, str) else graph.graph_id
        request.report_eager.eager_nodes = eager_nodes

        def report(connection: Connection) -> None:
            if isinstance(graph, GraphSpec) and (graph.graph_id, graph.name) not in connection.graphs:
                self.register_on(connection, graph)
            connection.ask(request)

        self.asked(report)

    def status(self) -> dict[str, Any]:
        """What `rust-ort status --json` prints."""
        self.release_dead()
        request = wire.Request()
        request.get_status.SetInParent()
        status: dict[str, Any] = json.loads(self.asked(lambda connection: connection.ask(request)).json)
        return status
