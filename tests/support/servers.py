"""Servers as separate processes on this machine's loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def eventually(ask: Callable[[], T | None], *, seconds: float = 60.0) -> T:
    """The first answer that is not None; there being none in time is a failure."""
    deadline = time.monotonic() + seconds
    while (answer := ask()) is None:
        assert time.monotonic() < deadline, f"no answer within {seconds} s"
        time.sleep(0.02)
    return answer


@contextmanager
def serving(
    command: Sequence[str], *, health: str, log: Path, cwd: Path, env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends, entering it once the server answers.

    Args:
        command: a program installed beside this Python, and its arguments.
        health: URL that answers once the server is up.
        log: file for what the server prints; shown if it ends early.
        cwd: folder it runs in.
        env: variables added to this process's.
    """
    program = Path(sys.executable).parent / command[0]
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [str(program), *command[1:]], cwd=cwd, env={**os.environ, **(env or {})}, stdout=output, stderr=output
        ) as process,
    ):

        def answers() -> bool | None:
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}:\n{log.read_text()}"
            try:
                with urllib.request.urlopen(health, timeout=5):
                    return True
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                return None

        try:
            eventually(answers, seconds=90)
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
