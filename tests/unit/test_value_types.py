"""Value types: a metric says itself how it is merged, in one call and over the micro-batches of a step."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from rl_eventlog import EventWriter, Last, Max, Mean, Min, Quantiles, Run, Sum, merge_ranks


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
    assert run.distributions(ranks="each").select("name", "count").sort("count").collect().rows() == [
        ("q", 1),
        ("q", 2),
    ]


def test_a_type_around_no_number_is_skipped_and_harms_nothing(tmp_path: Path) -> None:
    run = logged(tmp_path, [{"bad": Sum(object()), "odd": Mean(1.0, weight="many"), "good": Sum(1)}])
    assert values(run) == {"odd": 1.0, "good": 1.0}


@pytest.mark.parametrize(("metrics", "weight"), [({"m": Mean(1.0, weight=-1)}, None), ({"m": Mean(1.0)}, -1.0)])
def test_a_weight_that_does_not_count_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, metrics: dict[str, Any], weight: Any
) -> None:
    logged(tmp_path, [metrics], weight=weight)
    assert "weight -1.0 of 'm' is negative, NaN or infinite" in caplog.text


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
    assert run.distributions().select("name", "axis", "position").collect().rows() == [("len", "tokens", 100.0)]


def test_one_bad_key_of_many_values_costs_no_other(tmp_path: Path) -> None:
    accumulated(tmp_path, ({"bad": Quantiles(["x"] * 9000), "good": Quantiles([1.0] * 9000)}, 1.0))
    assert Run(tmp_path / "r").distributions().select("name", "count").collect().rows() == [("good", 9000)]


def test_a_mean_without_a_weight_has_the_calls(tmp_path: Path) -> None:
    metrics = {"a": Mean(1.0), "b": Mean(1.0, weight=2), "s": Sum(1.0)}
    with EventWriter.open(tmp_path, run="r") as log:
        log.log_metrics(metrics, 1, weight=3.0)
        log.log_metrics({**metrics, "t": "left to the rule"}, 2, weight={"a": 3.0})
        log.accumulate(metrics, weight=3.0)
        log.accumulate({"a": Mean(5.0)})
        log.log_accumulated(3)
    rows = Run(tmp_path / "r").metrics(ranks="each").select("step", "name", "value", "weight").collect().rows()
    assert sorted(rows, key=str) == [
        *((1, "a", 1.0, 3.0), (1, "b", 1.0, 2.0), (1, "s", 1.0, 3.0)),
        *((2, "a", 1.0, 3.0), (2, "b", 1.0, 2.0), (2, "s", 1.0, None)),
        *((3, "a", 2.0, 4.0), (3, "b", 1.0, 2.0), (3, "s", 1.0, None)),
    ]


MANY = [[1.0, 2.0], [1.0], np.ones(3), np.ones(9000), (1.0, 2.0), "many"]


@pytest.mark.parametrize("value", MANY, ids=["list", "list of one", "array", "large array", "tuple", "text"])
@pytest.mark.parametrize("kind", [Mean, Sum, Max, Min, Last])
def test_many_values_where_one_number_is_declared_are_skipped_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Any, value: Any
) -> None:
    with EventWriter.open(tmp_path, run="r") as log:
        log.log_metrics({"bad": kind(value), "good": 1.0}, step=1)
        log.accumulate({"bad": kind(value), "sum": Sum(2.0)})
        log.log_accumulated(1)
    run, found = Run(tmp_path / "r"), "a text" if isinstance(value, str) else "many values"
    assert values(run) == {"good": 1.0, "sum": 2.0}
    assert run.distributions().collect().height == run.markers("bad").collect().height == 0
    reason = f"{kind.__name__} of {found}: give one number, or Quantiles"
    messages = [record.getMessage() for record in caplog.records if "bad" in record.getMessage()]
    assert messages == [f"rl-eventlog skips 'bad' ({why}): {reason}" for why in ("values skipped", "not accumulated")]
    assert merge_ranks([{"bad": kind(value)}]) == {}


class TokenMean(Mean):
    """What a training may build on a value type."""


class Total(Sum):
    """As above."""


class Lengths(Quantiles):
    """As above."""


def test_a_subclass_works_like_its_base(tmp_path: Path) -> None:
    for rank, tokens in enumerate([1, 3]):
        with EventWriter.open(tmp_path, run="r", rank=rank, world_size=2, launch_id="one") as log:
            mine = {"loss": TokenMean(float(rank), weight=tokens), "n": Total(tokens), "len": Lengths([tokens, 5])}
            log.log_metrics(mine, 1)
            log.accumulate(mine)
            log.accumulate(mine)
            log.log_accumulated(2)
    run = Run(tmp_path / "r")
    assert run.metrics().select("step", "name", "value").sort("step", "name").collect().rows() == [
        *((1, "loss", 0.75), (1, "n", 4.0)),
        *((2, "loss", 0.75), (2, "n", 8.0)),
    ]
    assert run.distributions().select("step", "count", "sum").collect().rows() == [(1, 4, 14.0), (2, 8, 28.0)]


class Watched:
    """Many numbers that are slow to look at: meanwhile another thread has to get on."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile = meanwhile
        self.got_on = False

    def __len__(self) -> int:
        return 9000

    def copy(self) -> Watched:
        return self

    def tolist(self) -> list[float]:
        other = threading.Thread(target=self.meanwhile, daemon=True)
        other.start()
        other.join(30)
        self.got_on = not other.is_alive()
        return [2.0] * 9000


def test_many_values_do_not_hold_other_threads_up(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r") as log:
        watched = Watched(lambda: log.accumulate({"n": Sum(1)}))
        log.accumulate({"q": Quantiles(watched)})
        log.log_accumulated(1)
    assert watched.got_on
    run = Run(tmp_path / "r")
    assert values(run) == {"n": 1.0}
    assert run.distributions().select("count", "sum").collect().rows() == [(9000, 18000.0)]


PARTS = [
    np.arange(20_000, dtype=np.float32).reshape(100, 200),
    torch.arange(9_000, dtype=torch.bfloat16),
    [*range(10_000), True, 2**2000, 1e300],
    [[1.0, None], [np.float32(2.0)]],
    (3.0, 4.0),
    np.float64(5.0),
    None,
]


def test_parts_of_any_kind_are_gathered_as_they_would_be_logged(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r") as log:
        for part in PARTS:
            log.accumulate({"all": Quantiles(part)})
        log.log_accumulated(1)
    (row,) = Run(tmp_path / "r").distributions().collect().to_dicts()
    assert row["count"] == 20_000 + 9_000 + 10_003 + 2 + 2 + 1
    assert row["max"] == math.inf
    assert row["zero_count"] == 3


def test_a_caller_may_change_its_array_after_the_call(tmp_path: Path) -> None:
    array = np.ones(20_000)
    with EventWriter.open(tmp_path, run="r") as log:
        log.accumulate({"q": Quantiles(array)})
        array[:] = 7.0
        log.log_accumulated(1)
    assert Run(tmp_path / "r").distributions().select("sum", "max").collect().rows() == [(20_000.0, 1.0)]
