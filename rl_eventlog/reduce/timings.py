"""Merging timings: the spans of a rank and step add up, then the slowest rank counts.

- Spans of one writer, and of its forks, are parts of a whole and add up; those of a later incarnation
  or attempt replace the earlier ones (`select_view(..., repeats="all")`).
- Every rank counts, whatever its `data_rank`. A NaN duration makes the results NaN.
- Timings without a step are one group whose step is null.
- Seconds are added up by rank, within it by age, so that the same rows give the same digits.
"""

from __future__ import annotations

import polars as pl

from .expressions import QUANTILES, linear_quantile, sum_in_order

_SECONDS = pl.col("duration_seconds")
_RANK_COLUMNS = ("rank", "data_rank", "node")
_MERGED_COLUMNS = (
    *("role", "name", "step", "time", "duration_seconds", "mean_seconds", "p95_seconds", "imbalance"),
    *("slowest_rank", "count", "ranks", "attempt"),
)


#: The slowest rank as a multiple of the mean: 1.0 where all are even; null where the mean is 0.
_IMBALANCE = pl.when(pl.col("mean_seconds") != 0).then(_SECONDS / pl.col("mean_seconds"))


def sum_spans(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add up the spans of each rank and step.

    Args:
        rows: timings as `select_view` returns them.

    Returns:
        One row a (role, rank, name, step, attempt), in no order: `role, name, step`, `time` (of the last
        span, UTC), `start` (of the first, UTC; null where unknown), `duration_seconds`, `count` (spans),
        `attempt, rank, data_rank, node`.
    """
    columns = ("role", "name", "step", "time", "start", "duration_seconds", "count", "attempt", *_RANK_COLUMNS)
    return spans_of_ranks(rows).select(columns)


def spans_of_ranks(rows: pl.LazyFrame) -> pl.LazyFrame:
    """As `sum_spans`, with `rank_key` and `_rank_order` (see `identify`)."""
    return rows.group_by("role", "name", "step", "attempt", "rank_key", "_rank_order").agg(
        pl.col("time").max(),
        pl.col("start").min(),
        sum_in_order(_SECONDS, pl.col("_age")),
        pl.col("count").sum(),
        pl.col(_RANK_COLUMNS).first(),
    )


def merge_timings(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Merge the ranks.

    Args:
        rows: timings as `select_view` returns them.

    Returns:
        One row a (role, name, step, attempt), in no order:

        - `role`, `name`, `step` (int64, null where none);
        - `time` (UTC, microseconds): the latest of the rows;
        - `duration_seconds`: of the slowest rank; `mean_seconds`, `p95_seconds` (linear): over the ranks;
        - `imbalance` (float64): the slowest rank over the mean, 1.0 where all are even; null where the mean is 0;
        - `slowest_rank` (int32): the lowest of the slowest; null where it has no number;
        - `count` (int64): spans of all ranks; `ranks` (int32): ranks with a span;
        - `attempt` (int32).
    """
    return (
        spans_of_ranks(rows)
        .group_by("role", "name", "step", "attempt")
        .agg(
            pl.col("time").max(),
            _SECONDS.nan_max(),
            pl.col("count").sum(),
            mean_seconds=sum_in_order(_SECONDS, pl.col("_rank_order")) / pl.len(),
            p95_seconds=linear_quantile(_SECONDS, QUANTILES["p95"]),
            slowest_rank=pl.col("rank").filter(_SECONDS.nan_max() == _SECONDS).min(),
            ranks=pl.len().cast(pl.Int32),
        )
        .with_columns(imbalance=_IMBALANCE)
        .select(_MERGED_COLUMNS)
    )
