"""The coverage rule against a model: no row doubled, no row lost, whatever files there are."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from rl_eventlog.segment.coverage import Candidate, cover
from rl_eventlog.types import Level, Span, Spans

SEQS = 40
WRITERS = ("a", "b")


class File(NamedTuple):
    """A file as it lies in the folder."""

    level: Level
    holds: dict[str, set[int]]
    usable: bool


def spans_of(seqs: set[int]) -> list[Span]:
    return list(Spans(Span(seq, seq) for seq in sorted(seqs)))


def expand(spans: list[Span]) -> list[int]:
    return [seq for span in spans for seq in range(span.first, span.last + 1)]


def interval() -> st.SearchStrategy[set[int]]:
    bounds = st.tuples(st.integers(0, SEQS - 1), st.integers(0, SEQS - 1))
    return bounds.map(lambda pair: set(range(min(pair), max(pair) + 1)))


# a sealed file is one interval of one writer, an open one has holes where it is damaged, a compacted one is anything
SEALED = st.builds(
    lambda writer, seqs, usable: File("sealed", {writer: seqs}, usable),
    st.sampled_from(WRITERS),
    interval(),
    st.booleans(),
)
OPEN = st.builds(
    lambda writer, seqs, damaged, usable: File("open", {writer: seqs - damaged}, usable),
    st.sampled_from(WRITERS),
    interval(),
    st.sets(st.integers(0, SEQS - 1), max_size=5),
    st.booleans(),
)
COMPACTED = st.builds(
    lambda holds, usable: File("compacted", holds, usable),
    st.dictionaries(st.sampled_from(WRITERS), st.sets(st.integers(0, SEQS - 1))),
    st.booleans(),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(SEALED, OPEN, COMPACTED), max_size=8))
def test_no_row_is_doubled_and_none_is_lost(files: list[File]) -> None:
    usable = {Path(str(number)): file for number, file in enumerate(files) if file.usable}
    coverage = cover(
        Candidate(path, file.level, {writer: spans_of(seqs) for writer, seqs in file.holds.items()})
        for path, file in usable.items()
    )
    read: Counter[tuple[str, int]] = Counter()
    for use in coverage.uses:
        for writer, spans in use.takes.items():
            seqs = expand(spans)
            assert set(seqs) <= usable[use.candidate.path].holds[writer]
            read.update((writer, seq) for seq in seqs)
    there = {(writer, seq) for file in usable.values() for writer, seqs in file.holds.items() for seq in seqs}
    assert set(read) == there
    assert all(count == 1 for count in read.values())
    for use in coverage.uses:
        rows = {(writer, seq) for writer, spans in use.takes.items() for seq in expand(spans)}
        held = {(w, seq) for w, seqs in usable[use.candidate.path].holds.items() for seq in seqs}
        assert use.whole == (rows == held)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(SEALED, OPEN, COMPACTED), max_size=8), st.integers(-1, SEQS))
def test_gaps_are_exactly_what_nobody_holds(files: list[File], last_of_end: int) -> None:
    coverage = cover(
        Candidate(Path(str(number)), file.level, {writer: spans_of(seqs) for writer, seqs in file.holds.items()})
        for number, file in enumerate(files)
    )
    gaps = coverage.gaps({"a": last_of_end})
    for writer in WRITERS:
        held = set().union(*(file.holds.get(writer, set()) for file in files))
        last = max(held | {last_of_end if writer == "a" else -1}, default=-1)
        assert expand(gaps.get(writer, [])) == sorted(set(range(last + 1)) - held)


@settings(max_examples=200, deadline=None)
@given(st.lists(interval(), max_size=12), interval())
def test_spans_are_a_set_of_seqs(parts: list[set[int]], probe: set[int]) -> None:
    spans = Spans(Span(min(part), max(part)) for part in parts)
    seqs = set().union(*parts)
    assert expand(list(spans)) == sorted(seqs)
    assert len(spans) == len(seqs)
    assert expand(spans.missing_from(Span(min(probe), max(probe)))) == sorted(probe - seqs)
    ordered = list(spans)
    assert all(before.last + 1 < after.first for before, after in pairwise(ordered))
