"""Merging metrics over ranks: one value a (series, position), by the reduction its writers declared.

- How values are merged stands in `states`, which rows hold in `overlap`.
- Ranks are taken one after the other, the lowest first, so that the same rows give the same digits in
  whatever files they lie, and memory is that of the result.
- One reduction holds for a series: of the declared ones that of the newest attempt, there of its lowest
  rank, there of its last row. Undeclared is `mean`; `none` and unknown ones are not merged.
- Where the writers of one rank name different replicas, the last names that of the rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from rl_eventlog.types import REDUCTIONS

from .overlap import Attempts, hidden_from
from .points import Points
from .rank_rows import SeriesTable, rank_rows
from .states import States

MERGED_COLUMNS = ("role", "name", "axis", "step", "position", "time", "value", "ranks", "ranks_nan", "attempt")
RANK_COLUMNS = ("rank", "data_rank", "node", "writer", "seq", "weight", "reduction")
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
WARNINGS_SCHEMA = pl.Schema(dict.fromkeys(("kind", "role", "name", "detail"), pl.String()))
Read = Callable[[Sequence[str]], Iterator[pa.Table]]
"""Writers -> the rows of each, in their order, with the columns `READ_COLUMNS`."""


class Merged(NamedTuple):
    """Metrics, merged over ranks."""

    points: pl.DataFrame
    """One row a (role, name, axis, position, attempt), sorted by these:

    - `role`, `name`, `axis` (null: the training step): the series;
    - `step` (int64): the highest of the rows; null where none has one;
    - `position` (float64): on the axis; the step where there is none;
    - `time` (UTC, microseconds): the latest of the rows;
    - `value` (float64);
    - `ranks`, `ranks_nan` (int32): ranks with a row, with a NaN, whether they counted or not;
    - `attempt` (int32).
    """
    warnings: pl.DataFrame
    """What merging had to decide or to leave out: `kind, role, name, detail`, sorted. Kinds:
    `changed_reduction`, `unknown_reduction`, `bad_weight`, `replicas_differ`."""


def merge_metrics(
    read: Read,
    identities: pl.DataFrame,
    *,
    role: str | None = None,
    attempts: Attempts = "latest",
    last_only: bool = False,
) -> Merged:
    """Merge the ranks.

    Args:
        read: gives the rows of writers; of each writer in the order of their seqs.
        identities: one row a writer: `writer, role, rank, data_rank, attempt, rank_key, incarnation,
            resume_step`.
        role: only this role; None for all.
        attempts: `latest`: where attempts overlap, the latest one; `all`: every attempt, apart.
        last_only: of each rank only the rows at the highest position of each series; the highest
            merged point of each series is then the same, in a fraction of the time.
    """
    chosen = identities if role is None else identities.filter(pl.col("role") == role)
    points, warnings = [MERGED_SCHEMA.to_frame()], [WARNINGS_SCHEMA.to_frame()]
    for ranks in _ranks(chosen, attempts).partition_by("role", maintain_order=True):
        merged = _MergeRole(ranks, attempts, last_only=last_only)
        merged.run(read)
        if merged.series.declared_late:  # rows were merged as undeclared: once more, with all declarations known
            merged.run(read)
        label = pl.lit(ranks["role"][0]).alias("role")
        points += [frame.with_columns(label).select(MERGED_COLUMNS) for frame in merged.points]
        warnings.append(merged.warnings().with_columns(label).select(WARNINGS_SCHEMA.names()))
    return Merged(
        pl.concat(points).sort("role", "name", "axis", "position", "attempt"),
        pl.concat(warnings).sort("kind", "role", "name", "detail"),
    )


def last_values(read: Read, identities: pl.DataFrame, *, role: str | None = None) -> Merged:
    """The last point with a value of each series, in the view `latest`, and what its merge had to decide.

    Args:
        read: as for `merge_metrics`.
        identities: as for `merge_metrics`.
        role: only this role; None for all.
    """
    merged = merge_metrics(read, identities, role=role, last_only=True)
    if merged.points["value"].null_count():  # nothing counted at an end: what was before it?
        merged = merge_metrics(read, identities, role=role)
    series = ["role", "name", "axis"]
    points = merged.points.filter(pl.col("value").is_not_null()).sort("position", nulls_last=False)
    return Merged(points.unique(series, keep="last", maintain_order=True).sort(series), merged.warnings)


def each_rank(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of every rank, not merged.

    Args:
        rows: metrics as `select_view` returns them with `position`: one row a rank, attempt, series
            and position.

    Returns:
        The columns of `Merged.points`, where `ranks` is 1, and `rank`, `data_rank`, `node`, `writer`,
        `seq`, `weight`, `reduction` as logged.
    """
    nan = pl.col("value").is_nan().fill_null(value=False)
    counts = {"ranks": pl.lit(1, pl.Int32), "ranks_nan": nan.cast(pl.Int32)}
    return rows.with_columns(**counts).select(*MERGED_COLUMNS, *RANK_COLUMNS)


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


class _MergeRole:
    """The merge of one role, attempt by attempt, the newest first."""

    def __init__(self, ranks: pl.DataFrame, attempts: Attempts, *, last_only: bool) -> None:
        self._ranks = ranks
        self._attempts = attempts
        self._last_only = last_only
        self.series = SeriesTable()
        self.points: list[pl.DataFrame] = []
        self._bad_weights: Counter[str] = Counter()
        self._differing: Counter[str] = Counter()

    def run(self, read: Read) -> None:
        """Read and merge the rows of all ranks."""
        self.points = []
        self._bad_weights, self._differing = Counter(), Counter()
        tables = read(self._ranks["writers"].explode().to_list())
        newer: list[Points] = []
        for attempt, members in groupby(self._ranks.iter_rows(named=True), key=lambda rank: rank["attempt"]):
            points = Points(tuple(newer))
            states = self._merge_attempt(list(members), tables, points)
            self.points.append(states.result().with_columns(attempt=pl.lit(attempt, pl.Int32)))
            self._bad_weights += states.bad_weights()
            self._differing += states.differing_replicas()
            if self._attempts == "latest":
                newer.append(points)

    def warnings(self) -> pl.DataFrame:
        """`kind, name, detail`."""
        found: list[tuple[str, str, str]] = []
        for name, declared, used in self.series.declarations():
            unknown = [one for one in declared if one not in REDUCTIONS]
            found += [("unknown_reduction", name, f"{one}: ranks are not merged") for one in unknown]
            if len(declared) > 1:
                found.append(("changed_reduction", name, f"declared as {', '.join(declared)}; {used} is used"))
        for name, rows in self._bad_weights.items():
            found.append(("bad_weight", name, f"{rows} rows with a negative, NaN or infinite weight are left out"))
        for name, positions in self._differing.items():
            detail = f"ranks of one data_rank differ at {positions} positions; the lowest rank counts"
            found.append(("replicas_differ", name, detail))
        return pl.DataFrame(sorted(set(found)), schema=["kind", "name", "detail"], orient="row")

    def _merge_attempt(self, ranks: list[dict[str, Any]], tables: Iterator[pa.Table], points: Points) -> States:
        states = States(self.series, points, [rank["data_rank"] for rank in ranks])
        for rank in ranks:
            table = _in_one_piece([next(tables) for _ in rank["writers"]])
            rows = rank_rows(table, self.series, before_step=rank["hidden_from"])
            rows = rows.last_of_series() if self._last_only else rows
            placed = points.place(rows.series, rows.position_keys)
            self.series.declare(placed.of(rows.series), placed.of(rows.reduction))
            states.add(rows, placed, rank["data_rank"])
        return states


def _in_one_piece(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).unify_dictionaries().combine_chunks()
