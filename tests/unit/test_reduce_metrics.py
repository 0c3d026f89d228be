"""The merge table of metrics, one test a line, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest

from rl_eventlog import reduce
from rl_eventlog.reduce import REDUCTIONS
from rl_eventlog.reduce.expressions import QUANTILES
from rl_eventlog.reduce.states import _ADD
from tests.support.rows import Writer, at, identities_of, reader_of, rows_of

NAN, INF = math.nan, math.inf
Logged = Sequence[tuple[Writer, dict[str, Any]]]


def metric(value: float | None, reduction: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "m", "step": 1, "value": value, "reduction": reduction, **more}


def ranks(*values: float | None, reduction: str | None = None, weights: Sequence[float | None] = ()) -> Logged:
    """One row a rank."""
    padded = [*weights, *[None] * (len(values) - len(weights))]
    return [
        (Writer(f"w{rank}", rank=rank), metric(value, reduction, weight=weight))
        for rank, (value, weight) in enumerate(zip(values, padded, strict=True))
    ]


def view(logged: Logged, **options: Any) -> pl.LazyFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    rows = reduce.with_position(reduce.identify(rows_of("metrics", logged).lazy(), identities))
    return reduce.select_view(rows, identities, by=("name", "axis", "position"), **options)


def merged(logged: Logged, **options: Any) -> list[dict[str, Any]]:
    return merged_frame(logged, **options).to_dicts()


def merged_frame(logged: Logged, **options: Any) -> pl.DataFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    return reduce.merge_metrics(reader_of(rows_of("metrics", logged)), identities, **options).points


def value_of(logged: Logged) -> float | None:
    (row,) = merged(logged)
    value: float | None = row["value"]
    return value


def warnings_of(logged: Logged) -> list[tuple[str, ...]]:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    return reduce.merge_metrics(reader_of(rows_of("metrics", logged)), identities).warnings.rows()


NUMPY: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "std": np.std,
    **{f"p{p}": partial(np.percentile, q=p) for p in (50, 90, 95, 99)},
}


@pytest.mark.parametrize("reduction", NUMPY)
def test_each_reduction_is_numpys(reduction: str) -> None:
    values = np.random.default_rng(7).normal(size=11)
    assert value_of(ranks(*values, reduction=reduction)) == pytest.approx(NUMPY[reduction](values), rel=1e-12)


def test_the_tested_reductions_are_all_there_are() -> None:
    assert set(REDUCTIONS) == {*NUMPY, "last", "none"} == {*_ADD, *QUANTILES, "none"}


def test_an_undeclared_reduction_is_the_mean() -> None:
    assert value_of(ranks(1.0, 4.0)) == 2.5


@pytest.mark.parametrize("reduction", [*NUMPY, "last"])
def test_null_is_ignored(reduction: str) -> None:
    assert value_of(ranks(None, 3.0, 5.0, reduction=reduction)) == value_of(ranks(3.0, 5.0, reduction=reduction))


@pytest.mark.parametrize("reduction", [*NUMPY, "last"])
def test_nothing_but_null_is_null_and_no_zero(reduction: str) -> None:
    (row,) = merged(ranks(None, None, reduction=reduction))
    assert row["value"] is None
    assert (row["ranks"], row["ranks_nan"]) == (2, 0)


@pytest.mark.parametrize("reduction", NUMPY)
def test_nan_in_any_rank_makes_the_result_nan_and_is_counted(reduction: str) -> None:
    (row,) = merged(ranks(1.0, NAN, 3.0, NAN, reduction=reduction))
    assert math.isnan(row["value"])
    assert (row["ranks"], row["ranks_nan"]) == (4, 2)


def test_nan_in_a_rank_that_does_not_count_is_counted_as_nan_only() -> None:
    (row,) = merged(ranks(1.0, NAN, weights=[1.0, 0.0]))
    assert (row["value"], row["ranks"], row["ranks_nan"]) == (1.0, 2, 1)


@pytest.mark.parametrize("reduction", ["mean", "sum", "std"])
def test_opposite_infinities_are_nan(reduction: str) -> None:
    result = value_of(ranks(INF, -INF, reduction=reduction))
    assert result is not None
    assert math.isnan(result)


@pytest.mark.parametrize(
    ("reduction", "values", "expected"),
    [
        ("mean", (1.0, INF), INF),
        ("sum", (1.0, -INF), -INF),
        ("min", (INF, -INF, 0.0), -INF),
        ("max", (INF, -INF, 0.0), INF),
        ("p50", (-INF, 2.0, INF), 2.0),
        ("p90", (INF, INF), INF),
        ("p50", (1.0, INF), INF),
        ("p50", (-INF, 1.0), -INF),
        ("last", (-INF, 1.0), -INF),
    ],
)
def test_an_infinity_is_a_value(reduction: str, values: tuple[float, ...], expected: float) -> None:
    (row,) = merged(ranks(*values, reduction=reduction))
    assert (row["value"], row["ranks_nan"]) == (expected, 0)


def test_the_mean_is_weighted() -> None:
    expected = np.average([1.0, 2.0, 5.0], weights=[10.0, 0.5, 3.0])
    assert value_of(ranks(1.0, 2.0, 5.0, weights=[10.0, 0.5, 3.0])) == pytest.approx(expected, rel=1e-12)


def test_a_null_weight_is_one() -> None:
    assert value_of(ranks(1.0, 5.0, weights=[None, 3.0])) == 4.0


@pytest.mark.parametrize("reduction", ["mean", "std"])
def test_a_row_of_weight_zero_is_ignored(reduction: str) -> None:
    logged = ranks(1.0, 5.0, INF, reduction=reduction, weights=[1.0, 1.0, 0.0])
    assert value_of(logged) == value_of(ranks(1.0, 5.0, reduction=reduction))
    assert warnings_of(logged) == []


@pytest.mark.parametrize("reduction", ["mean", "std"])
def test_nothing_but_weight_zero_is_null(reduction: str) -> None:
    assert value_of(ranks(1.0, 5.0, reduction=reduction, weights=[0.0, 0.0])) is None


@pytest.mark.parametrize("bad", [-1.0, NAN, INF])
@pytest.mark.parametrize("reduction", ["mean", "std"])
def test_a_row_of_impossible_weight_is_not_used_and_reported(reduction: str, bad: float) -> None:
    logged = ranks(1.0, 5.0, 99.0, reduction=reduction, weights=[1.0, 1.0, bad])
    assert value_of(logged) == value_of(ranks(1.0, 5.0, reduction=reduction))
    detail = "1 rows with a negative, NaN or infinite weight are left out"
    assert warnings_of(logged) == [("bad_weight", "trainer", "m", detail)]


@pytest.mark.parametrize("reduction", ["sum", "min", "max", "last", "p50", "p90", "p95", "p99"])
def test_weights_count_in_mean_and_std_only(reduction: str) -> None:
    values = (4.0, 1.0, 7.0)
    logged = ranks(*values, reduction=reduction, weights=[0.0, 100.0, 3.0])
    assert value_of(logged) == value_of(ranks(*values, reduction=reduction))


def test_std_is_the_weighted_population_one() -> None:
    values, weights = np.array([1.0, 2.0, 5.0]), np.array([10.0, 0.5, 3.0])
    mean = np.average(values, weights=weights)
    expected = math.sqrt(np.average((values - mean) ** 2, weights=weights))
    logged = ranks(*values, reduction="std", weights=weights.tolist())
    assert value_of(logged) == pytest.approx(expected, rel=1e-12)


def test_std_of_large_close_values_is_exact() -> None:
    values = [1e9 + 0.25, 1e9, 1e9 - 0.25]
    assert value_of(ranks(*values, reduction="std")) == pytest.approx(np.std(values), rel=1e-6)


def test_std_of_one_rank_is_zero() -> None:
    assert value_of(ranks(3.0, reduction="std")) == 0.0


def tensor_parallel(*values: float | None, reduction: str | None) -> Logged:
    """Two ranks a replica: ranks 0 and 1 see the same data, and so do 2 and 3."""
    return [(Writer(f"w{r}", rank=r, data_rank=r // 2), metric(v, reduction)) for r, v in enumerate(values)]


@pytest.mark.parametrize(("reduction", "expected"), [("mean", 2.0), ("sum", 4.0), ("std", 1.0)])
def test_mean_sum_and_std_count_each_replica_once(reduction: str, expected: float) -> None:
    logged = tensor_parallel(1.0, 1.0, 3.0, 3.0, reduction=reduction)
    (row,) = merged(logged)
    assert (row["value"], row["ranks"]) == (expected, 4)
    assert warnings_of(logged) == []


def test_the_lowest_rank_with_a_value_stands_for_its_replica_and_a_difference_is_reported() -> None:
    logged = tensor_parallel(None, 10.0, 3.0, 99.0, reduction="sum")
    assert value_of(logged) == 13.0
    detail = "ranks of one data_rank differ at 1 positions; the lowest rank counts"
    assert warnings_of(logged) == [("replicas_differ", "trainer", "m", detail)]


def test_nan_in_a_rank_whose_replica_another_rank_stands_for_does_not_spoil_the_sum() -> None:
    (row,) = merged(tensor_parallel(1.0, NAN, 3.0, 3.0, reduction="sum"))
    assert (row["value"], row["ranks_nan"]) == (4.0, 1)


def test_ranks_without_a_data_rank_count_each_beside_replicas() -> None:
    logged = [*tensor_parallel(1.0, 1.0, reduction="sum"), (Writer("w9", rank=9), metric(5.0, "sum"))]
    assert value_of(logged) == 6.0


@pytest.mark.parametrize("reduction", ["min", "max", "last", "p50", "p90"])
def test_min_max_last_and_quantiles_use_every_rank(reduction: str) -> None:
    values = (4.0, 0.0, 9.0, 10.0)
    expected = {"min": 0.0, "max": 10.0, "last": 4.0, "p50": 6.5, "p90": np.quantile(values, 0.9)}[reduction]
    assert value_of(tensor_parallel(*values, reduction=reduction)) == pytest.approx(expected, rel=1e-12)


def test_last_is_the_lowest_ranks_whoever_logged_last() -> None:
    logged = [
        (Writer("w3", rank=None), metric(0.0, "last")),
        (Writer("w2", rank=2), metric(2.0, "last")),
        (Writer("w1", rank=1), metric(1.0, "last")),
        (Writer("w4", rank=4), metric(NAN, "last")),
    ]
    assert value_of(logged) == 1.0


def test_last_takes_nan_for_a_value() -> None:
    (row,) = merged(ranks(None, NAN, 1.0, reduction="last"))
    assert math.isnan(row["value"])


def test_none_is_shown_rank_by_rank_only() -> None:
    logged = ranks(1.0, NAN, reduction="none")
    assert merged(logged) == []
    assert warnings_of(logged) == []
    each = reduce.each_rank(view(logged)).collect().sort("rank")
    assert each.columns == [
        *("role", "name", "axis", "step", "position", "time", "value", "ranks", "ranks_nan", "attempt"),
        *("rank", "data_rank", "node", "writer", "seq", "weight", "reduction"),
    ]
    assert each.select("rank", "ranks", "ranks_nan", "reduction").rows() == [(0, 1, 0, "none"), (1, 1, 1, "none")]
    assert each["value"][0] == 1.0


def test_an_unknown_reduction_is_as_none_and_reported() -> None:
    logged = ranks(1.0, 2.0, reduction="geometric_mean")
    assert merged(logged) == []
    assert reduce.each_rank(view(logged)).collect().height == 2
    assert warnings_of(logged) == [("unknown_reduction", "trainer", "m", "geometric_mean: ranks are not merged")]


def test_of_changed_declarations_the_newest_attempts_holds_for_all_positions_and_is_reported() -> None:
    logged = [
        (Writer("a0", rank=0, attempt=1), metric(1.0, "max", step=1)),
        (Writer("a1", rank=1, attempt=1), metric(3.0, "max", step=1)),
        (Writer("b1", rank=1, attempt=2), metric(5.0, "sum", step=2)),
    ]
    assert [row["value"] for row in merged(logged)] == [4.0, 5.0]
    detail = "declared as max, sum; sum is used"
    assert warnings_of(logged) == [("changed_reduction", "trainer", "m", detail)]


def test_within_an_attempt_the_lowest_ranks_declaration_holds() -> None:
    logged = [
        (Writer("w2", rank=2), metric(3.0, "min")),
        (Writer("w1", rank=1), metric(1.0, "sum")),
        (Writer("w3", rank=None), metric(1.0, "max")),
    ]
    assert value_of(logged) == 5.0
    assert warnings_of(logged) == [
        ("changed_reduction", "trainer", "m", "declared as max, min, sum; sum is used"),
    ]


def test_within_a_rank_the_last_declaration_holds() -> None:
    writer = Writer("w0")
    logged = [
        (writer, metric(1.0, "min", step=1)),
        (writer, metric(2.0, "sum", step=2)),
        (Writer("w1", rank=1), metric(7.0, "min", step=1)),
    ]
    assert [row["value"] for row in merged(logged)] == [8.0, 2.0]


def test_a_declaration_holds_where_others_left_it_out_and_that_is_reported() -> None:
    logged = [(Writer("w0"), metric(1.0)), (Writer("w1", rank=1), metric(3.0, "sum"))]
    assert value_of(logged) == 4.0
    assert warnings_of(logged) == [("changed_reduction", "trainer", "m", "declared as mean, sum; sum is used")]


def test_declarations_of_other_series_do_not_count() -> None:
    logged = [
        (Writer("w0"), metric(1.0, "sum")),
        (Writer("w1", rank=1), metric(3.0, "sum")),
        (Writer("e0", role="eval"), metric(1.0)),
        (Writer("w0"), metric(9.0, "max", axis="tokens", axis_value=5.0)),
    ]
    by_series = {(row["role"], row["axis"]): row["value"] for row in merged(logged)}
    assert by_series == {("trainer", None): 4.0, ("eval", None): 1.0, ("trainer", "tokens"): 9.0}
    assert warnings_of(logged) == []


def test_the_result_has_the_latest_time_and_the_documented_columns_and_types() -> None:
    logged = [
        (Writer("w0"), metric(1.0, time=at(9), axis="tokens", axis_value=2.5, step=4)),
        (Writer("w1", rank=1), metric(3.0, time=at(20), axis="tokens", axis_value=2.5, step=5)),
        (Writer("w2", rank=2), metric(5.0, time=at(3), axis="tokens", axis_value=2.5, step=None)),
    ]
    frame = merged_frame(logged)
    assert dict(frame.schema) == {
        "role": pl.String,
        "name": pl.String,
        "axis": pl.String,
        "step": pl.Int64,
        "position": pl.Float64,
        "time": pl.Datetime("us", "UTC"),
        "value": pl.Float64,
        "ranks": pl.Int32,
        "ranks_nan": pl.Int32,
        "attempt": pl.Int32,
    }
    assert frame.rows() == [("trainer", "m", "tokens", 5, 2.5, at(20), 3.0, 3, 0, 1)]


def test_rows_without_step_and_axis_are_one_point_without_position() -> None:
    (row,) = merged([(Writer("w0"), metric(1.0, step=None)), (Writer("w1", rank=1), metric(3.0, step=None))])
    assert (row["step"], row["position"], row["value"]) == (None, None, 2.0)


def test_no_rows_are_no_points_and_no_warnings() -> None:
    empty = rows_of("metrics", []).lazy()
    identities = identities_of([])
    rows = reduce.with_position(reduce.identify(empty, identities))
    rows = reduce.select_view(rows, identities, by=("name", "axis", "position"))
    assert merged_frame([]).height == 0
    assert reduce.each_rank(rows).collect().height == 0
    assert warnings_of([]) == []


@pytest.mark.parametrize("reduction", ["mean", "sum", "std"])
def test_the_same_rows_give_the_same_digits_in_whatever_order_writers_are_listed(reduction: str) -> None:
    draw = np.random.default_rng(7)
    writers = [Writer(f"w{rank:02d}", rank=rank) for rank in range(40)]
    logged = [
        (writer, metric(float(draw.normal() * 1e6), reduction, weight=float(draw.random()), step=step))
        for writer in writers
        for step in range(50)
    ]
    read = reader_of(rows_of("metrics", logged))
    listed = [identities_of(writers).sample(fraction=1.0, shuffle=True, seed=seed) for seed in range(4)]
    assert len({tuple(reduce.merge_metrics(read, identities).points["value"]) for identities in listed}) == 1
