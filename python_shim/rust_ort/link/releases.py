"""Parts and graphs that died here, told to the daemon with the next request: a deleter talks to nobody."""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from rust_ort.errors import RustOrtError
from rust_ort.link import wire

if TYPE_CHECKING:
    from rust_ort.link.connection import Connection


class Watched(weakref.ref[Any]):
    """Watches what uses a graph, and knows what it has with the daemon; dies after it."""

    __slots__ = ("connection", "graph_id", "handles")

    connection: Connection | None
    graph_id: str
    handles: list[int]

    # What it watches need not be hashable, and is dead when it counts.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def add(self, connection: Connection, handle: int) -> None:
        """A further preparation. Those of an earlier connection went with it; earlier ones of this connection may be in
        use by another thread."""
        if self.connection is not connection:
            self.connection, self.handles = connection, []
        self.handles.append(handle)


class Releases:
    """What one client has to tell. Objects die in any thread, inside any other call and at the interpreter's end: then
    they are appended to a list, no more."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self.dead: deque[Watched] = deque()

    def watch(self, user: object, graph_id: str) -> Watched:
        """Watches a user of the graph from now on."""
        watched = Watched(user, self.dead.append)
        watched.connection, watched.graph_id, watched.handles = None, graph_id, []
        self._watched.add(watched)
        return watched

    def tell(self, connection: Connection) -> None:
        """Releases what died: its parts, and each graph that nothing uses any more. The caller holds the client's lock.
        Errors: the daemon's, DaemonLost."""
        dead = []
        while self.dead:
            dead.append(self.dead.popleft())
        self._watched.difference_update(dead)
        # Copies: other threads add meanwhile.
        used = {watched.graph_id for watched in list(self._watched)}
        unused = {watched.graph_id for watched in dead} - used
        gone = {entry for entry in list(connection.graphs) if entry[0] in unused}
        connection.graphs -= gone
        orphans = [connection.orphans.popleft() for _ in range(len(connection.orphans))]
        request = wire.Request()
        request.release.graph_ids.extend(sorted({graph_id for graph_id, _ in gone}))
        request.release.handles.extend(orphans)
        for watched in dead:
            if watched.connection is connection:
                request.release.handles.extend(watched.handles)
        if not request.release.graph_ids and not request.release.handles:
            return
        try:
            connection.ask(request)
        except RustOrtError:  # asked again it would say the same
            raise
        except BaseException:
            connection.graphs |= gone
            connection.orphans.extend(orphans)
            self.dead.extend(dead)
            raise
