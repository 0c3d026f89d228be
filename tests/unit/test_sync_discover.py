from __future__ import annotations

from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.errors import SinkUnavailableError, SyncError
from rl_eventlog.sinks import make_sink
from rl_eventlog.sinks.base import RunDescription
from rl_eventlog.sync import MakeSink, SyncOptions, sync_many, unsent_runs
from tests.support.memory_sink import MemorySink
from tests.support.remote_writer import log_steps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        with EventWriter.open(tmp_path / "runs", run=name, capture_diff=False) as log:
            log_steps(log, 0, 3)
    return tmp_path / "runs"


@pytest.fixture
def sinks(tmp_path: Path) -> MakeSink:
    (tmp_path / "targets").mkdir()
    return lambda run: MemorySink(tmp_path / "targets" / run.name)


def test_runs_with_something_unsent_are_found_without_asking_a_target(root: Path, sinks: MakeSink) -> None:
    assert [path.name for path in unsent_runs(root, sinks)] == ["a", "b", "c"]
    results = list(sync_many([root / "a", root / "b"], sinks))
    assert [result.report.points for result in results if result.report] == [6, 6]
    assert [path.name for path in unsent_runs(root, sinks)] == ["c"]


def test_new_rows_and_a_new_status_are_something_unsent(root: Path, sinks: MakeSink) -> None:
    list(sync_many(unsent_runs(root, sinks), sinks))
    assert unsent_runs(root, sinks) == []
    log = EventWriter.open(root, run="b", capture_diff=False)
    log_steps(log, 3, 5)
    assert unsent_runs(root, sinks) == [root / "b"]
    list(sync_many([root / "b"], sinks, SyncOptions(final=True)))
    assert unsent_runs(root, sinks) == []
    log.close()
    assert unsent_runs(root, sinks) == [root / "b"]


def test_one_bad_run_stops_no_other(root: Path, sinks: MakeSink, tmp_path: Path) -> None:
    def make(run: RunDescription) -> MemorySink:
        return MemorySink(tmp_path / "targets" / run.name, fail_after=2 if run.name == "b" else None)

    results = {
        result.path.name: result for result in sync_many([root / "a", root / "nowhere", root / "b", root / "c"], make)
    }
    assert {name for name, result in results.items() if result.report} == {"a", "c"}
    assert isinstance(results["b"].error, SinkUnavailableError)
    assert isinstance(results["nowhere"].error, FileNotFoundError)
    assert [path.name for path in unsent_runs(root, sinks)] == ["b"]


def test_a_run_that_cannot_be_read_counts_as_unsent(root: Path, sinks: MakeSink) -> None:
    list(sync_many(unsent_runs(root, sinks), sinks))
    [target] = (root / "a" / ".sync").iterdir()
    (target / "00000001.json").write_text("torn")
    assert unsent_runs(root, sinks) == [root / "a"]


def test_a_run_with_a_gap_stays_unsent(root: Path, sinks: MakeSink) -> None:
    [sealed] = (root / "a" / "events" / "metrics").rglob("*.parquet")
    sealed.unlink()
    for _ in range(2):
        list(sync_many(unsent_runs(root, sinks), sinks))
        assert unsent_runs(root, sinks) == [root / "a"]


def test_an_unknown_target_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SyncError, match="unknown target 'comet': use one of mlflow, tensorboard, wandb"):
        make_sink("comet")


def test_a_target_is_made_by_its_kind(tmp_path: Path) -> None:
    assert make_sink("tensorboard", log_dir=tmp_path).address == str(tmp_path)
