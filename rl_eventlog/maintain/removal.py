"""Who may remove what: the one place that deletes files of others.

- A file goes only if usable, intact files of a higher level, older than the grace time, cover every
  row of it.
- An open segment moreover needs proof that its writer is gone: its end record, a dead process on this
  host, or a person who says so. Silence is never proof.
- Killed anywhere, it leaves files that count by the coverage rule; run again, it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import SegmentName
from rl_eventlog.reader import RunFiles, WriterFacts
from rl_eventlog.reader.segments import TableFiles
from rl_eventlog.run import is_provably_dead
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.sealed import check_digest
from rl_eventlog.types import Level, Span, Spans

GRACE_SECONDS = 15 * 60.0
_ORDER: dict[Level, int] = {"compacted": 0, "sealed": 1, "open": 2}


def is_gone(facts: WriterFacts | None, *, assume_dead: bool) -> bool:
    """Whether nobody can write into this writer's files any more."""
    if assume_dead:
        return True
    return facts is not None and (facts.end is not None or is_provably_dead(facts))


def reclaim(files: RunFiles, *, assume_dead: bool, grace_seconds: float = GRACE_SECONDS) -> list[Path]:
    """Remove event files that others cover.

    Args:
        files: a fresh look at the run.
        assume_dead: a person says that no writer without an end record lives.
        grace_seconds: how old the covering file must be.

    Returns:
        The removed files.
    """
    removed: list[Path] = []
    for table in TABLES:
        removed += _reclaim_table(files, files.table(table), assume_dead, grace_seconds)
    return removed


def _reclaim_table(files: RunFiles, table: TableFiles, assume_dead: bool, grace_seconds: float) -> list[Path]:
    trusted: dict[int, dict[str, Spans]] = {}
    by_level = sorted(table.candidates, key=lambda candidate: _ORDER[candidate.level])
    for candidate in by_level:
        if candidate.level != "open" and _may_cover(candidate.path, grace_seconds):
            held = trusted.setdefault(_ORDER[candidate.level], {})
            for writer, spans in candidate.holds.items():
                for span in spans:
                    held.setdefault(writer, Spans()).add(span)
    removed = []
    for candidate in by_level:
        above = [held for order, held in trusted.items() if order < _ORDER[candidate.level]]
        if not above or not _covered(candidate.holds, above):
            continue
        if candidate.level == "open" and not _open_may_go(files, table, candidate.path, candidate.holds, assume_dead):
            continue
        with suppress(FileNotFoundError):  # another reclaim was faster
            candidate.path.unlink()
            removed.append(candidate.path)
    return removed


def _may_cover(path: Path, grace_seconds: float) -> bool:
    """Old enough, and intact by the digest in its name."""
    name = SegmentName.parse(path.name)
    try:
        if name is None or time.time() - path.stat().st_mtime < grace_seconds:
            return False
        check_digest(path, name)
    except (OSError, SegmentError):
        return False
    return True


def _covered(holds: Mapping[str, list[Span]], above: list[dict[str, Spans]]) -> bool:
    for writer, spans in holds.items():
        union = Spans(span for held in above for span in held.get(writer, ()))
        if any(union.missing_from(span) for span in spans):
            return False
    return True


def _open_may_go(
    files: RunFiles, table: TableFiles, path: Path, holds: Mapping[str, list[Span]], assume_dead: bool
) -> bool:
    """Not with damage in it, which is evidence, and not while its writer may live."""
    if table.open_contents[path].damage:
        return False
    return all(is_gone(files.writers.get(writer), assume_dead=assume_dead) for writer in holds)
