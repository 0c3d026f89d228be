"""How commands that change the files of a run say what they did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_eventlog.layout import GRACE_SECONDS
from rl_eventlog_cli import output

_FILES_LISTED = 20


def show_files(what: str, paths: Sequence[Path]) -> None:
    """A line with the number of files, and one for each of the first."""
    output.line(f"{len(paths):,} {what}")
    for path in paths[:_FILES_LISTED]:
        output.line(f"  {path}")
    if len(paths) > _FILES_LISTED:
        output.line(f"  and {len(paths) - _FILES_LISTED:,} more; --json lists all")


def show_reclaimed(removed: Sequence[Path], waiting: Sequence[Path], *, reclaim: bool, grace_seconds: float) -> None:
    """What `--reclaim` did, and what a later one will do."""
    if not reclaim:
        return
    show_files("removed", removed)
    if waiting:
        wait = output.duration(max(grace_seconds, GRACE_SECONDS))
        output.words(f"{len(waiting):,} more can go in {wait}, when nobody needs them any more: call again then")
