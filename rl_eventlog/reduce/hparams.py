"""Hyperparameters: a history, of which the latest value of each key counts."""

from __future__ import annotations

import polars as pl

_LATEST = ["attempt", "time", "_age"]


def latest_hparams(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The value of each key that holds now.

    Args:
        rows: hparams as `identify` returns them, of all attempts.

    Returns:
        `role, key, value` (JSON), `time` (UTC), `attempt`, sorted by role and key: one row a
        (role, key), the latest by (attempt, time).
    """
    latest = rows.sort(_LATEST).group_by("role", "key").agg(pl.col("value", "time", "attempt").last())
    return latest.select("role", "key", "value", "time", "attempt").sort("role", "key")


def hparam_history(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Every value that was logged, oldest first.

    Returns:
        `role, key, value` (JSON), `time` (UTC), `attempt, step, rank, data_rank, node, writer, seq`.
    """
    columns = ["role", "key", "value", "time", "attempt", "step", "rank", "data_rank", "node", "writer", "seq"]
    return rows.sort(_LATEST).select(columns)


def hparam_warnings(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Keys whose values changed, or differ between ranks.

    Returns:
        `kind, role, name, detail`, in order; `name` is the key. Kinds: `hparam_changed`,
        `hparam_differs`.
    """
    ranks = (
        rows.sort("_authority")
        .group_by("role", "key", "attempt", "rank_key", maintain_order=True)
        .agg(values=pl.col("value").n_unique(), last=pl.col("value").last())
    )
    # the lowest rank stands for its attempt: `_authority` puts it last
    attempts = ranks.group_by("role", "key", "attempt").agg(
        pl.col("values").max(), pl.col("last").last(), ranks_values=pl.col("last").n_unique()
    )
    keys = attempts.group_by("role", "key").agg(
        pl.col("values").max(), between=pl.col("last").n_unique(), ranks_values=pl.col("ranks_values").max()
    )
    changed = keys.filter((pl.col("values") > 1) | (pl.col("between") > 1))
    differing = keys.filter(pl.col("ranks_values") > 1)
    reports = [
        _report("hparam_changed", changed, pl.lit("logged with another value later; the latest one holds")),
        _report("hparam_differs", differing, pl.lit("ranks of one attempt logged different values")),
    ]
    return pl.concat(reports).sort("kind", "role", "name")


def _report(kind: str, found: pl.LazyFrame, detail: pl.Expr) -> pl.LazyFrame:
    return found.select(pl.lit(kind).alias("kind"), "role", pl.col("key").alias("name"), detail.alias("detail"))
