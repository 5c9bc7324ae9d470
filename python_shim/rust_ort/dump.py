"""`with rust_ort.dump("llama"): ...`: everything compiled or run inside is written to a folder."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rust_ort import arguments, observe
from rust_ort._callable import make_callable
from rust_ort._version import __version__
from rust_ort.errors import ClientError, DaemonFault
from rust_ort.options import Options

__all__ = ["dump"]

SCHEMA_VERSION = 1


@contextlib.contextmanager
def dump(
    run: str,
    *,
    folder: str | os.PathLike[str] = "dumps",
    clean: bool = False,
    calls: str = "first",
    options: dict[str, Any] | Options | None = None,
) -> Iterator[Path]:
    """Dumps every graph compiled or run inside to `<folder>/<run>`; yields that path.

    run: name of the folder that is made in `folder`. clean: remove an earlier dump of that name first. calls: of each
    graph, dump the tensors of its "first" call, of "all", or "none". options: for the daemon's socket.

    On exit everything is on disk, or a RuntimeWarning names what is not. A forked child runs on and dumps nothing,
    unless it opens a dump itself.

    Errors: OptionError for an argument; DaemonFault when the folder cannot be written.
    """
    from rust_ort.backend import client_of

    run, path = arguments.checked_run(run), arguments.checked_folder(folder)
    arguments.checked_flag("dump", "clean", clean)
    arguments.checked_choice("dump", "calls", calls, ("first", "all", "none"))
    opened = arguments.parsed_options("dump", options)
    session = observe.DumpSession(folder=path, run=run, clean=clean, calls=calls, run_json=run_json())
    open_at(session, opened)
    before = observe.set_current(session)
    try:
        yield session.folder / run
    finally:
        observe.set_current(before)
        close(session)
        if before is not None and before.is_ours:
            _reopen(before, client_of(opened))


def open_at(session: observe.DumpSession, options: Options) -> None:
    """Opens `session` at the daemon that `options` names, once."""
    from rust_ort.backend import client_of

    client = client_of(options)
    if client not in session.clients:
        _open(session, client, clean=session.clean and not session.clients)
        session.clients.append(client)


def _open(session: observe.DumpSession, client: Any, *, clean: bool) -> None:
    client.open_dump(
        folder=str(session.folder), run=session.run, clean=clean, calls=session.calls, run_json=session.run_json
    )


def _reopen(session: observe.DumpSession, client: Any) -> None:
    """A dump inside a dump ended: the outer one goes on, with what it has."""
    if client in session.clients:
        _open(session, client, clean=False)


def close(session: observe.DumpSession) -> None:
    """Waits until everything handed over is on disk, then closes the dump at every daemon that has it.

    What could not be written is a RuntimeWarning: a full disk costs the dump, not the run. In a forked child: nothing.
    """
    if not session.is_ours:
        return
    observe.wait_for_calls(session)
    for client in session.clients:
        for end in (client.flush_dump, client.close_dump):
            try:
                end()
            except DaemonFault as fault:
                warnings.warn(
                    f"the dump {session.folder / session.run} is incomplete: {fault}", RuntimeWarning, stacklevel=3
                )
    session.clients.clear()


def open_until_exit(path: Path, options: Options) -> None:
    """The option `dump`: a dump that stays open until the process ends."""
    path = path.absolute()
    session = observe.DumpSession(
        folder=path.parent, run=path.name, clean=False, calls=options.dump_calls, run_json=run_json()
    )
    open_at(session, options)
    observe.set_current(session)
    atexit.register(_close_quietly, session)


def _close_quietly(session: observe.DumpSession) -> None:
    with contextlib.suppress(Exception):
        close(session)


def run_json() -> str:
    """Content of run.json: versions, devices, start. Options are those of each graph, in its parts.json."""
    from rust_ort.export.hash import versions

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
    from rust_ort.transport.daemon import find_onnxruntime

    with contextlib.suppress(ClientError):
        return find_onnxruntime()
    return None


def described_options(options: Options) -> dict[str, Any]:
    """Every option by name, as JSON tells it. Functions are told by their names."""
    return {entry.name: _plain(getattr(options, entry.name)) for entry in dataclasses.fields(options)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return repr(value)


make_callable(__name__, dump)
