"""Drives a headless Chromium by its DevTools protocol, over a pair of pipes.

One browser serves many pages, because starting it takes longer than most pages do. The page's
content security policy stays in force: expressions of a test are evaluated by the browser, not by
the page.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-pipe", "--hide-scrollbars", "--force-color-profile=srgb"),
)
DRAWN = "!!document.documentElement?.classList.contains('drawn')"
PATIENCE = 90.0


class Browser:
    """A browser that runs in its `with` block. It leaves no process and no profile behind."""

    def __enter__(self) -> "Browser":
        assert PROGRAM is not None, "chromium is not installed"
        self._profile = tempfile.mkdtemp(prefix="swc-")
        theirs, ours = os.pipe()
        answers, replies = os.pipe()
        # Avoid 3 and 4, which the browser reads from and writes to.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (theirs, replies)]
        os.close(theirs)
        os.close(replies)
        self._write, self._read = ours, answers
        self._buffer, self._count = b"", 0
        self._events: list[dict[str, Any]] = []
        actions = [(os.POSIX_SPAWN_DUP2, ends[0], 3), (os.POSIX_SPAWN_DUP2, ends[1], 4)]
        quiet = os.open(os.devnull, os.O_RDWR)
        actions += [(os.POSIX_SPAWN_DUP2, quiet, number) for number in (1, 2)]
        argv = [PROGRAM, *OPTIONS, f"--user-data-dir={self._profile}", "about:blank"]
        self._pid = os.posix_spawn(PROGRAM, argv, os.environ, file_actions=actions, setsid=True)
        for end in (*ends, quiet):
            os.close(end)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            self.call("Browser.close")
        deadline = time.monotonic() + 10
        while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.killpg(self._pid, signal.SIGKILL)
            time.sleep(0.02)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return the browser's answer. Raises `RuntimeError` with its error."""
        self._count += 1
        request = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            request["sessionId"] = session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self._events.append(message)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], PATIENCE)[0]:
                raise TimeoutError("chromium does not answer")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise EOFError("chromium has gone")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    @contextlib.contextmanager
    def opened(self, page: Path, width: int = 1280, *, dark: bool = False) -> Iterator["Page"]:
        """Open and draw a page in a window of that width."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            shown = Page(self, session)
            shown.open(page, width, dark=dark)
            yield shown
        finally:
            self.call("Target.closeTarget", targetId=target)
            self._events.clear()

    def events(self, session: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event.get("sessionId") == session]


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method as `Browser.call` does, for this page."""
        return self._browser.call(method, self._session, **parameters)

    def open(self, page: Path, width: int, *, dark: bool) -> None:
        """Load the page and wait until its figures are drawn."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait(DRAWN)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true: {condition}; {self.errors}")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, awaiting promises. Raises `RuntimeError`."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    @property
    def errors(self) -> list[str]:
        """Return the page's errors and its scripts' console output."""
        names = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        events = self._browser.events(self._session)
        return [json.dumps(event["params"]) for event in events if event["method"] in names]

    def screenshot(self) -> bytes:
        """Return a PNG of the whole page, at its full length."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(picture["data"])
