"""What a target is to hold: reduced points with a place at every target.

- A point without a step is sent at step 0 where its series has no steps at all; in a series that has
  steps it has no place and is counted, and so is a position that is NaN or infinite.
- Null values are never sent.
- Where all positions of a role's axis are whole numbers they are the integer steps. Else the row's
  step is, and a series named as the axis tells the position at each step.
"""

from __future__ import annotations

import polars as pl

SERIES = ("table", "role", "name", "axis")
POINT = (*SERIES, "position")
"""The identity of a point; no two points of a view are equal in it."""

SCHEMA = pl.Schema(
    {
        "table": pl.String(),
        "role": pl.String(),
        "name": pl.String(),
        "axis": pl.String(),
        "step": pl.Int64(),
        "position": pl.Float64(),
        "time": pl.Datetime("us", "UTC"),
        "value": pl.Float64(),
        "attempt": pl.Int32(),
    }
)

_LARGEST_WHOLE = 2.0**53


def place(reduced: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Give each point a position.

    Args:
        reduced: points as the source gives them; `position` may be null.

    Returns:
        The points that have a place, and how many have none.
    """
    points = reduced.filter(pl.col("value").is_not_null())
    placed = points.filter(pl.col("position").is_finite())
    stepless = points.filter(pl.col("position").is_null())
    alone = stepless.join(placed.select(SERIES).unique(), on=SERIES, how="anti", nulls_equal=True)
    alone = alone.with_columns(position=pl.lit(0.0), step=pl.lit(0, pl.Int64))
    return pl.concat([placed, alone]), points.height - placed.height - alone.height


def with_integer_steps(points: pl.DataFrame) -> pl.DataFrame:
    """Set `step` to what targets with integer steps get, and add the series of fractional axes.

    Args:
        points: as `place` returns them.
    """
    on_axis = points.filter(pl.col("axis").is_not_null())
    if on_axis.is_empty():
        return points
    position = pl.col("position")
    whole = (position == position.floor()) & (position.abs() < _LARGEST_WHOLE)
    on_axis = on_axis.with_columns(_whole=whole.all().over("role", "axis"))
    integral = on_axis.filter("_whole").with_columns(step=position.cast(pl.Int64))
    fractional = on_axis.filter(~pl.col("_whole"))
    by_step = points.filter(pl.col("axis").is_null())
    axes = _axis_series(fractional).join(by_step, on=POINT, how="anti", nulls_equal=True)
    bounded = position.clip(-_LARGEST_WHOLE, _LARGEST_WHOLE).floor().cast(pl.Int64)
    fractional = fractional.with_columns(pl.col("step").fill_null(bounded))
    return pl.concat([by_step, axes, *(frame.drop("_whole") for frame in (integral, fractional))])


def _axis_series(points: pl.DataFrame) -> pl.DataFrame:
    """Per role, axis and step the last position: a point of the series that bears the axis' name."""
    latest = (
        points.filter(pl.col("step").is_not_null())
        .sort("attempt", "time", "position")
        .group_by("role", "axis", "step", maintain_order=True)
        .agg(pl.col("time", "attempt", "position").last())
    )
    return latest.select(
        table=pl.lit("metrics"),
        role="role",
        name="axis",
        axis=pl.lit(None, pl.String),
        step="step",
        position=pl.col("step").cast(pl.Float64),
        time="time",
        value="position",
        attempt="attempt",
    )


def changes(view: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """The points of a view that a target has not, or has with another value.

    Args:
        view: what the target is to hold.
        held: what it holds: at least `POINT` and `value`.

    Returns:
        Rows of `view` with `correction` (bool): the target holds another value. NaN equals NaN.
    """
    before = held.select(*POINT, _before="value")
    joined = view.join(before, on=POINT, how="left", nulls_equal=True, maintain_order="left")
    changed = pl.col("_before").is_null() | (pl.col("value") != pl.col("_before"))
    return joined.filter(changed).with_columns(correction=pl.col("_before").is_not_null()).drop("_before")


def beyond(held: pl.DataFrame, view: pl.DataFrame) -> pl.DataFrame:
    """The points that a target holds and a view has not, with `POINT` and `value`."""
    return held.join(view, on=POINT, how="anti", nulls_equal=True).select(*POINT, "value")
