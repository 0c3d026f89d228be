"""The writing side: what a training process uses. Loads pyarrow and nothing heavier."""

from __future__ import annotations

from .event_writer import EventWriter, last_opened
from .null import NullWriter
from .session import CloseReport
from .timers import Timer

__all__ = ["CloseReport", "EventWriter", "NullWriter", "Timer", "current"]


def current() -> EventWriter | NullWriter:
    """The last opened, unclosed writer of this process; a `NullWriter` where there is none."""
    return last_opened() or NullWriter()
