"""Functions that met Dynamo's recompile limit: their calls that no compiled graph fits run in eager, and no graph of
ours is called there."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from rust_ort import torch_private
from rust_ort.link.specs import Verdict, not_compared

log = logging.getLogger("rust_ort")

KEPT = 1000


@dataclass(frozen=True, kw_only=True)
class Limited:
    """A function that met the limit. compiled: what it was compiled to. setting: of torch._dynamo.config, whose value
    was `limit`. backend: what it was compiled with."""

    code: CodeType
    compiled: tuple[CodeType, ...]
    setting: str
    limit: int
    backend: Any

    @property
    def name(self) -> str:
        return f"{self.code.co_name} ({self.code.co_filename}:{self.code.co_firstlineno})"

    @property
    def is_known(self) -> bool:
        """Whether torch still has what it compiled: `torch.compiler.reset()` forgets all."""
        known = {id(code) for code in torch_private.compiled_codes(self.code)}
        return any(id(code) in known for code in self.compiled)

    @property
    def why(self) -> str:
        return f"Dynamo's recompile limit was met (torch._dynamo.config.{self.setting} = {self.limit})"


_met: list[Limited] = []
_lock = threading.Lock()
_is_watched = False
_running = threading.local()


def watch() -> None:
    """Has functions that meet the limit from now on noted, and warned of where rust_ort compiled them."""
    global _is_watched
    with _lock:
        if not _is_watched:
            _is_watched = True
            torch_private.on_recompile_limit(_note)


def _note(code: CodeType, setting: str, limit: int, backend: Any) -> None:
    if not getattr(backend, "__module__", "").startswith("rust_ort."):
        return
    compiled = torch_private.compiled_codes(code)
    found = Limited(code=code, compiled=compiled, setting=setting, limit=limit, backend=backend)
    is_new = all(one.code is not code for one in _all())
    with _lock:
        _met.append(found)
        del _met[:-KEPT]
    if is_new:
        log.warning(
            "%s: %s: from now on its calls that no compiled graph fits run in eager, and what they compute is not "
            "compared; TORCH_LOGS=recompiles says what changes from call to call",
            found.name, found.why,
        )  # fmt: skip
    counting = getattr(_running, "counting", None)
    if counting is not None:
        counting()


def _all() -> list[Limited]:
    with _lock:
        _met[:] = [one for one in _met if one.is_known]
        return _met[:]


def met(backend: Any) -> dict[str, Limited]:
    """{name: the function} of those that met the limit as this backend, or an equal one, compiled them."""
    return {one.name: one for one in _all() if one.backend == backend}


def met_by(model: Any) -> dict[str, Limited]:
    """{name: the function} where the model's own met the limit."""
    functions = (getattr(model, name, None) for name in ("_torchdynamo_orig_callable", "forward", "__wrapped__"))
    codes = {id(getattr(function, "__code__", None)) for function in (model, *functions)}
    return {one.name: one for one in _all() if id(one.code) in codes}


def verdicts(found: Mapping[str, Limited]) -> list[Verdict]:
    """A verdict for each function: what it computes in eager is not compared."""
    return [not_compared(name, f"{one.why}: calls that no graph fits run in eager") for name, one in found.items()]


@contextlib.contextmanager
def counted() -> Iterator[Callable[[], Counter[Limited]]]:
    """Inside, this thread's calls in eager of functions that met the limit are counted; what is yielded gives them.
    Where somebody profiles the thread, a function that meets the limit inside counts once, no other does."""
    calls: Counter[Limited] = Counter()
    before = getattr(_running, "counting", None)

    def begin() -> None:
        codes = {id(one.code): one for one in _all()}
        if sys.getprofile() not in (None, _running.profile):
            calls[next(reversed(codes.values()))] += 1
            return

        def count(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and (one := codes.get(id(frame.f_code))) is not None:
                calls[one] += 1

        _running.profile = count
        sys.setprofile(count)

    _running.counting, _running.profile = begin, None
    if _all() and sys.getprofile() is None:
        begin()
    try:
        yield lambda: calls
    finally:
        if _running.profile is not None and sys.getprofile() is _running.profile:
            sys.setprofile(None)
        _running.counting, _running.profile = before, None


def in_words(calls: Mapping[Limited, int]) -> str:
    """Why values are not compared that eager had a part in; "" where it had none."""
    return "; ".join(
        f"{one.name}: {one.why}, and {count} {'call' if count == 1 else 'calls'} ran in eager"
        for one, count in calls.items()
    )
