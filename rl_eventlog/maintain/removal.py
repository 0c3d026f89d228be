"""Who may remove what: the one place that deletes event files of others.

- A file goes only if files before it in the order of the coverage rule hold every row of it, each of
  them intact by its digest and older than the grace time. Since no two files ever swap their places in
  that order, two at once cannot remove each other's cover.
- An open segment moreover needs proof that its writer is gone, and rest for the grace time; one with
  damage in it is evidence and stays. One without a whole batch has nothing to be covered.
- A writer writes its end record before it seals what is left: while it may be at that, its open
  segments are its own, whatever the grace time.
- Killed anywhere, it leaves files that count by the coverage rule; run again, it goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rl_eventlog.durable import temporary_path
from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import GRACE_SECONDS, TEMPORARY_PREFIX, RunLayout, SegmentName
from rl_eventlog.reader import RunFiles, WriterFacts
from rl_eventlog.reader.segments import look
from rl_eventlog.run import is_provably_dead
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.coverage import Candidate, in_order
from rl_eventlog.segment.sealed import check_digest
from rl_eventlog.types import Spans

from .gone import is_gone
from .opened import as_candidate, open_files, read_own

_CLOSING_SECONDS = 15 * 60.0
_TEMPORARY_SECONDS = 24 * 3600.0
_TEMPORARY_PLACES = ("", "launches/", "writers/", "writers/compacted/", "events/*/*/", "artifacts/", "artifacts/*/")


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What was removed, and what may be later."""

    removed: list[Path] = field(default_factory=list)
    waiting: list[Path] = field(default_factory=list)
    """Covered, but not for the grace time yet."""


class Ages:
    """How long files have been as they are, by the clock of their file system: ours may be off."""

    def __init__(self, folder: Path, grace_seconds: float) -> None:
        """Look at the clock, by making a temporary file in `folder`."""
        probe = temporary_path(folder)
        probe.touch(exist_ok=False)
        try:
            self._now = probe.stat().st_ctime
        finally:
            probe.unlink()
        self._grace_seconds = grace_seconds

    def seconds(self, path: Path) -> float:
        """Since its content or name last changed: a copy with an old date of modification is young all the same.

        Raises:
            OSError: it is gone.
        """
        stat = path.stat()
        return self._now - max(stat.st_mtime, stat.st_ctime)

    def is_old(self, path: Path) -> bool:
        """Whether it is there and as it is for the grace time."""
        try:
            return self.seconds(path) >= self._grace_seconds
        except OSError:
            return False


def reclaim(files: RunFiles, *, assume_dead: bool, grace_seconds: float = GRACE_SECONDS) -> Reclaimed:
    """Remove event files that others cover, and temporary files whose process is long gone.

    Args:
        files: a fresh look at the run.
        assume_dead: a person says that no writer without an end record lives.
        grace_seconds: how old the covering files must be.

    Raises:
        OSError: the disk refused.
    """
    ages = Ages(files.path, grace_seconds)
    reclaimed = Reclaimed()
    for table in TABLES:
        removal = _Removal(files, table, ages, reclaimed)
        removal.closed()
        removal.opened(assume_dead=assume_dead)
    for path in _old_temporaries(files.layout, ages):
        unlink(path, reclaimed)
    return reclaimed


class _Removal:
    """Removal from one table."""

    def __init__(self, files: RunFiles, table: str, ages: Ages, reclaimed: Reclaimed) -> None:
        self._files, self._table, self._ages, self._reclaimed = files, table, ages, reclaimed
        self._before: dict[str, list[Candidate]] = {}
        """Sealed and compacted files by writer, as far as the order has come."""
        self._intact: dict[Path, bool] = {}

    def closed(self) -> None:
        """Remove sealed and compacted files."""
        look_at = look(self._files.layout, self._table, self._files.run_uid, with_open=False)
        for candidate in in_order(look_at.candidates):
            if not self._remove_if_covered(candidate):
                for writer in candidate.holds:
                    self._before.setdefault(writer, []).append(candidate)

    def opened(self, *, assume_dead: bool) -> None:
        """Remove open segments of writers that are gone."""
        for path, name in open_files(self._files, self._table, with_empty=True):
            facts = self._files.writers.get(name.writer or "")
            if facts is None or not is_gone(facts, assume_dead=assume_dead):
                continue
            if self._may_be_closing(facts):
                self._reclaimed.waiting.append(path)
                continue
            try:
                content = read_own(self._files, self._table, path) if path.stat().st_size else None
            except (SegmentError, FileNotFoundError):
                continue
            if content is None or not (content.pieces or content.damage):
                self._remove_at_rest(path)
            elif not content.damage:
                self._remove_if_covered(as_candidate(content))

    def _may_be_closing(self, facts: WriterFacts) -> bool:
        if facts.end is None or is_provably_dead(facts):
            return False
        try:
            return self._ages.seconds(self._files.layout.end(facts.writer)) < _CLOSING_SECONDS
        except FileNotFoundError:  # it was folded, or a copy lacks it
            return False

    def _remove_at_rest(self, path: Path) -> None:
        """Remove an open segment whose writer was killed before its first row was whole."""
        if self._ages.is_old(path):
            unlink(path, self._reclaimed)
        else:
            self._reclaimed.waiting.append(path)

    def _remove_if_covered(self, candidate: Candidate) -> bool:
        covers = {cover.path: cover for writer in candidate.holds for cover in self._before.get(writer, ())}
        if not candidate.rows or not _is_covered(candidate, covers.values()):
            return False
        intact = [cover for cover in covers.values() if self._is_intact(cover.path)]
        if not _is_covered(candidate, intact):
            return False
        at_rest = candidate.level != "open" or self._ages.is_old(candidate.path)
        if at_rest and _is_covered(candidate, [cover for cover in intact if self._ages.is_old(cover.path)]):
            unlink(candidate.path, self._reclaimed)
            return True
        self._reclaimed.waiting.append(candidate.path)
        return False

    def _is_intact(self, path: Path) -> bool:
        if path not in self._intact:
            name = SegmentName.parse(path.name)
            try:
                if name:
                    check_digest(path, name)
                self._intact[path] = name is not None
            except (OSError, SegmentError):
                self._intact[path] = False
        return self._intact[path]


def _is_covered(candidate: Candidate, covers: Iterable[Candidate]) -> bool:
    covers = list(covers)
    for writer, spans in candidate.holds.items():
        union = Spans(span for cover in covers for span in cover.holds.get(writer, ()))
        if any(union.missing_from(span) for span in spans):
            return False
    return True


def _old_temporaries(layout: RunLayout, ages: Ages) -> Iterator[Path]:
    for place in _TEMPORARY_PLACES:
        for path in sorted(layout.path.glob(f"{place}{TEMPORARY_PREFIX}*")):
            try:
                if ages.seconds(path) > _TEMPORARY_SECONDS:
                    yield path
            except FileNotFoundError:
                continue


def unlink(path: Path, reclaimed: Reclaimed) -> None:
    """Remove a file and take it down."""
    try:
        path.unlink()
    except FileNotFoundError:  # another reclaim was faster
        return
    reclaimed.removed.append(path)
