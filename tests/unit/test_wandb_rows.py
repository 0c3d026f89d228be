from __future__ import annotations

import json
import math
from typing import Any

import pytest

from rl_eventlog.sinks._wandb_rows import HistoryRow, history_rows, position_key
from tests.support.payloads import START, at, payload


def rows_of(*points: dict[str, Any]) -> list[dict[str, Any]]:
    return [row.values for row in history_rows(payload(points))]


def test_points_of_one_position_share_a_row() -> None:
    rows = rows_of(
        {"series": "train/kl", "step": 4, "value": 0.5},
        {"series": "train/loss", "step": 4, "value": math.inf},
        {"series": "train/loss", "step": 5, "value": 2.0},
    )
    stamp = START.timestamp()
    assert rows == [
        {"train/kl": 0.5, "train/loss": math.inf, "step": 4, "attempt": 1, "_timestamp": stamp + 4},
        {"train/loss": 2.0, "step": 5, "attempt": 1, "_timestamp": stamp + 5},
    ]


@pytest.mark.parametrize("difference", [{"role": "rollout"}, {"attempt": 2}, {"axis": "tokens"}, {"step": 2}])
def test_another_role_attempt_axis_or_step_starts_a_row(difference: dict[str, Any]) -> None:
    first = {"series": "loss", "step": 1, "position": 1.0, "value": 1.0}
    assert len(rows_of(first, {**first, "series": "kl", **difference})) == 2


def test_a_series_that_comes_twice_starts_a_row() -> None:
    point = {"series": "loss", "step": 1}
    assert [row["loss"] for row in rows_of({**point, "value": 1.0}, {**point, "value": 2.0})] == [1.0, 2.0]


def test_a_row_has_its_latest_time_to_the_microsecond() -> None:
    (row,) = rows_of(
        {"series": "a", "step": 1, "value": 0.0, "time": at(7.000001)},
        {"series": "b", "step": 1, "value": 0.0, "time": at(3)},
    )
    assert round(row["_timestamp"] * 1e6) == round(START.timestamp() * 1e6) + 7_000_001


@pytest.mark.parametrize(
    ("role", "axis", "key"),
    [
        ("main", None, "step"),
        ("trainer", None, "step"),
        ("controller", None, "step"),
        ("rollout", None, "rollout_step"),
        ("trainer", "tokens", "tokens"),
        ("rollout", "tokens", "rollout/tokens"),
        ("rollout", "rollout/tokens", "rollout/tokens"),
        ("trainer", "", "axis/"),
        ("trainer", " ", "axis/ "),
        ("trainer", "_step", "axis/_step"),
        ("trainer", "attempt", "axis/attempt"),
        ("trainer", "a*b", "a_0x2a_b"),
        ("rollout*", None, "rollout_0x2a__step"),
    ],
)
def test_position_keys(role: str, axis: str | None, key: str) -> None:
    assert position_key(role, axis) == key


@pytest.mark.parametrize(("position", "sent"), [(3.0, 3), (3.5, 3.5), (2.0**60, 2.0**60), (math.inf, math.inf)])
def test_positions_on_an_axis_are_integers_where_that_is_exact(position: float, sent: float) -> None:
    (row,) = rows_of({"series": "loss", "step": 9, "axis": "tokens", "position": position, "value": 1.0})
    assert row["tokens"] == sent
    assert type(row["tokens"]) is type(sent)
    assert "step" not in row


@pytest.mark.parametrize("series", ["step", "attempt", "_step", "_timestamp", "", " ", "\n", "metric/step"])
def test_a_series_cannot_hide_what_a_row_needs(series: str) -> None:
    (row,) = rows_of({"series": series, "step": 1, "value": 42.0})
    assert row == {f"metric/{series}": 42.0, "step": 1, "attempt": 1, "_timestamp": at(1).timestamp()}


def test_names_that_are_refused_or_moved_never_meet() -> None:
    names = ["", " ", "\n", "/", "_", "step", "attempt", "a\nb", "x" * 300, "a*b"]
    names += [f"metric/{name}" for name in names] + [f"metric/metric/{name}" for name in names]
    for axis in (None, "", "metric/", "axis/"):
        points = [{"series": name, "step": 1, "axis": axis, "value": float(n)} for n, name in enumerate(names)]
        (row,) = history_rows(payload(points))
        assert len(row.series) == len(set(row.series)) == len(names)
        assert [row.values[name] for name in row.series] == list(range(len(names)))
        assert all(name.strip() for name in row.values)


def test_samples_become_a_table_for_each_split_and_step() -> None:
    rows = list(
        history_rows(
            payload(
                samples=[
                    {"step": 10, "prompt": "1+1=", "reward": 1.0, "rewards": [{"key": "exact", "value": 1.0}]},
                    {"step": 10, "prompt": "1+2=", "reward": math.nan},
                    {"step": 20, "prompt": "1+1="},
                    {"step": None, "prompt": "?", "split": "rollout", "role": "rollout"},
                ]
            )
        )
    )
    assert [named(row) for row in rows] == [
        ("samples/validation", {"step": 10}, 2),
        ("samples/validation", {"step": 20}, 1),
        ("rollout/samples/rollout", {}, 1),
    ]
    table = rows[0].table
    assert table is not None
    assert "response" not in table["columns"]
    assert "split" not in table["columns"]
    cells = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [cell["prompt"] for cell in cells] == ["1+1=", "1+2="]
    assert math.isnan(cells[1]["reward"])
    assert json.loads(cells[0]["rewards"]) == [{"key": "exact", "value": 1.0}]
    assert cells[1]["rewards"] is None
    assert cells[0]["time"] == at(10).isoformat()


def named(row: HistoryRow) -> tuple[str, dict[str, Any], int]:
    assert row.table is not None
    position = {key: value for key, value in row.values.items() if key not in ("attempt", "_timestamp")}
    return row.table["name"], position, len(row.table["data"])
