"""Merging metrics over ranks: one value a (series, position), by the reduction its writers declared.

- Null values are ignored. A NaN among the counted values makes every reduction but `last` NaN; the
  infinities are values like others (`inf + -inf` is NaN).
- Weights count in `mean` and `std` only: null is 1, a row of weight 0 is left out, and so is one whose
  weight is negative, NaN or infinite (`metric_warnings` reports those).
- `mean`, `sum` and `std` count one row a data-parallel replica: where `data_rank` is set, that of its
  lowest rank with a value. `min`, `max`, `last` and the quantiles use every rank.
- Nothing to count gives null, never 0.
- Values are added up by rank, so that the same rows give the same digits in whatever files they lie.
- One reduction holds for a series: of the declared ones that of the newest attempt, there of its lowest
  rank, there of its last row. Undeclared is `mean`; `none` and unknown ones are not merged.
"""

from __future__ import annotations

import polars as pl

from rl_eventlog.types import REDUCTIONS

SERIES = ("role", "name", "axis")
_POINT = (*SERIES, "position", "attempt")

MERGED_COLUMNS = ("role", "name", "axis", "step", "position", "time", "value", "ranks", "ranks_nan", "attempt")
RANK_COLUMNS = ("rank", "data_rank", "node", "writer", "seq", "weight", "reduction")

#: Quantiles over all ranks: numpy's linear interpolation, unweighted.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def sum_in_order(values: pl.Expr, order: pl.Expr) -> pl.Expr:
    """The sum of a group's values, added up in one order; null of none.

    Not `sum`, before which Polars drops a sort: floats added in another order end in other digits.
    """
    return values.sort_by(order).cum_sum().last()


_VALUE = pl.col("value")
_COUNTED = pl.col("value").filter("_counted")
_COUNTED_ORDER = pl.col("_rank_order").filter("_counted")
_WEIGHTED = pl.col("value").filter("_weighted")
_WEIGHTED_ORDER = pl.col("_rank_order").filter("_weighted")
_WEIGHT = pl.col("weight").fill_null(1.0).filter("_weighted")
_TOTAL_WEIGHT = sum_in_order(_WEIGHT, _WEIGHTED_ORDER)
_MEAN = sum_in_order(_WEIGHTED * _WEIGHT, _WEIGHTED_ORDER) / _TOTAL_WEIGHT
_VARIANCE = sum_in_order((_WEIGHTED - _MEAN).pow(2) * _WEIGHT, _WEIGHTED_ORDER) / _TOTAL_WEIGHT
_USABLE_WEIGHT = pl.col("weight").is_null() | ((pl.col("weight") >= 0) & pl.col("weight").is_finite())


def linear_quantile(values: pl.Expr, q: float) -> pl.Expr:
    """The linear quantile of a group's values, as numpy's: NaN if one is NaN; an infinity is a value."""
    linear = values.quantile(q, "linear")
    # Where an infinity takes part, the sum of the neighbours is it, and NaN only between both infinities.
    neighbours = values.quantile(q, "lower") + values.quantile(q, "higher")
    sound = pl.when(linear.is_finite()).then(linear).otherwise(neighbours)
    return pl.when(values.is_nan().any()).then(float("nan")).otherwise(sound)


#: reduction -> the merged value of the rows of one point
_MERGES: dict[str, pl.Expr] = {
    "mean": _MEAN,
    "sum": sum_in_order(_COUNTED, _COUNTED_ORDER),
    "min": _VALUE.nan_min(),
    "max": _VALUE.nan_max(),
    "last": _VALUE.get(pl.col("_value_order").arg_min()),
    "std": _VARIANCE.sqrt(),
    **{name: linear_quantile(_VALUE, q) for name, q in QUANTILES.items()},
}


def merge_metrics(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Merge the ranks.

    Args:
        rows: metrics as `select_view` returns them with `position`: one row a rank, attempt, series
            and position.

    Returns:
        One row a (role, name, axis, position, attempt), in no order:

        - `role`, `name`, `axis` (null: the training step): the series;
        - `step` (int64): the highest of the rows; null where none has one;
        - `position` (float64): on the axis; the step where there is none;
        - `time` (UTC, microseconds): the latest of the rows;
        - `value` (float64);
        - `ranks`, `ranks_nan` (int32): ranks with a row, with a NaN, whether they counted or not;
        - `attempt` (int32).
    """
    # without the cache each reduction below would read the files anew
    ready = _count_replicas_once(_settle_reductions(rows.cache())).cache()
    merged = [
        ready.filter(pl.col("_reduction") == reduction)
        .group_by(_POINT)
        .agg(
            pl.col("step").max(),
            pl.col("time").max(),
            value=merge,
            ranks=pl.len().cast(pl.Int32),
            ranks_nan=_VALUE.is_nan().sum().cast(pl.Int32),
        )
        for reduction, merge in _MERGES.items()
    ]
    return pl.concat(merged).select(MERGED_COLUMNS)


def each_rank(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of every rank, not merged.

    Args:
        rows: as for `merge_metrics`.

    Returns:
        The columns of `merge_metrics`, where `ranks` is 1, and `rank`, `data_rank`, `node`, `writer`,
        `seq`, `weight`, `reduction` as logged.
    """
    counts = {"ranks": pl.lit(1, pl.Int32), "ranks_nan": _VALUE.is_nan().fill_null(value=False).cast(pl.Int32)}
    return rows.with_columns(**counts).select(*MERGED_COLUMNS, *RANK_COLUMNS)


def metric_warnings(rows: pl.LazyFrame) -> pl.LazyFrame:
    """What merging had to decide or to leave out.

    Args:
        rows: as for `merge_metrics`.

    Returns:
        `kind, role, name, detail`, in order. Kinds: `changed_reduction`, `unknown_reduction`,
        `bad_weight`, `replicas_differ`.
    """
    found = [_changed_reductions(rows), _unknown_reductions(rows), _bad_weights(rows), _differing_replicas(rows)]
    return pl.concat(found).sort("kind", "role", "name", "detail")


def _settle_reductions(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add `_reduction`: the one that holds for the series, null where the series is not merged."""
    declared = (
        rows.group_by(*SERIES, "reduction")
        .agg(pl.col("_authority").max())
        .with_columns(_declared=pl.col("reduction").is_not_null())
        .sort("_declared", "_authority")
        .group_by(SERIES)
        .agg(_reduction=pl.col("reduction").last().fill_null("mean"))
        .with_columns(pl.col("_reduction").cast(pl.Enum(list(_MERGES)), strict=False))
    )
    return rows.join(declared, on=SERIES, how="left", nulls_equal=True)


def _count_replicas_once(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add `_value_order` (rank order, null without a value), `_counted` and `_weighted`."""
    ordered = rows.with_columns(_value_order=pl.when(_VALUE.is_not_null()).then("_rank_order"))
    lowest = pl.col("_value_order").min().over(*_POINT, "data_rank")
    has_value = pl.col("_value_order").is_not_null()
    counted = pl.concat(
        [
            ordered.filter(pl.col("data_rank").is_null()).with_columns(_counted=has_value),
            ordered.filter(pl.col("data_rank").is_not_null()).with_columns(
                _counted=has_value & (pl.col("_value_order") == lowest).fill_null(value=False)
            ),
        ]
    )
    return counted.with_columns(_weighted=pl.col("_counted") & _USABLE_WEIGHT & (pl.col("weight").fill_null(1.0) > 0))


def _report(kind: str, found: pl.LazyFrame, detail: pl.Expr) -> pl.LazyFrame:
    return found.select(pl.lit(kind).alias("kind"), "role", "name", detail.alias("detail"))


def _changed_reductions(rows: pl.LazyFrame) -> pl.LazyFrame:
    declared = pl.col("reduction").fill_null("mean").unique().sort()
    series = _settle_reductions(rows).group_by(SERIES).agg(declared.alias("all"), pl.col("_reduction").first())
    used = pl.col("_reduction").cast(pl.String).fill_null("none")
    detail = pl.format("declared as {}; {} is used", pl.col("all").list.join(", "), used)
    return _report("changed_reduction", series.filter(pl.col("all").list.len() > 1), detail)


def _unknown_reductions(rows: pl.LazyFrame) -> pl.LazyFrame:
    unknown = rows.filter(~pl.col("reduction").is_in(REDUCTIONS)).select("role", "name", "reduction").unique()
    return _report("unknown_reduction", unknown, pl.format("{}: ranks are not merged", "reduction"))


def _bad_weights(rows: pl.LazyFrame) -> pl.LazyFrame:
    bad = rows.filter(~_USABLE_WEIGHT).group_by("role", "name").agg(n=pl.len())
    return _report("bad_weight", bad, pl.format("{} rows with a negative, NaN or infinite weight are left out", "n"))


def _differing_replicas(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks of one data-parallel replica that logged different values where only one is counted."""
    counting_once = pl.col("_reduction").is_in(["mean", "sum", "std"])
    points = (
        _settle_reductions(rows.filter(pl.col("data_rank").is_not_null()))
        .filter(counting_once & _VALUE.is_not_null())
        .group_by(*_POINT, "data_rank")
        .agg(_VALUE.n_unique())
        .filter(_VALUE > 1)
        .group_by("role", "name")
        .agg(n=pl.len())
    )
    detail = pl.format("ranks of one data_rank differ at {} positions; the lowest rank counts", "n")
    return _report("replicas_differ", points, detail)
