"""A training that logs onto a bad disk, and the judge of what is there afterwards."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest

from rl_eventlog import EventWriter
from tests.support.raw import every_row

Mode = Literal["direct", "queued"]
MODES: tuple[Mode, ...] = ("direct", "queued")


def opened(root: Path, mode: Mode | None = "direct", **options: Any) -> EventWriter:
    """A writer with quick background work: fsync ticks every 20 ms, no code diff."""
    defaults: dict[str, Any] = {"run": "r", "rank": 0, "capture_diff": False, "fsync_interval_seconds": 0.02}
    return EventWriter.open(root, write=mode, **defaults | options)


def log_calls(log: EventWriter, start: int, stop: int) -> None:
    """Calls `start` up to and excluding `stop`: two metrics each, number and -number."""
    for number in range(start, stop):
        log.log_metrics({"a": number, "b": -number}, step=number)


def log_for(log: EventWriter, seconds: float) -> None:
    """Log a metric each millisecond."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        log.log_metrics({"c": 1.0})
        time.sleep(0.001)


def assert_calls(places: Path | Iterable[Path], stop: int, *, writer: str | None = None) -> None:
    """Every call from 0 to `stop` is there once, in the order it was logged, with dense seqs.

    Args:
        places: the run's folder, or that and the fallback's.
        stop: of `log_calls`.
        writer: only its rows; else those of all.
    """
    rows = rows_in(places, "metrics")
    mine = {key: row for key, row in rows.items() if writer in (None, key[0])}
    assert len({key[0] for key in mine}) == 1, "one writer"
    ordered = [mine[key] for key in sorted(mine)]
    assert [seq for _, seq in sorted(mine)] == list(range(len(mine))), "dense from 0"
    expected = [value for number in range(stop) for value in (number, -number)]
    assert [row["value"] for row in ordered] == expected


def rows_in(places: Path | Iterable[Path], table: str) -> dict[tuple[str, int], dict[str, Any]]:
    """Every row of some runs' folders, by writer and seq; a row in several files is one and the same."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for place in [places] if isinstance(places, Path) else places:
        for key, row in every_row(place, table).items():
            # an open file has fewer columns than the sealed one; those of both are equal
            known = found.setdefault(key, row)
            shared = known.keys() & row.keys()
            assert repr({name: known[name] for name in sorted(shared)}) == repr(
                {name: row[name] for name in sorted(shared)}
            )
    return found


def markers(places: Path | Iterable[Path], name: str) -> list[dict[str, Any]]:
    """The fields of the markers of that name."""
    return [json.loads(row["fields"]) for row in rows_in(places, "markers").values() if row["name"] == name]


def warnings_about(caplog: pytest.LogCaptureFixture, root: Path, words: str) -> list[str]:
    """Warnings of the library that hold these words, about runs below `root`: writers of earlier tests may go on."""
    messages = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [message for message in messages if words in message and str(root) in message]


def beat_at(root: Path, log: EventWriter) -> dict[str, Any]:
    """The last heartbeat of a writer, as it lies under `root`."""
    path = root / log.path.name / "writers" / f"{log.writer_id}.beat"
    beat: dict[str, Any] = json.loads(path.read_bytes()[:-9])
    return beat
