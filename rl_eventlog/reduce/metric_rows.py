"""Metrics of every rank, and what merging them had to decide or to leave out."""

from __future__ import annotations

import polars as pl

from rl_eventlog.types import REDUCTIONS

from .metrics import MERGED_COLUMNS

SERIES = ("role", "name", "axis")
_POINT = (*SERIES, "position", "attempt")
RANK_COLUMNS = ("rank", "data_rank", "node", "writer", "seq", "weight", "reduction")

_VALUE = pl.col("value")
_USABLE_WEIGHT = pl.col("weight").is_null() | ((pl.col("weight") >= 0) & pl.col("weight").is_finite())


def each_rank(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of every rank, not merged.

    Args:
        rows: metrics as `select_view` returns them with `position`: one row a rank, attempt, series
            and position.

    Returns:
        The columns of `merge_metrics`, where `ranks` is 1, and `rank`, `data_rank`, `node`, `writer`,
        `seq`, `weight`, `reduction` as logged.
    """
    counts = {"ranks": pl.lit(1, pl.Int32), "ranks_nan": _VALUE.is_nan().fill_null(value=False).cast(pl.Int32)}
    return rows.with_columns(**counts).select(*MERGED_COLUMNS, *RANK_COLUMNS)


def metric_warnings(rows: pl.LazyFrame) -> pl.LazyFrame:
    """What merging had to decide or to leave out.

    Args:
        rows: metrics as `select_view` returns them with `position`: one row a rank, attempt, series
            and position.

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
        .with_columns(pl.col("_reduction").cast(pl.Enum([name for name in REDUCTIONS if name != "none"]), strict=False))
    )
    return rows.join(declared, on=SERIES, how="left", nulls_equal=True)


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
