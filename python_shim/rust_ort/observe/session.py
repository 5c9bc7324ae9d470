"""Dumps and which calls are in them: one at a time in a process, opened by `rust_ort.dump` or the option `dump`.

A dump belongs to the process that opened it. In a forked child nothing is dumped until it opens a dump of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rust_ort._version import __version__
from rust_ort.call.client import Client
from rust_ort.errors import ClientError, DaemonFault, OptionError
from rust_ort.export.hash import versions
from rust_ort.link.daemon import find_onnxruntime
from rust_ort.memory import process
from rust_ort.options import Options

SCHEMA_VERSION = 1


@dataclass(kw_only=True, eq=False)
class DumpSession:
    """An open dump. `option`: the text of the option that opened it, None of another. `clients`: those that were told
    of it. `is_closed`: no more are. `dumped`: {(graph id, name): data sets asked for}. `shown`: (graph id, name) of
    the graphs it has. `in_flight`: calls whose tensors are on their way to it. `pid`: of the process whose it is.
    `opening`: held while clients are told of it or it is closed."""

    folder: Path
    run: str
    clean: bool
    calls: str
    run_json: str
    option: str | None = None
    is_closed: bool = False
    clients: list[Client] = field(default_factory=list)
    dumped: dict[tuple[str, str], int] = field(default_factory=dict)
    shown: set[tuple[str, str]] = field(default_factory=set)
    in_flight: int = 0
    pid: int = field(default_factory=os.getpid)
    opening: threading.RLock = field(default_factory=threading.RLock)

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it, not one that it was forked from."""
        return self.pid == os.getpid()

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder / self.run


_current: DumpSession | None = None
_opened_by: dict[str, int] = {}
"""{text of the option `dump`: the process that opened it}."""

# `with` on a lock is never interrupted halfway; on a Condition, which is Python, it may be.
_lock = threading.RLock()
_changed = threading.Condition(_lock)


def current() -> DumpSession | None:
    """The open dump."""
    return _current


def set_current(session: DumpSession | None) -> DumpSession | None:
    """Makes `session` the open dump, unless it is another process's; returns the one before."""
    global _current
    with _lock:
        before, _current = _current, session if session is None or session.is_ours else None
    return before


def dump_wanted(graph_id: str, name: str) -> bool:
    """Whether this call of the graph is to be dumped with its tensors."""
    session = _current
    if session is None or session.calls == "none":
        return False
    return session.calls == "all" or (graph_id, name) not in session.dumped


@contextlib.contextmanager
def data_set(graph_id: str, name: str) -> Iterator[int | None]:
    """Number of this call's data set, counted from 0 in each dump and given to one call alone; None: no dump of it.

    The dump stays open as long as this is entered.
    """
    with _lock:
        session = _current if dump_wanted(graph_id, name) else None
        if session is not None:
            step = session.dumped.get((graph_id, name), 0)
            session.dumped[graph_id, name] = step + 1
            session.in_flight += 1
    if session is None:
        yield None
        return
    try:
        yield step
    finally:
        with _lock:
            session.in_flight -= 1
            _changed.notify_all()


def wait_for_calls(session: DumpSession) -> None:
    """Until no call of any thread sends tensors to `session`, which is no longer the open one."""
    with _lock:
        _changed.wait_for(lambda: session.in_flight == 0)


def must_show(graph_id: str, name: str) -> bool:
    """Whether the graph runs inside a dump for the first time; asked once."""
    session = _current
    if session is None or (graph_id, name) in session.shown:
        return False
    with _lock:
        known = len(session.shown)
        session.shown.add((graph_id, name))
        return len(session.shown) > known


def announce(options: Options) -> None:
    """A graph is being compiled for the daemon `options` names: that client must know of the open dump."""
    session = _current
    if session is not None:
        open_at(session, options)


def open_from_options(options: Options) -> None:
    """The option `dump` opens a dump that stays open. A dump of `rust_ort.dump` that is open is kept; so is one that
    the same text opened, whatever folder it is relative to now. In a child of the process that opened it none is: the
    parent writes there.

    Errors: OptionError where the option has opened another, as a process has one at a time.
    """
    session = _current
    if options.dump is None:
        return
    path = _absolute(options.dump)
    if session is None:
        if _opened_by.get(options.dump, os.getpid()) == os.getpid():
            open_until_exit(path, options)
        return
    if session.option is None:
        return
    is_open = options.dump == session.option or os.path.realpath(path) == os.path.realpath(session.path)
    if not is_open or session.calls != options.dump_calls:
        raise OptionError(
            f"dump {str(path)!r}, dump_calls {options.dump_calls!r}: the option has opened {str(session.path)!r} with "
            f"dump_calls {session.calls!r} until this process ends, and a process has one dump at a time; name that "
            "one, or leave the option out and put `with rust_ort.dump(...)` around what is to be in each"
        )


def check_none_is_open(path: Path) -> None:
    """For who opens a dump at `path`. Errors: OptionError when one is open, as a process has one at a time."""
    session = _current
    if session is not None:
        how = (
            "the option dump has opened it until this process ends" if session.option is not None else "leave it first"
        )
        raise OptionError(
            f"dump {str(path)!r}: {str(session.path)!r} is open, and a process has one dump at a time; {how}"
        )


def open_at(session: DumpSession, options: Options) -> None:
    """Opens `session` at the daemon that `options` names, once; not when it has been closed meanwhile."""
    client = Client.get(options)
    if client in session.clients:
        return
    with session.opening:
        if session.is_closed or client in session.clients:
            return
        client.open_dump(
            folder=str(session.folder),
            run=session.run,
            clean=session.clean and not session.clients,
            calls=session.calls,
            run_json=session.run_json,
        )
        session.clients.append(client)


def close(session: DumpSession) -> None:
    """Waits until everything handed over is on disk, then closes the dump at every daemon that has it.

    What could not be written is a RuntimeWarning: a full disk costs the dump, not the run. In a forked child: nothing.
    """
    if not session.is_ours:
        return
    with session.opening:
        session.is_closed = True
    wait_for_calls(session)
    for client in session.clients:
        for end in (client.flush_dump, client.close_dump):
            try:
                end()
            except DaemonFault as fault:
                warnings.warn(f"the dump {session.path} is incomplete: {fault}", RuntimeWarning, stacklevel=3)
    session.clients.clear()


def open_until_exit(path: Path, options: Options) -> None:
    """The option `dump`: a dump at this absolute path that stays open until the process ends."""
    session = DumpSession(
        folder=path.parent,
        run=path.name,
        clean=False,
        calls=options.dump_calls,
        run_json=run_json(),
        option=options.dump,
    )
    open_at(session, options)
    set_current(session)
    _opened_by[str(options.dump)] = os.getpid()
    atexit.register(_close_quietly, session)


def _close_quietly(session: DumpSession) -> None:
    with contextlib.suppress(Exception):
        close(session)


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))


def run_json() -> str:
    """Content of run.json: versions, devices, start. Options are those of each graph, in its parts.json."""
    return json.dumps(
        {
            "schema": SCHEMA_VERSION,
            "start": datetime.datetime.now(datetime.UTC).isoformat(),
            "program": sys.argv[0] if sys.argv else "",
            "pid": os.getpid(),
            "python": platform.python_version(),
            "onnxruntime_library": _library(),
            "versions": {"rust_ort": __version__} | dict(pair.split("=", 1) for pair in versions().split(" ")),
            "platform": platform.platform(),
            "devices": ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))],
        },
        indent=1,
    )


def _library() -> str | None:
    """Path of the onnxruntime library that runs the parts, for `rust-ort replay`."""
    with contextlib.suppress(ClientError):
        return find_onnxruntime()
    return None


def _after_fork_in_child() -> None:
    global _current, _lock, _changed
    _current, _lock = None, threading.RLock()
    _changed = threading.Condition(_lock)


process.after_fork_in_child.append(_after_fork_in_child)
