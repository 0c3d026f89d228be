"""What the ledger writes down of each commit.

- A plan is all commits of one sync. Its first record holds what the plan was made from, enough to
  find again what the target has: frontier, marks, limits, what it holds beyond the view, names.
- Numbers of commits start at 1 and rise by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rl_eventlog.documents import read_document
from rl_eventlog.errors import LedgerError
from rl_eventlog.sinks.base import Cursor

from .names import SeriesKey

Frontier = Mapping[str, Mapping[str, int]]
"""Table -> writer -> last seq used; -1 for a writer that is known and has no row there."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a role's steps on one axis are complete.

    Points of launches before `launch` are complete, those of `launch` up to and including
    `through`, none where that is None. Where a (role, axis) has no mark, everything is complete.
    """

    role: str
    axis: str | None
    launch: str
    through: float | None


@dataclass(frozen=True, slots=True)
class HeldPoint:
    """A point that the target holds and the view has not: it stays there until it is replaced."""

    key: SeriesKey
    position: float
    value: float


@dataclass(frozen=True, slots=True)
class PlanState:
    """What a plan was made from."""

    frontier: Frontier
    marks: tuple[Mark, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    """Role -> last step sent under hold; a role that is not in it was not held."""
    carried: tuple[HeldPoint, ...] = ()
    renamed: Mapping[SeriesKey, str] = field(default_factory=dict)
    """Names at the target that are not the default one, of all commits so far."""
    samples: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Writer -> seqs of samples sent, as (first, last), both inclusive, of all commits so far."""
    options: Mapping[str, Any] = field(default_factory=dict)
    held: int = 0
    """Points and samples kept back."""
    unplaced: int = 0
    """Points without a step, in series that have steps."""

    def to_json(self) -> dict[str, Any]:
        """As the record holds it."""
        return {
            "frontier": {table: dict(seqs) for table, seqs in self.frontier.items()},
            "marks": [asdict(mark) for mark in self.marks],
            "limits": dict(self.limits),
            "carried": [[*point.key, repr(point.position), repr(point.value)] for point in self.carried],
            "renamed": [[*key, name] for key, name in self.renamed.items()],
            "samples": {writer: [list(span) for span in spans] for writer, spans in self.samples.items()},
            "options": dict(self.options),
            "held": self.held,
            "unplaced": self.unplaced,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanState:
        """Read it back.

        Raises:
            KeyError, TypeError, ValueError: it is not what `to_json` made.
        """
        return cls(
            frontier=document["frontier"],
            marks=tuple(Mark(**mark) for mark in document["marks"]),
            limits=document["limits"],
            carried=tuple(
                HeldPoint(SeriesKey(*key), float(position), float(value))
                for *key, position, value in document["carried"]
            ),
            renamed={SeriesKey(*key): name for *key, name in document["renamed"]},
            samples={
                writer: tuple((first, last) for first, last in spans) for writer, spans in document["samples"].items()
            },
            options=document["options"],
            held=document["held"],
            unplaced=document["unplaced"],
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One commit."""

    commit: int
    plan_first: int
    """Number of the plan's first commit."""
    plan_commits: int
    points: int
    corrections: int
    """Points of this commit that replace another value at the target."""
    params: int
    samples: int
    points_so_far: int
    """Points of all commits up to and including this one."""
    previous: str
    """Digest of the commit before."""
    digest: str
    created: str
    library_version: str
    state: PlanState | None = None
    """In the first record of a plan."""

    @property
    def cursor(self) -> Cursor:
        """What the target carries once it has this commit."""
        return Cursor(self.commit, self.points_so_far, self.digest)

    @property
    def plan_last(self) -> int:
        """Number of the plan's last commit."""
        return self.plan_first + self.plan_commits - 1

    def to_json(self) -> dict[str, Any]:
        """As the file holds it."""
        document = {name: getattr(self, name) for name in self.__slots__}
        return document | {"state": self.state.to_json() if self.state else None}

    @classmethod
    def read(cls, path: Path) -> Record:
        """Read a record's file.

        Raises:
            LedgerError: it is damaged.
            OSError: it cannot be read.
        """
        try:
            document = read_document(path)
            state = document.pop("state")
            return cls(**document, state=PlanState.from_json(state) if state else None)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerError(
                f"{path}: this record of what was sent is damaged ({error}): restore it from a copy of the run"
            ) from error
