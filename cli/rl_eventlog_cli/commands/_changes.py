"""How commands that change the files of a run say what they did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_eventlog_cli import output


def show_files(what: str, paths: Sequence[Path]) -> None:
    """A line with the number of files, and one for each of them."""
    output.line(f"{len(paths)} {what}")
    for path in paths:
        output.line(f"  {path}")


def show_reclaimed(removed: Sequence[Path], waiting: Sequence[Path], *, reclaim: bool) -> None:
    """What `--reclaim` did, and what a later one will do."""
    if not reclaim:
        return
    show_files("removed", removed)
    if waiting:
        output.words(f"{len(waiting)} more can go once what covers them is 15 minutes old: call again then")
