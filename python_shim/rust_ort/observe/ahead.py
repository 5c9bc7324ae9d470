"""What is asked on a thread of its own, while the caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """`ask` runs from now on."""

    def __init__(self, ask: Callable[[], T]) -> None:
        self._ask = ask
        self._error: BaseException | None = None
        self._answer: list[T] = []
        # Whoever ends the process does not wait for it.
        self._thread = threading.Thread(target=self._run, name="rust_ort-nodes", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._ask())
        except BaseException as error:  # the waiting thread's
            self._error = error

    def wait(self) -> None:
        """Until it has run, however it ended."""
        self._thread.join()

    def answer(self) -> T:
        """What it gave, when it has run. Errors: what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._answer[0]
