"""A headless Chromium that tests drive: DevTools' protocol over a pipe, with the standard library alone."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

WATCHDOG_S = 120

# The test may run as root, for whom Chromium has no sandbox; pages are our own, and no request leaves the machine.
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--proxy-server=127.0.0.1:9", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
    "--hide-scrollbars",
)  # fmt: skip


def program() -> str | None:
    """Chromium; None where there is none."""
    return shutil.which("chromium")


def _pipe() -> tuple[int, int]:
    """Ends of a pipe that are neither 3 nor 4, which the browser's are."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return read, write


class Browser:
    """One page. errors: what its console and its log said; requests: addresses that it asked for."""

    def __init__(self, profile: Path, *, size: tuple[int, int] = (1400, 950)) -> None:
        found = program()
        assert found is not None
        (command_read, self._write), (self._read, answer_write) = _pipe(), _pipe()
        line = f'exec "$@" 3<&{command_read} 4>&{answer_write}'
        flags = [*FLAGS, f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            ["bash", "-c", line, "bash", found, *flags, "about:blank"],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        width, height = size
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It ends when nobody commands it any more, and leaves its folder as it is.
        os.close(self._write)
        try:
            self._process.wait(WATCHDOG_S)
        finally:
            self._process.kill()
            os.close(self._read)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command; what is told meanwhile is noted."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WATCHDOG_S
        while True:
            told = self._told(end)
            if told.get("id") == number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _told(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser says nothing"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser is gone"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        told: dict[str, Any] = json.loads(text)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        parameters = told.get("params", {})
        match told.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.errors.append(json.dumps(parameters["args"]))
            case "Log.entryAdded":
                self.errors.append(parameters["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def open(self, page: Path, view: str = "") -> None:
        """Opens a page from the disk and waits until it is made."""
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=page.as_uri() + (f"#{view}" if view else ""))
        self.wait(
            "document.readyState === 'complete' && document.querySelector('[role=tabpanel]:not([hidden]) *') !== null"
        )

    def run(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON. Errors: AssertionError where it throws."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + WATCHDOG_S
        while not self.run(condition):
            assert time.monotonic() < end, f"it never came: {condition}"
            time.sleep(0.05)

    def frames(self) -> None:
        """Until what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click_on(self, selector: str) -> None:
        """In the middle of an element, brought into view."""
        x, y = self.run(
            f"(() => {{ const of = document.querySelector({json.dumps(selector)});"
            "of.scrollIntoView({block: 'center'}); const at = of.getBoundingClientRect();"
            "return [at.x + at.width / 2, at.y + at.height / 2]; })()"
        )
        self.click(x, y)

    def key(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if kind == "keyDown" and len(key) == 1 else {}
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def dark(self, is_dark: bool) -> None:
        scheme = "dark" if is_dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def photograph(self, file: Path, *, whole: bool = False) -> None:
        """A picture (PNG) of what is seen, or of the whole page."""
        self.frames()
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(data))
