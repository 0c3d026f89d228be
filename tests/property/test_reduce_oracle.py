"""Random logs of ranks, attempts, incarnations and forks: reduce agrees with a slow oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from rl_eventlog import reduce
from tests.support import reduce_oracle as oracle
from tests.support.rows import Writer, identities_of, reader_of, rows_of

NAN = math.nan  # one object, so that tuples which hold it are equal
Attempts = Literal["latest", "all"]
METRIC_KEY = ("role", "name", "axis", "position", "attempt")
TIMING_KEY = ("role", "name", "step", "attempt")

VALUES = st.one_of(
    st.sampled_from([None, math.nan, math.inf, -math.inf, 0.0, -0.0]),
    st.integers(-8, 8).map(float),
    st.floats(-1e6, 1e6, width=32),
)
WEIGHTS = st.sampled_from([None, None, 0.0, 0.5, 1.0, 7.0, -1.0, math.nan, math.inf])
DECLARATIONS = st.sampled_from([*reduce.REDUCTIONS, "median", None])
STEPS = st.sampled_from([None, 0, 1, 2])


@st.composite
def writers(draw: st.DrawFn) -> list[Writer]:
    """Writers of two roles, some ranks of which restarted, forked, or have no number."""
    count = draw(st.integers(1, 6))
    replicated = draw(st.sets(st.integers(0, 3)))
    found = []
    for index in range(count):
        rank = draw(st.sampled_from([None, 0, 1, 2, 3]))
        writer = Writer(
            f"w{draw(st.integers(0, 9))}{index}",
            role=draw(st.sampled_from(["trainer", "eval"])),
            rank=rank,
            data_rank=rank // 2 if rank in replicated else None,
            attempt=draw(st.integers(1, 3)),
            incarnation=draw(st.integers(0, 1)),
            resume_step=draw(st.sampled_from([None, None, 1, 2])),
            rank_key="actor" if rank is None and draw(st.booleans()) else "",
        )
        # a node of its own, another one after the second attempt
        found.append(replace(writer, node=f"{writer.key} {writer.attempt > 2}"))
    return found


@st.composite
def metric_rows(draw: st.DrawFn) -> dict[str, Any]:
    axis = draw(st.sampled_from([None, None, "tokens"]))
    return {
        "name": draw(st.sampled_from(["a", "b"])),
        "step": draw(STEPS),
        "axis": axis,
        "axis_value": draw(st.sampled_from([0.0, -0.0, 1.5, math.nan])) if axis else None,
        "value": draw(VALUES),
        "weight": draw(WEIGHTS),
        "reduction": draw(DECLARATIONS),
    }


@st.composite
def timing_rows(draw: st.DrawFn, names: st.SearchStrategy[str], seconds: st.SearchStrategy[float]) -> dict[str, Any]:
    return {
        "name": draw(names),
        "step": draw(STEPS),
        "duration_seconds": draw(seconds),
        "count": draw(st.integers(1, 3)),
    }


@st.composite
def logs(draw: st.DrawFn, rows: st.SearchStrategy[dict[str, Any]]) -> list[tuple[Writer, dict[str, Any]]]:
    ours = draw(writers())
    return draw(st.lists(st.tuples(st.sampled_from(ours), rows), max_size=24))


def place(row: dict[str, Any], key: Sequence[str]) -> tuple[str, ...]:
    """A key that compares NaN with NaN and 0.0 with -0.0."""
    return tuple(str(row[name] + 0.0 if isinstance(row[name], float) else row[name]) for name in key)


def assert_same(frame: pl.DataFrame, expected: list[dict[str, Any]], key: Sequence[str]) -> None:
    found = {place(row, key): row for row in frame.to_dicts()}
    wanted = {place(row, key): row for row in expected}
    assert len(found) == frame.height
    assert found.keys() == wanted.keys()
    for at, row in found.items():
        for column, value in wanted[at].items():
            if isinstance(value, float) and column not in key:
                assert row[column] == pytest.approx(value, rel=1e-9, abs=1e-9, nan_ok=True), (at, column)
            elif column not in key:
                assert row[column] == value, (at, column)


def normal(row: dict[str, Any]) -> dict[str, Any]:
    """The oracle compares positions with ==: one NaN, one zero."""
    if row["axis_value"] is None:
        return row
    return row | {"axis_value": NAN if math.isnan(row["axis_value"]) else row["axis_value"] + 0.0}


@st.composite
def points(draw: st.DrawFn) -> list[tuple[Writer, dict[str, Any]]]:
    """One row a rank of one point, for a few points of different reductions."""
    replicas = draw(st.sampled_from([None, 1, 2]))
    log = []
    for name in draw(st.lists(st.sampled_from(reduce.REDUCTIONS), min_size=4, max_size=4, unique=True)):
        for rank, value in enumerate(draw(st.lists(VALUES, min_size=1, max_size=5))):
            data_rank = None if replicas is None else rank // replicas
            values = {"name": name, "step": 0, "value": value, "weight": draw(WEIGHTS), "reduction": name}
            log.append((Writer(f"w{rank}", rank=rank, data_rank=data_rank), values))
    return draw(st.permutations(log))


@given(log=points())
@settings(max_examples=150)
def test_the_ranks_of_a_point_agree_with_the_oracle(log: list[tuple[Writer, dict[str, Any]]]) -> None:
    check_metrics(log, "latest")


@given(log=logs(metric_rows()), attempts=st.sampled_from(["latest", "all"]))
@settings(max_examples=120)
def test_metrics_agree_with_the_oracle(log: list[tuple[Writer, dict[str, Any]]], attempts: Attempts) -> None:
    check_metrics(log, attempts)


def check_metrics(log: list[tuple[Writer, dict[str, Any]]], attempts: Attempts) -> None:
    ours = list({writer.writer: writer for writer, _ in log}.values())
    by = ("name", "axis", "position")
    rows = rows_of("metrics", log)
    identities = identities_of(ours)
    lazy = reduce.with_position(reduce.identify(rows.lazy(), identities))
    view = reduce.select_view(lazy, identities, by=by, attempts=attempts)
    expected = oracle.view(oracle.known(map(normal, rows.to_dicts()), ours), ours, by, attempts, "last")
    merged = reduce.merge_metrics(reader_of(rows), identities, attempts=attempts).points
    assert_same(merged, oracle.merge_metrics(expected), METRIC_KEY)
    each = reduce.each_rank(view).collect()
    assert sorted(each.select("writer", "seq").rows()) == sorted((row["writer"], row["seq"]) for row in expected)


@given(
    log=logs(timing_rows(st.sampled_from(["a", "b"]), st.floats(0, 1e4, width=32))),
    attempts=st.sampled_from(["latest", "all"]),
)
@settings(max_examples=120)
def test_timings_agree_with_the_oracle(log: list[tuple[Writer, dict[str, Any]]], attempts: Attempts) -> None:
    view, expected = timings_view(log, attempts)
    assert_same(reduce.merge_timings(view).collect(), oracle.merge_timings(expected), TIMING_KEY)


def timings_view(
    log: list[tuple[Writer, dict[str, Any]]], attempts: Attempts
) -> tuple[pl.LazyFrame, list[dict[str, Any]]]:
    ours = list({writer.writer: writer for writer, _ in log}.values())
    by = ("name", "step")
    rows = rows_of("timings", log)
    identities = identities_of(ours)
    lazy = reduce.identify(rows.lazy(), identities)
    view = reduce.select_view(lazy, identities, by=by, attempts=attempts, repeats="all")
    return view, oracle.view(oracle.known(rows.to_dicts(), ours), ours, by, attempts, "all")


@given(
    log=logs(timing_rows(st.sampled_from(["a", "a/b", "a/b/c", "a/c", "d/e", "d"]), st.integers(0, 9).map(float))),
    attempts=st.sampled_from(["latest", "all"]),
    whole=st.sampled_from([None, "a", "a/b", "d", "never"]),
)
@settings(max_examples=150)
def test_stragglers_and_phases_agree_with_the_oracle(
    log: list[tuple[Writer, dict[str, Any]]], attempts: Attempts, whole: str | None
) -> None:
    view, expected = timings_view(log, attempts)
    found = reduce.find_stragglers(view).collect()
    assert_same(found, oracle.stragglers(expected), ("role", "name", "rank", "node"))
    phases = oracle.phases(expected, whole)
    assert_same(reduce.phases_of_steps(view, whole=whole).collect(), without(phases, "_total"), TIMING_KEY)
    over_steps = reduce.phases_of_run(view, whole=whole).collect()
    assert_same(over_steps, oracle.phases_over_steps(phases), ("role", "name"))


def without(rows: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != column} for row in rows]


@given(log=logs(metric_rows()))
@settings(max_examples=40)
def test_the_order_of_rows_and_writers_does_not_matter(log: list[tuple[Writer, dict[str, Any]]]) -> None:
    identities = identities_of({writer.writer: writer for writer, _ in log}.values())
    rows = rows_of("metrics", log)

    def answers(rows: pl.DataFrame, identities: pl.DataFrame) -> list[list[str]]:
        frames = reduce.merge_metrics(reader_of(rows), identities)
        return [sorted(map(str, frame.with_columns(pl.col(pl.Float64) + 0.0).rows())) for frame in frames]

    assert answers(rows, identities) == answers(rows.reverse(), identities.reverse())
