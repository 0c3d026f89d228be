from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import rl_eventlog
from rl_eventlog import CloseReport, EventWriter, NullWriter
from rl_eventlog.documents import decode_beat
from rl_eventlog.errors import WriterClosedError
from tests.support.raw import assert_dense, raw_rows

Row = dict[str, Any]
T = TypeVar("T")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventWriter]:
    writer = EventWriter.open(tmp_path, run="run", role="trainer", rank=0, world_size=2, capture_diff=False)
    yield writer
    writer.close()


def rows_of(log: EventWriter, table: str) -> list[Row]:
    """What the calls left on the disk before any close."""
    return raw_rows(log.path, table)


def only(rows: list[Row], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in rows]


def end_record(log: EventWriter) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((log.path / "writers" / f"{log.writer_id}.end.json").read_bytes())
    return document


class TestMetrics:
    def test_a_call_is_on_disk_when_it_returns(self, log: EventWriter) -> None:
        log.log_metrics({"loss": 0.5, "tokens": 7}, step=3, prefix="train")
        (loss, tokens) = rows_of(log, "metrics")
        assert (loss["name"], loss["value"], loss["step"], loss["seq"]) == ("train/loss", 0.5, 3, 0)
        assert (tokens["name"], tokens["value"], tokens["step"], tokens["seq"]) == ("train/tokens", 7.0, 3, 1)
        assert loss["axis"] is loss["axis_value"] is loss["weight"] is loss["reduction"] is loss["closes_step"] is None
        assert abs(time.time() - loss["time"].timestamp()) < 60
        assert loss["time"] == tokens["time"]

    def test_the_step_of_set_step_counts_where_none_is_given(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1})
        log.set_step(4)
        log.log_metrics({"a": 2})
        log.log_metrics({"a": 3}, step=9)
        log.log_metrics({"a": 4})
        log.set_step(None)
        log.log_metrics({"a": 5})
        assert only(rows_of(log, "metrics"), "value", "step") == [(1, None), (2, 4), (3, 9), (4, 4), (5, None)]

    @pytest.mark.parametrize(
        ("step", "kept"),
        [
            (2**63 - 1, 2**63 - 1),
            (-(2**63), -(2**63)),
            (2**63, None),
            (3.0, 3),
            (1.5, None),
            ("3", None),
            (True, 1),
            (float("nan"), None),
            ([1], None),
            (object(), None),
        ],
    )
    def test_a_step_that_is_none_costs_the_step_and_not_the_row(
        self, log: EventWriter, step: Any, kept: int | None
    ) -> None:
        log.set_step(5)
        log.log_metrics({"a": 1.0}, step=step)
        log.log_timing("t", 1.0, step)
        log.mark("m", step=step)
        assert only(rows_of(log, "metrics"), "value", "step") == [(1.0, kept)]
        assert only(rows_of(log, "timings"), "step") == [(kept,)]
        assert only(rows_of(log, "markers"), "step") == [(kept,)]

    @pytest.mark.parametrize("value", [1.0, None], ids=["with a plan", "without"])
    def test_a_step_that_is_none_is_told_with_its_call(
        self, log: EventWriter, caplog: pytest.LogCaptureFixture, value: float | None
    ) -> None:
        odd: list[Any] = ["X", "Y", 1.5, 2**63]
        log.set_step(5)
        for step in odd:
            log.log_metrics({"a": value}, step=step)
        log.log_timing("t", 1.0, odd[0])
        assert [record.getMessage() for record in caplog.records] == [
            f"rl-eventlog: step {step!r} of {call} is no whole number of 64 bits ({kind}): "
            "its rows are kept without a step"
            for step, call, kind in [
                ("X", "log_metrics", "str"),
                ("1.5", "log_metrics", "float"),
                (str(2**63), "log_metrics", "int"),
                ("X", "log_timing", "str"),
            ]
        ]
        assert only(rows_of(log, "metrics"), "step") == [(None,)] * 4
        assert log.close().counters == {"steps that are none": 5}

    def test_prefix_comes_before_names_of_every_kind(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1.0, "b": [1.0, 2.0], "c": "text", "d": {"e": 2.0}}, step=1, prefix="p")
        assert only(rows_of(log, "metrics"), "name") == [("p/a",), ("p/d/e",)]
        assert only(rows_of(log, "distributions"), "name", "count") == [("p/b", 2)]
        assert only(rows_of(log, "markers"), "name", "text") == [("p/c", "text")]

    def test_step_metric_unprefixed_becomes_the_axis_and_no_row(self, log: EventWriter) -> None:
        log.log_metrics({"gpu": 0.5, "ray/ray_step": 12}, step=3, prefix="ray", step_metric="ray/ray_step")
        expected = [("ray/gpu", 3, "ray/ray_step", 12.0)]
        assert only(rows_of(log, "metrics"), "name", "step", "axis", "axis_value") == expected

    def test_step_metric_is_found_under_its_prefixed_name_too(self, log: EventWriter) -> None:
        log.log_metrics({"gpu": 0.5, "ray_step": 12}, step=3, prefix="ray", step_metric="ray/ray_step")
        expected = [("ray/gpu", 3, "ray/ray_step", 12.0)]
        assert only(rows_of(log, "metrics"), "name", "step", "axis", "axis_value") == expected

    def test_the_unprefixed_step_metric_wins(self, log: EventWriter) -> None:
        log.log_metrics({"n": 1, "p/n": 2, "a": 3}, step=3, prefix="p", step_metric="p/n")
        assert only(rows_of(log, "metrics"), "name", "axis_value") == [("p/n", 2.0), ("p/a", 2.0)]

    @pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "text"])
    def test_an_absent_step_metric_leaves_ordinary_rows(self, log: EventWriter, value: Any) -> None:
        log.log_metrics({"a": 1.0, "n": value}, step=3, step_metric="n")
        log.log_metrics({"a": 2.0}, step=4, step_metric="n")
        rows = [row for row in rows_of(log, "metrics") if row["name"] == "a"]
        assert only(rows, "step", "axis", "axis_value") == [(3, None, None), (4, None, None)]

    def test_distributions_lie_on_the_axis_as_well(self, log: EventWriter) -> None:
        log.log_metrics({"lengths": [1, 2], "n": 5}, step=3, step_metric="n")
        assert only(rows_of(log, "distributions"), "axis", "axis_value") == [("n", 5.0)]

    def test_one_weight_and_reduction_for_all(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1, "b": 2}, step=1, weight=3, reduce="sum")
        assert only(rows_of(log, "metrics"), "weight", "reduction") == [(3.0, "sum"), (3.0, "sum")]

    def test_mappings_by_key_by_name_and_by_glob(self, log: EventWriter) -> None:
        values = {"a": 1, "b": 2, "tok/in": 3, "tok/out": 4, "x[0]": 5, "other": 6}
        reduce = {"a": "sum", "p/b": "max", "tok/*": "min", "x[0]": "last"}
        log.log_metrics(values, step=1, prefix="p", reduce=reduce, weight={"a": 2, "p/b": 4.5})
        got = {row["name"]: (row["reduction"], row["weight"]) for row in rows_of(log, "metrics")}
        assert got == {
            "p/a": ("sum", 2.0),
            "p/b": ("max", 4.5),
            "p/tok/in": ("min", None),
            "p/tok/out": ("min", None),
            "p/x[0]": ("last", None),
            "p/other": (None, None),
        }

    def test_odd_weights_and_reductions_stay_or_go_by_name_and_raise_nothing(self, log: EventWriter) -> None:
        odd: list[Any] = [-1.0, float("nan"), 10**400, "heavy", object(), {"a": "x"}, {3: 1}]
        for weight in odd:
            log.log_metrics({"a": 1}, weight=weight)
        weights = [row["weight"] for row in rows_of(log, "metrics")]
        assert weights[0] == -1.0
        assert weights[1] != weights[1]
        assert weights[2:] == [float("inf"), None, None, None, None]
        names: list[Any] = ["of_tomorrow", 3, ["sum"], {"a": 3}, {3: "sum"}]
        for reduction in names:
            log.log_metrics({"r": 1}, reduce=reduction)
        reductions = [row["reduction"] for row in rows_of(log, "metrics") if row["name"] == "r"]
        assert reductions == ["of_tomorrow", None, None, None, None]

    def test_a_weight_that_cannot_be_used_is_told_once_a_name(
        self, log: EventWriter, caplog: pytest.LogCaptureFixture
    ) -> None:
        heavy: Any = "heavy"
        for weight in (-1.0, float("nan"), float("inf"), {"a": -2, "b": 1}):
            log.log_metrics({"a": 1.0, "b": 2.0}, weight=weight)
        log.log_metrics({"c": 1}, prefix="p", weight=heavy)
        log.log_metrics({"d": 1.0}, weight=0)
        assert [record.getMessage() for record in caplog.records] == [
            "rl-eventlog: weight -1.0 of 'a' is negative, NaN or infinite: the row is kept and not counted in means",
            "rl-eventlog: weight -1.0 of 'b' is negative, NaN or infinite: the row is kept and not counted in means",
            "rl-eventlog: weight of 'p/c' is no number (str): the row is kept with weight 1",
        ]
        rows = only(rows_of(log, "metrics"), "name", "weight")
        assert [row for row in rows if row[1] == row[1]] == [
            *(("a", -1.0), ("b", -1.0), ("a", float("inf")), ("b", float("inf")), ("a", -2.0), ("b", 1.0)),
            *(("p/c", None), ("d", 0.0)),
        ]
        assert log.close().counters == {"weights that do not count": 7, "weights that are no numbers": 1}

    @pytest.mark.parametrize("value", [1.0, None], ids=["with a plan", "without"])
    def test_an_unknown_reduction_is_told_once_a_name_and_written(
        self, log: EventWriter, caplog: pytest.LogCaptureFixture, value: float | None
    ) -> None:
        for step in range(3):
            log.log_metrics(
                {"a": value, "b": value, "c": value}, step=step, prefix="p", reduce={"a": "avg", "b": "sum"}
            )
            log.log_metrics({"a": value, "d": value}, step=step, prefix="p", reduce={"a": "avg"}, step_finished=True)
        assert [record.getMessage() for record in caplog.records] == [
            (
                "rl-eventlog does not know the reduction 'avg' of 'p/a' and will not merge its ranks; "
                "known are mean, sum, min, max, last, std, p50, p90, p95, p99, none"
            )
        ]
        assert [row["reduction"] for row in rows_of(log, "metrics") if row["name"] == "p/a"] == ["avg"] * 6

    @pytest.mark.parametrize("value", [1.0, None], ids=["with a plan", "without"])
    @pytest.mark.parametrize(
        ("prefix", "name"), [("p/", "p/a"), ("p//", "p/a"), ("p/q/", "p/q/a"), ("/", "a"), ("/p", "/p/a")]
    )
    def test_slashes_at_the_end_of_a_prefix_are_one(
        self, log: EventWriter, prefix: str, name: str, value: float | None
    ) -> None:
        log.log_metrics({"a": value, "n": 4}, 1, prefix, step_metric=f"{name[:-1]}n", weight={name: 2.0, "n": 1.0})
        assert only(rows_of(log, "metrics"), "name", "weight", "axis_value") == [(name, 2.0, 4.0)]

    def test_step_finished_closes_the_step_with_or_without_metrics(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1}, step=1, step_finished=True)
        log.log_metrics({}, step=2, step_finished=True)
        assert only(rows_of(log, "metrics"), "step", "closes_step") == [(1, True)]
        assert only(rows_of(log, "markers"), "name", "level", "step") == [("step_closed", "debug", 2)]


class TestAccumulate:
    def test_the_row_is_the_weighted_mean_and_carries_the_sum_of_weights(self, log: EventWriter) -> None:
        log.accumulate({"loss": 1.0, "kl": 4.0}, weight=1)
        log.accumulate({"loss": 3.0}, weight=3)
        log.log_accumulated(7, prefix="train", step_finished=True)
        got = only(rows_of(log, "metrics"), "name", "value", "weight", "step", "closes_step")
        assert got == [("train/loss", 2.5, 4.0, 7, True), ("train/kl", 4.0, 1.0, 7, True)]

    def test_it_starts_anew_after_each_log(self, log: EventWriter) -> None:
        log.accumulate({"a": 1.0})
        log.log_accumulated(1)
        log.accumulate({"a": 5.0})
        log.log_accumulated(2)
        log.log_accumulated(3)
        assert only(rows_of(log, "metrics"), "value", "step") == [(1.0, 1), (5.0, 2)]

    def test_nan_poisons_null_and_weight_zero_do_not(self, log: EventWriter) -> None:
        log.accumulate({"a": float("nan"), "b": None, "c": 1.0})
        log.accumulate({"a": 1.0, "b": 2.0, "c": 5.0}, weight=0)
        log.accumulate({"b": 4.0})
        log.log_accumulated(1)
        got = {row["name"]: row["value"] for row in rows_of(log, "metrics")}
        assert got["a"] != got["a"]
        assert got["b"] == 4.0
        assert got["c"] == 1.0

    def test_odd_weights_and_values_are_counted(self, log: EventWriter) -> None:
        odd: list[Any] = [-1, float("nan"), "x", None, object()]
        for weight in odd:
            log.accumulate({"a": 1.0}, weight=weight)
        log.accumulate({"t": "text", "l": [1, 2]})
        log.log_accumulated(1)
        assert rows_of(log, "metrics") == []
        assert log.close().counters["not accumulated"] == 7

    def test_what_was_never_logged_is_in_the_report(self, log: EventWriter) -> None:
        log.accumulate({"a": 1.0, "b": 2.0})
        assert log.close().counters["accumulated and never logged"] == 2


class TestTimings:
    def test_a_duration_with_and_without_a_start(self, log: EventWriter) -> None:
        log.log_timing("rollout/generate", 1.25, 3, start=1_700_000_000.5)
        log.log_timing("sync", 2)
        first, second = rows_of(log, "timings")
        assert (first["name"], first["duration_seconds"], first["count"], first["step"]) == (
            "rollout/generate",
            1.25,
            1,
            3,
        )
        assert first["start"].timestamp() == 1_700_000_000.5
        assert (second["start"], second["duration_seconds"]) == (None, 2.0)

    def test_the_timer_records_spans_at_the_current_step(self, log: EventWriter) -> None:
        log.set_step(8)
        with log.timer.time("a"), log.timer.time("b"), log.timer.time("b"):
            pass
        log.timer.start("c")
        seconds = log.timer.stop("c")
        log.timer.record("d", 0.5)
        rows = rows_of(log, "timings")
        assert only(rows, "name", "step") == [("b", 8), ("b", 8), ("a", 8), ("c", 8), ("d", 8)]
        assert rows[3]["duration_seconds"] == seconds
        assert rows[4]["duration_seconds"] == 0.5
        assert all(abs(row["start"].timestamp() - time.time()) < 60 for row in rows[:4])

    def test_a_block_that_raises_is_timed_and_its_exception_passes(self, log: EventWriter) -> None:
        with pytest.raises(KeyError), log.timer.time("a"):
            raise KeyError
        assert only(rows_of(log, "timings"), "name") == [("a",)]

    def test_misuse_says_so(self, log: EventWriter) -> None:
        log.timer.start("a")
        with pytest.raises(ValueError, match="'a' is running already"):
            log.timer.start("a")
        log.timer.stop("a")
        with pytest.raises(ValueError, match="'a' is not running"):
            log.timer.stop("a")

    def test_running_labels_are_in_the_heartbeat(self, tmp_path: Path) -> None:
        with EventWriter.open(tmp_path, run="r", beat_interval_seconds=0.01, capture_diff=False) as log:
            log.log_metrics({"a": 1}, step=17)
            with log.timer.time("generate"):
                beat = _wait_for(
                    lambda: _beat(log), lambda beat: beat is not None and beat["open_timers"] == ["generate"]
                )
        assert beat is not None
        assert (beat["writer"], beat["step"], beat["rows_lost"]) == (log.writer_id, 17, 0)
        assert beat["idle_seconds"] >= 0

    @pytest.mark.parametrize("start", [float("nan"), float("inf"), 1e30, "x", object()])
    def test_an_odd_start_costs_the_start_alone(self, log: EventWriter, start: Any) -> None:
        log.log_timing("a", 1.0, start=start)
        assert only(rows_of(log, "timings"), "start", "duration_seconds") == [(None, 1.0)]

    def test_an_odd_duration_is_counted(self, log: EventWriter) -> None:
        odd: list[Any] = ["x", None, object()]
        for seconds in odd:
            log.log_timing("a", seconds)
        assert rows_of(log, "timings") == []
        assert log.close().counters["no duration"] == 3


def _beat(log: EventWriter) -> dict[str, Any] | None:
    path = log.path / "writers" / f"{log.writer_id}.beat"
    return decode_beat(path.read_bytes()) if path.exists() else None


def _wait_for(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    deadline = time.monotonic() + 60
    while not holds(found := look()):
        assert time.monotonic() < deadline, f"waited for a minute, still {found}"
        threading.Event().wait(0.005)
    return found


class TestOtherTables:
    def test_hyperparameters(self, log: EventWriter) -> None:
        log.log_hyperparams({"lr": 0.1, "model": {"name": "qwen"}})
        log.log_hyperparams({"lr": 0.2})
        assert only(rows_of(log, "hparams"), "key", "value") == [("lr", "0.1"), ("model.name", '"qwen"'), ("lr", "0.2")]

    def test_hyperparameters_that_are_none_are_counted(self, log: EventWriter) -> None:
        odd: list[Any] = [None, 3, "text", [1], {}]
        for params in odd:
            log.log_hyperparams(params)
        assert rows_of(log, "hparams") == []
        assert log.close().counters["no hyperparameters"] == 4

    def test_an_artifact_is_stored_by_content_once(self, log: EventWriter, tmp_path: Path) -> None:
        source = tmp_path / "notes.txt"
        source.write_text("hello")
        log.log_artifact(source)
        log.log_artifact(str(source), name="again", kind="model")
        first, second = rows_of(log, "artifacts")
        sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        assert (first["name"], first["kind"], first["bytes"], first["media_type"]) == (
            "notes.txt",
            "file",
            5,
            "text/plain",
        )
        assert (first["sha256"], first["path"]) == (sha256, str(source))
        assert (second["name"], second["kind"], second["sha256"]) == ("again", "model", sha256)
        stored = [path for path in (log.path / "artifacts").rglob("*") if path.is_file()]
        assert stored == [log.path / "artifacts" / "2c" / sha256]
        assert stored[0].read_text() == "hello"

    def test_artifacts_that_cannot_be_read_are_counted(self, log: EventWriter, tmp_path: Path) -> None:
        odd: list[Any] = [tmp_path / "missing", tmp_path, 3, None, "nul\0"]
        for path in odd:
            log.log_artifact(path)
        counters = log.close().counters
        assert (counters["artifacts not stored"], counters["calls failed"]) == (2, 3)
        assert not [path for path in (log.path / "artifacts").rglob("*") if path.is_file()]

    def test_a_figure_becomes_a_png(self, log: EventWriter) -> None:
        class Figure:
            def savefig(self, file: Any, format: str) -> None:  # noqa: A002 -- Matplotlib's name
                file.write(b"\x89PNG" + format.encode())

        log.log_plot(Figure(), 4, "curves")
        (row,) = rows_of(log, "artifacts")
        assert (row["name"], row["kind"], row["media_type"], row["step"]) == ("curves", "figure", "image/png", 4)
        assert (log.path / "artifacts" / row["sha256"][:2] / row["sha256"]).read_bytes() == b"\x89PNGpng"

    def test_a_figure_that_cannot_be_drawn_is_counted(self, log: EventWriter) -> None:
        log.log_plot(None, 4, "curves")
        assert log.close().counters["no figure"] == 1

    def test_gpu_samples(self, log: EventWriter) -> None:
        log.set_step(2)
        log.log_gpu_samples(
            [
                {"device_node": "n1", "gpu_index": 3, "gpu_uuid": "GPU-1", "utilization_ratio": 0.5, "source": "nvml"},
                {"utilization_ratio": 1, "memory_used_bytes": 2**40, "memory_total_bytes": 2**41},
            ]
        )
        gpu, host = rows_of(log, "gpu_samples")
        assert (gpu["device_node"], gpu["gpu_index"], gpu["utilization_ratio"], gpu["source"]) == ("n1", 3, 0.5, "nvml")
        assert (host["device_node"], host["gpu_index"]) == (os.uname().nodename, None)
        assert (host["memory_used_bytes"], host["utilization_ratio"], host["step"]) == (2**40, 1.0, 2)

    def test_gpu_values_that_do_not_fit_cost_themselves_alone(self, log: EventWriter) -> None:
        rows: list[Any] = [
            {
                "gpu_index": "x",
                "power_watts": 100.0,
                "device_node": 3,
                "memory_used_bytes": 2**70,
                "unknown": 1,
                "time": 5,
            }
        ]
        log.log_gpu_samples(rows)
        (row,) = rows_of(log, "gpu_samples")
        assert (row["gpu_index"], row["power_watts"], row["memory_used_bytes"]) == (None, 100.0, None)
        assert row["time"].timestamp() > 1e9
        assert log.close().counters["values skipped"] == 5

    def test_a_sample_that_is_none_costs_itself_alone_and_is_named(
        self, log: EventWriter, caplog: pytest.LogCaptureFixture
    ) -> None:
        log.log_samples([{"prompt": "a"}, None, {"prompt": "b"}, None], step=1)
        assert only(rows_of(log, "samples"), "prompt", "sample_index") == [("a", 0), ("b", 2)]
        assert [record.getMessage() for record in caplog.records] == [
            "rl-eventlog: sample 1 of log_samples is left out: it is no readable mapping but NoneType"
        ]
        assert log.close().counters == {"samples skipped": 2}

    def test_samples(self, log: EventWriter) -> None:
        log.log_samples([{"prompt": "2+2", "response": "4", "reward": 1}], 6)
        log.log_samples({"response": ["a", "b"]}, split="rollout")
        got = only(rows_of(log, "samples"), "split", "response", "reward", "step", "sample_index")
        assert got == [("validation", "4", 1.0, 6, 0), ("rollout", "a", None, None, 0), ("rollout", "b", None, None, 1)]

    def test_histograms(self, log: EventWriter) -> None:
        log.log_histogram([1.0, 2.0, 4.0], 5, "lengths")
        log.log_histogram(([3, 4], [0.0, 1.0, 2.0]), 6, "given")
        values, given = rows_of(log, "distributions")
        assert (values["name"], values["step"], values["count"], values["sum"]) == ("lengths", 5, 3, 7.0)
        assert (values["min"], values["max"], values["edges"]) == (1.0, 4.0, None)
        assert (given["name"], given["count"], given["edges"], given["edge_counts"]) == ("given", 7, [0, 1, 2], [3, 4])

    def test_histograms_that_are_none_are_counted(self, log: EventWriter) -> None:
        odd: list[Any] = [([1, 2], [0, 1]), ([1], [1, 1]), ([0.5], [0, 1]), ([-1], [0, 1]), ([1], [0, float("nan")])]
        odd += ["text", object(), [1, "x"], ([2**70], [0, 1])]
        for histogram in odd:
            log.log_histogram(histogram, 1, "h")
        assert rows_of(log, "distributions") == []
        assert log.close().counters["no histogram"] == len(odd)

    def test_marks(self, log: EventWriter) -> None:
        log.mark("checkpoint", step=7, path="/ckpt", tries=2, self=1)
        log.mark("note", level="warning", text="careful")
        first, second = rows_of(log, "markers")
        assert (first["name"], first["level"], first["step"], first["text"]) == ("checkpoint", "info", 7, None)
        assert json.loads(first["fields"]) == {"path": "/ckpt", "tries": 2, "self": 1}
        assert (second["name"], second["level"], second["text"], second["fields"]) == (
            "note",
            "warning",
            "careful",
            None,
        )

    def test_a_mark_takes_any_field_and_cuts_long_text_between_characters(self, log: EventWriter) -> None:
        circle: dict[str, Any] = {"n": float("nan")}
        circle["self"] = circle
        log.mark("m", text="é" * 40_000, level=3, circle=circle, o={1, 2}, k={(1, 2): b"x"})  # type: ignore[arg-type]
        (row,) = rows_of(log, "markers")
        assert row["text"] == "é" * 32_768
        assert row["level"] == "3"
        fields = json.loads(row["fields"])
        assert fields["circle"] == {"n": "NaN", "self": "<dict>"}
        assert fields["k"] == {"(1, 2)": "b'x'"}

    @pytest.mark.parametrize("broken", ["\ud800x", "ok\udcff"])
    def test_half_surrogate_pairs_are_escaped_everywhere(self, log: EventWriter, broken: str, tmp_path: Path) -> None:
        source = tmp_path / "f"
        source.touch()
        log.log_metrics({broken: 1.0, "t": broken, "n": 1}, prefix=broken, step_metric="n", reduce=broken)
        log.log_timing(broken, 1.0)
        log.log_hyperparams({broken: broken})
        log.log_histogram([1], 1, broken)
        log.log_gpu_samples([{"gpu_name": broken}])
        log.log_samples([{"response": broken, broken: broken}], split=broken)
        log.log_artifact(source, name=broken, kind=broken)
        log.mark(broken, level=broken, text=broken, **{broken: broken})  # type: ignore[arg-type]  # no field named step
        escaped = broken.encode(errors="backslashreplace").decode()
        (metric,) = rows_of(log, "metrics")
        assert (metric["name"], metric["reduction"]) == (f"{escaped}/{escaped}", escaped)
        (sample,) = rows_of(log, "samples")
        assert (sample["response"], sample["split"]) == (escaped, escaped)
        assert json.loads(rows_of(log, "hparams")[0]["value"]) == broken, "JSON reads the escape back"
        assert log.close().ok
        assert log.close().counters == {}


class TestHarmless:
    def test_a_call_that_fails_inside_is_counted_and_named_once(
        self, log: EventWriter, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.WARNING, "rl_eventlog")
        for _ in range(3):
            log.log_gpu_samples(3)  # type: ignore[arg-type]
        assert log.close().counters == {"calls failed": 3}
        assert sum("log_gpu_samples" in record.getMessage() for record in caplog.records) == 1

    def test_calls_that_do_not_fit_the_signature_raise_as_usual(self, log: EventWriter) -> None:
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            log.log_metrics()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="unexpected keyword"):
            log.log_timing("a", 1.0, stepp=3)  # type: ignore[call-arg]

    def test_printing_and_raising_floats_are_the_users_business(
        self, log: EventWriter, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Loud:
            def __float__(self) -> float:
                print("loud")
                return 2.0

        class Broken:
            def __float__(self) -> float:
                raise RuntimeError

        log.log_metrics({"loud": Loud(), "broken": Broken(), "fine": 1.0})
        assert only(rows_of(log, "metrics"), "name", "value") == [("loud", 2.0), ("fine", 1.0)]
        assert capsys.readouterr().out == "loud\n"

    def test_nothing_goes_to_the_root_logger_and_no_signal_handler_is_installed(self, tmp_path: Path) -> None:
        root = logging.getLogger()
        before = (root.level, list(root.handlers), [signal.getsignal(number) for number in signal.valid_signals()])
        with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
            log.log_metrics({"a": object()})
        assert (root.level, list(root.handlers), [signal.getsignal(n) for n in signal.valid_signals()]) == before


class TestClose:
    def test_everything_is_sealed_and_the_end_recorded(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1, "b": 2}, step=1)
        log.log_timing("t", 1.0)
        report = log.close()
        assert report == CloseReport({"metrics": 2, "timings": 1}, {}, (), {}, ended=True)
        assert report.ok
        assert list(log.path.rglob("*.arrows")) == []
        assert len(list(log.path.rglob("*.parquet"))) == 2
        end = end_record(log)
        assert (end["writer"], end["reason"], end["last_seq"]) == (
            log.writer_id,
            "finished",
            {"metrics": 1, "timings": 0},
        )
        assert (end["rows_lost"], end["counters"]) == ({}, {})

    def test_the_last_beat_has_the_last_step(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1}, step=41)
        log.close()
        beat = _beat(log)
        assert beat is not None
        assert beat["step"] == 41

    def test_a_second_close_returns_the_first_report(self, log: EventWriter) -> None:
        log.log_metrics({"a": 1})
        first = log.close()
        assert log.close(0.0, reason="other") is first
        assert end_record(log)["reason"] == "finished"

    def test_calls_after_close_say_so(self, log: EventWriter, tmp_path: Path) -> None:
        log.close()
        calls: list[Callable[[], object]] = [
            lambda: log.log_metrics({"a": 1}),
            lambda: log.log_metrics({}),
            lambda: log.accumulate({"a": 1}),
            log.log_accumulated,
            lambda: log.log_timing("a", 1.0),
            lambda: log.log_hyperparams({}),
            lambda: log.log_histogram([1]),
            lambda: log.log_plot(None),
            lambda: log.log_artifact(tmp_path),
            lambda: log.log_gpu_samples([]),
            lambda: log.log_samples([]),
            lambda: log.mark("m"),
        ]
        for call in calls:
            with pytest.raises(WriterClosedError, match=r"run is closed: open a new one"):
                call()

    def test_flush_puts_rows_on_disk_and_is_harmless_after_close(
        self, log: EventWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: set[int] = set()
        fsync = os.fsync

        def watched(fd: int) -> None:
            fsync(fd)
            synced.add(os.fstat(fd).st_ino)

        monkeypatch.setattr(os, "fsync", watched)
        log.log_metrics({"a": 1})
        log.mark("m")
        segments = {path.stat().st_ino for path in log.path.glob("events/*/*/*.arrows")}
        assert len(segments) >= 2
        log.flush(fsync=True)
        assert segments <= synced
        log.close()
        log.flush(fsync=True)

    def test_a_context_manager_closes(self, tmp_path: Path) -> None:
        with EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
            log.log_metrics({"a": 1})
        assert end_record(log)["reason"] == "finished"

    def test_the_trainings_exception_is_marked_and_passes(self, tmp_path: Path) -> None:
        log = EventWriter.open(tmp_path, run="r", capture_diff=False)
        log.set_step(3)
        with pytest.raises(ZeroDivisionError), log:
            _ = 1 / 0
        (row,) = rows_of(log, "markers")
        assert (row["name"], row["level"], row["step"]) == ("exception", "error", 3)
        assert "ZeroDivisionError: division by zero" in row["text"]
        assert end_record(log)["reason"] == "ZeroDivisionError"

    def test_an_exception_after_an_early_close_is_not_masked(self, tmp_path: Path) -> None:
        log = EventWriter.open(tmp_path, run="r", capture_diff=False)
        log.close()
        with pytest.raises(KeyError), log:
            raise KeyError

    def test_sys_exit_is_no_error(self, tmp_path: Path) -> None:
        with pytest.raises(SystemExit), EventWriter.open(tmp_path, run="r", capture_diff=False) as log:
            raise SystemExit(0)
        assert rows_of(log, "markers") == []
        assert end_record(log)["reason"] == "SystemExit"

    def test_rows_racing_with_close_are_in_the_report_or_refused(self, tmp_path: Path) -> None:
        log = EventWriter.open(tmp_path, run="r", capture_diff=False, segment_bytes=4096)
        acknowledged = [0] * 4
        started = threading.Barrier(5)

        def work(index: int) -> None:
            started.wait()
            try:
                while True:
                    log.log_metrics({"a": index}, step=acknowledged[index])
                    acknowledged[index] += 1
            except WriterClosedError:
                return

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
        _wait_for(lambda: sum(acknowledged), lambda rows: rows > 50)
        report = log.close(30.0)
        for thread in threads:
            thread.join()
        rows = rows_of(log, "metrics")
        assert_dense(rows)
        assert len(rows) == sum(acknowledged) == report.rows["metrics"] == end_record(log)["last_seq"]["metrics"] + 1
        assert report.ok
        assert list(log.path.rglob("*.arrows")) == []

    def test_close_within_a_call_it_interrupted_is_quick_and_honest(
        self, log: EventWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.log_metrics({"a": 1}, step=1)
        reports: list[CloseReport] = []
        wrote: list[int] = []
        real = os.pwrite

        def pwrite(fd: int, data: Any, offset: int) -> int:
            if not wrote:  # as a handler that runs in the middle of the write would
                wrote.append(1)
                log.log_metrics({"handler": 1}, step=2)
                began = time.monotonic()
                reports.append(log.close())
                assert time.monotonic() - began < 3
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", pwrite)
        log.log_metrics({"a": 2}, step=2)
        (report,) = reports
        assert not report.ok
        assert [path.suffix for path in report.left_open] == [".arrows"]
        rows = rows_of(log, "metrics")
        assert only(rows, "name", "value") == [("a", 1), ("a", 2), ("handler", 1)]
        assert_dense(rows)

    def test_what_a_handler_logged_before_it_exits_is_written(
        self, log: EventWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrote: list[int] = []
        real = os.pwrite

        def pwrite(fd: int, data: Any, offset: int) -> int:
            if not wrote and offset:
                wrote.append(1)
                log.mark("preempted")
                raise SystemExit(143)
            return real(fd, data, offset)

        log.log_metrics({"a": 1})
        monkeypatch.setattr(os, "pwrite", pwrite)
        with pytest.raises(SystemExit):
            log.log_metrics({"a": 2})
        assert only(rows_of(log, "markers"), "name") == [("preempted",)]
        log.log_metrics({"a": 3})
        assert only(rows_of(log, "metrics"), "value", "seq") == [(1, 0), (3, 1)]


class TestSegments:
    def test_rotation_seals_and_keeps_seqs_dense(self, tmp_path: Path) -> None:
        log = EventWriter.open(tmp_path, run="r", capture_diff=False, segment_bytes=3000, fsync_interval_seconds=0.01)
        for step in range(50):
            log.log_metrics({"a": step, "b": -step}, step=step)
        assert log.close().ok
        rows = rows_of(log, "metrics")
        assert_dense(rows)
        assert [row["value"] for row in rows if row["name"] == "a"] == list(range(50))
        assert len(list(log.path.rglob("*.parquet"))) > 5
        assert list(log.path.rglob("*.arrows")) == []

    def test_segments_rotate_by_age_too(self, tmp_path: Path) -> None:
        log = EventWriter.open(tmp_path, run="r", capture_diff=False, segment_seconds=1e-9, fsync_interval_seconds=0.01)
        log.log_metrics({"a": 1})
        _wait_for(lambda: list(log.path.rglob("*.parquet")), bool)
        log.log_metrics({"a": 2})
        log.close()
        assert only(rows_of(log, "metrics"), "value", "seq") == [(1, 0), (2, 1)]
        assert len(list(log.path.rglob("*.parquet"))) == 2

    def test_a_segment_that_cannot_be_sealed_stays_open_and_is_named(
        self, log: EventWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(*arguments: object) -> None:
            raise MemoryError

        log.log_metrics({"a": 1})
        log.log_timing("t", 1.0)
        monkeypatch.setattr("rl_eventlog.segment.seal.seal_open", refuse)
        caplog.set_level(logging.WARNING, "rl_eventlog")
        report = log.close()
        assert sorted(path.parts[-3] for path in report.left_open) == ["metrics", "timings"]
        assert report.ended
        assert not report.ok
        assert only(rows_of(log, "metrics"), "value") == [(1,)]
        assert "leaves" in caplog.text

    def test_background_work_that_fails_goes_on_and_is_counted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        calls: list[int] = []

        def refuse(fd: int) -> None:
            calls.append(fd)
            raise RuntimeError("no fsync today")

        caplog.set_level(logging.WARNING, "rl_eventlog")
        log = EventWriter.open(
            tmp_path, run="r", capture_diff=False, fsync_interval_seconds=0.01, beat_interval_seconds=0.01
        )
        log.log_metrics({"a": 1}, step=8)
        monkeypatch.setattr(os, "fsync", refuse)
        log.log_metrics({"a": 1}, step=9)
        _wait_for(lambda: len(calls), lambda count: count > 3)
        beat = _wait_for(lambda: _beat(log), lambda found: found is not None and found["step"] == 9)
        monkeypatch.undo()
        report = log.close()
        assert beat is not None, "the heartbeat goes on beside the failing fsync"
        assert report.counters["background jobs failed"] > 3
        assert report.ok
        assert caplog.text.count("background work failed") == 1


class TestCurrentAndNull:
    def test_current_is_the_last_opened_unclosed_writer(self, tmp_path: Path) -> None:
        assert isinstance(rl_eventlog.current(), NullWriter)
        first = EventWriter.open(tmp_path, run="a", capture_diff=False)
        second = EventWriter.open(tmp_path, run="b", capture_diff=False)
        assert rl_eventlog.current() is second
        second.close()
        assert rl_eventlog.current() is first
        first.close()
        assert isinstance(rl_eventlog.current(), NullWriter)

    def test_a_null_writer_has_every_public_method_and_takes_its_arguments(self) -> None:
        methods = {
            name: value
            for name, value in inspect.getmembers(EventWriter)
            if inspect.isfunction(value) and (not name.startswith("_") or name in ("__enter__", "__exit__"))
        }
        assert len(methods) >= 15
        for name, method in methods.items():
            mine = inspect.signature(getattr(NullWriter(), name))
            given = list(inspect.signature(method).parameters.values())[1:]
            positional = [p.name for p in given if p.kind is p.POSITIONAL_OR_KEYWORD]
            named = [p.name for p in given if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            mine.bind(*positional)
            mine.bind(**dict.fromkeys(named))

    def test_a_null_writer_takes_every_call_and_writes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with NullWriter() as log:
            log.set_step(3)
            log.log_metrics({"a": 1}, step=1, prefix="p", step_metric="a", step_finished=True, weight=1, reduce="sum")
            log.accumulate({"a": 1}, weight=2)
            log.log_accumulated(1, prefix="p")
            log.log_timing("a", 1.0, start=0.0)
            log.log_hyperparams({})
            log.log_histogram([1], 1, "h")
            log.log_plot(None, 1, "p")
            log.log_artifact("missing", name="n", kind="model")
            log.log_gpu_samples([])
            log.log_samples([], split="rollout")
            log.mark("m", step=1, level="info", text="", more=1)
            log.flush(fsync=True)
            with log.timer.time("t"):
                log.timer.record("r", 1.0)
            assert log.close(timeout=1.0, reason="r") == CloseReport({}, {})
        assert list(tmp_path.iterdir()) == []
