"""However a process ends, each call that returned is on the disk once, and the run says what became of its rank.

Both ways of writing: by the caller, and by a thread (with a budget that a busy machine does not use up).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_eventlog import Run
from rl_eventlog.maintain import verify
from rl_eventlog.run import RunInfo
from tests.support.cli import rleventlog
from tests.support.raw import assert_dense, raw_rows

pytestmark = pytest.mark.crash

OPEN = """
import atexit, multiprocessing, os, signal, sys, threading, time
import rl_eventlog as rle
def opened(**options):
    return rle.EventWriter.open(
        sys.argv[1], run="r", role="trainer", rank=0, capture_diff=False, write=sys.argv[2], stall_budget_ms=20_000,
        **options)
"""


def start(root: Path, mode: str, code: str) -> subprocess.Popen[str]:
    script = OPEN + textwrap.dedent(code)
    command = [sys.executable, "-c", script, str(root), mode]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def python(root: Path, mode: str, code: str, *, returncode: int = 0, traceback: bool = False) -> str:
    with start(root, mode, code) as child:
        out, err = child.communicate(timeout=90)
    assert child.returncode == returncode, err
    assert ("Traceback" in err) == traceback, err
    return out


def logged(root: Path, name: str = "a") -> list[Any]:
    """Values of a metric in the order in which they were logged, once each."""
    rows = raw_rows(root / "r", "metrics")
    assert_dense(rows)
    return [row["value"] for row in rows if row["name"] == name]


def only_rank(root: Path, state: str, reason: str) -> RunInfo:
    """The run has one rank, in this state, and `show` says so."""
    info = Run(root / "r").info
    (rank,) = info.ranks
    assert (rank.state, info.state) == (state, state)
    assert rank.reason == reason
    assert (info.gaps, info.problems) == ((), ())
    result = rleventlog("show", root / "r", "--ranks")
    assert result.status == 0
    assert reason in result.out
    return info


@pytest.fixture(params=["direct", "queued"])
def mode(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


class TestWithoutClose:
    @pytest.mark.parametrize(
        ("leave", "returncode"),
        [
            ("os._exit(3)", 3),
            ("", 0),
            ("sys.exit(4)", 4),
            ("raise KeyError('the training failed')", 1),
            ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
            ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
            ("os.abort()", -signal.SIGABRT),
            ("os.execv(sys.executable, [sys.executable, '-c', 'pass'])", 0),
        ],
        ids=["_exit", "return", "exit", "exception", "SIGTERM", "SIGKILL", "abort", "exec"],
    )
    def test_every_row_is_there_and_the_rank_is_lost(
        self, tmp_path: Path, mode: str, leave: str, returncode: int
    ) -> None:
        out = python(
            tmp_path,
            mode,
            f"""
            log = opened()
            for number in range(100):
                log.log_metrics({{"a": number}}, step=number)
            print(os.getpid(), flush=True)
            {leave}
            """,
            returncode=returncode,
            traceback="raise" in leave,
        )
        assert logged(tmp_path) == list(range(100))
        info = only_rank(tmp_path, "lost", f"process {int(out)} is gone and wrote no end")
        assert info.rows == {"metrics": 100}
        assert [finding.kind for finding in verify(tmp_path / "r").findings] == ["lost"]

    def test_a_thread_that_logs_while_the_interpreter_waits_for_it_loses_nothing(
        self, tmp_path: Path, mode: str
    ) -> None:
        """Metrics, samples and an artifact: nothing of it may need a thread that cannot be started any more."""
        python(
            tmp_path,
            mode,
            """
            log = opened()
            def work():
                threading.main_thread().join()
                for number in range(200):
                    log.log_metrics({"a": number}, step=number)
                log.log_samples([{"prompt": "p", "response": "r" * 100_000}], step=1)
                log.log_artifact(__import__("json").__file__)
                log.flush()
            threading.Thread(target=work).start()
            """,
        )
        assert logged(tmp_path) == list(range(200))
        (sample,) = raw_rows(tmp_path / "r", "samples")
        assert sample["response"] == "r" * 100_000
        (artifact,) = raw_rows(tmp_path / "r", "artifacts")
        assert artifact["name"] == "__init__.py"
        assert Run(tmp_path / "r").info.state == "lost"

    def test_a_function_of_atexit_that_logs_loses_nothing(self, tmp_path: Path, mode: str) -> None:
        python(
            tmp_path,
            mode,
            """
            log = opened()
            def work():
                for number in range(50):
                    log.log_metrics({"a": number}, step=number)
                log.mark("finished")
            atexit.register(work)
            """,
        )
        assert logged(tmp_path) == list(range(50))
        assert [row["name"] for row in raw_rows(tmp_path / "r", "markers")] == ["finished"]

    def test_a_daemon_thread_that_logs_to_the_end_leaves_whole_rows_and_holds_up_nothing(
        self, tmp_path: Path, mode: str
    ) -> None:
        out = python(
            tmp_path,
            mode,
            """
            log = opened()
            returned = 0
            def work():
                global returned
                while True:
                    log.log_metrics({"a": returned}, step=returned)
                    returned += 1
            threading.Thread(target=work, daemon=True).start()
            while returned < 200:
                time.sleep(0.001)
            print(returned)
            """,
        )
        values = logged(tmp_path)
        assert values == list(range(len(values)))
        assert len(values) >= int(out)
        assert {finding.kind for finding in verify(tmp_path / "r").findings} == {"lost"}

    def test_an_object_that_logs_when_it_is_destroyed_at_the_very_end_loses_nothing(
        self, tmp_path: Path, mode: str
    ) -> None:
        """By then no thread runs any more but the main one."""
        python(
            tmp_path,
            mode,
            """
            log = opened()
            log.log_metrics({"a": 0}, step=0)
            class Last:
                def __init__(self):
                    self.log, self.myself = log, self
                def __del__(self):
                    self.log.log_metrics({"a": 1}, step=1)
                    self.log.log_metrics({"a": 2}, step=2)
            last = Last()
            """,
        )
        assert logged(tmp_path) == [0, 1, 2]

    def test_a_writer_that_is_forgotten_goes_on(self, tmp_path: Path, mode: str) -> None:
        """Nothing depends on `__del__`: not the rows, not the heartbeat, and a writer of the same rank is another."""
        out = python(
            tmp_path,
            mode,
            """
            import gc
            for number in range(3):
                log = opened()
                log.log_metrics({"a": number}, step=number)
                del log
                gc.collect()
            print(rle.current().writer_id)
            """,
        )
        assert sorted(logged(tmp_path)) == [0, 1, 2]
        (rank,) = Run(tmp_path / "r").info.ranks
        assert rank.writer == out.strip()


class TestSigterm:
    def test_a_handler_that_closes_in_the_middle_of_a_call_ends_the_rank(self, tmp_path: Path, mode: str) -> None:
        """Slurm's warning before a preemption, with large samples still on their way."""
        with start(
            tmp_path,
            mode,
            """
            log = opened(segment_bytes=200_000)
            def handler(number, frame):
                log.mark("preempted", step=returned)
                report = log.close(60, reason="preempted")
                print(returned, report.ended, report.missing, flush=True)
                sys.exit(143)
            signal.signal(signal.SIGTERM, handler)
            returned = 0
            while True:
                log.log_metrics({"a": returned}, step=returned)
                if returned % 50 == 0:
                    log.log_samples([{"prompt": "p", "response": "r" * 100_000}], step=returned)
                returned += 1
                if returned == 200:
                    print("ready", flush=True)
            """,
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGTERM)
            out, err = child.communicate(timeout=90)
        assert child.returncode == 143, err
        assert "Traceback" not in err, err
        returned, ended, missing = out.split()
        assert (ended, missing) == ("True", "{}")
        values = logged(tmp_path)
        assert values == list(range(len(values)))
        assert int(returned) <= len(values) <= int(returned) + 1  # the call that was interrupted
        samples = raw_rows(tmp_path / "r", "samples")
        assert [row["step"] for row in samples] == list(range(0, int(returned), 50))
        assert [row["name"] for row in raw_rows(tmp_path / "r", "markers")] == ["preempted"]
        only_rank(tmp_path, "finished", "ended: preempted")
        assert verify(tmp_path / "r").ok

    def test_the_default_action_while_samples_are_on_their_way_leaves_what_flush_waited_for(
        self, tmp_path: Path, mode: str
    ) -> None:
        with start(
            tmp_path,
            mode,
            """
            log = opened()
            for number in range(20):
                log.log_samples([{"prompt": "p", "response": "r" * 200_000}], step=number)
            log.flush()
            print("flushed", flush=True)
            for number in range(20, 40):
                log.log_samples([{"prompt": "p", "response": "r" * 200_000}], step=number)
                log.log_metrics({"a": number}, step=number)
            print("logged", flush=True)
            time.sleep(60)
            """,
        ) as child:
            assert child.stdout
            assert child.stdout.readline() == "flushed\n"
            assert child.stdout.readline() == "logged\n"
            child.send_signal(signal.SIGTERM)
            assert child.wait(30) == -signal.SIGTERM
        rows = raw_rows(tmp_path / "r", "samples")
        assert_dense(rows)
        assert [row["step"] for row in rows] == list(range(len(rows)))
        assert len(rows) >= 20
        assert logged(tmp_path) == list(range(20, 40))  # small rows do not wait for large ones
        assert Run(tmp_path / "r").info.state == "lost"


class TestInterruptions:
    def test_a_handler_that_logs_anything_in_the_middle_of_any_call_never_hangs_and_loses_nothing(
        self, tmp_path: Path, mode: str
    ) -> None:
        for trial in range(4):
            root = tmp_path / str(trial)
            out = python(
                root,
                mode,
                """
                log = opened(segment_bytes=30_000, fsync_interval_seconds=0.001)
                handled = 0
                def handler(number, frame):
                    global handled
                    log.log_metrics({"handler": handled}, step=handled)
                    log.log_timing("handler", 0.5, step=handled)
                    log.log_samples([{"prompt": "h"}], step=handled)
                    log.mark("preempted", step=handled)
                    handled += 1
                    if handled < 60:
                        signal.setitimer(signal.ITIMER_REAL, 0.0005)
                signal.signal(signal.SIGALRM, handler)
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                number = 0
                while handled < 60:
                    log.log_metrics({"a": number}, step=number)
                    log.log_samples([{"prompt": "p"}], step=-1)
                    if number % 10 == 0:
                        log.flush(fsync=number % 20 == 0)
                    number += 1
                print(number, log.close(60).ok)
                """,
            )
            number, ok = out.split()
            assert ok == "True"
            assert logged(root) == list(range(int(number)))
            assert sorted(logged(root, "handler")) == list(range(60))
            samples = raw_rows(root / "r", "samples")
            assert_dense(samples)
            assert sorted(row["step"] for row in samples if row["prompt"] == "h") == list(range(60))
            assert sum(row["prompt"] == "p" for row in samples) == int(number)
            assert len(raw_rows(root / "r", "markers")) == len(raw_rows(root / "r", "timings")) == 60

    def test_keyboard_interrupts_leave_whole_rows_and_no_gap(self, tmp_path: Path, mode: str) -> None:
        out = python(
            tmp_path,
            mode,
            """
            log = opened(segment_bytes=20_000)
            armed = False  # one interrupt a round: a second one would leave this loop
            def handler(number, frame):
                global armed
                if armed:
                    armed = False
                    raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
            calls, interrupted = 0, []
            while len(interrupted) < 50:
                try:
                    armed = True
                    while True:
                        calls += 1
                        log.log_metrics({"a": calls, "b": -calls}, step=calls)
                except KeyboardInterrupt:
                    interrupted.append(calls)
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(log.close(60).ok, calls, *interrupted)
            """,
        )
        ok, calls, *cut = out.split()
        assert ok == "True"
        interrupted = set(map(int, cut))
        values = logged(tmp_path)
        # each once, in order; what was interrupted is there or not, and may come a little later
        returned = [value for value in values if value not in interrupted]
        assert returned == [call for call in range(1, int(calls)) if call not in interrupted]
        assert len(values) == len(set(values))
        assert logged(tmp_path, "b") == [-value for value in values]

    def test_threads_log_side_by_side_each_in_its_order(self, tmp_path: Path, mode: str) -> None:
        python(
            tmp_path,
            mode,
            """
            log = opened(segment_bytes=50_000, fsync_interval_seconds=0.01)
            def work(index):
                for number in range(300):
                    log.log_metrics({f"t{index}": number}, step=number)
                    if number % 100 == 0:
                        log.log_samples([{"prompt": f"{index}", "response": "r" * 100_000}], step=number)
            threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            assert log.close(60).ok
            """,
        )
        for index in range(6):
            assert logged(tmp_path, f"t{index}") == list(range(300))
            steps = [row["step"] for row in raw_rows(tmp_path / "r", "samples") if row["prompt"] == str(index)]
            assert steps == [0, 100, 200]
        assert verify(tmp_path / "r").ok


class TestChildren:
    def test_a_fork_that_leaves_at_once_is_its_parents_rank_and_takes_nothing_with_it(
        self, tmp_path: Path, mode: str
    ) -> None:
        """Forks come while threads log and, where a thread writes, while rows are handed to it."""
        python(
            tmp_path,
            mode,
            """
            log = opened()
            stop = threading.Event()
            counts = [0, 0]
            def work(index):
                while not stop.is_set():
                    log.log_metrics({f"t{index}": counts[index]})
                    counts[index] += 1
            threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
            [thread.start() for thread in threads]
            for number in range(15):
                if not (pid := os.fork()):
                    signal.alarm(60)
                    log.log_metrics({"child": number})
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
            stop.set()
            [thread.join() for thread in threads]
            log.log_metrics({"counts": counts[0], "of 1": counts[1]})
            assert log.close(60).ok
            """,
        )
        assert sorted(logged(tmp_path, "child")) == list(range(15))
        for index, name in ((0, "counts"), (1, "of 1")):
            (count,) = logged(tmp_path, name)
            assert logged(tmp_path, f"t{index}") == list(range(int(count)))
        info = only_rank(tmp_path, "finished", "ended: finished")
        assert len(Run(tmp_path / "r").files.writers) == 16
        assert info.rows_lost == 0

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_workers_of_a_pool_log_and_are_terminated(self, tmp_path: Path, mode: str, method: str) -> None:
        """`multiprocessing.Pool` ends its workers by SIGTERM."""
        script = tmp_path / "script.py"
        script.write_text(
            OPEN
            + textwrap.dedent("""
            def work(number):
                log = rle.current()
                if isinstance(log, rle.NullWriter):
                    log = opened()
                log.log_metrics({"a": number}, step=number)
                return os.getpid()

            if __name__ == "__main__":
                log = opened()
                log.log_metrics({"main": 0}, step=0)
                with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
                    workers = pool.map(work, range(12), chunksize=1)
                log.log_metrics({"main": 1}, step=1)
                assert log.close(60).ok
                print(len(set(workers)))
            """)
        )
        command = [sys.executable, str(script), str(tmp_path), mode, method]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
        assert sorted(logged(tmp_path)) == list(range(12))
        assert logged(tmp_path, "main") == [0, 1]
        run = Run(tmp_path / "r")
        assert len(run.files.launches) == 1
        assert len(run.files.writers) == 1 + int(done.stdout)
        identities = run.files.identities()
        # a fork is its parent's rank; others say the same rank, and are later incarnations of it
        assert identities["incarnation"].max() == (0 if method == "fork" else int(done.stdout))
        assert set(identities["rank_key"]) == {"rank 0"}


class TestTwoWritersOfOneRank:
    def test_two_processes_at_once_keep_their_rows_apart_and_the_later_one_counts(
        self, tmp_path: Path, mode: str
    ) -> None:
        code = """
        os.environ["RLEVENTLOG_LAUNCH_ID"] = "one"
        log = opened()
        print(log.writer_id, flush=True)
        sys.stdin.readline()
        for number in range(300):
            log.log_metrics({"a": number + 1000 * int(sys.argv[1].endswith("r"))}, step=number, reduce="sum")
        log.log_metrics({"who": os.getpid()}, step=0)
        sys.stdin.readline()
        os._exit(0)
        """
        children = [start(tmp_path, mode, code)]
        writers = [next(_lines(children[0]))]
        children.append(start(tmp_path, mode, code))
        writers.append(next(_lines(children[1])))
        for child in children:
            assert child.stdin
            child.stdin.write("go\n")
            child.stdin.flush()
        for child in children:
            assert child.communicate("end\n", timeout=60)[1] == ""
        rows = raw_rows(tmp_path / "r", "metrics")
        assert_dense(rows)
        for writer in writers:
            assert [row["value"] for row in rows if row["writer"] == writer and row["name"] == "a"] == list(range(300))
        run = Run(tmp_path / "r")
        read = run.metrics("a").collect()
        assert read["value"].to_list() == list(range(300))  # never summed
        assert set(read["ranks"]) == {1}
        (who,) = run.metrics("who").collect()["value"]
        assert who == children[1].pid
        assert run.metrics("a", ranks="each").select(pl.col("writer").unique()).collect().item() == writers[1]
        only_rank(tmp_path, "lost", f"process {children[1].pid} is gone and wrote no end")


def _lines(child: subprocess.Popen[str]) -> Iterator[str]:
    assert child.stdout
    for line in child.stdout:
        yield line.strip()
