"""Stragglers: which ranks the others waited for, how often, and how long, over a run.

- Numbers, no verdict: a rank that was slow once has one large loss and a ratio near 1, a slow rank has a
  ratio above 1 and its loss spread over many steps.
- Ranks are compared within a (role, name, step, attempt), where two or more have a finite time. A typical rank
  is the median, of an even number the lower of the middle two: of two ranks it is the faster one.
- A step is lost to its slowest rank, to the lowest of equally slow ones; to none where none is slower than
  the typical one. So each lost second counts once.
"""

from __future__ import annotations

import polars as pl

from .expressions import sum_in_order
from .timings import spans_of_ranks

_SECONDS = pl.col("duration_seconds")
_STEP = ("role", "name", "step", "attempt")
_WHO = ("role", "name", "rank_key", "node")


def find_stragglers(rows: pl.LazyFrame) -> pl.LazyFrame:
    """What each rank cost the others.

    Args:
        rows: timings as `select_view` returns them.

    Returns:
        One row a (role, name, rank, node), in no order:

        - `role`, `name`, `rank` (int32, null where unknown), `node`;
        - `steps` (int32): in which it was compared; timings without a step are left out;
        - `slowest_steps` (int32), `slowest_share`: in how many, and in what share of them it was the slowest;
        - `lost_seconds`: by how much it was slower than the typical rank, summed over the steps in which
          it was the slowest: what a typical rank in its place would save;
        - `worst_seconds`: the most of that in one step; 0 where it was never the slowest;
        - `median_ratio`: its time as a multiple of the typical rank's, the median over the steps; null
          where the typical rank took no time;
        - `duration_seconds`: its own time in these steps.
    """
    spans = spans_of_ranks(rows.filter(pl.col("step").is_not_null())).filter(_SECONDS.is_finite())
    spans = spans.cache()  # both sides of the join: without it the files are read twice
    typical = spans.group_by(_STEP).agg(
        _ranks=pl.len(),
        _typical=_SECONDS.quantile(0.5, "lower"),
        _slowest=pl.col("_rank_order").filter(_SECONDS.max() == _SECONDS).min(),
    )
    excess = _SECONDS - pl.col("_typical")
    lost = pl.when(pl.col("_rank_order") == pl.col("_slowest")).then(excess).otherwise(0.0)
    ratio = pl.when(pl.col("_typical") > 0).then(_SECONDS / pl.col("_typical"))
    by_age = pl.struct("attempt", "step")
    return (
        spans.join(typical.filter(pl.col("_ranks") > 1), on=_STEP)
        .with_columns(_lost=lost, _ratio=ratio)
        .group_by(_WHO)
        .agg(
            pl.col("rank").first(),
            steps=pl.len().cast(pl.Int32),
            slowest_steps=(pl.col("_lost") > 0).sum().cast(pl.Int32),
            lost_seconds=sum_in_order(pl.col("_lost"), by_age),
            worst_seconds=pl.col("_lost").max(),
            median_ratio=pl.col("_ratio").median(),
            duration_seconds=sum_in_order(_SECONDS, by_age),
        )
        .select(
            *("role", "name", "rank", "node", "steps", "slowest_steps"),
            (pl.col("slowest_steps") / pl.col("steps")).alias("slowest_share"),
            *("lost_seconds", "worst_seconds", "median_ratio", "duration_seconds"),
        )
    )
