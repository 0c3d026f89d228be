"""Merging timings: spans of a rank add up, the slowest rank counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest

from rl_eventlog import reduce
from tests.support.rows import Writer, at, identities_of, rows_of

Logged = Sequence[tuple[Writer, dict[str, Any]]]


def span(seconds: float, step: int | None = 1, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": "train", "step": step, "duration_seconds": seconds, "count": count} | more


def view(logged: Logged, **options: Any) -> pl.LazyFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    rows = reduce.identify(rows_of("timings", logged).lazy(), identities)
    return reduce.select_view(rows, identities, by=("name", "step"), repeats="all", **options)


def merged(logged: Logged, **options: Any) -> list[dict[str, Any]]:
    return reduce.merge_timings(view(logged, **options)).collect().sort("name", "step", "attempt").to_dicts()


def test_spans_of_a_rank_add_up_then_the_slowest_rank_counts() -> None:
    seconds = {0: [1.0, 2.0], 1: [5.0], 2: [0.5, 0.5, 0.5], 3: [4.0]}
    logged = [(Writer(f"w{rank}", rank=rank), span(s)) for rank, spans in seconds.items() for s in spans]
    totals = [sum(spans) for spans in seconds.values()]
    (row,) = merged(logged)
    assert row["duration_seconds"] == 5.0
    assert row["slowest_rank"] == 1
    assert row["mean_seconds"] == pytest.approx(np.mean(totals), rel=1e-12)
    assert row["p95_seconds"] == pytest.approx(np.quantile(totals, 0.95), rel=1e-12)
    assert (row["count"], row["ranks"]) == (7, 4)


def test_the_columns_are_as_documented() -> None:
    logged = [(Writer("w0"), span(1.0, time=at(5), count=3)), (Writer("w1", rank=1), span(2.0, time=at(4)))]
    frame = reduce.merge_timings(view(logged)).collect()
    assert dict(frame.schema) == {
        "role": pl.String,
        "name": pl.String,
        "step": pl.Int64,
        "time": pl.Datetime("us", "UTC"),
        "duration_seconds": pl.Float64,
        "mean_seconds": pl.Float64,
        "p95_seconds": pl.Float64,
        "imbalance": pl.Float64,
        "slowest_rank": pl.Int32,
        "count": pl.Int64,
        "ranks": pl.Int32,
        "attempt": pl.Int32,
    }
    assert frame.rows() == [("trainer", "train", 1, at(5), 2.0, 1.5, pytest.approx(1.95), 2.0 / 1.5, 1, 4, 2, 1)]


def test_the_imbalance_is_one_where_ranks_are_even_and_null_where_none_took_time() -> None:
    def imbalance(*seconds: float) -> float | None:
        (row,) = merged([(Writer(f"w{rank}", rank=rank), span(value)) for rank, value in enumerate(seconds)])
        found: float | None = row["imbalance"]
        return found

    assert imbalance(2.0, 2.0, 2.0) == 1.0
    assert imbalance(1.0, 1.0, 4.0) == 2.0
    assert imbalance(3.0) == 1.0
    assert imbalance(0.0, 0.0) is None
    assert math.isnan(imbalance(1.0, math.nan) or 0.0)


def test_every_rank_of_a_replica_counts() -> None:
    logged = [(Writer(f"w{rank}", rank=rank, data_rank=0), span(float(rank))) for rank in range(3)]
    (row,) = merged(logged)
    assert (row["duration_seconds"], row["mean_seconds"], row["ranks"]) == (2.0, 1.0, 3)


def test_of_equally_slow_ranks_the_lowest_is_named() -> None:
    assert merged([(Writer(f"w{rank}", rank=rank), span(2.0)) for rank in (3, 1, 2)])[0]["slowest_rank"] == 1


def test_a_rank_without_a_number_cannot_be_named() -> None:
    (row,) = merged([(Writer("w0", rank=None), span(9.0)), (Writer("w1", rank=1), span(2.0))])
    assert (row["duration_seconds"], row["slowest_rank"], row["ranks"]) == (9.0, None, 2)


def test_spans_of_a_fork_add_to_those_of_its_parent() -> None:
    (row,) = merged([(Writer("w0"), span(1.0)), (Writer("w1"), span(2.0))])
    assert (row["duration_seconds"], row["count"], row["ranks"]) == (3.0, 2, 1)


def test_spans_of_a_later_incarnation_replace_the_earlier_ones_of_the_step() -> None:
    first, second = Writer("w0"), Writer("w1", incarnation=1)
    logged = [(first, span(1.0)), (first, span(1.0)), (first, span(4.0, step=0)), (second, span(7.0))]
    assert [(row["step"], row["duration_seconds"]) for row in merged(logged)] == [(0, 4.0), (1, 7.0)]


def test_the_latest_attempt_wins_and_all_attempts_can_be_seen() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2, resume_step=2)
    logged = [(first, span(float(step), step=step)) for step in (1, 2, 3)] + [(second, span(20.0, step=2))]
    assert [(r["step"], r["duration_seconds"], r["attempt"]) for r in merged(logged)] == [(1, 1.0, 1), (2, 20.0, 2)]
    assert [(r["step"], r["attempt"]) for r in merged(logged, attempts="all")] == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_timings_without_a_step_are_one_group() -> None:
    logged = [(Writer("w0"), span(1.0, step=None)), (Writer("w0"), span(2.0, step=None)), (Writer("w0"), span(4.0))]
    assert [(row["step"], row["duration_seconds"]) for row in merged(logged)] == [(None, 3.0), (1, 4.0)]


def test_a_nan_duration_is_seen() -> None:
    (row,) = merged([(Writer("w0"), span(1.0)), (Writer("w1", rank=1), span(math.nan))])
    assert all(math.isnan(row[name]) for name in ("duration_seconds", "mean_seconds", "p95_seconds", "imbalance"))
    assert row["slowest_rank"] == 1


def test_each_rank_shows_its_sum_and_where_it_ran() -> None:
    logged = [
        (Writer("w0", node="n0"), span(1.0, start=at(3), time=at(4))),
        (Writer("w0", node="n0"), span(2.0, start=at(1), time=at(3))),
        (Writer("w1", rank=1, data_rank=1, node="n1"), span(5.0, count=2, time=at(9))),
    ]
    frame = reduce.sum_spans(view(logged)).collect().sort("rank")
    assert frame.columns == [
        *("role", "name", "step", "time", "start", "duration_seconds", "count", "attempt"),
        *("rank", "data_rank", "node"),
    ]
    assert frame.rows() == [
        ("trainer", "train", 1, at(4), at(1), 3.0, 2, 1, 0, None, "n0"),
        ("trainer", "train", 1, at(9), None, 5.0, 2, 1, 1, 1, "n1"),
    ]


@pytest.mark.parametrize(
    "merge", [reduce.merge_timings, reduce.find_stragglers, reduce.phases_of_steps, reduce.phases_of_run]
)
def test_the_same_spans_give_the_same_digits_in_any_order(merge: Callable[[pl.LazyFrame], pl.LazyFrame]) -> None:
    draw = np.random.default_rng(7)
    writers = [Writer(f"w{rank:02d}", rank=rank) for rank in range(40)]
    logged = [
        (writer, span(float(draw.random() * 1e6), step, name=name))
        for writer in writers
        for step in range(20)
        for name in ("train", "train/a", "train/b", "train/a")
    ]
    rows, identities = rows_of("timings", logged), identities_of(writers)
    results = []
    for seed in range(4):
        shuffled = reduce.identify(rows.sample(fraction=1.0, shuffle=True, seed=seed).lazy(), identities)
        chosen = reduce.select_view(shuffled, identities, by=("name", "step"), repeats="all")
        result = merge(chosen).collect()
        results.append(result.sort([name for name in ("name", "step", "rank") if name in result.columns]))
    assert all(result.equals(results[0]) for result in results)
