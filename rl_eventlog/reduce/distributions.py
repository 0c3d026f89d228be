"""Merging distributions over ranks: one sketch or histogram a (series, position).

- One row a data-parallel replica is counted: where `data_rank` is set, that of its lowest rank with
  values. A row of no values changes nothing.
- Bins are added up where the rows agree on them: equal `gamma`, or equal `edges`. Rows whose bins differ
  from those of the lowest rank with values are left out whole (`distribution_warnings` reports them).
- The merged bins are those that one rank with all values would have logged: beyond `MAX_BINS` of a sign
  the lowest are one.
- Quantiles are numpy's linear ones, as of metrics, read from the bins: a value of bin i counts as
  2 gamma^i / (gamma + 1), which is within (gamma - 1) / (gamma + 1) of it, 1% with the gamma that
  writers use. The lowest and the highest value, and those of a rank whose values are all equal, are exact.
  So a quantile is within 1% where the two values that it lies between have one sign. Values in collapsed
  bins, the nearest to zero, are known less well.
- A NaN makes mean, std, min, max and the quantiles NaN. The infinities are values like others: they lie
  below and above all bins; where it is not known how many of each there are, the quantiles are NaN.
- Of a given histogram only counts are known: sum, mean, std, min, max and the quantiles are null.
- Floats are added up by rank, so that the same rows give the same digits in whatever files they lie.
"""

from __future__ import annotations

import polars as pl

from rl_eventlog.types import MAX_BINS

from .expressions import QUANTILES, sum_in_order

SERIES = ("role", "name", "axis")
_KEY = (*SERIES, "position", "attempt")
_BINS = ("bin_index", "bin_count", "negative_bin_index", "negative_bin_count")
_SIGNS = {"": 1, "negative_": -1}
"""Start of the columns of bins -> sign of their values."""
DISTRIBUTION_COLUMNS = (
    *("role", "name", "axis", "step", "position", "time", "count", "sum", "mean", "std", "min", "max"),
    *QUANTILES,
    *("ranks", "attempt", *_BINS, "zero_count", "gamma", "edges", "edge_counts"),
)

_HAS_VALUES = pl.col("count") > 0
_RANK = pl.col("_rank_order")
_IN_BINS = (
    pl.col("bin_count").list.sum().fill_null(0)
    + pl.col("negative_bin_count").list.sum().fill_null(0)
    + pl.col("zero_count").fill_null(0)
)


def merge_distributions(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Merge the ranks.

    Args:
        rows: distributions as `select_view` returns them with `position`: one row a rank, attempt,
            series and position.

    Returns:
        One row a (role, name, axis, position, attempt), in no order:

        - `role`, `name`, `axis` (null: the training step): the series;
        - `step` (int64): the highest of the rows; null where none has one;
        - `position` (float64): on the axis; the step where there is none;
        - `time` (UTC, microseconds): the latest of the rows;
        - `count` (int64): values, those that are not finite too;
        - `sum`, `mean`, `std` (of the population), `min`, `max`, `p50`, `p90`, `p95`, `p99` (float64);
          null where there are no values;
        - `ranks` (int32): ranks with a row, whether it was counted or not;
        - `attempt` (int32);
        - `bin_index`, `bin_count`, `negative_bin_index`, `negative_bin_count`, `zero_count`, `gamma`,
          `edges`, `edge_counts`: as in the table, added up; null where the rows have no such bins.
    """
    # without the cache each part below would read the files anew
    ready = _choose(rows).cache()
    counted = ready.filter("_counted")
    points = ready.group_by("_point").agg(*_moments()).cache()
    bins = _add_bins(counted).cache()
    parts = [*(_bin_lists(bins, start) for start in _SIGNS), _edge_counts(counted), _quantiles(bins, points)]
    merged = points
    for part in parts:
        merged = merged.join(part, on="_point", how="left")
    is_sketch = pl.col("gamma").is_not_null()
    empty = [pl.when(is_sketch).then(pl.col(name).fill_null([])) for name in _BINS]
    return merged.with_columns(*empty).select(DISTRIBUTION_COLUMNS)


def distribution_warnings(rows: pl.LazyFrame) -> pl.LazyFrame:
    """What merging left out.

    Args:
        rows: as for `merge_distributions`.

    Returns:
        `kind, role, name, detail`, in order. Kinds: `bins_differ`, `replicas_differ`.
    """
    ready = _choose(rows).filter(_HAS_VALUES)
    left_out = ready.filter(~pl.col("_agrees")).group_by("role", "name")
    found = [
        left_out.agg(
            kind=pl.lit("bins_differ"),
            detail=pl.format("{} rows whose bins differ from the lowest rank's are left out", pl.len()),
        ),
        _differing_replicas(ready),
    ]
    columns = ("kind", "role", "name", "detail")
    return pl.concat([frame.select(columns) for frame in found]).sort(columns)


def _choose(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add `_point` (number of the point), `_agrees` (on bins, with the first rank that has values) and `_counted`."""
    first = pl.when(_HAS_VALUES).then(_RANK).otherwise(_RANK + 2**32)
    numbered = rows.with_row_index("_row").with_columns(
        _point=pl.col("_row").min().over(_KEY),
        _reference=pl.struct("gamma", "edges").sort_by(first).first().over(_KEY),
    )
    reference = pl.col("_reference").struct
    numbered = numbered.with_columns(
        _agrees=pl.col("gamma").eq_missing(reference.field("gamma"))
        & pl.col("edges").eq_missing(reference.field("edges")),
        _value_order=pl.when(_HAS_VALUES).then(_RANK),
    )
    lowest = pl.col("_value_order").min().over("_point", "data_rank")
    first_of_replica = pl.col("data_rank").is_null() | (pl.col("_value_order") == lowest)
    return numbered.with_columns(_counted=(_HAS_VALUES & pl.col("_agrees") & first_of_replica).fill_null(value=False))


def _moments() -> list[pl.Expr]:
    """Of the rows of a point: what needs no bins."""

    def counted(name: str) -> pl.Expr:
        return pl.col(name).filter("_counted")

    order = counted("_rank_order")
    n, total = counted("count"), sum_in_order(counted("sum"), order)
    mean = total / n.sum()
    # Chan's rule: the spread within the ranks and that of their means; no difference of large squares
    between = (counted("sum") / n - mean).pow(2) * n
    reference = pl.col("_reference").first().struct
    # by which the infinities of a rank are known
    beyond = (pl.col("count") - _IN_BINS).filter("_counted")
    low, high = counted("min") == float("-inf"), counted("max") == float("inf")
    return [
        *(pl.col(name).first() for name in _KEY),
        pl.col("step").max(),
        pl.col("time").max(),
        n.sum(),
        total.alias("sum"),
        mean.alias("mean"),
        (sum_in_order(counted("m2") + between, order) / n.sum()).sqrt().alias("std"),
        counted("min").nan_min(),
        counted("max").nan_max(),
        pl.len().cast(pl.Int32).alias("ranks"),
        reference.field("gamma"),
        reference.field("edges"),
        pl.when(reference.field("gamma").is_not_null()).then(counted("zero_count").sum()).alias("zero_count"),
        pl.when(low & high).then(beyond // 2).when(low).then(beyond).otherwise(0).sum().alias("_lowest"),
        pl.when(low & high).then(beyond // 2).when(high).then(beyond).otherwise(0).sum().alias("_highest"),
        (low & high & (beyond > 2)).any().alias("_unknown"),
    ]


def _add_bins(counted: pl.LazyFrame) -> pl.LazyFrame:
    """`_point, _sign, index, _exact, n, gamma`: the bins of each point, added up.

    `_exact` is the value itself where the row has but one, so that a value a rank is not blurred.
    """
    exact = pl.when(pl.col("min") == pl.col("max")).then("min")
    signed = [
        counted.select(
            *("_point", "gamma", exact.alias("_exact"), pl.lit(sign).alias("_sign")),
            index=f"{start}bin_index",
            n=f"{start}bin_count",
        )
        for start, sign in _SIGNS.items()
    ]
    return (
        pl.concat(signed)
        .explode("index", "n")
        .filter(pl.col("n") > 0)  # not the nulls that empty lists become
        .group_by("_point", "_sign", "index", "_exact")
        .agg(pl.col("n").sum(), pl.col("gamma").first())
    )


def _bin_lists(bins: pl.LazyFrame, start: str) -> pl.LazyFrame:
    """The bins of one sign as lists, `MAX_BINS` at most."""
    of_sign = bins.filter(pl.col("_sign") == _SIGNS[start]).group_by("_point", "index").agg(pl.col("n").sum())
    lists = of_sign.group_by("_point").agg(pl.col("index").sort(), pl.col("n").sort_by("index"))
    lowest = (pl.col("n").list.len().cast(pl.Int64) - (MAX_BINS - 1)).clip(1)
    return lists.select(
        "_point",
        pl.col("index").list.tail(MAX_BINS).alias(f"{start}bin_index"),
        pl.concat_list(pl.col("n").list.head(lowest).list.sum(), pl.col("n").list.slice(lowest)).alias(
            f"{start}bin_count"
        ),
    )


def _edge_counts(counted: pl.LazyFrame) -> pl.LazyFrame:
    """The counts of given histograms, added up place by place."""
    heights = counted.filter(pl.col("edge_counts").is_not_null()).select(
        "_point", "edge_counts", _place=pl.int_ranges(pl.col("edge_counts").list.len())
    )
    added = heights.explode("edge_counts", "_place").group_by("_point", "_place").agg(pl.col("edge_counts").sum())
    return added.group_by("_point").agg(pl.col("edge_counts").sort_by("_place"))


def _quantiles(bins: pl.LazyFrame, points: pl.LazyFrame) -> pl.LazyFrame:
    """Of each point that has a sketch with values; NaN where a value is."""
    gamma = pl.col("gamma")
    middle = gamma.pow(pl.col("index").cast(pl.Float64) - 1) * (2 * gamma / (gamma + 1))  # gamma^i may overflow
    sketches = points.filter(pl.col("gamma").is_not_null() & _HAS_VALUES)
    outside = [
        sketches.select("_point", value=pl.lit(value), n=pl.col(name))
        for value, name in ((float("-inf"), "_lowest"), (0.0, "zero_count"), (float("inf"), "_highest"))
    ]
    inside = bins.select("_point", value=pl.coalesce("_exact", pl.col("_sign") * middle), n="n")
    held = pl.concat([inside, *outside]).filter(pl.col("n") > 0)
    found = held.group_by("_point").agg(
        *(expression for name, q in QUANTILES.items() for expression in _neighbours(name, q))
    )
    known = ~(pl.col("min").is_nan() | pl.col("_unknown"))
    answers = [
        pl.when(known).then(_between(name, q)).otherwise(float("nan")).alias(name) for name, q in QUANTILES.items()
    ]
    return sketches.join(found, on="_point", how="left").select("_point", *answers)


def _neighbours(name: str, q: float) -> list[pl.Expr]:
    """Of the bins of a point: the values at both sides of the quantile."""
    value, passed = pl.col("value").sort_by("value"), pl.col("n").sort_by("value").cum_sum()
    place = q * (pl.col("n").sum() - 1)
    return [
        value.filter(passed > place.floor()).first().alias(f"_{name}_low"),
        value.filter(passed > place.ceil()).first().alias(f"_{name}_high"),
    ]


def _between(name: str, q: float) -> pl.Expr:
    last = pl.col("count") - 1
    place = q * last
    part = place - place.floor()

    def exact(side: str, index: pl.Expr) -> pl.Expr:
        value = pl.when(index <= 0).then("min").when(index >= last).then("max").otherwise(f"_{name}_{side}")
        return value.clip("min", "max")

    low, high = exact("low", place.floor()), exact("high", place.ceil())
    return pl.when((low == high) | (part == 0)).then(low).otherwise(low * (1 - part) + high * part)


def _differing_replicas(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Ranks of one data-parallel replica that logged different values, of which one is counted."""
    points = (
        rows.filter(pl.col("data_rank").is_not_null())
        .group_by("role", "name", "_point", "data_rank")
        .agg(differs=pl.struct("count", "sum", "min", "max").n_unique() > 1)
        .filter("differs")
    )
    detail = pl.format("ranks of one data_rank differ at {} positions; the lowest rank counts", pl.len())
    return points.group_by("role", "name").agg(kind=pl.lit("replicas_differ"), detail=detail)
