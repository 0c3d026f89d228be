"""A headless Chromium on this machine, driven through its debugging pipe with nothing but the standard library."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
    "--remote-debugging-pipe",
]
_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# the pipe's ends in the browser, by its own convention
_BROWSER_READS, _BROWSER_WRITES = 3, 4
_ANSWER_SECONDS = 60.0


class Page:
    """One tab."""

    def __init__(self, pipe: _Pipe, session: str) -> None:
        self._pipe = pipe
        self._session = session

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol."""
        return self._pipe.call(method, parameters, self._session)

    def open(self, url: str) -> None:
        """Go to `url`."""
        answer = self.call("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer['errorText']}"

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, once it is there."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str, *, seconds: float = 45.0) -> Any:
        """The first value of a JavaScript expression that is true; a page that never gets there fails with its text."""
        watch = f"""new Promise((resolve) => {{
            const end = performance.now() + {seconds * 1000};
            const look = () => {{
                const value = (() => {{ try {{ return {expression}; }} catch (error) {{ return null; }} }})();
                if (value || performance.now() > end) resolve(value); else setTimeout(look, 50);
            }};
            look();
        }})"""
        value = self.evaluate(watch)
        if not value:
            text = self.evaluate("document.body.innerText")
            raise AssertionError(f"the page never showed {expression}; it shows:\n{text[:3000]}")
        return value

    def screenshot(self, path: Path) -> None:
        """Save what is on screen as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


class _Pipe:
    """Calls through the browser's pipe: JSON messages that end in a zero byte."""

    def __init__(self, write_end: int, read_end: int) -> None:
        self._write_end = write_end
        self._read_end = read_end
        self._last_id = 0
        self._bytes = bytearray()

    def call(self, method: str, parameters: dict[str, Any], session: str | None = None) -> Any:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER_SECONDS
        while (answer := self._receive(deadline, method)).get("id") != self._last_id:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while (end := self._bytes.find(0)) < 0:
            ready, _, _ = select.select([self._read_end], [], [], max(deadline - time.monotonic(), 0.0))
            assert ready, f"the browser did not answer {method}"
            read = os.read(self._read_end, 1 << 20)
            assert read, f"the browser ended during {method}"
            self._bytes += read
        message: dict[str, Any] = json.loads(self._bytes[:end])
        del self._bytes[: end + 1]
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A fresh browser with one empty tab, ended with the block.

    Args:
        folder: an existing folder for its profile and its log.
    """
    program = next(path for path in map(shutil.which, _PROGRAMS) if path)
    command = [program, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()
    # high numbers, so that moving one end to its place in the browser never closes the other
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 64) for end in (browser_reads, browser_writes)]
    log = str(folder / "browser.log")
    actions = [
        (os.POSIX_SPAWN_DUP2, moved[0], _BROWSER_READS),
        (os.POSIX_SPAWN_DUP2, moved[1], _BROWSER_WRITES),
        (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT, 0o600),
    ]
    pid = os.posix_spawn(program, command, dict(os.environ), file_actions=actions, setpgroup=0)
    for end in (browser_reads, browser_writes, *moved):
        os.close(end)
    try:
        pipe = _Pipe(we_write, we_read)
        target = pipe.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = pipe.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        yield Page(pipe, session)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(we_write)
        os.close(we_read)
