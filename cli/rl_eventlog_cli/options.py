"""Options that several commands share, and where runs lie."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Utc = Annotated[bool, typer.Option("--utc", help="Show times in UTC, not in local time.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Reclaim = Annotated[
    bool,
    typer.Option(
        "--reclaim", help="Also remove files whose rows other, intact files hold that are older than 15 minutes."
    ),
]
AssumeDead = Annotated[
    bool,
    typer.Option(
        "--assume-dead", help="I know that no writer without an end record lives; its process may have been elsewhere."
    ),
]

SUCCESS, FAILED, USAGE = 0, 1, 2
"""Exit statuses of every command; an interrupt is 130."""


def default_root() -> Path:
    """Where runs are looked for: `$RLEVENTLOG_DIR`, else `./runs`."""
    return Path(os.environ.get("RLEVENTLOG_DIR") or "runs")
