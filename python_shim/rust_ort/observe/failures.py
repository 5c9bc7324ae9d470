"""Graphs that this backend failed to compile where Dynamo suppresses errors: torch runs them in eager, and logs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rust_ort.torch_private import is_restart, suppresses_errors

SUPPRESSED = "under torch._dynamo.config.suppress_errors torch runs it in eager, but for fullgraph=True"

_listening = threading.local()


def note(error: Exception) -> str:
    """Tells who listens in this thread why a graph runs in eager; "" where the error is not suppressed."""
    if not suppresses_errors() or is_restart(error):
        return ""
    lines = str(error).splitlines()
    why = f"a graph was not compiled ({lines[0] if lines else type(error).__name__}), and {SUPPRESSED}"
    for heard in getattr(_listening, "all", ()):
        heard.append(why)
    return why


@contextlib.contextmanager
def heard() -> Iterator[Callable[[], list[str]]]:
    """Inside, this thread's failures are kept; what is yielded gives why each graph runs in eager, each reason once."""
    found: list[str] = []
    before = getattr(_listening, "all", ())
    _listening.all = (*before, found)
    try:
        yield lambda: list(dict.fromkeys(found))
    finally:
        _listening.all = before
