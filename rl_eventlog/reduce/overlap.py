"""Which rows count where writers, incarnations and attempts overlap.

- Within one writer the row with the highest seq wins; within a rank of an attempt the later
  incarnation wins. Where both are forks of one process, the later writer wins.
- View `latest`: per role and position the latest attempt wins, and a declared `resume_step` hides
  everything older attempts of the role have at or beyond it. View `all` keeps every attempt.
- Roles do not touch one another.
- Functions take and return LazyFrames and collect nothing. They add columns that start with `_` for
  each other's use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

Attempts = Literal["latest", "all"]

_SEQ_BITS = 40  # one int64 orders rows: 2**23 writers a run, 2**40 rows a writer and table


def identify(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
    """Add what the reader knows about the writers of the rows.

    Args:
        rows: rows of any table, with `writer` and `seq`.
        identities: one row a writer: `writer, role, rank, attempt, rank_key, incarnation, ...`.

    Returns:
        The rows with `attempt` (int32, from 1), `rank_key` (equal for the writers that are one rank
        of the role), `incarnation` (from 0) and, for the functions of this package,

        - `_slot`: number of (role, attempt, rank_key);
        - `_rank_order`: order of ranks, the lowest first, null ranks last;
        - `_age`: order of rows within a slot, the one that wins last;
        - `_authority`: order of rows by (attempt, rank from the highest), the one that decides last.
    """
    numbered = _number(identities, "_rank_order", ["rank", "rank_key"])
    numbered = _number(numbered, "_slot", ["role", "attempt", "rank_key"])
    numbered = _number(numbered, "_writer_age", ["attempt", "incarnation", "writer"])
    numbered = numbered.with_columns(_seniority=-pl.col("_rank_order"))
    numbered = _number(numbered, "_writer_authority", ["attempt", "_seniority", "incarnation", "writer"])
    added = ["attempt", "rank_key", "incarnation", "_slot", "_rank_order", "_writer_age", "_writer_authority"]
    return (
        rows.join(numbered.select("writer", *added).lazy(), on="writer", how="left")
        .with_columns(
            _age=pl.col("_writer_age") * 2**_SEQ_BITS + pl.col("seq"),
            _authority=pl.col("_writer_authority") * 2**_SEQ_BITS + pl.col("seq"),
        )
        .drop("_writer_age", "_writer_authority")
    )


def select_view(
    rows: pl.LazyFrame,
    identities: pl.DataFrame,
    *,
    by: Sequence[str],
    attempts: Attempts = "latest",
    repeats: Literal["last", "all"] = "last",
) -> pl.LazyFrame:
    """Leave out the rows that others replace.

    Args:
        rows: rows as `identify` returns them, of all ranks.
        identities: as for `identify`.
        by: columns that say what a row is about, beside the role: of two rows of one rank that are
            equal in them, one replaces the other.
        attempts: `latest`, or `all` to keep every attempt apart.
        repeats: what several rows of one rank, attempt and incarnation with equal `by` are: `last`
            for values (the last wins), `all` for parts of a whole.
    """
    if attempts == "latest":
        rows = _hide_before_resume(rows, identities)
        if identities.group_by("role").agg(pl.col("attempt").n_unique())["attempt"].gt(1).any():
            rows = rows.filter(pl.col("attempt") == pl.col("attempt").max().over("role", *by))
    if repeats == "last":
        return rows.filter(pl.col("_age") == pl.col("_age").max().over("_slot", *by))
    if identities["incarnation"].gt(0).any():
        return rows.filter(pl.col("incarnation") == pl.col("incarnation").max().over("_slot", *by))
    return rows


def with_position(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Add `position` (float64): the value on the row's axis, the step where it has none."""
    on_axis = pl.col("axis").is_not_null()
    return rows.with_columns(position=pl.when(on_axis).then("axis_value").otherwise(pl.col("step").cast(pl.Float64)))


def _number(identities: pl.DataFrame, name: str, keys: list[str]) -> pl.DataFrame:
    """Number the distinct values of `keys` in their order, nulls last."""
    distinct = identities.select(keys).unique().sort(keys, nulls_last=True)
    numbers = distinct.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(name))
    return identities.join(numbers, on=keys, how="left", nulls_equal=True)


def hidden_from(identities: pl.DataFrame) -> pl.DataFrame:
    """From which step on a newer attempt's resume step hides the rows of an attempt.

    Where ranks of one attempt declare different ones the lowest counts.

    Returns:
        `role, attempt, hidden_from`; attempts of which nothing is hidden are left out.
    """
    held = identities.group_by("role", "attempt").agg(pl.col("resume_step").min()).sort("attempt", descending=True)
    return held.select(
        "role",
        "attempt",
        # newest first: what the attempts above this one declare
        hidden_from=pl.col("resume_step")
        .fill_null(2**63 - 1)
        .shift(1)
        .cum_min()
        .over("role", order_by=-pl.col("attempt")),
    ).filter(pl.col("hidden_from") < 2**63 - 1)


def _hide_before_resume(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
    hidden = hidden_from(identities)
    if hidden.is_empty():
        return rows
    limit = pl.col("hidden_from")
    return (
        rows.join(hidden.lazy(), on=["role", "attempt"], how="left")
        .filter(limit.is_null() | pl.col("step").is_null() | (pl.col("step") < limit))
        .drop("hidden_from")
    )


def resume_warnings(identities: pl.DataFrame) -> pl.LazyFrame:
    """Attempts whose ranks declare different resume steps; the lowest one counts.

    Returns:
        `kind, role, name, detail`, in order; kind is `resume_step_differs`, `name` is null.
    """
    steps = pl.col("resume_step").drop_nulls().unique().sort()
    differing = (
        identities.lazy().group_by("role", "attempt").agg(steps.alias("steps")).filter(pl.col("steps").list.len() > 1)
    )
    listed = pl.col("steps").cast(pl.List(pl.String)).list.join(", ")
    detail = pl.format("attempt {}: ranks declare {}; the lowest counts", "attempt", listed)
    return differing.select(
        pl.lit("resume_step_differs").alias("kind"),
        "role",
        pl.lit(None, pl.String).alias("name"),
        detail.alias("detail"),
    ).sort("role", "detail")
