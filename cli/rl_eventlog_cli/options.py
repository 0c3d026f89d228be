"""Options that several commands share, and where runs lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from rl_eventlog import Run

T = TypeVar("T")
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else there.")]
Utc = Annotated[bool, typer.Option("--utc", help="Show times in UTC, not in local time.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Reclaim = Annotated[
    bool,
    typer.Option(
        "--reclaim", help="Also remove files whose rows other, intact files hold that are older than the grace time."
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        min=0.0,
        help="For --reclaim: a copy of the run that takes longer may miss rows. 0 if none is being made.",
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


def hint(path: Path, error: Exception | None) -> str:
    """What to add to an error about `path`: where a run of that name lies, if that is what was meant; else nothing."""
    from rl_eventlog.errors import RunNotFoundError

    meant = default_root() / path
    wrong = isinstance(error, RunNotFoundError) and not path.exists() and meant.is_dir()
    return f"; try {meant}" if wrong else ""


def read_around_damage(run: Run, read: Callable[[Run], T]) -> tuple[Run, T]:
    """Read from a run whose footers alone were looked at; damage behind one costs that file, not the answer.

    Returns:
        The run that was read, and what `read` returned: where a file cannot be read, of a run whose
        sealed files are compared with their digests, without those that differ.
    """
    from polars.exceptions import PanicException, PolarsError

    from rl_eventlog import Run
    from rl_eventlog.errors import SegmentError

    try:
        return run, read(run)
    except (SegmentError, PolarsError, PanicException):
        checked = Run(run.path, check="digest")
        return checked, read(checked)


def open_run(path: Path, *, digests: bool = False) -> Run:
    """The run in a folder.

    Args:
        path: the folder.
        digests: compare its sealed files with their digests.

    Raises:
        RunNotFoundError: there is none; the message says where one of that name is.
    """
    from rl_eventlog import Run
    from rl_eventlog.errors import RunNotFoundError

    try:
        return Run(path, check="digest" if digests else "footer")
    except RunNotFoundError as error:
        raise RunNotFoundError(f"{error}{hint(path, error)}") from error
