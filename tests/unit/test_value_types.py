"""Value types: a metric says itself how it is merged, in one call and over the micro-batches of a step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from rl_eventlog import EventWriter, Last, Max, Mean, Min, Quantiles, Run, Sum


def logged(tmp_path: Path, ranks: list[dict[str, Any]], **options: Any) -> Run:
    for rank, metrics in enumerate(ranks):
        with EventWriter.open(tmp_path, run="r", rank=rank, world_size=len(ranks), launch_id="one") as log:
            log.log_metrics(metrics, step=1, **options)
    return Run(tmp_path / "r")


def values(run: Run) -> dict[str, float]:
    return dict(run.metrics().select("name", "value").collect().rows())


def test_each_type_is_merged_as_it_says(tmp_path: Path) -> None:
    ranks = [
        {"loss": Mean(1.0, weight=3), "tokens": Sum(10), "top": Max(1), "low": Min(1), "lr": Last(0.1)},
        {"loss": Mean(5.0, weight=1), "tokens": Sum(30), "top": Max(7), "low": Min(7), "lr": Last(0.2)},
    ]
    assert values(logged(tmp_path, ranks)) == {"loss": 2.0, "tokens": 40.0, "top": 7.0, "low": 1.0, "lr": 0.1}


def test_a_type_wins_over_reduce_and_weight(tmp_path: Path) -> None:
    ranks = [{"a": Sum(1), "m": Mean(0.0, weight=1)}, {"a": Sum(2), "m": Mean(4.0, weight=3)}]
    assert values(logged(tmp_path, ranks, reduce="max", weight=100.0)) == {"a": 3.0, "m": 3.0}


@pytest.mark.parametrize(("value", "options"), [(Quantiles(2.0), {}), (2.0, {"reduce": {"q*": "histogram"}})])
def test_quantiles_and_histogram_become_distributions(tmp_path: Path, value: Any, options: Any) -> None:
    run = logged(tmp_path, [{"q": value, "a": 1.0}, {"q": Quantiles([3.0, 4.0]), "a": 1.0}], **options)
    assert values(run) == {"a": 1.0}
    assert run.distributions().select(pl.col("name"), pl.col("count")).sort("count").collect().rows() == [
        ("q", 1),
        ("q", 2),
    ]


def test_a_type_around_no_number_is_skipped_and_harms_nothing(tmp_path: Path) -> None:
    run = logged(tmp_path, [{"bad": Sum(object()), "odd": Mean(1.0, weight="many"), "good": Sum(1)}])
    assert values(run) == {"odd": 1.0, "good": 1.0}


def accumulated(tmp_path: Path, *batches: tuple[dict[str, Any], float]) -> pl.DataFrame:
    with EventWriter.open(tmp_path, run="r") as log:
        for metrics, weight in batches:
            log.accumulate(metrics, weight=weight)
        log.log_accumulated(1)
    return Run(tmp_path / "r").metrics(ranks="each").collect()


def test_micro_batches_are_added_up_as_their_types_say(tmp_path: Path) -> None:
    rows = accumulated(
        tmp_path,
        ({"loss": 1.0, "m": Mean(2.0, weight=1), "n": Sum(4), "top": Max(5), "low": Min(5), "lr": Last(1)}, 3.0),
        ({"loss": 5.0, "m": Mean(8.0, weight=2), "n": Sum(6), "top": Max(2), "low": Min(2), "lr": Last(2)}, 1.0),
    )
    assert sorted(rows.select("name", "value", "weight", "reduction").rows()) == [
        ("loss", 2.0, 4.0, None),
        ("low", 2.0, None, "min"),
        ("lr", 2.0, None, "last"),
        ("m", 6.0, 3.0, "mean"),
        ("n", 10.0, None, "sum"),
        ("top", 5.0, None, "max"),
    ]


def test_nan_in_a_micro_batch_stays_and_null_is_ignored(tmp_path: Path) -> None:
    nan = math.nan
    rows = accumulated(
        tmp_path,
        ({"m": Mean(1.0), "n": Sum(nan), "top": Max(nan), "low": Min(1), "x": Sum(None), "y": Sum(1)}, 1.0),
        ({"m": Mean(nan), "n": Sum(1), "top": Max(1), "low": Min(nan), "y": Sum(None)}, 1.0),
    )
    found = dict(rows.select("name", "value").rows())
    assert found.pop("y") == 1.0
    assert found.keys() == {"m", "n", "top", "low"}
    assert all(math.isnan(value) for value in found.values())


def test_quantiles_of_micro_batches_are_one_distribution(tmp_path: Path) -> None:
    accumulated(tmp_path, ({"q": Quantiles([1.0, 2.0])}, 1.0), ({"q": Quantiles(3.0)}, 1.0))
    rows = Run(tmp_path / "r").distributions().collect()
    assert rows.select("count", "sum").rows() == [(3, 6.0)]


def test_a_key_keeps_its_first_type(tmp_path: Path) -> None:
    rows = accumulated(tmp_path, ({"a": Sum(1)}, 1.0), ({"a": Max(9)}, 1.0))
    assert rows.select("value", "reduction").rows() == [(1.0, "sum")]


def test_an_odd_reduction_costs_no_row(tmp_path: Path) -> None:
    run = logged(tmp_path, [{"a": 1.0, "b": 2.0}], reduce={"a": np.array([1, 2])})
    assert values(run) == {"a": 1.0, "b": 2.0}


def test_the_axis_of_a_histogram_stays_its_axis(tmp_path: Path) -> None:
    run = logged(tmp_path, [{"len": 5.0, "tokens": 100.0}], step_metric="tokens", reduce="histogram")
    assert run.distributions().select("name", "axis", "axis_value").collect().rows() == [("len", "tokens", 100.0)]


def test_one_bad_key_of_many_values_costs_no_other(tmp_path: Path) -> None:
    accumulated(tmp_path, ({"bad": Quantiles(["x"] * 9000), "good": Quantiles([1.0] * 9000)}, 1.0))
    assert Run(tmp_path / "r").distributions().select("name", "count").collect().rows() == [("good", 9000)]
