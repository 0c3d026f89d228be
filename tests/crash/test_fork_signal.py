"""Forks, threads, signals and exits without close: each process keeps its own rows, and nothing hangs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog.reader import RunFiles
from tests.support.raw import assert_dense, raw_rows

pytestmark = pytest.mark.crash

OPEN = """
import multiprocessing, os, signal, sys, threading, time
import rl_eventlog as rle
log = rle.EventWriter.open(sys.argv[1], run="r", role="trainer", rank=0, world_size=2, capture_diff=False{options})
"""


def python(root: Path, code: str, *, options: str = "", returncode: int = 0, timeout: float = 60) -> str:
    script = OPEN.replace("{options}", options) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == returncode, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def documents(root: Path) -> list[dict[str, Any]]:
    paths = (root / "r" / "writers").glob("*.json")
    found = [json.loads(path.read_bytes()) for path in paths if not path.name.endswith(".end.json")]
    return sorted(found, key=lambda document: document["opened"])


def values(root: Path, writer: str) -> list[Any]:
    rows = [row for row in raw_rows(root / "r", "metrics") if row["writer"] == writer]
    assert_dense(rows)
    return [row["value"] for row in rows]


class TestFork:
    def test_the_child_is_a_writer_of_its_own_and_the_parents_file_is_untouched(self, tmp_path: Path) -> None:
        python(
            tmp_path,
            """
            log.log_metrics({"a": 1})
            before = next(log.path.glob("events/metrics/*/*.arrows")).read_bytes()
            pid = os.fork()
            if pid == 0:
                log.log_metrics({"a": 100})
                log.log_metrics({"a": 101})
                log.close()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert next(log.path.glob(f"events/metrics/*/{log.writer_id}-0.arrows")).read_bytes() == before
            log.log_metrics({"a": 2})
            log.close()
            """,
        )
        parent, child = documents(tmp_path)
        assert (parent["forked_from"], child["forked_from"]) == (None, parent["writer"])
        assert (child["role"], child["rank"], child["launch"]) == ("trainer", 0, parent["launch"])
        assert child["pid"] != parent["pid"]
        assert child["provenance"] is None
        assert values(tmp_path, parent["writer"]) == [1, 2]
        assert values(tmp_path, child["writer"]) == [100, 101]
        identities = RunFiles.open(tmp_path / "r").identities()
        assert set(identities["rank_key"]) == {"rank 0"}
        assert set(identities["incarnation"]) == {0}

    def test_a_child_that_logs_nothing_leaves_nothing(self, tmp_path: Path) -> None:
        python(
            tmp_path,
            """
            log.log_metrics({"a": 1})
            pid = os.fork()
            if pid == 0:
                assert log.close().rows == {}
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            log.close()
            """,
        )
        (parent,) = documents(tmp_path)
        assert values(tmp_path, parent["writer"]) == [1]

    def test_a_block_that_is_timed_across_a_fork_is_the_parents_and_counts_once(self, tmp_path: Path) -> None:
        """A thread of the parent holds the timer's lock, for good as the child sees it."""
        python(
            tmp_path,
            """
            timer, standalone = log.timer, rle.Timer()
            log.set_step(1)
            held, let_go = threading.Event(), threading.Event()
            def hold():
                with timer._lock, standalone._lock:
                    held.set()
                    let_go.wait()
            try:
                with timer.time("block"), standalone.time("block"):
                    timer.start("span")
                    timer.record("before", 1.0)
                    thread = threading.Thread(target=hold)
                    thread.start()
                    held.wait()
                    pid = os.fork()
                    if pid == 0:
                        assert timer.open_labels() == standalone.open_labels() == []
                        timer.record("child", 1.0)
                        raise SystemExit
                    let_go.set()
                    thread.join()
                    assert os.waitpid(pid, 0)[1] == 0
                    timer.stop("span")
            except SystemExit:
                assert set(timer.get_timing_metrics()) == {"child"} and not standalone.get_timing_metrics()
                log.close()
                os._exit(0)
            assert set(standalone.get_timing_metrics()) == {"block"}
            log.close()
            """,
        )
        parent, child = documents(tmp_path)
        rows = raw_rows(tmp_path / "r", "timings")
        assert sorted((row["writer"], row["name"]) for row in rows) == [
            (parent["writer"], "before"),
            (parent["writer"], "block"),
            (parent["writer"], "span"),
            (child["writer"], "child"),
        ]

    def test_forks_in_the_middle_of_busy_threads_never_hang(self, tmp_path: Path) -> None:
        out = python(
            tmp_path,
            """
            stop = threading.Event()
            def work():
                while not stop.is_set():
                    log.log_metrics({"a": 1})
                    log.accumulate({"b": 1})
                    log.mark("m")
            threads = [threading.Thread(target=work) for _ in range(3)]
            [thread.start() for thread in threads]
            for number in range(20):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(30)
                    log.log_metrics({"child": number})
                    log.accumulate({"c": number})
                    log.log_accumulated()
                    ok = log.close().ok
                    os._exit(0 if ok else 3)
                status = os.waitpid(pid, 0)[1]
                assert status == 0, status
            stop.set()
            [thread.join() for thread in threads]
            print(log.close(60).ok)
            """,
            options=", fsync_interval_seconds=0.001, beat_interval_seconds=0.001, segment_bytes=20000",
        )
        assert out == "True\n"
        parent, *children = documents(tmp_path)
        assert len(children) == 20
        assert {child["forked_from"] for child in children} == {parent["writer"]}
        assert sorted(values(tmp_path, child["writer"]) for child in children) == [[n, n] for n in range(20)]
        assert_dense(raw_rows(tmp_path / "r", "metrics"))
        assert_dense(raw_rows(tmp_path / "r", "markers"))

    def test_grandchildren_are_one_rank_with_their_line(self, tmp_path: Path) -> None:
        python(
            tmp_path,
            """
            log.log_metrics({"a": 1})
            def child(depth):
                pid = os.fork()
                if pid == 0:
                    log.log_metrics({"a": 10 ** depth})
                    if depth < 2:
                        child(depth + 1)
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            child(1)
            log.close()
            """,
        )
        first, second, third = documents(tmp_path)
        assert (second["forked_from"], third["forked_from"]) == (first["writer"], second["writer"])
        identities = RunFiles.open(tmp_path / "r").identities()
        assert identities.select("rank_key", "incarnation").unique().height == 1

    def test_a_child_whose_run_is_gone_is_counted_and_does_not_raise(self, tmp_path: Path) -> None:
        python(
            tmp_path,
            """
            import shutil
            log.log_metrics({"a": 1})
            pid = os.fork()
            if pid == 0:
                shutil.rmtree(log.path)
                log.path.touch()
                log.log_metrics({"a": 2})
                log.log_metrics({"a": 3})
                os._exit(log._skips.counters["calls failed"])
            os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            """,
            returncode=2,  # the child's count of calls that failed
        )

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_multiprocessing_workers_log(self, tmp_path: Path, method: str) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            textwrap.dedent("""
            import multiprocessing, sys
            import rl_eventlog as rle

            def work(number):
                log = rle.current()
                if isinstance(log, rle.NullWriter):
                    log = rle.EventWriter.open(sys.argv[1], run="r", role="trainer", rank=0, capture_diff=False)
                log.log_metrics({"worker": number})

            if __name__ == "__main__":
                with rle.EventWriter.open(sys.argv[1], run="r", role="trainer", rank=0, capture_diff=False) as log:
                    log.log_metrics({"a": 1})
                    context = multiprocessing.get_context(sys.argv[2])
                    workers = [context.Process(target=work, args=(number,)) for number in range(2)]
                    [worker.start() for worker in workers]
                    [worker.join() for worker in workers]
                    assert [worker.exitcode for worker in workers] == [0, 0]
            """)
        )
        subprocess.run([sys.executable, str(script), str(tmp_path), method], check=True, timeout=120)
        rows = raw_rows(tmp_path / "r", "metrics")
        assert sorted((row["name"], row["value"]) for row in rows) == [("a", 1), ("worker", 0), ("worker", 1)]
        assert len({document["launch"] for document in documents(tmp_path)}) == 1


class TestSignals:
    def test_a_handler_that_logs_while_the_main_thread_logs_never_hangs_and_loses_nothing(self, tmp_path: Path) -> None:
        for trial in range(20):
            out = python(
                tmp_path / str(trial),
                """
                handled = 0
                def handler(number, frame):
                    global handled
                    log.log_metrics({"handler": handled}, step=handled)
                    log.mark("preempted", step=handled)
                    log.accumulate({"x": 1})
                    handled += 1
                    if handled < 50:
                        signal.setitimer(signal.ITIMER_REAL, 0.0003)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                number = 0
                while handled < 50:
                    log.log_metrics({"main": number}, step=number)
                    log.accumulate({"x": 1})
                    number += 1
                print(number, handled, log.close(60).ok)
                """,
                options=", segment_bytes=30000, fsync_interval_seconds=0.001",
                timeout=60,
            )
            number, handled, ok = out.split()
            assert ok == "True"
            rows = raw_rows(tmp_path / str(trial) / "r", "metrics")
            assert_dense(rows)
            assert [row["value"] for row in rows if row["name"] == "main"] == list(range(int(number)))
            assert sorted(row["value"] for row in rows if row["name"] == "handler") == list(range(int(handled)))
            assert len(raw_rows(tmp_path / str(trial) / "r", "markers")) == int(handled)

    def test_a_handler_that_closes_and_exits_ends_the_process_at_once(self, tmp_path: Path) -> None:
        for trial in range(5):
            script = """
            def handler(number, frame):
                log.mark("preempted")
                log.close()
                sys.exit(143)
            signal.signal(signal.SIGTERM, handler)
            print("ready", flush=True)
            number = 0
            while True:
                log.log_metrics({"a": number})
                number += 1
            """
            root = tmp_path / str(trial)
            code = OPEN.replace("{options}", "") + textwrap.dedent(script)
            child = subprocess.Popen(
                [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            while not raw_rows(root / "r", "metrics"):
                pass
            child.send_signal(signal.SIGTERM)
            _, error = child.communicate(timeout=30)
            assert child.returncode == 143, error.decode()
            rows = raw_rows(root / "r", "metrics")
            assert [row["value"] for row in rows] == list(range(len(rows)))
            assert [row["name"] for row in raw_rows(root / "r", "markers")] == ["preempted"]

    def test_keyboard_interrupts_leave_seqs_and_rows_whole(self, tmp_path: Path) -> None:
        out = python(
            tmp_path,
            """
            armed = False  # one interrupt a round: a second one would leave this loop
            def handler(number, frame):
                global armed
                if armed:
                    armed = False
                    raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
            acknowledged = interrupts = 0
            while interrupts < 100:
                try:
                    armed = True
                    while True:
                        log.log_metrics({"a": acknowledged, "b": -acknowledged})
                        acknowledged += 1
                except KeyboardInterrupt:
                    interrupts += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(acknowledged, log.close(60).ok)
            """,
            options=", segment_bytes=20000",
        )
        acknowledged, ok = out.split()
        assert ok == "True"
        rows = raw_rows(tmp_path / "r", "metrics")
        assert_dense(rows)
        seen = [row["value"] for row in rows if row["name"] == "a"]
        assert sorted(set(seen)) == list(range(int(acknowledged) + (len(set(seen)) - int(acknowledged))))
        # a call that was whole on disk when the interrupt came is logged again by this loop: at most once each
        assert int(acknowledged) <= len(set(seen)) <= int(acknowledged) + 1
        assert len(seen) - len(set(seen)) <= 100
        assert len(rows) == 2 * len(seen)


class TestThreads:
    def test_eight_threads_of_five_hundred_calls_are_all_there_and_dense(self, tmp_path: Path) -> None:
        out = python(
            tmp_path,
            """
            def work(index):
                for number in range(500):
                    log.log_metrics({f"t{index}": number, "x": 0.5}, step=number)
            threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            report = log.close(60)
            print(report.rows, report.ok)
            """,
            options=", segment_bytes=100000, fsync_interval_seconds=0.01",
        )
        assert out == "{'metrics': 8000} True\n"
        rows = raw_rows(tmp_path / "r", "metrics")
        assert_dense(rows)
        for index in range(8):
            assert [row["value"] for row in rows if row["name"] == f"t{index}"] == list(range(500))


class TestExits:
    @pytest.mark.parametrize(
        ("leave", "returncode"),
        [
            ("os._exit(3)", 3),
            ("", 0),
            ("sys.exit(4)", 4),
            ("threading.Thread(target=lambda: None).start()", 0),
            ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
            ("import atexit; atexit.register(log.close)", 0),
            ("del log; import gc; gc.collect()", 0),
        ],
    )
    def test_a_process_that_ends_without_close_loses_nothing(self, tmp_path: Path, leave: str, returncode: int) -> None:
        python(
            tmp_path,
            f"""
            for number in range(100):
                log.log_metrics({{"a": number}})
            {leave}
            """,
            returncode=returncode,
        )
        assert [row["value"] for row in raw_rows(tmp_path / "r", "metrics")] == list(range(100))
        closed = bool(list((tmp_path / "r" / "writers").glob("*.end.json")))
        assert closed == ("atexit" in leave)

    def test_two_writers_of_one_rank_in_one_process_keep_their_rows_apart(self, tmp_path: Path) -> None:
        python(
            tmp_path,
            """
            other = rle.EventWriter.open(sys.argv[1], run="r", role="trainer", rank=0, world_size=2, capture_diff=False)
            for number in range(10):
                log.log_metrics({"a": number})
                other.log_metrics({"a": -number})
            other.close()
            log.close()
            """,
        )
        first, second = documents(tmp_path)
        assert values(tmp_path, first["writer"]) == list(range(10))
        assert values(tmp_path, second["writer"]) == [-number for number in range(10)]
        assert sorted(RunFiles.open(tmp_path / "r").identities()["incarnation"]) == [0, 1]
