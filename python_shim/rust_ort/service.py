"""The daemon as the user's process sees it: what it does, and the end of this process's connections."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from typing import Any

from rust_ort.call import client as clients
from rust_ort.call.client import Client
from rust_ort.errors import ClientError, DaemonFault, DaemonLost, RustOrtError
from rust_ort.link import daemon
from rust_ort.link.connection import Connection
from rust_ort.link.wire import Request
from rust_ort.options import Options, arguments

STOP_TIMEOUT_S = 30.0
POLL_S = 0.02


def status(*, options: Mapping[str, Any] | Options | None = None) -> dict[str, Any]:
    """What the daemon knows, as `rust-ort status --json` prints it, with "running": True; it is not started for this.

    {"running": False, "socket": its path} when none runs. Keys of a running one: daemon, clients, executors, graphs,
    memory, counters, quarantine, … options: for `socket`. Errors: OptionError; ClientError for a socket that is not
    this user's; DaemonFault.
    """
    path = daemon.socket_path(arguments.parsed_options("status", options).socket)
    connection = _connected(path)
    if connection is None:
        return {"running": False, "socket": path}
    try:
        known = _status(connection)
    finally:
        connection.close()
    # Who asks is not news.
    known["clients"] = [client for client in known["clients"] if client["id"] != connection.client_id]
    return {"running": True, **known}


def shutdown(*, stop_daemon: bool = False, options: Mapping[str, Any] | Options | None = None) -> None:
    """Closes this process's connections; its executors go to other clients. The next compiled call connects again.

    What an open dump was handed is on disk first. Tensors stay valid. A call that another thread has under way raises
    DaemonLost. stop_daemon: also stops the daemons, which `options` or the closed connections name; one that does not
    run is no error. Errors: OptionError; ClientError when other processes are connected to a daemon that is to stop.
    """
    arguments.checked_flag("shutdown", "stop_daemon", stop_daemon)
    asked = arguments.parsed_options("shutdown", options)
    known = list(clients._clients.values())
    for client in known:
        _close(client)
    if not stop_daemon:
        return
    paths = {client.path for client in known} if options is None else set()
    for path in sorted(paths or {daemon.socket_path(asked.socket)}):
        _stop(path)


def _close(client: Client) -> None:
    connection = client._connection
    if connection is not None and connection.dead is None:
        try:
            client.flush_dump()
        except DaemonFault as fault:
            warnings.warn(f"the open dump is incomplete: {fault}", RuntimeWarning, stacklevel=3)
    client.close()


def _connected(path: str) -> Connection | None:
    """None: no daemon answers, and none is started."""
    try:
        return Connection(path, starts=False)
    except DaemonLost:
        if daemon.answers(path):
            raise
        return None


def _status(connection: Connection) -> dict[str, Any]:
    request = Request()
    request.get_status.SetInParent()
    known: dict[str, Any] = json.loads(connection.ask(request).json)
    return known


def _stop(path: str) -> None:
    """Stops the daemon, if one runs, and waits for its end: it holds its lock until then, in whatever namespace it has
    its pid."""
    connection = _connected(path)
    if connection is None:
        return
    try:
        _forget_this_process(connection)
        request = Request()
        request.stop.force = False
        connection.ask(request)
        end = time.monotonic() + STOP_TIMEOUT_S
        while daemon.is_held(path) and not (connection.dead is not None and _is_succeeded(connection, path)):
            connection.lives()
            if time.monotonic() > end:
                raise DaemonFault(
                    f"the daemon on {path} did not end in {STOP_TIMEOUT_S:.0f} s; run `rust-ort stop --force`",
                    log=connection.log,
                )
            time.sleep(POLL_S)
    finally:
        connection.close()


def _is_succeeded(connection: Connection, path: str) -> bool:
    """Whether another daemon than the one that the connection was to answers."""
    try:
        successor = Connection(path, starts=False)
    except RustOrtError:
        return False
    successor.close()
    return (successor.log, successor.daemon_pid) != (connection.log, connection.daemon_pid)


def _forget_this_process(connection: Connection) -> None:
    """Waits until the daemon has seen that this process's other connections are closed."""
    end, own = time.monotonic() + STOP_TIMEOUT_S, connection.own_process
    while any(
        (client["pid"], client["pid_namespace"]) == own and client["id"] != connection.client_id
        for client in _status(connection)["clients"]
    ):
        if time.monotonic() > end:
            raise ClientError("a connection of this process is still open; end its calls, then call shutdown again")
        time.sleep(POLL_S)
