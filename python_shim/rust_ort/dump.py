"""`with rust_ort.dump("llama"): ...`: everything compiled or run inside is written to a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rust_ort._callable import make_callable
from rust_ort.errors import OptionError
from rust_ort.observe.session import DumpSession, begin, end, run_json
from rust_ort.options import Options, arguments

__all__ = ["dump"]


@contextlib.contextmanager
def dump(
    run: str,
    *,
    folder: str | os.PathLike[str] = "dumps",
    clean: bool = False,
    calls: str = "first",
    durable: bool | None = None,
    options: dict[str, Any] | Options | None = None,
) -> Iterator[Path]:
    """Dumps every graph compiled or run inside to `<folder>/<run>`; yields that path.

    run: name of the folder that is made in `folder`. clean: remove an earlier dump of that name first. calls: of each
    graph, dump the tensors of its "first" call, of "all", or "none". durable: what an answered call has dumped outlives
    a power cut, at the cost of syncing every file; None: as the option says. options: which daemon and executor have
    the dump, as they are given to what is compiled; what is compared is an option of that alone.

    On exit everything is on disk, or a RuntimeWarning names what is not. A forked child runs on and dumps nothing,
    unless it opens a dump itself.

    Errors: OptionError for an argument, or where a dump is open: a process has one at a time; DaemonFault when the
    folder cannot be written.
    """
    run, path = arguments.checked_run(run), arguments.checked_folder("dump", "folder", folder)
    arguments.checked_flag("dump", "clean", clean)
    arguments.checked_choice("dump", "calls", calls, ("first", "all", "none"))
    opened = _opened(options)
    if durable is None:
        durable = opened.durable
    arguments.checked_flag("dump", "durable", durable)
    session = DumpSession(folder=path, run=run, clean=clean, calls=calls, run_json=run_json(durable=durable))
    begin(session, opened)
    try:
        yield session.path
    finally:
        end(session)


OF_THE_DAEMON = ("socket", "threads", "session_options", "runtimes", "durable")
"""Options by which the daemon and the executor are chosen, and how files are written."""


def _opened(options: dict[str, Any] | Options | None) -> Options:
    """Errors: OptionError, also of an option that says nothing of a dump."""
    opened = arguments.parsed_options("dump", options)
    idle = [] if isinstance(options, Options) else sorted(set(options or ()) - set(OF_THE_DAEMON))
    if idle:
        raise OptionError(
            f"dump options: {', '.join(map(repr, idle))} is of what is compiled and would do nothing here; give it to "
            f"torch.compile(..., options=...) or rust_ort.compare. A dump takes {', '.join(OF_THE_DAEMON)}"
        )
    return opened


make_callable(__name__, dump)
