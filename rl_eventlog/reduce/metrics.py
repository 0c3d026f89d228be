"""Merging metrics over ranks: one value a (series, position), by the reduction its writers declared.

- How values are merged stands in `states`, which rows hold in `overlap`.
- Ranks are taken one after the other, the lowest first, so that the same rows give the same digits in
  whatever files they lie, and memory is that of the result.
- One reduction holds for a series: of the declared ones that of the newest attempt, there of its lowest
  rank, there of its last row. Undeclared is `mean`; `none` and unknown ones are not merged.
- Where the writers of one rank name different replicas, the last names that of the rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import polars as pl
import pyarrow as pa

from .overlap import Attempts, hidden_from
from .points import Points
from .rank_rows import SeriesTable, rank_rows
from .states import States

MERGED_COLUMNS = ("role", "name", "axis", "step", "position", "time", "value", "ranks", "ranks_nan", "attempt")
MERGED_SCHEMA = pl.Schema(
    {
        "role": pl.String(),
        "name": pl.String(),
        "axis": pl.String(),
        "step": pl.Int64(),
        "position": pl.Float64(),
        "time": pl.Datetime("us", "UTC"),
        "value": pl.Float64(),
        "ranks": pl.Int32(),
        "ranks_nan": pl.Int32(),
        "attempt": pl.Int32(),
    }
)
Read = Callable[[Sequence[str]], Iterator[pa.Table]]
"""Writers -> the rows of each, in their order, with the columns `READ_COLUMNS`."""


def merge_metrics(
    read: Read, identities: pl.DataFrame, *, role: str | None = None, attempts: Attempts = "latest"
) -> pl.DataFrame:
    """Merge the ranks.

    Args:
        read: gives the rows of writers; of each writer in the order of their seqs.
        identities: one row a writer: `writer, role, rank, data_rank, attempt, rank_key, incarnation,
            resume_step`.
        role: only this role; None for all.
        attempts: `latest`: where attempts overlap, the latest one; `all`: every attempt, apart.

    Returns:
        One row a (role, name, axis, position, attempt), sorted by these:

        - `role`, `name`, `axis` (null: the training step): the series;
        - `step` (int64): the highest of the rows; null where none has one;
        - `position` (float64): on the axis; the step where there is none;
        - `time` (UTC, microseconds): the latest of the rows;
        - `value` (float64);
        - `ranks`, `ranks_nan` (int32): ranks with a row, with a NaN, whether they counted or not;
        - `attempt` (int32).
    """
    chosen = identities if role is None else identities.filter(pl.col("role") == role)
    ranks = _ranks(chosen, attempts).partition_by("role", maintain_order=True)
    merged = [_merge_role(read, of_role, attempts) for of_role in ranks]
    return pl.concat([MERGED_SCHEMA.to_frame(), *merged]).sort("role", "name", "axis", "position", "attempt")


def _ranks(identities: pl.DataFrame, attempts: Attempts) -> pl.DataFrame:
    """One row a rank of an attempt: role by role, the newest attempt first, there the lowest rank first."""
    found = (
        identities.sort("incarnation", "writer")
        .group_by("role", "attempt", "rank_key", maintain_order=True)
        .agg(pl.col("rank", "data_rank").last(), pl.col("writer").alias("writers"))
        .sort("role", "attempt", "rank", "rank_key", descending=[False, True, False, False], nulls_last=True)
    )
    if attempts == "all":
        return found.with_columns(hidden_from=pl.lit(None, pl.Int64))
    return found.join(hidden_from(identities), on=["role", "attempt"], how="left", maintain_order="left")


def _merge_role(read: Read, ranks: pl.DataFrame, attempts: Attempts) -> pl.DataFrame:
    series = SeriesTable()
    merged = list(_merge_attempts(read, ranks, series, attempts))
    if series.declared_late:  # rows of it were merged as undeclared: once more, now that all declarations are known
        merged = list(_merge_attempts(read, ranks, series, attempts))
    role = pl.lit(ranks["role"][0]).alias("role")
    return pl.concat(merged).with_columns(role).select(MERGED_COLUMNS)


def _merge_attempts(read: Read, ranks: pl.DataFrame, series: SeriesTable, attempts: Attempts) -> Iterator[pl.DataFrame]:
    """The merged points of each attempt, the newest first."""
    tables = read(ranks["writers"].explode().to_list())
    newer: list[Points] = []
    for attempt, of_attempt in groupby(ranks.iter_rows(named=True), key=lambda rank: rank["attempt"]):
        members = list(of_attempt)
        points = Points(tuple(newer))
        states = States(series, points, [rank["data_rank"] for rank in members])
        for rank in members:
            table = _in_one_piece([next(tables) for _ in rank["writers"]])
            rows = rank_rows(table, series, before_step=rank["hidden_from"])
            placed = points.place(rows.series, rows.position_keys)
            series.declare(placed.of(rows.series), placed.of(rows.reduction))
            states.add(rows, placed, rank["data_rank"])
        if attempts == "latest":
            newer.append(points)
        yield states.result().with_columns(attempt=pl.lit(attempt, pl.Int32))


def _in_one_piece(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries().combine_chunks()
