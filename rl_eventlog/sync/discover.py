"""Many runs to one kind of target: which have something unsent, and sending them one by one.

One bad run never stops the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog.reader import find_runs
from rl_eventlog.reader.errors import RUN_ERRORS
from rl_eventlog.sinks.base import RunDescription, Sink

from .engine import Progress, replay_source
from .ledger import Ledger
from .options import SyncOptions
from .plan import nothing_new
from .report import SyncReport
from .source import Source

MakeSink = Callable[[RunDescription], Sink]
"""Makes the sink for a run, whose project, for one, may name the place at the target."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """How the sync of one run came out: a report or an error."""

    path: Path
    report: SyncReport | None = None
    error: Exception | None = None


def unsent_runs(root: Path, make_sink: MakeSink) -> list[Path]:
    """The runs at or below `root` with something unsent, by our own record; no target is asked.

    A run that cannot be read is among them, and one with a gap: syncing it tells what is wrong.
    """
    return [path for path in find_runs(root) if _is_unsent(path, make_sink)]


def _is_unsent(path: Path, make_sink: MakeSink) -> bool:
    try:
        source = Source(path, digests=False)
        sink = make_sink(source.description)
        try:
            ledger = Ledger(path, source.run_uid, sink.kind, sink.address)
        finally:
            sink.close()
        known = ledger.target.get("status") == source.description.status and nothing_new(source, ledger.state)
        return not known or bool(ledger.pending() or source.gaps())
    except RUN_ERRORS:
        return True


def sync_many(
    paths: Iterable[Path],
    make_sink: MakeSink,
    options: SyncOptions | None = None,
    *,
    progress: Callable[[Path], Progress] | None = None,
) -> Iterator[SyncResult]:
    """Replay runs one after another; each result comes when it is there.

    Args:
        paths: folders of runs.
        make_sink: makes the sink of each.
        options: what to send and how; None for the defaults.
        progress: makes the progress callback of a run.
    """
    for path in paths:
        try:
            source = Source(path)
            sink = make_sink(source.description)
            told = progress(path) if progress else None
            report = replay_source(source, sink, options or SyncOptions(), progress=told)
            yield SyncResult(path, report=report)
        except RUN_ERRORS as error:
            yield SyncResult(path, error=error)
