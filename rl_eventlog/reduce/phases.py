"""Phases: where the time of a step went, by the nesting of labels.

- ``a/b`` is part of the nearest label above it that has a span in the step: of ``a``, or else of none. A
  label above all others, say ``total_step_time``, is named by whoever reads.
- Seconds are means over the ranks that timed anything in the step: unlike those of the slowest rank of each
  label, they add up. What one of eight ranks did counts an eighth.
- Labels that ran side by side within another, in threads, may add up to more than it: what is its own is
  negative then.
- Timings without a step are left out.
"""

from __future__ import annotations

import polars as pl

from .expressions import sum_in_order
from .timings import spans_of_ranks

_STEP = ("role", "attempt", "step")
_SECONDS = pl.col("seconds")
_OWN = _SECONDS - pl.col("_inside").fill_null(0.0)


def phases_of_steps(rows: pl.LazyFrame, *, whole: str | None = None) -> pl.LazyFrame:
    """The phases of each step.

    Args:
        rows: timings of all names, as `select_view` returns them.
        whole: the label that covers the step: labels with none above them are part of it. None: the step is
            the sum of those.

    Returns:
        One row a (role, attempt, step, name), in no order:

        - `role`, `step`, `name`, `attempt`;
        - `parent`: the label it is part of, null where none; `depth` (int32): how many are above it;
        - `seconds`: the mean over the ranks; `share`: of the step, null where that took no time or has no
          span of `whole`;
        - `self_seconds`: `seconds` without the labels that are part of it; `self_share` likewise;
        - `ranks` (int32): that have a span of it.
    """
    return (
        _placed(rows, whole)
        .with_columns(self_seconds=_OWN)
        .select(
            *("role", "step", "name", "attempt", "parent", "depth", "seconds"),
            _share("seconds", "_total").alias("share"),
            "self_seconds",
            _share("self_seconds", "_total").alias("self_share"),
            "ranks",
        )
    )


def phases_of_run(rows: pl.LazyFrame, *, whole: str | None = None) -> pl.LazyFrame:
    """The phases over all steps.

    Args:
        rows: as for `phases_of_steps`.
        whole: as for `phases_of_steps`; steps without a span of it count in no share.

    Returns:
        One row a (role, name), in no order:

        - `role`, `name`, `parent`, `depth`: as in the step where most is above it;
        - `steps` (int32): that have a span of it; `mean_seconds`, `median_seconds`: over these;
        - `seconds`, `self_seconds`: sums over the steps; `share`, `self_share`: of the time of all steps.
    """
    placed = _placed(rows, whole).with_columns(self_seconds=_OWN).cache()
    by_age = pl.struct("attempt", "step")
    timed = pl.col("_total").is_not_null()
    totals = placed.unique(_STEP).filter(timed).group_by("role").agg(_all=sum_in_order(pl.col("_total"), by_age))
    return (
        placed.group_by("role", "name")
        .agg(
            pl.col("parent").sort_by("depth", "parent").last(),
            pl.col("depth").max(),
            steps=pl.len().cast(pl.Int32),
            mean_seconds=sum_in_order(_SECONDS, by_age) / pl.len(),
            median_seconds=_SECONDS.median(),
            seconds=sum_in_order(_SECONDS, by_age),
            self_seconds=sum_in_order(pl.col("self_seconds"), by_age),
            _timed=sum_in_order(_SECONDS.filter(timed), by_age.filter(timed)),
            _self_timed=sum_in_order(pl.col("self_seconds").filter(timed), by_age.filter(timed)),
        )
        .join(totals, on="role", how="left")
        .select(
            *("role", "name", "parent", "depth", "steps", "mean_seconds", "median_seconds", "seconds"),
            _share("_timed", "_all").alias("share"),
            "self_seconds",
            _share("_self_timed", "_all").alias("self_share"),
        )
    )


def _share(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) != 0).then(pl.col(part) / pl.col(whole))


def _placed(rows: pl.LazyFrame, whole: str | None) -> pl.LazyFrame:
    """Seconds by step and label, with `parent`, `depth`, `_inside` (of its parts), `_total` (of the step)."""
    merged = _mean_over_ranks(rows.filter(pl.col("step").is_not_null())).cache()
    placed = merged.join(_parents(merged, whole), on=(*_STEP, "name"), how="left").with_columns(
        pl.col("depth").fill_null(0)
    )
    placed = placed.cache()
    summed = sum_in_order(_SECONDS, pl.col("name"))
    inside = placed.group_by(*_STEP, name="parent").agg(_inside=summed)
    top = pl.col("parent").is_null() if whole is None else pl.col("name") == whole
    total = placed.filter(top).group_by(_STEP).agg(_total=summed)
    return placed.join(inside, on=(*_STEP, "name"), how="left").join(total, on=_STEP, how="left")


def _mean_over_ranks(rows: pl.LazyFrame) -> pl.LazyFrame:
    spans = spans_of_ranks(rows).cache()
    ranks = spans.group_by(_STEP).agg(_ranks=pl.col("rank_key").n_unique())
    return (
        spans.join(ranks, on=_STEP)
        .group_by(*_STEP, "name")
        .agg(
            seconds=sum_in_order(pl.col("duration_seconds"), pl.col("_rank_order")) / pl.col("_ranks").first(),
            ranks=pl.len().cast(pl.Int32),
        )
    )


def _parents(merged: pl.LazyFrame, whole: str | None) -> pl.LazyFrame:
    """The labels that have others above them in a step: `parent`, the nearest, and `depth`, how many."""
    labels = merged.select(*_STEP, "name")
    kept = pl.col("parent").is_not_null()
    above = _prefixes(labels.select("name").unique())
    if whole is not None:
        root = labels.select("name", parent=pl.lit(whole), _length=pl.lit(0, pl.Int64)).unique()
        above = pl.concat([above.filter(pl.col("parent") != whole), root]).filter(pl.col("name") != whole)
        # what is above the whole by name lies within it like any other, and not between it and what is below
        below = pl.col("name").str.starts_with(f"{whole}/")
        kept = ~(below & pl.lit(whole).str.starts_with(pl.col("parent") + "/") & (pl.col("parent") == whole).any())
    return (
        labels.join(above, on="name")
        .join(labels.rename({"name": "parent"}), on=(*_STEP, "parent"), how="semi")
        .group_by(*_STEP, "name")
        .agg(
            parent=pl.col("parent").filter(kept).sort_by(pl.col("_length").filter(kept)).last(),
            depth=kept.sum().cast(pl.Int32),
        )
    )


def _prefixes(names: pl.LazyFrame) -> pl.LazyFrame:
    """The labels that would be above each: `name`, `parent`, `_length` in segments."""
    segments = pl.col("name").str.split("/")
    return (
        names.select("name", _segments=segments, _length=pl.int_ranges(1, segments.list.len()))
        .explode("_length")
        .drop_nulls("_length")
        .select("name", parent=pl.col("_segments").list.head("_length").list.join("/"), _length="_length")
    )
