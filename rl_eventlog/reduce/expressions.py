"""Polars expressions over the values of a group."""

from __future__ import annotations

import polars as pl

#: Quantiles over all ranks: numpy's linear interpolation, unweighted.
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def sum_in_order(values: pl.Expr, order: pl.Expr) -> pl.Expr:
    """The sum of a group's values, added up in one order; null of none.

    Not `sum`, before which Polars drops a sort: floats added in another order end in other digits.
    """
    return values.sort_by(order).cum_sum().last()


def linear_quantile(values: pl.Expr, q: float) -> pl.Expr:
    """The linear quantile of a group's values, as numpy's: NaN if one is NaN; an infinity is a value."""
    linear = values.quantile(q, "linear")
    # Where an infinity takes part, the sum of the neighbours is it, and NaN only between both infinities.
    neighbours = values.quantile(q, "lower") + values.quantile(q, "higher")
    sound = pl.when(linear.is_finite()).then(linear).otherwise(neighbours)
    return pl.when(values.is_nan().any()).then(float("nan")).otherwise(sound)
