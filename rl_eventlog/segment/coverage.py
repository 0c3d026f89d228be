"""Which files count: the rule that makes seals, compaction, stale copies and old files harmless.

Candidates are taken by level (compacted, sealed, open), then by rows covered, then by name. Each adds
only the seqs that those before it did not cover, and only if it opens and is what its name says. A
file that cannot be used covers nothing, so the next candidate serves. No row is read twice, and a
row that any usable file holds is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rl_eventlog.types import LastRow, Level, Span, Spans

_ORDER: dict[Level, int] = {"compacted": 0, "sealed": 1, "open": 2}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A usable file and the seqs it holds, by writer."""

    path: Path
    level: Level
    holds: dict[str, list[Span]]
    last: dict[str, LastRow] | None = None
    """How far each writer came in it; None where only its rows tell."""

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return sum(len(span) for spans in self.holds.values() for span in spans)


@dataclass(frozen=True, slots=True)
class Use:
    """What is taken from one file."""

    candidate: Candidate
    takes: dict[str, list[Span]]
    """Seqs to read, by writer."""

    @property
    def whole(self) -> bool:
        """Whether every row of the file is taken, so that no filter is needed."""
        return sum(len(span) for spans in self.takes.values() for span in spans) == self.candidate.rows


@dataclass(frozen=True, slots=True)
class Coverage:
    """The outcome of the rule for one table."""

    uses: list[Use] = field(default_factory=list)
    covered: dict[str, Spans] = field(default_factory=dict)

    def gaps(self, expected_last: dict[str, int]) -> dict[str, list[Span]]:
        """Seqs that nobody covers, by writer.

        Args:
            expected_last: last seq by writer, as far as an end record tells; the last covered seq
                counts where it is higher.
        """
        found = {}
        for writer in sorted({*self.covered, *expected_last}):
            spans = self.covered.get(writer, Spans())
            last = max(expected_last.get(writer, -1), spans.last)
            if last >= 0 and (missing := spans.missing_from(Span(0, last))):
                found[writer] = missing
        return found


def in_order(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Files in the order in which the rule takes them; no two files ever swap their places."""
    return sorted(candidates, key=lambda c: (_ORDER[c.level], -c.rows, c.path.name))


def cover(candidates: Iterable[Candidate]) -> Coverage:
    """Apply the rule to usable files."""
    coverage = Coverage()
    for candidate in in_order(candidates):
        takes: dict[str, list[Span]] = {}
        for writer, spans in candidate.holds.items():
            covered = coverage.covered.setdefault(writer, Spans())
            for span in spans:
                if missing := covered.missing_from(span):
                    takes.setdefault(writer, []).extend(missing)
                    covered.add(span)
        if takes:
            coverage.uses.append(Use(candidate, takes))
    return coverage
