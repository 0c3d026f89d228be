"""The fast path of `log_metrics` writes what the rule writes, to the byte."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings, strategies as st

import rl_eventlog
from rl_eventlog.layout import RunLayout
from rl_eventlog.reader import RunFiles
from rl_eventlog.schema import table
from rl_eventlog.segment.frames import encode_frame
from rl_eventlog.segment.template import Shape, Template
from rl_eventlog.types import Identity
from rl_eventlog.value_types import Last, Max, Mean, Min, Quantiles, Sum
from rl_eventlog.writer import metrics as metrics_module
from rl_eventlog.writer.metrics import MetricPlans
from rl_eventlog.writer.scalars import fetch_device_scalars, plain_floats
from rl_eventlog.writer.skips import Skips
from rl_eventlog.writer.values import sort_values

IDENTITY = Identity("01" + "0" * 24, "02" + "0" * 24, "launch", "trainer", 3, None, "node")
SCHEMA = table("metrics").open.with_metadata(IDENTITY.to_metadata("metrics"))
MESSAGE = SCHEMA.serialize().to_pybytes()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 20, 63, 64, 65, 129, 1001])
def test_a_template_writes_what_pyarrow_writes(count: int) -> None:
    names = tuple(f"train/é{index}" for index in range(count))
    choices = itertools.product((None, "mean"), (None, "tokens"), (False, True), (False, True), (0, 1, 3))
    for reduction, axis, closes_step, has_step, weighted_every in choices:
        reductions = tuple(reduction if index % 2 else None for index in range(count))
        weighted = tuple(bool(weighted_every) and index % weighted_every == 0 for index in range(count))
        template = Template(Shape(names, reductions, axis, closes_step, has_step, weighted), SCHEMA, MESSAGE)
        values = [math.nan, math.inf, -math.inf, -0.0, 5e-324, *range(count)][:count]
        weights = [index / 7 if has else 0.0 for index, has in enumerate(weighted)] if any(weighted) else None
        step, axis_value = -5 if has_step else None, 1.5 if axis else None
        filled = template.fill(2**40, step, 1_764_547_200_000_001, axis_value, [float(v) for v in values], weights)
        columns: dict[str, list[Any]] = {
            "step": [step] * count,
            "time": [1_764_547_200_000_001] * count,
            "name": list(names),
            "axis": [axis] * count,
            "axis_value": [axis_value] * count,
            "value": [float(v) for v in values],
            "weight": [index / 7 if has else None for index, has in enumerate(weighted)],
            "reduction": list(reductions),
            "closes_step": [True if closes_step else None] * count,
        }
        batch = pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)
        assert bytes(filled) == encode_frame(batch, 2**40, SCHEMA, MESSAGE)


KEYS = st.sampled_from(["loss", "kl", "tokens", "train/loss", "é", "a"])
NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.floats(width=32).map(np.float32),
    st.integers(-(2**31), 2**31 - 1).map(np.int64),
    st.floats(width=32).map(torch.tensor),
    st.none(),
    st.just("text"),
    st.builds(Mean, st.floats(), weight=st.one_of(st.none(), st.floats(), st.integers(0, 9))),
    st.sampled_from([Sum, Max, Min, Last, Quantiles]).flatmap(lambda kind: st.builds(kind, st.floats())),
)
WEIGHTS = st.one_of(st.none(), st.floats(), st.dictionaries(KEYS, st.floats()))
REDUCTIONS = st.one_of(
    st.none(), st.just("sum"), st.dictionaries(st.sampled_from(["loss", "*", "train/*"]), st.just("max"))
)


@settings(max_examples=60)
@given(
    calls=st.lists(st.dictionaries(KEYS, NUMBERS, max_size=5), min_size=1, max_size=3),
    step=st.one_of(st.none(), st.integers(-3, 3)),
    prefix=st.sampled_from(["", "train", "train/", "/"]),
    step_metric=st.sampled_from([None, "tokens", "train/loss"]),
    finished=st.booleans(),
    weight=WEIGHTS,
    reduce=REDUCTIONS,
)
def test_a_call_with_a_plan_and_one_without_write_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[dict[str, Any]],
    step: int | None,
    prefix: str,
    step_metric: str | None,
    finished: bool,
    weight: Any,
    reduce: Any,
) -> None:
    root = tmp_path_factory.mktemp("runs")
    arguments = (step, prefix, step_metric, finished)
    quick = rl_eventlog.EventWriter.open(root, run="quick", rank=1)
    for call in [*calls, *calls]:
        quick.log_metrics(call, *arguments, weight=weight, reduce=reduce)
    quick.close()
    slow = rl_eventlog.EventWriter.open(root, run="slow", rank=1)
    for call in [*calls, *calls]:
        slow._log_any(call, *arguments, weight, reduce)
    slow.close()
    assert rows(root / "quick") == rows(root / "slow")


def rows(path: Path) -> list[tuple[Any, ...]]:
    columns = ["seq", "step", "name", "axis", "axis_value", "value", "weight", "reduction", "closes_step"]
    frame = RunFiles.open(path).rows("metrics").sort("seq").collect().select(columns)
    return [tuple(value.hex() if isinstance(value, float) else value for value in row) for row in frame.rows()]


def test_plans_are_bounded_and_pushed_out_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "CACHE_BYTES", 100_000)
    plans = MetricPlans(IDENTITY, Skips())
    for number in range(100):
        call = {f"{number}/{index}": 1.0 for index in range(10)}
        assert plans.rows(call, number, 0, "", None, False, None, None) is not None
    assert 0 < plans.evictions < 100
    assert plans.rows({"99/0": 1.0}, 1, 0, "", None, False, None, None) is not None


def test_plans_of_a_thousand_shapes_stay_within_sixteen_megabytes_without_a_push() -> None:
    plans = MetricPlans(IDENTITY, Skips())
    for number in range(1000):
        plans.rows({f"set {number}/{index}": 1.0 for index in range(20)}, 1, 0, "", None, False, None, None)
    assert plans.evictions == 0


class DeviceTensor(torch.Tensor):
    """A CPU tensor that says it is on a device: there is no GPU here."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers each transfer moved."""
    found: list[int] = []
    stack = torch.stack

    def counting(tensors: list[torch.Tensor]) -> torch.Tensor:
        found.append(len(tensors))
        return stack(tensors)

    monkeypatch.setattr(torch, "stack", counting)
    return found


def on_device(number: float) -> torch.Tensor:
    return torch.tensor(number).as_subclass(DeviceTensor)


def test_scalars_of_a_device_move_in_one_transfer(transfers: list[int]) -> None:
    values = [on_device(float(i)) for i in range(20)]
    mixed = [*values, 5, 0.5, torch.tensor(7.0), torch.tensor([1.0, 2.0]).as_subclass(DeviceTensor)]
    fetched = fetch_device_scalars(mixed)
    assert transfers == [20]
    assert fetched[:22] == [float(i) for i in range(20)] + [5, 0.5]
    nested = {"a": {"b": values[3], "c": [1.0, 2.0]}, "d": values[4]}
    assert sort_values(nested).scalars == {"a/b": 3.0, "d": 4.0}
    assert transfers == [20, 2]
    assert plain_floats([*values, torch.tensor(0.5, dtype=torch.bfloat16)]) == [*map(float, range(20)), 0.5]


@pytest.mark.parametrize("more", [{}, {"text": "left to the rule"}])
def test_weights_on_a_device_move_with_the_values(tmp_path: Path, transfers: list[int], more: dict[str, str]) -> None:
    log = rl_eventlog.EventWriter.open(tmp_path, run="r")
    metrics = {"a": Mean(on_device(1.0), weight=on_device(5.0)), "b": Mean(on_device(2.0)), "c": on_device(3.0)}
    weight: Any = {"b": on_device(6.0), "c": on_device(7.0)}
    log.log_metrics({**metrics, **more}, step=1, weight=weight)
    assert transfers == [6]
    log.accumulate(metrics, weight=weight["c"])
    assert transfers == [6, 5]
    log.close()
    rows = RunFiles.open(RunLayout(tmp_path / "r").path).rows("metrics").collect()
    assert sorted(rows.select("name", "value", "weight").rows()) == [("a", 1.0, 5.0), ("b", 2.0, 6.0), ("c", 3.0, 7.0)]


def test_value_types_of_numbers_have_a_plan() -> None:
    plans = MetricPlans(IDENTITY, Skips())
    call = {
        "a": Mean(1.0, weight=3),
        "b": Mean(2.0),
        "c": Sum(3),
        "d": Max(4.0),
        "e": Min(np.float32(5)),
        "f": Last(6.0),
    }
    rows = plans.rows({**call, "g": 7.0}, 1, 0, "", None, False, None, None)
    assert rows is not None
    assert list(rows[4]) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert rows[5] == [3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_the_segments_of_a_run_know_no_difference(tmp_path: Path) -> None:
    log = rl_eventlog.EventWriter.open(tmp_path, run="r", segment_bytes=20_000)
    for step in range(200):
        log.log_metrics({"a": 1.0, "b": step}, step=step)
    log.close()
    files = RunFiles.open(RunLayout(tmp_path / "r").path)
    assert not files.problems
    assert files.rows("metrics").collect().height == 400
