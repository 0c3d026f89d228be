"""Stragglers: how often, how long and on which node others waited for a rank, in numbers done by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl
import pytest

from rl_eventlog import reduce
from tests.support.rows import Writer, identities_of, rows_of

Logged = Sequence[tuple[Writer, dict[str, Any]]]


def spans(seconds: Mapping[Writer, Sequence[float | None]]) -> list[tuple[Writer, dict[str, Any]]]:
    """One span a writer and step; None: it has none in that step."""
    return [
        (writer, {"name": "train", "step": step, "duration_seconds": value, "count": 1})
        for writer, values in seconds.items()
        for step, value in enumerate(values)
        if value is not None
    ]


def stragglers(logged: Logged, **options: Any) -> pl.DataFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    rows = reduce.identify(rows_of("timings", logged).lazy(), identities)
    view = reduce.select_view(rows, identities, by=("name", "step"), repeats="all", **options)
    return reduce.find_stragglers(view).collect().sort("lost_seconds", "rank", descending=[True, False])


def ranks(count: int) -> list[Writer]:
    return [Writer(f"w{rank}", rank=rank, node=f"n{rank // 2}") for rank in range(count)]


def test_a_slow_rank_and_a_rank_that_was_slow_once_are_told_apart() -> None:
    seconds = [[1.0] * 10 for _ in range(4)]
    seconds[1] = [1.5] * 10
    seconds[2][4] = 9.0
    frame = stragglers(spans(dict(zip(ranks(4), seconds, strict=True))))
    assert frame.rows() == [
        # role, name, rank, node, steps, slowest, share, lost, worst, ratio, own seconds
        ("trainer", "train", 2, "n1", 10, 1, 0.1, 8.0, 8.0, 1.0, 18.0),
        ("trainer", "train", 1, "n0", 10, 9, 0.9, 4.5, 0.5, 1.5, 15.0),
        ("trainer", "train", 0, "n0", 10, 0, 0.0, 0.0, 0.0, 1.0, 10.0),
        ("trainer", "train", 3, "n1", 10, 0, 0.0, 0.0, 0.0, 1.0, 10.0),
    ]
    assert dict(frame.schema) == {
        "role": pl.String,
        "name": pl.String,
        "rank": pl.Int32,
        "node": pl.String,
        "steps": pl.Int32,
        "slowest_steps": pl.Int32,
        "slowest_share": pl.Float64,
        **dict.fromkeys(("lost_seconds", "worst_seconds", "median_ratio", "duration_seconds"), pl.Float64),
    }


def test_two_slow_ranks_of_a_node_do_not_hide_each_other() -> None:
    """Against the second slowest neither would have cost anything."""
    frame = stragglers(
        spans(dict(zip(ranks(5), [[1.0] * 4, [1.0] * 4, [3, 2, 3, 2], [2, 3, 2, 3], [1.0] * 4], strict=True)))
    )
    found = frame.select("rank", "node", "slowest_steps", "lost_seconds", "median_ratio").rows()
    assert found[:2] == [(2, "n1", 2, 4.0, 2.5), (3, "n1", 2, 4.0, 2.5)]


def test_of_two_ranks_the_faster_one_is_typical() -> None:
    first, second = ranks(2)
    (slow, fast) = stragglers(spans({first: [2.0, 2.0], second: [3.0, 2.0]})).rows(named=True)
    assert (slow["rank"], slow["slowest_steps"], slow["lost_seconds"], slow["median_ratio"]) == (1, 1, 1.0, 1.25)
    assert (fast["slowest_steps"], fast["lost_seconds"]) == (0, 0.0)


def test_even_ranks_lose_nothing_and_of_equally_slow_ones_the_lowest_counts() -> None:
    even = stragglers(spans({key: [2.0] for key in ranks(3)}))
    assert even["slowest_steps"].to_list() == [0, 0, 0]
    tied = stragglers(spans(dict(zip(ranks(4), [[1.0], [5.0], [5.0], [1.0]], strict=True))))
    assert tied.select("rank", "slowest_steps", "lost_seconds").rows()[0] == (1, 1, 4.0)
    assert tied["slowest_steps"].sum() == 1


def test_steps_with_one_rank_without_a_step_and_without_a_finite_time_do_not_count() -> None:
    first, second = ranks(2)
    logged = spans({first: [1.0, 1.0, 1.0, math.nan], second: [4.0, None, math.inf, 1.0]})
    logged += [(writer, {**span, "step": None}) for writer, span in logged]
    assert stragglers(logged).select("rank", "steps", "lost_seconds").rows() == [(1, 1, 3.0), (0, 1, 0.0)]
    assert stragglers(spans({first: [1.0]})).is_empty()


def test_a_rank_that_moved_has_a_row_for_each_node() -> None:
    moved = [Writer("w0", node="bad"), Writer("w1", node="good", attempt=2, resume_step=1)]
    others = [Writer("w2", rank=1, node="b"), Writer("w3", rank=1, node="b", attempt=2, resume_step=1)]
    logged = spans({moved[0]: [3.0, 3.0], others[0]: [1.0, 1.0], moved[1]: [None, 1.0], others[1]: [None, 1.0]})
    columns = ["rank", "node", "steps", "lost_seconds"]
    assert stragglers(logged).select(columns).rows() == [(0, "bad", 1, 2.0), (0, "good", 1, 0.0), (1, "b", 2, 0.0)]
    everything = stragglers(logged, attempts="all").select(columns).rows()
    assert everything == [(0, "bad", 2, 4.0), (0, "good", 1, 0.0), (1, "b", 3, 0.0)]


def test_the_spans_of_a_step_add_up_before_ranks_are_compared() -> None:
    first, second = ranks(2)
    logged = [*spans({first: [1.0], second: [1.5]}), *spans({first: [1.0]})]
    assert stragglers(logged).select("rank", "lost_seconds").rows() == [(0, 0.5), (1, 0.0)]


def test_what_took_no_time_has_no_ratio() -> None:
    frame = stragglers(spans(dict(zip(ranks(3), [[0.0], [0.0], [1.0]], strict=True))))
    assert frame["lost_seconds"].to_list() == [1.0, 0.0, 0.0]
    assert frame["median_ratio"].to_list() == [None, None, None]


@pytest.mark.parametrize("count", [2, 5, 8])
def test_each_lost_second_is_counted_once(count: int) -> None:
    """What all ranks lost is what the role lost: the slowest rank over the typical one."""
    seconds = [[float((rank * 7 + step * 3) % 11) for step in range(6)] for rank in range(count)]
    columns = [sorted(step) for step in zip(*seconds, strict=True)]
    lost = sum(step[-1] - step[(count - 1) // 2] for step in columns)
    assert stragglers(spans(dict(zip(ranks(count), seconds, strict=True))))["lost_seconds"].sum() == lost
