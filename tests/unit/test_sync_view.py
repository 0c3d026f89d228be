from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

import polars as pl

from rl_eventlog.sync.view import POINT, SCHEMA, beyond, changes, place, with_integer_steps

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


def view(*rows: dict[str, Any]) -> pl.DataFrame:
    defaults = {
        "table": "metrics",
        "role": "main",
        "name": "loss",
        "axis": None,
        "time": NOW,
        "value": 1.0,
        "attempt": 1,
    }
    full = [{**defaults, "position": row.get("step"), **row} for row in rows]
    return pl.DataFrame([{**row, "step": row.get("step")} for row in full], schema=SCHEMA)


def of_axis(position: float, step: int | None, **more: Any) -> dict[str, Any]:
    return {"axis": "tokens", "position": position, "step": step, **more}


def test_null_values_have_no_point() -> None:
    placed, unplaced = place(view({"step": 1}, {"step": 2, "value": None}, {"step": 3, "value": math.nan}))
    assert (placed["step"].to_list(), unplaced) == ([1, 3], 0)


def test_a_series_without_any_step_is_at_step_0() -> None:
    placed, unplaced = place(view({"step": None, "name": "startup"}, {"step": 4}))
    assert placed.sort("name").select("name", "step", "position").rows() == [("loss", 4, 4.0), ("startup", 0, 0.0)]
    assert unplaced == 0


def test_a_point_without_a_step_among_points_with_steps_has_no_place() -> None:
    placed, unplaced = place(view({"step": None}, {"step": 4}, of_axis(math.inf, 1), of_axis(math.nan, 2)))
    assert (placed["step"].to_list(), unplaced) == ([4], 3)


def test_whole_positions_are_the_integer_steps() -> None:
    placed = view(of_axis(512.0, 1), of_axis(1024.0, 2))
    assert with_integer_steps(placed).select("step", "position").rows() == [(512, 512.0), (1024, 1024.0)]


def test_a_fractional_axis_keeps_the_rows_step_and_gets_a_series_of_its_own() -> None:
    placed = view(of_axis(0.5, 10), of_axis(1.0, 20), of_axis(1.0, 20, name="acc"))
    found = with_integer_steps(placed).sort("name", "step")
    columns = found.select("name", "axis", "step", "position", "value").rows()
    assert columns == [
        ("acc", "tokens", 20, 1.0, 1.0),
        ("loss", "tokens", 10, 0.5, 1.0),
        ("loss", "tokens", 20, 1.0, 1.0),
        ("tokens", None, 10, 10.0, 0.5),
        ("tokens", None, 20, 20.0, 1.0),
    ]
    assert found.select(POINT).is_unique().all()


def test_what_was_logged_under_the_axis_name_goes_before_the_axis() -> None:
    placed = view(of_axis(0.5, 10), {"name": "tokens", "step": 10, "value": 7.0})
    found = with_integer_steps(placed).filter(pl.col("name") == "tokens")
    assert found["value"].to_list() == [7.0]


def test_fractions_without_a_step_are_rounded_down() -> None:
    assert with_integer_steps(view(of_axis(2.5, None), of_axis(-0.5, None)))["step"].to_list() == [2, -1]


def test_new_points_and_other_values_are_changes_and_equal_values_are_none() -> None:
    sent = view({"step": 1}, {"step": 2}, {"step": 3, "value": math.nan}, {"step": 4, "value": math.nan})
    now = view(
        {"step": 1}, {"step": 2, "value": 5.0}, {"step": 3, "value": math.nan}, {"step": 4}, {"step": 5}, of_axis(1, 1)
    )
    found = changes(now, sent)
    assert found.select("axis", "step", "correction").rows() == [
        (None, 2, True),
        (None, 4, True),
        (None, 5, False),
        ("tokens", 1, False),
    ]


def test_what_the_view_lost_is_told() -> None:
    sent = view({"step": 1}, {"step": 2, "value": 3.0}, of_axis(2, 2))
    assert beyond(sent, view({"step": 1}, of_axis(2, 2)))["value"].to_list() == [3.0]
