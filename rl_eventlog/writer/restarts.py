"""Which start of torchrun this is, where its own counter does not say so.

- torchrun's counter holds on one node, and for failures only. On several nodes each agent counts the
  failures of its own ranks, and a node that joins or leaves counts nowhere.
- What the ranks of one start share is when they were started. The first to open makes the file of the
  launch; the others find it no older than themselves, however late they come. One that is older is of
  a start before.
- No two clocks are compared: the age of a file is the file system's, that of a process its machine's.
  Where the file system takes its times from the nodes, as Lustre does, their clocks must agree within
  `_TOGETHER_SECONDS`.
"""

from __future__ import annotations

from dataclasses import replace

from rl_eventlog.durable import file_system_time
from rl_eventlog.host import process_age
from rl_eventlog.layout import RunLayout

from .whoami import LaunchId

_TOGETHER_SECONDS = 15.0
"""Ranks of one start are started this close together. A start that follows the opening of the one before as closely
counts as the same, in which ranks came back: all rows stay in view, where one start taken for two would hide some."""


def counted_on_disk(layout: RunLayout, launch: LaunchId) -> LaunchId:
    """The launch with its restarts counted; as it is where its launcher needs no help.

    The launches of one stem are numbered without holes, so the youngest is the one to look at.

    Raises:
        OSError: the folder of launches cannot be read or written.
    """
    age = None if launch.rank_pid is None else process_age(launch.rank_pid)
    if age is None:
        return launch
    stem, restarts = launch.id.rpartition("-r")[0], launch.restart_count or 0
    youngest: float | None = None
    while (made := _made(layout, f"{stem}-r{restarts}")) is not None:
        youngest, restarts = made, restarts + 1
    if youngest is not None and file_system_time(layout.launches) - youngest <= age + _TOGETHER_SECONDS:
        restarts -= 1
    return replace(launch, id=f"{stem}-r{restarts}", restart_count=restarts)


def _made(layout: RunLayout, launch: str) -> float | None:
    """When the file of a launch was made, by the file system's clock; None where there is none."""
    try:
        return layout.launch(launch).stat().st_mtime
    except FileNotFoundError:
        return None
