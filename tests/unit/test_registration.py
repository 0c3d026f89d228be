from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_eventlog import EventWriter
from rl_eventlog.documents import parse_time
from rl_eventlog.errors import IdentityError, OpenError, OptionError
from rl_eventlog.layout import sha16
from tests.support.raw import raw_rows

ENTER = """
import sys
from rl_eventlog import EventWriter
log = EventWriter.open(sys.argv[1], run="r", rank=int(sys.argv[2]), world_size=16, capture_diff=False)
print("ready", flush=True)
sys.stdin.read()
log.log_metrics({"a": 1}, step=1)
log.close()
"""


def enter(root: Path, run: str = "r", **options: Any) -> EventWriter:
    return EventWriter.open(root, run=run, capture_diff=False, **options)


def document(log: EventWriter) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((log.path / "writers" / f"{log.writer_id}.json").read_bytes())
    return found


def run_json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((path / "run.json").read_bytes())
    return found


class TestEntering:
    def test_sixteen_processes_at_once_are_one_run_and_one_launch(self, tmp_path: Path) -> None:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", ENTER, str(tmp_path), str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "RLEVENTLOG_LAUNCH_ID": "together"},
            )
            for rank in range(16)
        ]
        outputs = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0] * 16
        assert {output for output, _ in outputs} == {"ready\n"}
        said = [line for _, error in outputs for line in error.splitlines()]
        assert not [line for line in said if "waited" not in line], "nobody joined an existing run"
        run = tmp_path / "r"
        documents = [
            json.loads(path.read_bytes()) for path in (run / "writers").glob("*.json") if ".end" not in path.name
        ]
        assert sorted(found["rank"] for found in documents) == list(range(16))
        assert {found["run_uid"] for found in documents} == {run_json(run)["run_uid"]}
        assert [path.name for path in (run / "launches").iterdir()] == [f"{sha16(b'together')}.json"]
        assert len(raw_rows(run, "metrics")) == 16
        assert not list(run.rglob(".tmp-*"))

    def test_the_documents_are_as_the_schemas_say(self, tmp_path: Path) -> None:
        schemas = Path(__file__).parents[2] / "schemas"
        options: dict[str, Any] = {
            "project": "p",
            "group": "g",
            "tags": ["x", "y"],
            "notes": "n\ud800",
            "role": "trainer",
            "rank": 0,
        }
        with enter(tmp_path, world_size=2, data_rank=1, resume_step=5, parent_run="other", **options) as log:
            found = document(log)
            launch = json.loads(next((log.path / "launches").iterdir()).read_bytes())
        for name, content in (("writer", found), ("run", run_json(log.path)), ("launch", launch)):
            schema = json.loads((schemas / f"{name}.json").read_bytes())
            assert set(content) == {field["name"] for field in schema["fields"]}, name
            for field in schema["fields"]:
                assert content[field["name"]] is not None or field["nullable"], field
        wanted = {"name": "r", "world_size": 2, "data_rank": 1, "resume_step": 5, "parent_run": "other", **options}
        assert {key: found[key] for key in wanted} == wanted
        assert (found["pid"], found["forked_from"], found["format_version"]) == (os.getpid(), None, "1.0")
        end = json.loads((log.path / "writers" / f"{log.writer_id}.end.json").read_bytes())
        assert set(end) == {field["name"] for field in json.loads((schemas / "writer_end.json").read_bytes())["fields"]}

    def test_the_identity_is_in_the_open_segment(self, tmp_path: Path) -> None:
        with enter(tmp_path, role="rollout", rank=3, launch_id="l") as log:
            log.log_metrics({"a": 1})
        (row,) = raw_rows(log.path, "metrics")
        assert (row["writer"], row["launch"], row["role"], row["rank"]) == (log.writer_id, "l", "rollout", 3)
        assert (row["data_rank"], row["node"]) == (None, os.uname().nodename)


class TestWhichRun:
    def test_names_are_escaped_and_kept(self, tmp_path: Path) -> None:
        names = {"a b/c": "a%20b%2Fc", ".hidden": "%2Ehidden", "..": "%2E.", "é": "%C3%A9", "ok-1_2.3": "ok-1_2.3"}
        for name, folder in names.items():
            with enter(tmp_path, name) as log:
                assert (log.path, log.run) == (tmp_path / folder, name)
                assert document(log)["name"] == name
        assert {path.name for path in tmp_path.iterdir()} == set(names.values())

    @pytest.mark.parametrize(("name", "reason"), [("x" * 129, "at most 128"), ("\ud800", "surrogates not allowed")])
    def test_names_that_cannot_be_used_are_refused(self, tmp_path: Path, name: str, reason: str) -> None:
        with pytest.raises(IdentityError, match=reason):
            enter(tmp_path, name)
        assert list(tmp_path.iterdir()) == []

    def test_the_environment_names_root_and_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RLEVENTLOG_DIR", str(tmp_path / "root"))
        monkeypatch.setenv("RLEVENTLOG_RUN", "named")
        with EventWriter.open(capture_diff=False) as log:
            assert log.path == tmp_path / "root" / "named"
        with EventWriter.open("sub", run="other", capture_diff=False) as log:
            assert log.path == tmp_path / "root" / "sub" / "other"
        with EventWriter.open(tmp_path / "else", capture_diff=False) as log:
            assert log.path == tmp_path / "else" / "named"

    def test_without_any_name_one_process_gets_time_and_random_and_the_folder_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with EventWriter.open(capture_diff=False) as first, EventWriter.open(capture_diff=False) as second:
            assert first.path.parent == tmp_path / "runs"
            assert first.path != second.path
            assert len(first.run) == len("20260101-120000-abcdef")

    def test_several_processes_without_a_name_are_told_what_to_set(self, tmp_path: Path) -> None:
        with pytest.raises(
            IdentityError, match=r'4 processes \(from argument\).*pass run="\.\.\.", or set RLEVENTLOG_RUN'
        ):
            EventWriter.open(tmp_path, rank=0, world_size=4, capture_diff=False)
        assert list(tmp_path.iterdir()) == []


class TestOptions:
    def test_numbers_may_come_as_texts(self, tmp_path: Path) -> None:
        numbers: dict[str, Any] = {
            "rank": "1",
            "world_size": " 4",
            "data_rank": "0",
            "resume_step": "17",
            "segment_bytes": "100000",
            "segment_seconds": "60.5",
            "fsync_interval_seconds": "5",
            "beat_interval_seconds": "2.5",
        }
        with enter(tmp_path, **numbers) as log:
            found = document(log)
            log.log_metrics({"a": 1})
        names = ("rank", "world_size", "data_rank", "resume_step", "beat_seconds")
        assert [found[name] for name in names] == [1, 4, 0, 17, 2.5]
        assert [(row["rank"], row["data_rank"]) for row in raw_rows(log.path, "metrics")] == [(1, 0)]

    def test_numbers_of_numpy_are_numbers(self, tmp_path: Path) -> None:
        with enter(tmp_path, rank=np.int64(1), world_size=np.int32(4), resume_step=np.int64(5)) as log:
            found = document(log)
        assert (found["rank"], found["world_size"], found["resume_step"]) == (1, 4, 5)

    @pytest.mark.parametrize("name", ["rank", "world_size", "data_rank"])
    @pytest.mark.parametrize("value", ["one", "", "1.0", 1.5, [1], "9" * 5000])
    def test_ranks_that_are_no_numbers_are_named(self, tmp_path: Path, name: str, value: Any) -> None:
        with pytest.raises(IdentityError, match=rf"^{name}=.* is no whole number: pass {name}= as an int, or leave"):
            enter(tmp_path, **{name: value})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("resume", "maybe", r'^resume=\'maybe\' is not known: pass one of "allow", "never", "must"$'),
            ("resume", True, r'^resume=True is not known: pass one of "allow", "never", "must"$'),
            ("on_error", "ignore", r'^on_error=\'ignore\' is not known: pass one of "warn", "raise"$'),
            ("resume_step", "last", r"^resume_step='last' is no whole number: pass resume_step= as an int"),
            ("segment_bytes", 0, r"^segment_bytes=0 is no number of bytes: pass a whole number above 0$"),
            ("segment_bytes", "64M", r"^segment_bytes='64M' is no number of bytes"),
            ("segment_seconds", -1, r"^segment_seconds=-1 is no time: pass seconds above 0"),
            ("fsync_interval_seconds", 0, r"^fsync_interval_seconds=0 is no time: .* above 0, at most 86400$"),
            ("fsync_interval_seconds", float("inf"), r"^fsync_interval_seconds=inf is no time"),
            ("beat_interval_seconds", float("nan"), r"^beat_interval_seconds=nan is no time"),
            ("beat_interval_seconds", "often", r"^beat_interval_seconds='often' is no time"),
            ("beat_interval_seconds", None, r"^beat_interval_seconds=None is no time"),
            ("tags", 3, r"^tags=3 are no texts: pass a list of them$"),
        ],
    )
    def test_values_an_option_cannot_have_are_named_with_those_it_can(
        self, tmp_path: Path, name: str, value: Any, reason: str
    ) -> None:
        with pytest.raises(OptionError, match=reason):
            enter(tmp_path, **{name: value})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("tags", "kept"), [("abc", ["abc"]), ("", []), (None, []), (["a", 3], ["a", "3"]), ({"a": 1}, ["a"])]
    )
    def test_a_text_is_one_tag(self, tmp_path: Path, tags: Any, kept: list[str]) -> None:
        with enter(tmp_path, tags=tags) as log:
            assert document(log)["tags"] == kept


class TestResume:
    def test_never_refuses_what_exists(self, tmp_path: Path) -> None:
        enter(tmp_path, launch_id="one").close()
        with pytest.raises(OpenError, match=r"'r' exists at .*/r and resume=\"never\": choose another name"):
            enter(tmp_path, launch_id="two", resume="never")
        enter(tmp_path, launch_id="one", resume="never").close()  # another rank of the same launch
        enter(tmp_path, "new", launch_id="two", resume="never").close()

    def test_must_refuses_what_does_not_exist_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with pytest.raises(OpenError, match=r"no run 'r' to resume at .*/r and resume=\"must\""):
            enter(tmp_path, launch_id="one", resume="must")
        assert list(tmp_path.iterdir()) == []
        enter(tmp_path, launch_id="one").close()
        enter(tmp_path, launch_id="two", resume="must").close()

    def test_joining_says_so_in_one_line(self, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
        with enter(tmp_path, launch_id="one") as log:
            log.log_metrics({"a": 1}, step=41)
        assert capfd.readouterr().err == ""
        for options in ({}, {"rank": 0}, {"rank": 1}, {"rank": 1, "role": "rollout"}):
            enter(tmp_path, launch_id="two", **options).close()
        first, second = capfd.readouterr().err.splitlines()
        assert first == second
        assert first.startswith(
            "rl-eventlog: joining the existing run 'r' after 1 earlier launch(es), last step 41, begun "
        )
        assert first.endswith(f"seconds ago: {tmp_path / 'r'}")

    def test_every_rank_without_a_common_launch_is_warned_once_there_is_another(self, tmp_path: Path) -> None:
        code = (
            "import sys; from rl_eventlog import EventWriter; "
            "EventWriter.open(sys.argv[1], run='r', capture_diff=False).close()"
        )
        # a process between us and each rank, as a shell would be
        shell = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"

        def start(rank: int, **env: str) -> str:
            done = subprocess.run(
                [sys.executable, "-c", shell, code, str(tmp_path)],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3", **env},
                check=True,
                capture_output=True,
                text=True,
            )
            return done.stderr

        assert start(0) == ""
        for rank in (1, 2):
            (line,) = start(rank).splitlines()
            assert line.startswith(f"rl-eventlog: WARNING: rank {rank} of 3 has no launch id from a launcher, ")
            assert "Give all of them the same RLEVENTLOG_LAUNCH_ID (or launch_id=)" in line
        assert "WARNING" not in start(1, RLEVENTLOG_LAUNCH_ID="l")
        assert len(list((tmp_path / "r" / "launches").iterdir())) == 4

    def test_what_earlier_launches_there_were_is_recorded_oldest_first(self, tmp_path: Path) -> None:
        for launch in ("z", "m"):
            enter(tmp_path, launch_id=launch).close()
        with enter(tmp_path, launch_id="a") as log:
            assert document(log)["launches_seen"] == [sha16(b"z"), sha16(b"m")]

    def test_when_it_was_opened_is_also_told_by_the_file_system(self, tmp_path: Path) -> None:
        with enter(tmp_path) as log:
            times = [parse_time(document(log)[key]) for key in ("opened_on_disk", "opened")]
        assert abs((times[1] - times[0]).total_seconds()) < 60
        assert not list(log.path.rglob(".tmp-*"))

    def test_two_python_commands_in_one_allocation_are_two_launches_of_one_run(self, tmp_path: Path) -> None:
        env = {**os.environ, "SLURM_JOB_ID": "77", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}
        code = (
            "import sys; from rl_eventlog import EventWriter; EventWriter.open(sys.argv[1], capture_diff=False).close()"
        )
        for _ in range(2):
            subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=env, check=True, capture_output=True)
        run = tmp_path / "slurm-77"
        assert len(list((run / "launches").iterdir())) == 2

    def test_children_of_a_process_alone_belong_to_its_launch(self, tmp_path: Path) -> None:
        with enter(tmp_path) as log:
            code = "import sys; from rl_eventlog import EventWriter; EventWriter.open(sys.argv[1], run='r').close()"
            subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
            assert len(list((log.path / "writers").glob("*.end.json"))) == 1
            assert len(list((log.path / "launches").iterdir())) == 1


class TestUid:
    def test_a_run_without_run_json_keeps_the_uid_of_its_earliest_writer(self, tmp_path: Path) -> None:
        with enter(tmp_path, launch_id="one") as log:
            uid = run_json(log.path)["run_uid"]
        (log.path / "run.json").unlink()
        with enter(tmp_path, launch_id="two") as log:
            assert document(log)["run_uid"] == run_json(log.path)["run_uid"] == uid

    def test_a_torn_run_json_and_torn_writers_are_passed_over(self, tmp_path: Path) -> None:
        with enter(tmp_path, launch_id="one") as log:
            uid = run_json(log.path)["run_uid"]
        (log.path / "run.json").write_bytes(b'{"run_uid": "01')
        (log.path / "writers" / "00000000000000000000000000.json").write_bytes(b"{")
        with enter(tmp_path, launch_id="two") as log:
            assert document(log)["run_uid"] == uid

    def test_a_torn_run_json_alone_does_not_stop_a_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rl_eventlog.writer.registration._TORN_SECONDS", 0.0)
        (tmp_path / "r").mkdir()
        (tmp_path / "r" / "run.json").write_bytes(b"")
        first, second = enter(tmp_path), enter(tmp_path)
        assert document(first)["run_uid"] == document(second)["run_uid"]
        first.close()
        second.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    yield from _mounted(tmp_path, "size=1m")


def _mounted(tmp_path: Path, options: str) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if (
        os.geteuid()
        or not mount
        or subprocess.run(
            [mount, "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("needs root and mount(8)")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


class TestPlaces:
    def test_a_file_in_the_way_is_named_at_once(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(
            OpenError, match=rf"cannot write the run 'r' at {tmp_path}/file/r: (File exists|Not a directory)"
        ):
            enter(tmp_path / "file")
        (tmp_path / "r").touch()
        with pytest.raises(OpenError, match=r"File exists.*choose a folder this process may write"):
            enter(tmp_path)

    def test_a_place_that_takes_no_folder_is_named_at_once(self) -> None:
        with pytest.raises(OpenError, match=r"cannot write the run 'r' at /proc/nowhere/r: .*\(/proc/nowhere\)"):
            enter(Path("/proc/nowhere"))

    def test_a_read_only_file_system_is_named_at_once(self, small_disk: Path) -> None:
        subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
        with pytest.raises(OpenError, match=r"Read-only file system"):
            enter(small_disk)

    def test_a_removed_working_folder_hurts_relative_roots_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        monkeypatch.chdir(gone)
        gone.rmdir()
        with enter(tmp_path) as log:
            log.log_metrics({"a": 1})
        assert len(raw_rows(log.path, "metrics")) == 1
        with pytest.raises(OpenError, match="pass an absolute root"):
            enter(Path("runs"))

    def test_memory_and_shared_array_runs_are_warned_about(
        self, small_disk: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "17")
        caplog.set_level(logging.WARNING, "rl_eventlog")
        enter(small_disk).close()
        assert "lies in memory (tmpfs)" in caplog.text
        assert "put SLURM_ARRAY_TASK_ID in its name" in caplog.text
        caplog.clear()
        enter(small_disk, "run-17").close()
        assert "SLURM_ARRAY_TASK_ID" not in caplog.text

    @pytest.mark.parametrize("run", ["qwen-1.5b-{task}", "t{task}", "run-0{task}", "{task}_lr", "grid.{task}"])
    def test_the_name_of_a_run_that_holds_the_array_task_is_fine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run: str
    ) -> None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
        caplog.set_level(logging.WARNING, "rl_eventlog")
        enter(tmp_path, run.format(task=1)).close()
        assert "SLURM_ARRAY_TASK_ID" not in caplog.text

    @pytest.mark.parametrize("run", ["qwen-1.5b", "qwen-2.1b", "run-17", "run-21", "llama-1b"])
    def test_digits_of_other_numbers_in_the_name_are_not_the_array_task(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run: str
    ) -> None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
        caplog.set_level(logging.WARNING, "rl_eventlog")
        enter(tmp_path, run).close()
        assert "put SLURM_ARRAY_TASK_ID in its name" in caplog.text

    def test_rows_wait_in_memory_while_the_disk_is_full(
        self, small_disk: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = enter(small_disk, fsync_interval_seconds=3600)
        caplog.set_level(logging.WARNING, "rl_eventlog")
        log.log_metrics({"before": 1})
        ballast = small_disk / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        assert log._session
        full = 0
        while not log._session.rows.waiting():  # what is left of the segment's last page goes first
            log.log_metrics({"full": 1})
            full += 1
        log.log_timing("t", 1.0)
        with pytest.raises(OSError, match=r"rows wait in memory: No space left"):
            log.flush()
        assert log._session.rows.waiting() == {"metrics": 1, "timings": 1}
        ballast.unlink()
        log.log_metrics({"after": 1})
        report = log.close()
        assert report.ok
        assert sum("tries again" in record.getMessage() for record in caplog.records) == 1
        rows = raw_rows(log.path, "metrics")
        assert [row["seq"] for row in rows] == list(range(full + 2))
        assert len(raw_rows(log.path, "timings")) == 1
        assert (rows[0]["name"], rows[-1]["name"]) == ("before", "after")
        assert [row["seq"] for row in raw_rows(log.path, "timings")] == [0]
        assert report.left_open == ()

    def test_a_run_folder_that_goes_away_raises_nothing_and_comes_back(self, tmp_path: Path) -> None:
        log = enter(tmp_path, fsync_interval_seconds=3600)
        log.log_metrics({"a": 0})
        log.mark("m")
        shutil.rmtree(log.path)
        for number in range(1, 5):
            log.log_metrics({"a": number})
        log.log_timing("t", 1.0)
        log.flush(fsync=True)
        for number in range(5, 8):
            log.log_metrics({"a": number})
        shutil.rmtree(log.path)
        report = log.close()
        assert report.ok
        assert report.rows == {"metrics": 8, "markers": 1, "timings": 1}
        assert [(row["value"], row["seq"]) for row in raw_rows(log.path, "metrics")] == [(n, n) for n in range(8)]
        assert len(raw_rows(log.path, "markers")) == len(raw_rows(log.path, "timings")) == 1

    def test_a_rotated_segment_removed_before_its_seal_is_counted_as_lost(self, tmp_path: Path) -> None:
        log = enter(tmp_path, fsync_interval_seconds=3600, segment_bytes=1)
        log.log_metrics({"a": 1, "b": 2})
        next(log.path.glob("events/metrics/*/*.arrows")).unlink()
        log.log_metrics({"a": 3})
        report = log.close()
        assert report.rows_lost == {"metrics": 2}
        assert [(row["value"], row["seq"]) for row in raw_rows(log.path, "metrics")] == [(3, 2)]
