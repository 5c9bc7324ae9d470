"""Says of a long wait whom it is for."""

from __future__ import annotations

import logging
import time
from typing import Protocol

log = logging.getLogger("rust_ort")

TOLD_AFTER_S = (10.0, 30.0, 60.0)
TOLD_EACH_S = 60.0
"""From the last of those on."""


class Awaited(Protocol):
    """Whoever knows, between turns of waiting, that nobody will answer any more."""

    def check(self) -> None:
        """Raises when the peer is gone."""

    def whom(self) -> str:
        """Who is waited for, in words."""


class Waiting:
    """One wait for an answer: a warning after 10, 30 and 60 s, then each minute."""

    __slots__ = ("_began", "_next", "about", "peer")

    def __init__(self, peer: Awaited, about: str) -> None:
        """about: what is to be answered, such as "graph 0_0-forward"."""
        self.peer, self.about = peer, about
        self._began = 0.0
        self._next = TOLD_AFTER_S[0]

    def check(self) -> None:
        """Between two turns of the wait. Errors: the peer's."""
        self.peer.check()
        self.tell()

    def left_s(self) -> float:
        """Until there is something to tell. The wait begins with the first look."""
        now = time.monotonic()
        if not self._began:
            self._began = now
        return max(self._began + self._next - now, 0.0)

    def tell(self) -> None:
        """Warns where it is time."""
        if self.left_s() > 0:
            return
        waited_s = time.monotonic() - self._began
        self._next = next((after for after in TOLD_AFTER_S if after > waited_s), waited_s + TOLD_EACH_S)
        log.warning(
            "%s: no answer from %s for %.0f s; `rust-ort status` shows what it does, Ctrl-C ends the call",
            self.about,
            self.peer.whom(),
            waited_s,
        )
