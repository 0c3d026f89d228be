"""Call the command line in this process, or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rl_eventlog_cli.app import main


@dataclass(frozen=True, slots=True)
class Result:
    """What a command line did."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """The document on stdout; anything else there fails."""
        return json.loads(self.out)


def rleventlog(*arguments: object) -> Result:
    """Run `rleventlog` with `arguments` here, its output in a pipe as it were."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as leave:
            status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    return Result(status, out.getvalue(), err.getvalue())


def rleventlog_process(*arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Run `rleventlog` as a user does, in a process whose output goes to pipes."""
    done = subprocess.run(
        [sys.executable, "-m", "rl_eventlog_cli", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
