"""The coverage rule, case by case; the model test is in tests/property."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_eventlog.segment.coverage import Candidate, Coverage, cover
from rl_eventlog.types import MAX_SEQ, Level, Span, Spans


def candidate(name: str, level: Level, **holds: list[tuple[int, int]]) -> Candidate:
    return Candidate(Path(name), level, {w: [Span(*span) for span in spans] for w, spans in holds.items()})


def taken(coverage: Coverage) -> dict[str, dict[str, list[tuple[int, int]]]]:
    return {
        use.candidate.path.name: {w: [(s.first, s.last) for s in spans] for w, spans in use.takes.items()}
        for use in coverage.uses
    }


def test_the_example_of_the_specification() -> None:
    coverage = cover(
        [
            candidate("A-2.arrows", "open", A=[(60, 79), (85, 94)]),
            candidate("A-1.arrows", "open", A=[(20, 59)]),
            candidate("A-1.20-39.parquet", "sealed", A=[(20, 39)]),
            candidate("f3.c1.parquet", "compacted", A=[(0, 19)], B=[(0, 49)]),
        ]
    )
    assert taken(coverage) == {
        "f3.c1.parquet": {"A": [(0, 19)], "B": [(0, 49)]},
        "A-1.20-39.parquet": {"A": [(20, 39)]},
        "A-1.arrows": {"A": [(40, 59)]},
        "A-2.arrows": {"A": [(60, 79), (85, 94)]},
    }
    assert coverage.gaps({"A": 99}) == {"A": [Span(80, 84), Span(95, 99)]}
    assert [use.whole for use in coverage.uses] == [True, True, False, True]


def test_a_file_that_adds_nothing_is_not_read() -> None:
    coverage = cover([candidate("a.arrows", "open", A=[(0, 9)]), candidate("a.parquet", "sealed", A=[(0, 9)])])
    assert taken(coverage) == {"a.parquet": {"A": [(0, 9)]}}


def test_a_shorter_seal_never_hides_the_longer_open_segment() -> None:
    coverage = cover([candidate("a.arrows", "open", A=[(0, 9)]), candidate("a.parquet", "sealed", A=[(0, 3)])])
    assert taken(coverage) == {"a.parquet": {"A": [(0, 3)]}, "a.arrows": {"A": [(4, 9)]}}


def test_of_two_seals_the_one_with_more_rows_comes_first_then_the_name() -> None:
    coverage = cover(
        [
            candidate("b.parquet", "sealed", A=[(0, 4)]),
            candidate("c.parquet", "sealed", A=[(0, 9)]),
            candidate("d.parquet", "sealed", B=[(0, 9)]),
            candidate("a.parquet", "sealed", A=[(8, 12)]),
        ]
    )
    assert taken(coverage) == {
        "c.parquet": {"A": [(0, 9)]},
        "d.parquet": {"B": [(0, 9)]},
        "a.parquet": {"A": [(10, 12)]},
    }


def test_the_order_of_the_listing_does_not_matter() -> None:
    files = [candidate(f"{i}.parquet", "sealed", A=[(i, i + 5)]) for i in range(0, 30, 3)]
    assert taken(cover(files)) == taken(cover(reversed(files)))


def test_a_file_between_others_is_taken_in_parts() -> None:
    coverage = cover(
        [
            candidate("long.arrows", "open", A=[(0, 99)]),
            candidate("a.parquet", "sealed", A=[(10, 19)]),
            candidate("b.parquet", "sealed", A=[(50, 59)]),
        ]
    )
    assert taken(coverage)["long.arrows"] == {"A": [(0, 9), (20, 49), (60, 99)]}


def test_writers_do_not_touch_one_another() -> None:
    coverage = cover([candidate("a.parquet", "sealed", A=[(0, 9)]), candidate("b.parquet", "sealed", B=[(5, 9)])])
    assert coverage.gaps({}) == {"B": [Span(0, 4)]}


def test_no_file_no_rows_no_gaps() -> None:
    assert cover([]) == Coverage()
    assert cover([]).gaps({}) == {}


def test_an_end_record_shows_a_writer_whose_files_are_all_gone() -> None:
    assert cover([]).gaps({"A": 4}) == {"A": [Span(0, 4)]}


def test_an_end_record_below_what_is_covered_hides_no_gap() -> None:
    coverage = cover([candidate("a.arrows", "open", A=[(0, 1), (5, 9)])])
    assert coverage.gaps({"A": 1}) == {"A": [Span(2, 4)]}


@pytest.mark.parametrize(("first", "last"), [(1, 0), (-1, 3), (0, MAX_SEQ + 1)])
def test_a_span_is_neither_empty_nor_out_of_range(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="are no seqs"):
        Span(first, last)


def test_spans_join_what_touches() -> None:
    spans = Spans([Span(0, 1), Span(5, 6), Span(2, 4), Span(9, 9)])
    assert list(spans) == [Span(0, 6), Span(9, 9)]
    assert len(spans) == 8
    assert spans.last == 9
    assert repr(spans) == "Spans([(0, 6), (9, 9)])"
    assert not Spans()
    assert Spans().last == -1


def test_the_whole_range_of_seqs_can_be_covered() -> None:
    spans = Spans([Span(0, MAX_SEQ)])
    assert spans.missing_from(Span(5, MAX_SEQ)) == []
    assert len(spans) == MAX_SEQ + 1
