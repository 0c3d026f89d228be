"""Which rows count where writers, incarnations, forks and attempts overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest

from rl_eventlog import reduce
from tests.support.rows import Writer, identities_of, rows_of

Logged = Sequence[tuple[Writer, dict[str, Any]]]
Point = tuple[int | None, float | None, int]


def metric(step: int | None, value: float | None, **more: Any) -> dict[str, Any]:
    return {"name": "m", "step": step, "value": value, **more}


def points(logged: Logged, *, writers: Sequence[Writer] = (), **options: Any) -> list[Point]:
    """(step, value, attempt) of what a view keeps."""
    frame = kept(logged, writers=writers, **options)
    return frame.sort("step", "attempt", "value").select("step", "value", "attempt").rows()


def kept(
    logged: Logged, *, writers: Sequence[Writer] = (), by: Sequence[str] = ("name", "axis", "position"), **options: Any
) -> pl.DataFrame:
    identities = identities_of({w.writer: w for w in [*(writer for writer, _ in logged), *writers]}.values())
    rows = reduce.with_position(reduce.identify(rows_of("metrics", logged).lazy(), identities))
    return reduce.select_view(rows, identities, by=by, **options).collect()


def test_within_a_writer_the_last_value_wins_whatever_the_clock_says() -> None:
    writer = Writer("w0")
    logged = [(writer, metric(1, 1.0)), (writer, metric(2, 5.0)), (writer, metric(1, 2.0))]
    assert points(logged) == [(1, 2.0, 1), (2, 5.0, 1)]
    backwards = rows_of("metrics", logged).with_columns(time=pl.col("time").reverse()).reverse()
    identities = identities_of([writer])
    rows = reduce.with_position(reduce.identify(backwards.lazy(), identities))
    view = reduce.select_view(rows, identities, by=("name", "axis", "position")).collect()
    assert sorted(view["value"]) == [2.0, 5.0]


def test_a_null_that_was_logged_last_wins_too() -> None:
    writer = Writer("w0")
    assert points([(writer, metric(1, 1.0)), (writer, metric(1, None))]) == [(1, None, 1)]


def test_the_later_incarnation_wins_and_is_never_summed() -> None:
    first, second = Writer("z0"), Writer("a0", incarnation=1)
    logged = [(first, metric(1, 1.0)), (second, metric(1, 10.0)), (first, metric(2, 2.0))]
    assert points(logged) == [(1, 10.0, 1), (2, 2.0, 1)]


def test_a_fork_counts_as_its_parents_rank() -> None:
    parent, fork = Writer("w0"), Writer("w1")
    assert points([(parent, metric(1, 1.0)), (fork, metric(1, 2.0)), (fork, metric(2, 3.0))]) == [
        (1, 2.0, 1),
        (2, 3.0, 1),
    ]


def test_null_ranks_are_distinct_ranks() -> None:
    logged = [(Writer("w0", rank=None), metric(1, 1.0)), (Writer("w1", rank=None), metric(1, 2.0))]
    assert points(logged) == [(1, 1.0, 1), (1, 2.0, 1)]


def test_one_actor_of_null_rank_is_one_rank() -> None:
    first = Writer("w0", rank=None, rank_key="actor a")
    second = Writer("w1", rank=None, rank_key="actor a", incarnation=1)
    assert points([(first, metric(1, 1.0)), (second, metric(1, 2.0))]) == [(1, 2.0, 1)]


def test_the_latest_attempt_wins_per_series_and_position() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2)
    logged = [
        (first, metric(1, 1.0)),
        (first, metric(2, 2.0)),
        (first, metric(3, 3.0)),
        (second, metric(2, 20.0)),
    ]
    assert points(logged) == [(1, 1.0, 1), (2, 20.0, 2), (3, 3.0, 1)]
    assert points(logged, attempts="all") == [(1, 1.0, 1), (2, 2.0, 1), (2, 20.0, 2), (3, 3.0, 1)]


def test_an_attempt_wins_with_all_of_its_ranks() -> None:
    logged = [(Writer(f"w{rank}", rank=rank), metric(1, 1.0)) for rank in range(3)]
    assert points([*logged, (Writer("z0", rank=1, attempt=2), metric(1, 7.0))]) == [(1, 7.0, 2)]


def test_series_on_different_axes_do_not_touch_one_another() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2)
    logged = [
        (first, metric(1, 1.0)),
        (second, metric(1, 2.0, axis="tokens", axis_value=1.0)),
        (first, metric(1, 3.0, name="other")),
    ]
    assert [value for _, value, _ in points(logged)] == [1.0, 3.0, 2.0]


def test_roles_do_not_touch_one_another() -> None:
    trainer = Writer("w0")
    evaluation = Writer("e0", role="eval", attempt=2, resume_step=0)
    assert points([(trainer, metric(1, 1.0)), (evaluation, metric(1, 2.0))]) == [(1, 1.0, 1), (1, 2.0, 2)]


def test_a_younger_attempt_of_another_role_hides_nothing() -> None:
    writers = [Writer("w0"), Writer("w1", attempt=2), Writer("e0", role="eval", attempt=3)]
    assert points([(writer, metric(1, float(writer.attempt))) for writer in writers]) == [(1, 2.0, 2), (1, 3.0, 3)]


def test_a_declared_resume_step_hides_what_older_attempts_have_from_there_on() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2, resume_step=2)
    logged = [(first, metric(step, float(step))) for step in (1, 2, 3, 4)] + [(second, metric(2, 20.0))]
    assert points(logged) == [(1, 1.0, 1), (2, 20.0, 2)]
    assert len(points(logged, attempts="all")) == 5


def test_a_resume_step_hides_by_the_step_also_on_other_axes_and_spares_rows_without_a_step() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2, resume_step=2)
    logged = [
        (first, metric(1, 1.0, axis="tokens", axis_value=100.0)),
        (first, metric(2, 2.0, axis="tokens", axis_value=1.0)),
        (first, metric(None, 3.0, axis="tokens", axis_value=300.0)),
        (second, metric(2, 9.0)),
    ]
    assert sorted(str(value) for _, value, _ in points(logged)) == ["1.0", "3.0", "9.0"]


def test_a_resume_step_counts_though_its_attempt_has_logged_nothing_yet() -> None:
    logged = [(Writer("w0"), metric(step, float(step))) for step in (1, 2)]
    assert points(logged, writers=[Writer("w1", attempt=2, resume_step=2)]) == [(1, 1.0, 1)]


def test_of_several_resume_steps_the_lowest_above_an_attempt_hides() -> None:
    writers = [
        Writer("w0", attempt=1),
        Writer("w1", attempt=2, resume_step=5),
        Writer("w2", attempt=3, resume_step=3),
        Writer("w3", attempt=4),
    ]
    logged = [(writer, metric(step, float(step), name=writer.writer)) for writer in writers for step in range(7)]
    counts = kept(logged).group_by("name").len().sort("name").rows()
    assert counts == [("w0", 3), ("w1", 3), ("w2", 7), ("w3", 7)]


def test_where_ranks_declare_different_resume_steps_the_lowest_counts() -> None:
    first = Writer("w0")
    second = [Writer("w1", rank=0, attempt=2, resume_step=4), Writer("w2", rank=1, attempt=2, resume_step=2)]
    assert points([(first, metric(step, 0.0)) for step in range(5)], writers=second) == [(0, 0.0, 1), (1, 0.0, 1)]


@pytest.mark.parametrize("incarnation", [0, 1])
def test_parts_of_a_whole_are_all_kept_within_an_incarnation(incarnation: int) -> None:
    first, other = Writer("w0"), Writer("w1", incarnation=incarnation)
    logged = [(first, metric(1, 1.0)), (first, metric(1, 2.0)), (other, metric(1, 3.0)), (first, metric(2, 4.0))]
    values = [value for _, value, _ in points(logged, repeats="all")]
    assert values == ([1.0, 2.0, 3.0, 4.0] if incarnation == 0 else [3.0, 4.0])
