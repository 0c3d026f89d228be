"""Small value objects shared by all layers. They hold no files and do no work."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Literal, NamedTuple

FORMAT_VERSION = "1.0"
MAX_SEQ = 2**63 - 2
"""Highest seq: one more still counts rows in 64 bits."""
REDUCTIONS = ("mean", "sum", "min", "max", "last", "std", "p50", "p90", "p95", "p99", "none")
"""Reductions that this version merges; the set is open, `none` keeps ranks apart."""
MAX_BINS = 2048
"""Most bins of one sign in a distribution; the lowest beyond them are one bin."""
Level = Literal["compacted", "sealed", "open"]


@dataclass(frozen=True, slots=True)
class Identity:
    """The constants of one writer: metadata of its open segments, columns of its sealed ones."""

    run_uid: str
    writer: str
    launch: str
    role: str
    rank: int | None
    data_rank: int | None
    node: str

    def to_metadata(self, table: str) -> dict[bytes, bytes]:
        """Schema metadata of a segment: null values are left out."""
        values = {
            "version": FORMAT_VERSION,
            "table": table,
            "run_uid": self.run_uid,
            "writer": self.writer,
            "launch": self.launch,
            "role": self.role,
            "rank": self.rank,
            "data_rank": self.data_rank,
            "node": self.node,
        }
        return {f"rle.{key}".encode(): str(value).encode() for key, value in values.items() if value is not None}

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes]) -> Identity:
        """Read the identity back.

        Raises:
            KeyError: a required value is missing.
            ValueError: a rank is no number.
        """
        text = {key.decode(): value.decode() for key, value in metadata.items() if key.startswith(b"rle.")}
        return cls(
            run_uid=text["rle.run_uid"],
            writer=text["rle.writer"],
            launch=text["rle.launch"],
            role=text["rle.role"],
            rank=int(text["rle.rank"]) if "rle.rank" in text else None,
            data_rank=int(text["rle.data_rank"]) if "rle.data_rank" in text else None,
            node=text["rle.node"],
        )


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The seqs `first` to `last` of one (writer, table), both inclusive.

    Raises:
        ValueError: it is empty or reaches outside 0 to `MAX_SEQ`.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last <= MAX_SEQ:
            raise ValueError(f"{self.first} to {self.last} are no seqs")

    def __len__(self) -> int:
        return self.last - self.first + 1


class LastRow(NamedTuple):
    """How far a writer came in a table, as far as a file knows."""

    step: int | None
    """The highest step of its rows."""
    time: datetime
    """The latest time of its rows."""


class Spans:
    """A set of seqs, kept as sorted spans that neither touch nor overlap, and found by bisection."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for span in spans:
            self.add(span)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return sum(len(span) for span in self._spans)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __repr__(self) -> str:
        return f"Spans({[(span.first, span.last) for span in self._spans]})"

    @property
    def last(self) -> int:
        """The highest seq, -1 where there is none."""
        return self._spans[-1].last if self._spans else -1

    def add(self, span: Span) -> None:
        """Take in `span`; what is there already stays."""
        start = bisect_left(self._spans, span.first - 1, key=attrgetter("last"))
        stop = bisect_right(self._spans, span.last + 1, key=attrgetter("first"))
        if touched := self._spans[start:stop]:
            span = Span(min(span.first, touched[0].first), max(span.last, touched[-1].last))
        self._spans[start:stop] = [span]

    def missing_from(self, span: Span) -> list[Span]:
        """The parts of `span` that are not in this set, in order."""
        missing, position = [], span.first
        for index in range(bisect_left(self._spans, position, key=attrgetter("last")), len(self._spans)):
            other = self._spans[index]
            if other.first > span.last:
                break
            if other.first > position:
                missing.append(Span(position, other.first - 1))
            position = other.last + 1
        if position <= span.last:
            missing.append(Span(position, span.last))
        return missing
