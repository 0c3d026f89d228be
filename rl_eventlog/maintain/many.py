"""Compacting many runs. One bad run never stops the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog.layout import GRACE_SECONDS
from rl_eventlog.reader.errors import RUN_ERRORS

from .compact import CompactReport, compact


@dataclass(frozen=True, slots=True)
class CompactResult:
    """How compacting one run came out: a report or an error."""

    path: Path
    report: CompactReport | None = None
    error: Exception | None = None


def compact_many(
    paths: Iterable[Path],
    *,
    reclaim_covered: bool = False,
    assume_dead: bool = False,
    grace_seconds: float = GRACE_SECONDS,
) -> Iterator[CompactResult]:
    """Compact runs one after another; each result comes when it is there. The arguments are those of `compact`."""
    for path in paths:
        try:
            report = compact(
                path, reclaim_covered=reclaim_covered, assume_dead=assume_dead, grace_seconds=grace_seconds
            )
            yield CompactResult(path, report=report)
        except RUN_ERRORS as error:
            yield CompactResult(path, error=error)
