"""Phases: labels nest, parts add up, and what is a label's own is what no part of it covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from rl_eventlog import reduce
from tests.support.rows import Writer, identities_of, rows_of

Logged = Sequence[tuple[Writer, dict[str, Any]]]
RANK_0, RANK_1 = Writer("w0"), Writer("w1", rank=1)

#: As NeMo RL's labels: a parent with parts, parts without a parent, and one label around all.
STEP = {
    "total_step_time": 20.0,
    "policy_training": 8.0,
    "policy_training/sharding_data": 1.0,
    "policy_training/submit/futures": 2.0,
    "prepare/total": 3.0,
    "prepare/refit": 2.0,
    "generation": 6.0,
}


def step_of(seconds: Mapping[str, float], step: int | None = 1, writer: Writer = RANK_0) -> list[tuple[Writer, Any]]:
    return [(writer, {"name": n, "step": step, "duration_seconds": s, "count": 1}) for n, s in seconds.items()]


def view(logged: Logged, **options: Any) -> pl.LazyFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    rows = reduce.identify(rows_of("timings", logged).lazy(), identities)
    return reduce.select_view(rows, identities, by=("name", "step"), repeats="all", **options)


def of_steps(logged: Logged, whole: str | None = None, **options: Any) -> dict[tuple[int, str], dict[str, Any]]:
    frame = reduce.phases_of_steps(view(logged, **options), whole=whole).collect()
    return {(row["step"], row["name"]): row for row in frame.to_dicts()}


def of_run(logged: Logged, whole: str | None = None, **options: Any) -> dict[str, dict[str, Any]]:
    frame = reduce.phases_of_run(view(logged, **options), whole=whole).collect()
    return {row["name"]: row for row in frame.to_dicts()}


def column(found: Mapping[tuple[int, str], Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {label: row[name] for (_, label), row in found.items()}


def test_a_label_is_part_of_the_nearest_one_above_it() -> None:
    found = of_steps(step_of(STEP), whole="total_step_time")
    assert {label: (row["parent"], row["depth"]) for (_, label), row in found.items()} == {
        "total_step_time": (None, 0),
        "policy_training": ("total_step_time", 1),
        "policy_training/sharding_data": ("policy_training", 2),
        "policy_training/submit/futures": ("policy_training", 2),  # nothing was timed as policy_training/submit
        "prepare/total": ("total_step_time", 1),
        "prepare/refit": ("total_step_time", 1),
        "generation": ("total_step_time", 1),
    }


def test_self_time_is_what_no_part_covers_and_adds_up_to_the_step() -> None:
    found = of_steps(step_of(STEP), whole="total_step_time")
    assert column(found, "self_seconds") == {
        "total_step_time": 20.0 - (8.0 + 3.0 + 2.0 + 6.0),
        "policy_training": 5.0,
        "policy_training/sharding_data": 1.0,
        "policy_training/submit/futures": 2.0,
        "prepare/total": 3.0,
        "prepare/refit": 2.0,
        "generation": 6.0,
    }
    assert column(found, "share")["policy_training"] == 0.4
    assert sum(column(found, "self_share").values()) == pytest.approx(1.0)


def test_without_a_label_around_all_the_step_is_the_sum_of_the_top_ones() -> None:
    found = of_steps(step_of({"a": 3.0, "a/b": 1.0, "c/d": 1.0}))
    assert column(found, "share") == {"a": 0.75, "a/b": 0.25, "c/d": 0.25}
    assert column(found, "self_share") == {"a": 0.5, "a/b": 0.25, "c/d": 0.25}
    assert column(found, "parent") == {"a": None, "a/b": "a", "c/d": None}


def test_a_name_that_only_begins_like_another_is_no_part_of_it() -> None:
    assert set(column(of_steps(step_of({"a": 1.0, "ab": 1.0, "a-b/c": 1.0})), "parent").values()) == {None}


def test_seconds_are_means_over_the_ranks_so_that_parts_add_up() -> None:
    """The slowest of each label would be 4 + 4 of 5."""
    logged = step_of({"a": 5.0, "a/b": 4.0, "a/c": 1.0}) + step_of({"a": 5.0, "a/b": 1.0, "a/c": 4.0}, writer=RANK_1)
    logged += step_of({"checkpoint": 3.0})
    found = of_steps(logged)
    assert column(found, "seconds") == {"a": 5.0, "a/b": 2.5, "a/c": 2.5, "checkpoint": 1.5}
    assert column(found, "ranks") == {"a": 2, "a/b": 2, "a/c": 2, "checkpoint": 1}
    assert column(found, "self_seconds")["a"] == 0.0


def test_parts_that_overlapped_leave_less_than_nothing() -> None:
    assert column(of_steps(step_of({"a": 2.0, "a/b": 2.0, "a/c": 1.5})), "self_seconds")["a"] == -1.5


def test_a_step_without_the_label_around_all_has_no_shares() -> None:
    found = of_steps([*step_of({"all": 4.0, "a": 1.0}), *step_of({"a": 1.0, "a/b": 1.0}, 2)], whole="all")
    assert {at: row["share"] for at, row in found.items()} == {
        (1, "all"): 1,
        (1, "a"): 0.25,
        (2, "a"): None,
        (2, "a/b"): None,
    }
    assert found[2, "a/b"]["parent"] == "a"


def test_the_label_around_all_may_lie_below_another_by_name() -> None:
    found = of_steps(
        step_of({"train": 3.0, "train/total": 9.0, "train/total/x": 1.0, "train/y": 1.0}), whole="train/total"
    )
    assert {label: (row["parent"], row["depth"]) for (_, label), row in found.items()} == {
        "train/total": (None, 0),
        "train/total/x": ("train/total", 1),
        "train": ("train/total", 1),
        "train/y": ("train", 2),
    }


def test_no_time_has_no_shares_and_timings_without_a_step_are_left_out() -> None:
    found = of_steps([*step_of({"a": 0.0}), *step_of({"setup": 9.0}, None)])
    assert {at: row["share"] for at, row in found.items()} == {(1, "a"): None}


def test_over_the_run_a_label_has_mean_median_and_its_share_of_all_steps() -> None:
    logged = [*step_of({"a": 1.0, "a/b": 0.5}), *step_of({"a": 2.0, "checkpoint": 3.0}, 2), *step_of({"a": 6.0}, 3)]
    found = of_run(logged)
    assert found["a"] == {
        "role": "trainer",
        "name": "a",
        "parent": None,
        "depth": 0,
        "steps": 3,
        "mean_seconds": 3.0,
        "median_seconds": 2.0,
        "seconds": 9.0,
        "share": 0.75,
        "self_seconds": 8.5,
        "self_share": 8.5 / 12.0,
    }
    once = found["checkpoint"]
    assert (once["steps"], once["mean_seconds"], once["share"]) == (1, 3.0, 0.25)
    assert (found["a/b"]["parent"], found["a/b"]["depth"]) == ("a", 1)


def test_over_the_run_steps_without_the_label_around_all_count_in_no_share() -> None:
    found = of_run([*step_of({"all": 4.0, "a": 1.0}), *step_of({"a": 8.0}, 2)], whole="all")
    assert (found["a"]["share"], found["a"]["seconds"], found["a"]["parent"]) == (0.25, 9.0, "all")
    assert of_run(step_of({"a": 1.0}), whole="all")["a"]["share"] is None


def test_each_attempt_has_its_step_and_roles_are_apart() -> None:
    second, other = Writer("w2", attempt=2), Writer("w3", role="eval")
    logged = [*step_of({"a": 1.0}), *step_of({"a": 3.0}, writer=second), *step_of({"a": 7.0}, writer=other)]
    frame = reduce.phases_of_steps(view(logged, attempts="all")).collect().sort("role", "attempt")
    assert frame.select("role", "attempt", "seconds", "share").rows() == [
        ("eval", 1, 7.0, 1.0),
        ("trainer", 1, 1.0, 1.0),
        ("trainer", 2, 3.0, 1.0),
    ]
    assert reduce.phases_of_run(view(logged)).collect().sort("role")["seconds"].to_list() == [7.0, 3.0]


def test_the_columns_are_as_documented() -> None:
    steps = reduce.phases_of_steps(view(step_of({"a": 1.0}))).collect()
    assert dict(steps.schema) == {
        "role": pl.String,
        "step": pl.Int64,
        "name": pl.String,
        "attempt": pl.Int32,
        "parent": pl.String,
        "depth": pl.Int32,
        "seconds": pl.Float64,
        "share": pl.Float64,
        "self_seconds": pl.Float64,
        "self_share": pl.Float64,
        "ranks": pl.Int32,
    }
    run = reduce.phases_of_run(view(step_of({"a": 1.0}))).collect()
    assert dict(run.schema) == {
        "role": pl.String,
        "name": pl.String,
        "parent": pl.String,
        "depth": pl.Int32,
        "steps": pl.Int32,
        **dict.fromkeys(("mean_seconds", "median_seconds", "seconds", "share"), pl.Float64),
        "self_seconds": pl.Float64,
        "self_share": pl.Float64,
    }
