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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rust_ort._version import __version__
from rust_ort.call.client import Client
from rust_ort.errors import ClientError, OptionError, RustOrtError
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
        """The run's folder; no link is in `folder`."""
        return self.folder / self.run


_current: DumpSession | None = None
_opened_by: dict[Path, int] = {}
"""{folder of a run that the option `dump` named: the process that opened it}."""

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


def begin(session: DumpSession, options: Options) -> None:
    """Makes `session` the open dump, at the daemon that `options` names and at those of the graphs that run in it.

    Errors: OptionError when one is open, as a process has one at a time; those of the opening.
    """
    global _current
    with _lock:
        if _current is not None:
            until = "the option dump has opened it until this process ends"
            raise OptionError(
                f"dump {str(session.path)!r}: {str(_current.path)!r} is open, and a process has one dump at a time; "
                f"{until if _current.option is not None else 'leave it first'}"
            )
        _current = session
    try:
        open_at(session, options)
    except BaseException:
        end(session)
        raise


def end(session: DumpSession) -> None:
    """Closes `session`; then another may begin."""
    global _current
    try:
        close(session)
    finally:
        with _lock:
            if _current is session:
                _current = None


def dump_wanted(graph_id: str, name: str) -> bool:
    """Whether this call of the graph is to be dumped with its tensors."""
    session = _current
    if session is None or session.is_closed or session.calls == "none":
        return False
    return session.calls == "all" or (graph_id, name) not in session.dumped


@contextlib.contextmanager
def data_set(graph_id: str, name: str, options: Options) -> Iterator[int | None]:
    """Number of this call's data set, counted from 0 in each dump and given to one call alone; None: no dump of it.

    At the daemon that `options` names the dump is open, and stays so, as long as this is entered.
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
        yield step if open_at(session, options) else None
    finally:
        with _lock:
            session.in_flight -= 1
            _changed.notify_all()


def wait_for_calls(session: DumpSession) -> None:
    """Until no call of any thread sends tensors to `session`, which is closed."""
    with _lock:
        _changed.wait_for(lambda: session.in_flight == 0)


def must_show(graph_id: str, name: str) -> bool:
    """Whether the graph runs inside a dump for the first time; asked once."""
    session = _current
    if session is None or session.is_closed or (graph_id, name) in session.shown:
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
    path = Path(os.path.realpath(options.dump))
    if session is None:
        if _opened_by.get(path, os.getpid()) == os.getpid():
            open_until_exit(path, options)
        return
    if session.option is None:
        return
    is_open = options.dump == session.option or path == session.path
    if not is_open or session.calls != options.dump_calls:
        raise OptionError(
            f"dump {str(path)!r}, dump_calls {options.dump_calls!r}: the option has opened {str(session.path)!r} with "
            f"dump_calls {session.calls!r} until this process ends, and a process has one dump at a time; name that "
            "one, or leave the option out and put `with rust_ort.dump(...)` around what is to be in each"
        )


def open_at(session: DumpSession, options: Options) -> bool:
    """Opens `session` at the daemon that `options` names, once. False: it is not open there, but closed meanwhile."""
    client = Client.get(options)
    if client in session.clients:
        return True
    with session.opening:
        if client in session.clients:
            return True
        if session.is_closed:
            return False
        client.open_dump(
            folder=str(session.folder),
            run=session.run,
            clean=session.clean and not session.clients,
            calls=session.calls,
            run_json=session.run_json,
        )
        session.clients.append(client)
    return True


def close(session: DumpSession) -> None:
    """Waits until everything handed over is on disk, then closes the dump at every daemon that has it; at each,
    whatever happens at others.

    What could not be written is a RuntimeWarning: a full disk costs the dump, not the run. In a forked child: nothing.
    """
    if not session.is_ours:
        return
    with contextlib.ExitStack() as at_last:
        at_last.callback(session.clients.clear)
        with session.opening:
            session.is_closed = True
            for client in session.clients:
                at_last.callback(_close_at, client, session.path)
        wait_for_calls(session)


def _close_at(client: Client, path: Path) -> None:
    with contextlib.ExitStack() as at_last:
        at_last.callback(_told, client.close_dump, path)
        _told(client.flush_dump, path)


def _told(end: Callable[[], None], path: Path) -> None:
    try:
        end()
    except RustOrtError as error:
        warnings.warn(f"the dump {path} is incomplete: {error}", RuntimeWarning, stacklevel=8)


def open_until_exit(path: Path, options: Options) -> None:
    """The option `dump`: a dump at this path, all links followed, that stays open until the process ends."""
    session = DumpSession(
        folder=path.parent,
        run=path.name,
        clean=False,
        calls=options.dump_calls,
        run_json=run_json(durable=options.durable),
        option=options.dump,
    )
    begin(session, options)
    _opened_by[path] = os.getpid()
    atexit.register(_close_quietly, session)


def _close_quietly(session: DumpSession) -> None:
    with contextlib.suppress(Exception):
        close(session)


def run_json(*, durable: bool = False) -> str:
    """Content of run.json: versions, devices, start. Options are those of each graph, in its parts.json. durable: the
    daemon syncs what it writes."""
    return json.dumps(
        {
            "schema": SCHEMA_VERSION,
            "start": datetime.datetime.now(datetime.UTC).isoformat(),
            "program": sys.argv[0] if sys.argv else "",
            "pid": os.getpid(),
            "python": platform.python_version(),
            "onnxruntime_library": _library(),
            "versions": {"rust_ort": __version__} | dict(pair.split("=", 1) for pair in versions().split(" ")),
            "durable": durable,
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


def holds_calls(run: Path) -> bool:
    """Whether a dump has the tensors of a call of some part."""
    return any(run.glob("*/part_*/test_data_set_*"))


def _after_fork_in_child() -> None:
    global _current, _lock, _changed
    _current, _lock = None, threading.RLock()
    _changed = threading.Condition(_lock)


process.after_fork_in_child.append(_after_fork_in_child)
