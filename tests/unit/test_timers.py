"""The timer: what it remembers, alone and with a writer, in threads and over a long run."""

from __future__ import annotations

import gc
import json
import math
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_eventlog as rle
from rl_eventlog import EventWriter, Run, Timer
from rl_eventlog.errors import WriterClosedError
from rl_eventlog.writer.timers import MAX_KEPT

SECONDS = [0.25, 4.0, 1.0, 0.5, 2.0, 2.0]
NUMPY: dict[str, Any] = {
    **{name: getattr(np, name) for name in ("mean", "median", "min", "max", "std", "sum")},
    "count": len,
}


@pytest.fixture
def timer() -> Timer:
    """One that remembers SECONDS as `work`."""
    timer = Timer()
    for seconds in SECONDS:
        timer.record("work", seconds)
    return timer


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventWriter]:
    with EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False) as log:
        yield log


class TestAlone:
    def test_spans_are_remembered_in_order_of_their_ends(self) -> None:
        timer = Timer()
        with timer.time("outer"), timer.time("outer/inner"):
            pass
        timer.start("outer")
        last = timer.stop("outer")
        assert timer.get_elapsed("outer")[1] == timer.get_latest_elapsed("outer") == last
        assert len(timer.get_elapsed("outer")) == 2
        assert timer.get_elapsed("outer")[0] >= timer.get_latest_elapsed("outer/inner") >= 0

    def test_the_list_of_spans_is_the_callers_own(self, timer: Timer) -> None:
        timer.get_elapsed("work").clear()
        assert timer.get_elapsed("work") == SECONDS

    @pytest.mark.parametrize("operation", NUMPY)
    def test_each_operation_is_numpys(self, timer: Timer, operation: str) -> None:
        assert timer.reduce("work", operation) == pytest.approx(NUMPY[operation](SECONDS), rel=1e-12)
        timer.record("work", math.nan)
        np.testing.assert_equal(timer.reduce("work", operation), float(NUMPY[operation]([*SECONDS, math.nan])))

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, where infinities meet
    @pytest.mark.parametrize("spans", [[math.inf, 1.0], [math.inf, -math.inf], [1e308, 1e308], [2.0]])
    @pytest.mark.parametrize("operation", NUMPY)
    def test_odd_durations_are_reduced_as_numpy_does(self, operation: str, spans: list[float]) -> None:
        timer = Timer()
        for seconds in spans:
            timer.record("work", seconds)
        with np.errstate(all="ignore"):
            expected = float(NUMPY[operation](spans))
        np.testing.assert_equal(timer.reduce("work", operation), expected)

    def test_the_mean_is_the_default(self, timer: Timer) -> None:
        assert timer.reduce("work") == pytest.approx(np.mean(SECONDS))
        assert timer.get_timing_metrics() == {"work": timer.reduce("work")}

    def test_what_is_not_known_is_refused(self, timer: Timer) -> None:
        for ask in (timer.get_elapsed, timer.get_latest_elapsed, timer.reduce):
            with pytest.raises(KeyError, match="no span of 'rest' has ended"):
                ask("rest")
        with pytest.raises(ValueError, match="operation='mode': give one of mean, median"):
            timer.reduce("work", "mode")

    def test_metrics_of_all_labels_and_by_label(self, timer: Timer) -> None:
        timer.record("rest", 3.0)
        timer.record("odd", 5.0)
        assert timer.get_timing_metrics("sum") == {"work": sum(SECONDS), "rest": 3.0, "odd": 5.0}
        by_label = {"work": "max", "odd": "mode", "never": "sum"}
        assert timer.get_timing_metrics(by_label) == {"work": 4.0, "rest": [3.0], "odd": [5.0]}

    def test_marks_are_times_with_what_belongs_to_them(self) -> None:
        timer = Timer()
        before = time.time()
        when = timer.mark("crash", {"worker": 3})
        timer.mark("other")
        assert before <= when <= time.time()
        assert timer.get_markers("crash") == {"crash": [(when, {"worker": 3})]}
        assert {label: [data for _, data in marks] for label, marks in timer.get_markers().items()} == {
            "crash": [{"worker": 3}],
            "other": [None],
        }
        assert timer.get_markers("never") == {"never": []}
        timer.get_markers()["crash"].clear()
        assert len(timer.get_markers("crash")["crash"]) == 1

    def test_reset_forgets_spans_running_ones_and_marks(self, timer: Timer) -> None:
        for label in ("work", "rest"):
            timer.start(label)
            timer.mark(label)
            timer.record(label, 1.0)
        timer.reset("work")
        assert timer.open_labels() == ["rest"]
        assert list(timer.get_markers()) == list(timer.get_timing_metrics()) == ["rest"]
        with pytest.raises(ValueError, match="'work' is not running"):
            timer.stop("work")
        timer.reset()
        timer.reset("never")
        assert (timer.get_markers(), timer.get_timing_metrics(), timer.open_labels()) == ({}, {}, [])

    def test_threads_time_the_same_label_and_no_span_is_lost(self) -> None:
        timer, all_started = Timer(), threading.Barrier(4)

        def work() -> None:
            timer.start("work")
            all_started.wait(timeout=60)
            timer.stop("work")
            for _ in range(500):
                with timer.time("work"):
                    timer.get_timing_metrics("count")

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work) for _ in range(4)]:
                done.result()
        assert timer.reduce("work", "count") == 4 * 501

    def test_a_thread_that_ended_in_a_span_holds_the_label_up_for_no_other(self) -> None:
        """The system gives the number of a thread that ended to the next one."""
        timer, running = Timer(), []

        def work() -> None:
            timer.start("work")
            running.append(timer.open_labels())

        for _ in range(4):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(timeout=60)
            gc.collect()
            assert timer.open_labels() == []
        assert running == [["work"]] * 4

    def test_only_the_thread_that_started_a_span_stops_it(self) -> None:
        timer = Timer()
        timer.start("work")
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="'work' is not running"):
            pool.submit(timer.stop, "work").result()
        timer.stop("work")

    def test_a_label_that_runs_is_refused_and_goes_on(self) -> None:
        timer = Timer()
        timer.start("work")
        with pytest.raises(ValueError, match="'work' is running already"):
            timer.start("work")
        with timer.time("work"), timer.time("work"):
            pass
        assert timer.stop("work") >= max(timer.get_elapsed("work"))
        assert timer.reduce("work", "count") == 3

    def test_a_block_that_raises_is_remembered_and_raises_its_own(self) -> None:
        timer = Timer()
        with pytest.raises(ZeroDivisionError), timer.time("work"):
            raise ZeroDivisionError
        assert (timer.reduce("work", "count"), timer.open_labels()) == (1, [])

    def test_reset_in_one_thread_forgets_what_another_started(self) -> None:
        timer = Timer()
        timer.start("work")
        with timer.time("block"), ThreadPoolExecutor(1) as pool:
            assert pool.submit(timer.open_labels).result() == ["block", "work"]
            pool.submit(timer.reset).result()
            assert timer.open_labels() == []
        timer.start("work")
        assert timer.open_labels() == ["work"]

    def test_a_million_spans_without_a_reset_take_the_memory_of_the_last_ones(self) -> None:
        timer = Timer()
        tracemalloc.start()
        for index in range(4 * MAX_KEPT):
            timer.record("work", float(index))
            timer.mark("mark")
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used < 3 << 20
        assert timer.get_elapsed("work") == [float(index) for index in range(3 * MAX_KEPT, 4 * MAX_KEPT)]
        assert len(timer.get_markers("mark")["mark"]) == MAX_KEPT


class TestInALog:
    def test_a_span_counts_to_the_step_in_which_it_ends(self, log: EventWriter) -> None:
        log.set_step(1)
        log.timer.start("across")
        with log.timer.time("block"):
            log.set_step(2)
        log.timer.stop("across")
        log.flush()
        rows = Run(log.path).timings().select("name", "step").collect().rows()
        assert rows == [("across", 2), ("block", 2)]

    def test_a_mark_is_a_marker_at_the_current_step(self, log: EventWriter) -> None:
        log.set_step(7)
        log.timer.mark("worker_crashed", {"worker": 3, "step": 1})
        log.timer.mark("odd", object)
        log.flush()
        rows = Run(log.path).markers().sort("seq").select("name", "step", "level", "fields").collect().rows()
        assert rows[0][:3] == ("worker_crashed", 7, "info")
        assert json.loads(rows[0][3]) == {"worker": 3, "step": 1}
        assert rows[1][:2] == ("odd", 7)

    def test_spans_that_should_not_be_logged_are_only_remembered(self, log: EventWriter) -> None:
        log.timer.start("quiet", should_log=False)
        log.timer.stop("quiet")
        log.timer.record("quiet", 1.0, should_log=False)
        with log.timer.time("quiet", should_log=False):
            pass
        with log.timer.time("loud"):
            pass
        log.flush()
        assert Run(log.path).timings().collect()["name"].to_list() == ["loud"]
        assert log.timer.reduce("quiet", "count") == 3

    def test_a_block_that_runs_through_a_reset_is_logged_and_not_remembered(self, log: EventWriter) -> None:
        with log.timer.time("work"):
            log.timer.reset()
        log.flush()
        assert Run(log.path).timings().collect()["name"].to_list() == ["work"]
        assert log.timer.get_timing_metrics() == {}

    def test_an_odd_duration_is_counted_and_not_remembered(self, log: EventWriter) -> None:
        odd: Any = "long"
        log.timer.record("work", odd)
        assert log.timer.get_timing_metrics() == {}
        assert log.close().counters["no duration"] == 1

    def test_what_ended_a_block_is_raised_also_where_its_span_cannot_be_logged(self, log: EventWriter) -> None:
        def train() -> None:
            with log.timer.time("work"):
                log.close()
                raise MemoryError

        with pytest.raises(MemoryError):
            train()
        assert log.timer.reduce("work", "count") == 1
        with pytest.raises(WriterClosedError), log.timer.time("work"):
            pass

    def test_the_timer_of_a_null_writer_remembers_too(self) -> None:
        timer = rle.NullWriter().timer
        timer.record("work", 1.5)
        timer.mark("mark")
        assert timer.get_timing_metrics() == {"work": 1.5}
