"""A child process that runs the W&B client, so that every wait for it can be ended.

- The client waits for an unreachable server for ever, keeps threads that hold the interpreter at
  exit and prints to stdout: none of this reaches the calling process.
- A call is answered within its time, which begins anew with each sign of progress, or the child is
  killed; the next call starts a new one.
- The child ends when the calling process does, however that ends, because its stdin closes.
- Of the caller's `WANDB_*` variables it sees those that say where the server is and who asks; run
  id, name, mode and the like were meant for another run.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rl_eventlog.errors import SinkRejectedError, SinkUnavailableError

CURSOR_KEY = "rleventlog_cursor"
"""Config key of our cursor at W&B."""
AXES_KEY = "rleventlog_axes"
"""Config key of the series of each x-axis."""
ORIGIN_KEY = "rleventlog"
"""Config key of what W&B has no field for."""

_KEPT = {
    "WANDB_API_KEY",
    "WANDB_BASE_URL",
    "WANDB_CONFIG_DIR",
    "WANDB_CREDENTIALS_FILE",
    "WANDB_ENTITY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_INSECURE_DISABLE_SSL",
    "WANDB_X_EXTRA_HTTP_HEADERS",
}
_SET = {
    "WANDB_CONSOLE": "off",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
    "PYTHONSAFEPATH": "1",
}
_CHATTER_BYTES = 2000


class ClientProcess:
    """Calls functions of `_wandb_client` in a child process.

    Args:
        base_url: address of the server; None leaves it to the client's own settings.
    """

    def __init__(self, base_url: str | None) -> None:
        self._base_url = base_url
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._child: _Child | None = None

    def call(self, function: str, seconds: float, /, **arguments: Any) -> dict[str, Any]:
        """Call a function and wait for its answer.

        Args:
            function: a name in `_wandb_client.FUNCTIONS`.
            seconds: the longest wait without progress.
            arguments: JSON-able, and small: what is large goes through a file.

        Raises:
            SinkUnavailableError: no answer in time, or the client failed in a way that may pass.
            SinkRejectedError: the server or the client refused.
        """
        try:
            if self._child is None:
                self._child = _start(self.home, self._base_url)
            self._child.ask({"function": function, "arguments": arguments})
            reply = self._child.answer(seconds)
        except TimeoutError:
            self.close()
            raise SinkUnavailableError(f"the W&B client made no progress for {seconds:g} s") from None
        except BaseException:
            self.close()  # Ctrl-C too: what it was doing must not go on behind the caller's back
            raise
        if "result" in reply:
            result: dict[str, Any] = reply["result"]
            return result
        self.close()  # what failed once may hold threads and connections: the next call starts clean
        raise (SinkRejectedError if reply["refused"] else SinkUnavailableError)(reply["message"])

    @property
    def home(self) -> Path:
        """A folder for temporary files that goes with `close`."""
        if self._home is None:
            # wandb-core may still write while the folder is removed
            self._home = tempfile.TemporaryDirectory(prefix="rl-eventlog-", ignore_cleanup_errors=True)
        return Path(self._home.name)

    def close(self) -> None:
        """Kill the child, if there is one, and remove its temporary files."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._home is not None:
            self._home.cleanup()
            self._home = None


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    questions: IO[bytes]
    answers: IO[bytes]
    chatter: IO[bytes]
    """What the client prints."""

    def ask(self, question: dict[str, Any]) -> None:
        # a dead child is noticed when the answer is missing
        with suppress(BrokenPipeError):
            self.questions.write(json.dumps(question).encode() + b"\n")
            self.questions.flush()

    def answer(self, seconds: float) -> dict[str, Any]:
        """The answer to the last question.

        Raises:
            TimeoutError: neither the answer nor a sign of progress came in time.
            SinkUnavailableError: there will be no answer.
        """
        received = b""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            while True:
                line, newline, rest = received.partition(b"\n")
                if newline:
                    reply: dict[str, Any] = json.loads(line)
                    if "working" not in reply:
                        return reply
                    received, deadline = rest, time.monotonic() + seconds
                elif not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                elif part := os.read(self.answers.fileno(), 65536):
                    received += part
                else:
                    raise SinkUnavailableError(f"the W&B client died: {self._last_words()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.questions, self.answers, self.chatter):
            with suppress(BrokenPipeError):  # a question the child did not live to read
                pipe.close()

    def _last_words(self) -> str:
        end = self.chatter.seek(0, os.SEEK_END)
        self.chatter.seek(max(0, end - _CHATTER_BYTES))
        lines = self.chatter.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


def _start(home: Path, base_url: str | None) -> _Child:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_") or key in _KEPT}
    # the child must import what this process imports, wherever that was found
    environment |= _SET | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(home)}
    environment |= {f"WANDB_{name}": str(home) for name in ("DIR", "DATA_DIR", "CACHE_DIR")}
    if base_url is not None:
        environment["WANDB_BASE_URL"] = base_url
    chatter = cast("IO[bytes]", tempfile.TemporaryFile(dir=home))  # noqa: SIM115 -- lives as long as the child
    process = subprocess.Popen(
        [sys.executable, "-c", "from rl_eventlog.sinks._wandb_client import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=chatter,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the caller, who then closes this
    )
    return _Child(process, cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout), chatter)
