"""Replaying real runs to a target that counts what arrives."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog import EventWriter, Run
from rl_eventlog.errors import LeaseHeldError, LedgerError, RunNotFoundError, SinkUnavailableError, SyncError
from rl_eventlog.sync import Hold, SyncOptions, SyncReport, plan, replay
from rl_eventlog.sync.lease import hold_lease
from rl_eventlog.sync.ledger import Ledger
from tests.support.memory_sink import MemorySink
from tests.support.remote_writer import RemoteWriter, log_steps


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def run(root: Path) -> Path:
    return root / "grpo"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


@contextmanager
def trainer(root: Path, **keywords: Any) -> Iterator[EventWriter]:
    options: dict[str, Any] = {"run": "grpo", "role": "trainer", "rank": 0, "launch_id": "first"}
    writer = EventWriter.open(root, capture_diff=False, **options | keywords)
    try:
        yield writer
    finally:
        writer.close()


def remote(root: Path, launch_id: str, **keywords: Any) -> RemoteWriter:
    return RemoteWriter(root, run="grpo", role="trainer", rank=0, launch_id=launch_id, **keywords)


def losses(target: Path) -> dict[float, list[float]]:
    """Step -> all versions of the loss that arrived."""
    found = MemorySink(target).versions()
    return {position: values for (series, _, position), values in found.items() if series == "loss"}


def folders(path: Path) -> set[Path]:
    return {found.relative_to(path) for found in path.rglob("*")} if path.exists() else set()


def test_a_finished_run_arrives_whole_at_its_steps_and_times(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log.log_hyperparams({"lr": 1e-6, "model": {"name": "qwen"}})
        log.log_metrics({"train/loss": 0.5, "train/kl": math.nan}, step=3)
        log.log_timing("generation", 2.5, 3)
        log.log_samples([{"prompt": "1+1", "response": "2", "reward": 1.0}], step=3)
        log.log_samples([{"prompt": "rollout only"}], step=3, split="rollout")
    report = replay(run, MemorySink(target))

    rows = MemorySink(target).rows()
    points = {row["series"]: (row["step"], row["value"]) for row in rows if row["what"] == "point"}
    assert points == {"train/loss": (3, "0.5"), "train/kl": (3, "nan"), "timing/generation": (3, "2.5")}
    assert {row["key"]: row["value"] for row in rows if row["what"] == "param"} == {
        "lr": "1e-06",
        "model.name": '"qwen"',
    }
    assert [(row["split"], row["prompt"]) for row in rows if row["what"] == "sample"] == [("validation", "1+1")]
    logged = Run(run).metrics("train/loss").collect()["time"].item()
    assert [row["time"] for row in rows if row.get("series") == "train/loss"] == [logged.isoformat()]
    assert (report.commits, report.points, report.params, report.samples, report.held_points) == (1, 3, 2, 1, 0)
    assert report.location == str(target)


def test_syncing_twice_sends_nothing_twice(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    replay(run, MemorySink(target))
    before = MemorySink(target).rows()
    second = MemorySink(target)
    report = replay(run, second)
    assert report.up_to_date
    assert second.calls == ["open", "finish finished", "close"]
    assert second.rows() == before


def test_a_run_that_grew_sends_only_its_new_rows(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
        replay(run, MemorySink(target))
        log_steps(log, 5, 8)
    report = replay(run, MemorySink(target))
    assert (report.points, report.corrections) == (2 * 4, 0)  # step 4 was not complete the first time
    assert losses(target) == {step: [step] for step in range(8)}
    assert MemorySink(target).doubled() == []


def test_several_targets_are_served_from_one_log(root: Path, run: Path, tmp_path: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    for name in ("one", "two"):
        assert replay(run, MemorySink(tmp_path / name)).points == 10
    assert losses(tmp_path / "one") == losses(tmp_path / "two")


def test_a_live_step_waits_until_every_rank_is_beyond_it(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as first, trainer(root, rank=1) as second:
        log_steps(first, 0, 10)
        log_steps(second, 0, 6, offset=100.0)
        report = replay(run, MemorySink(target))
        assert losses(target) == {step: [step + 50] for step in range(5)}
        [held] = report.held
        assert (held.role, held.reason, held.points, held.first_step) == ("trainer", "incomplete", 10, 5)
        log_steps(second, 6, 10, offset=100.0)
    report = replay(run, MemorySink(target))
    assert report.corrections == 0
    assert losses(target) == {step: [step + 50] for step in range(10)}


def test_a_step_declared_finished_does_not_wait(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log.log_metrics({"loss": 1.0}, step=1, step_finished=True)
        assert replay(run, MemorySink(target)).points == 1


def test_a_step_declared_finished_without_metrics_does_not_wait(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as first, trainer(root, rank=1) as second:
        for log in (first, second):
            log.log_metrics({"loss": 1.0}, step=1)
        for step in (1, 2, 3):
            first.log_metrics({"loss": float(step)}, step=step, step_finished=True)
        assert replay(run, MemorySink(target)).points == 0
        second.log_metrics({}, step=3, step_finished=True)
        assert replay(run, MemorySink(target)).points == 3


def test_final_sends_what_is_not_complete(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 3)
        report = replay(run, MemorySink(target), SyncOptions(final=True))
        assert (report.points, report.held) == (6, ())


def test_a_late_rank_corrects_what_was_sent_without_it(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 3)
    replay(run, MemorySink(target))
    with trainer(root, rank=1) as log:
        log_steps(log, 0, 3, offset=10.0)
    report = replay(run, MemorySink(target))
    assert (report.points, report.corrections) == (3, 3)  # the timings are equal on both ranks
    assert losses(target) == {step: [step, step + 5] for step in range(3)}
    assert replay(run, MemorySink(target)).up_to_date


def test_what_did_not_change_is_the_same_to_the_last_digit(root: Path, run: Path, target: Path) -> None:
    draw = random.Random(0)
    with ExitStack() as stack:
        ranks = [stack.enter_context(trainer(root, rank=rank)) for rank in range(12)]
        for step in range(60):
            for log in ranks:
                values = {f"m{i}": draw.gauss(0, 1) * 10 ** draw.randint(-8, 8) for i in range(20)}
                log.log_metrics(values, step=step, weight=draw.random())
        assert replay(run, MemorySink(target), SyncOptions(final=True)).points == 60 * 20
        for log in ranks[::2]:
            log.close()
        ranks[1].log_metrics({"m0": 1.0}, step=60)
        report = replay(run, MemorySink(target), SyncOptions(final=True))
    assert (report.points, report.corrections) == (1, 0)


def test_a_restart_after_a_sync_sends_exactly_the_corrections(root: Path, run: Path, target: Path) -> None:
    first = remote(root, "first")
    first.log_steps(0, 138)
    first.kill()
    assert replay(run, MemorySink(target)).points == 2 * 138
    with trainer(root, launch_id="second") as log:
        log_steps(log, 130, 140, offset=0.5)
    report = replay(run, MemorySink(target))
    assert (report.points, report.corrections) == (8 + 2 + 2, 8)
    expected = {float(step): [float(step)] for step in range(130)}
    expected |= {float(step): [step, step + 0.5] for step in range(130, 138)}
    expected |= {float(step): [step + 0.5] for step in (138, 139)}
    assert losses(target) == expected
    assert MemorySink(target).doubled() == []


@pytest.mark.parametrize(("hold", "last"), [("checkpoint", 129), ("none", 136)])
def test_hold_keeps_back_what_a_restart_would_log_again(
    root: Path, run: Path, target: Path, hold: Hold, last: int
) -> None:
    first = remote(root, "first")
    first.log_steps(0, 130)
    first.call("mark", "checkpoint", step=129)
    first.log_steps(130, 138)
    report = replay(run, MemorySink(target), SyncOptions(hold=hold))
    assert max(losses(target)) == last
    assert {held.reason for held in report.held} == {"incomplete", hold} - {"none"}
    first.kill()

    with trainer(root, launch_id="second", resume_step=130) as log:
        log_steps(log, 130, 140, offset=0.5)
        log.mark("checkpoint", step=139)
    report = replay(run, MemorySink(target), SyncOptions(hold=hold))
    versions = losses(target)
    assert report.corrections == last - 129
    assert {step: values[-1] for step, values in versions.items()} == {
        step: step + 0.5 * (step >= 130) for step in range(140)
    }
    assert sum(len(values) for values in versions.values()) == 140 + last - 129


def test_the_checkpoint_itself_is_sent_while_the_run_lives(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 10)
        log.mark("checkpoint", step=5)
        replay(run, MemorySink(target))
        assert max(losses(target)) == 5
        log.mark("checkpoint", step=8)
        replay(run, MemorySink(target))
        assert max(losses(target)) == 8
    assert replay(run, MemorySink(target)).held == ()
    assert losses(target) == {step: [step] for step in range(10)}


def test_what_a_restart_hides_stays_counted_and_its_replacement_is_a_correction(
    root: Path, run: Path, target: Path
) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 10)
    replay(run, MemorySink(target))
    with trainer(root, launch_id="second", resume_step=6) as log:
        log.log_hyperparams({"lr": 1.0})
        report = replay(run, MemorySink(target))  # hides the steps 6 to 9, replaces none yet
        assert (report.points, report.params, report.hidden) == (0, 1, 8)
        log_steps(log, 6, 8, offset=0.5)
    report = replay(run, MemorySink(target))
    assert (report.points, report.corrections, report.hidden) == (2, 2, 4)  # timings 6 and 7 are as before
    with trainer(root, launch_id="third", resume_step=8) as log:
        log_steps(log, 8, 10)
    report = replay(run, MemorySink(target))
    assert (report.points, report.hidden) == (0, 0)  # the target has these values
    assert losses(target) == {step: [step] if step not in (6, 7) else [step, step + 0.5] for step in range(10)}


def test_samples_are_sent_once_whatever_is_held(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 4)
        for step in (0, 2):
            log.log_samples([{"prompt": f"{step}.{i}"} for i in range(3)], step=step)
        log.mark("checkpoint", step=1)
        report = replay(run, MemorySink(target))
        assert (report.samples, sum(held.samples for held in report.held)) == (3, 3)
        replay(run, MemorySink(target), SyncOptions(hold="none"))
        replay(run, MemorySink(target))
    replay(run, MemorySink(target))
    sent = [row["prompt"] for row in MemorySink(target).rows() if row["what"] == "sample"]
    assert sent == ["0.0", "0.1", "0.2", "2.0", "2.1", "2.2"]


def test_changed_hyperparameters_are_sent_again(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log.log_hyperparams({"lr": 1, "seed": 0})
        replay(run, MemorySink(target))
        log.log_hyperparams({"lr": 2, "seed": 0})
    report = replay(run, MemorySink(target))
    assert report.params == 1
    assert [(row["key"], row["value"]) for row in MemorySink(target).rows()] == [
        ("lr", "1"),
        ("seed", "0"),
        ("lr", "2"),
    ]


def test_a_name_once_given_stays(root: Path, run: Path, target: Path) -> None:
    with trainer(root, role="controller") as log:
        log.log_metrics({"reward": 1.0}, step=0)
    replay(run, MemorySink(target))
    with trainer(root) as log:
        log.log_metrics({"reward": 2.0}, step=0)
    replay(run, MemorySink(target))
    with trainer(root, launch_id="second") as log:
        log.log_metrics({"reward": 3.0}, step=1)
    replay(run, MemorySink(target))
    assert MemorySink(target).versions() == {
        ("reward", None, 0.0): [1.0],
        ("trainer/reward", None, 0.0): [2.0],
        ("trainer/reward", None, 1.0): [3.0],
    }


def test_large_plans_are_cut_between_positions_in_send_order(
    root: Path, run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_POINTS", 10)
    with trainer(root, role="rollout") as log:
        log.log_metrics({f"m{i}": 1.0 for i in range(4)}, step=2)
        log.log_metrics({f"m{i}": 1.0 for i in range(4)}, step=1)
        log.log_metrics({f"m{i}": 1.0 for i in range(25)}, step=3)
        log.log_metrics({"m0": 1.0, "tokens": 7}, step=9, step_metric="tokens")
    with trainer(root, role="actor") as log:
        log.log_metrics({"z": 1.0}, step=50)
    assert replay(run, MemorySink(target)).commits == 4
    points = MemorySink(target).points()
    assert [sum(row["commit"] == commit for row in points) for commit in range(1, 5)] == [9, 10, 10, 6]
    order = [(row["role"], row["axis"] or "", row["position"], row["attempt"], row["series"]) for row in points]
    assert order == sorted(order)


def test_a_commit_that_failed_is_sent_again_as_it_was_planned(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 10)
        with pytest.raises(SinkUnavailableError):
            replay(run, MemorySink(target, fail_after=7))
        log_steps(log, 10, 12)
    report = replay(run, MemorySink(target))
    assert (report.commits, report.resent, report.points) == (2, 1, 24)
    assert losses(target) == {step: [step] for step in range(12)}
    assert MemorySink(target).doubled() == []


def test_a_dry_run_writes_nothing_and_opens_no_connection(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log.log_hyperparams({"lr": 1})
        log_steps(log, 0, 5)
    before, state = folders(run), folders(Path(os.environ["XDG_STATE_HOME"]))
    sink = MemorySink(target)
    report = replay(run, sink, SyncOptions(dry_run=True))
    assert sink.calls == ["close"]
    assert (folders(run), folders(Path(os.environ["XDG_STATE_HOME"])), target.exists()) == (before, state, False)
    assert [(count.table, count.series, count.points) for count in report.series] == [
        ("metrics", "loss", 5),
        ("timings", "timing/generation", 5),
    ]
    assert (report.dry_run, report.commits, report.points, report.params) == (True, 1, 10, 1)
    done = replay(run, MemorySink(target))
    assert (done.points, done.series) == (report.points, report.series)


def test_the_log_is_never_changed(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    replay(run, MemorySink(target))
    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and ".sync" not in path.parts}
    assert after == before


def test_a_gap_stops_what_is_sent_before_it_and_is_told_until_it_is_filled(root: Path, run: Path, target: Path) -> None:
    with trainer(root, segment_bytes=2000) as log:
        for step in range(20):
            log.log_metrics({"loss": float(step)}, step=step)
    segments = sorted(
        (run / "events" / "metrics").rglob("*.parquet"), key=lambda path: int(path.name.split("-")[1].split(".")[0])
    )
    assert len(segments) > 2
    missing = segments[1].rename(root / "elsewhere")
    report = replay(run, MemorySink(target))
    [gap] = report.gaps
    assert gap.table == "metrics"
    assert losses(target) == {step: [step] for step in range(gap.first)}
    assert gap.first < 20

    missing.rename(segments[1])
    report = replay(run, MemorySink(target))
    assert report.gaps == ()
    assert losses(target) == {step: [step] for step in range(20)}


def test_a_file_damaged_after_it_was_sent_changes_nothing(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    replay(run, MemorySink(target))
    [sealed] = (run / "events" / "metrics").rglob("*.parquet")
    whole = sealed.read_bytes()
    sealed.write_bytes(whole[: len(whole) // 2])
    assert replay(run, MemorySink(target)).points == 0
    sealed.write_bytes(whole)
    assert replay(run, MemorySink(target)).points == 0
    assert losses(target) == {step: [step] for step in range(5)}


def test_a_sealed_file_whose_content_was_altered_is_named_and_the_rest_is_sent(
    root: Path, run: Path, target: Path
) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    with trainer(root, rank=1) as other:
        log_steps(other, 0, 5, offset=100.0)
    [sealed] = (run / "events" / "metrics").rglob(f"{other.writer_id}*.parquet")
    whole = sealed.read_bytes()
    altered = bytearray(whole)
    altered[60:200] = bytes(byte ^ 0xFF for byte in altered[60:200])
    sealed.write_bytes(altered)
    report = replay(run, MemorySink(target))
    assert [(gap.table, gap.writer, gap.first, gap.last) for gap in report.gaps] == [("metrics", other.writer_id, 0, 4)]
    assert [sealed.name in reason for reason in report.damaged] == [True]
    assert losses(target) == {step: [step] for step in range(5)}
    sealed.write_bytes(whole)
    assert replay(run, MemorySink(target)).corrections == 5


def test_a_sync_at_work_is_not_disturbed(root: Path, run: Path, target: Path) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    replay(run, MemorySink(target))
    [folder] = (run / ".sync").iterdir()
    sink = MemorySink(target)
    with hold_lease(folder), pytest.raises(LeaseHeldError, match="is syncing this run to this target"):
        replay(run, sink)
    assert sink.calls == ["close"]


def test_a_sync_whose_lease_was_taken_stops_before_the_next_send(
    root: Path, run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_POINTS", 4)
    with trainer(root) as log:
        log_steps(log, 0, 5)

    def take_over(sent: int, _of: int) -> None:
        [lease] = run.rglob("lease/*.json")
        lease.unlink()

    sink = MemorySink(target)
    with pytest.raises(LeaseHeldError, match="took over"):
        replay(run, sink, progress=take_over)
    assert sink.calls == ["open", "send 1", "close"]


def test_progress_tells_points_sent_and_points_to_send(
    root: Path, run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_POINTS", 4)
    with trainer(root) as log:
        log_steps(log, 0, 5)
    told: list[tuple[int, int]] = []
    replay(run, MemorySink(target), progress=lambda sent, of: told.append((sent, of)))
    assert told == [(4, 10), (8, 10), (10, 10)]


def test_the_status_follows_the_run(root: Path, run: Path, target: Path) -> None:
    first = remote(root, "first")
    first.log_steps(0, 3)
    statuses = [finish(run, target)]
    first.kill()
    statuses.append(finish(run, target))
    with trainer(root, launch_id="second") as log:
        log_steps(log, 3, 5)
        statuses.append(finish(run, target))
    statuses.append(finish(run, target))
    assert statuses == ["finish running", "finish failed", "finish running", "finish finished"]


def finish(run: Path, target: Path) -> str:
    sink = MemorySink(target)
    replay(run, sink)
    return sink.calls[-2]


def synced(root: Path, run: Path, target: Path) -> SyncReport:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    return replay(run, MemorySink(target))


def lose_record(run: Path) -> None:
    shutil.rmtree(run / ".sync")
    shutil.rmtree(Path(os.environ["XDG_STATE_HOME"]) / "rl-eventlog")


def test_a_lost_record_is_taken_over_from_the_target_if_the_run_explains_it(
    root: Path, run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_POINTS", 4)
    synced(root, run, target)
    lose_record(run)
    sink = MemorySink(target)
    assert replay(run, sink).up_to_date
    assert sink.calls == ["open", "finish finished", "close"]
    assert replay(run, MemorySink(target)).up_to_date


def test_a_record_lost_halfway_goes_on_from_where_the_target_is(
    root: Path, run: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MAX_POINTS", 4)
    with trainer(root) as log:
        log_steps(log, 0, 5)
    rows = iter(range(4))

    def fail_in_the_second_commit() -> None:
        if next(rows, None) is None:
            raise SinkUnavailableError("the target does not answer")

    with pytest.raises(SinkUnavailableError):
        replay(run, MemorySink(target, before_row=fail_in_the_second_commit))
    lose_record(run)
    report = replay(run, MemorySink(target))
    assert (report.commits, report.points) == (2, 6)
    assert losses(target) == {step: [step] for step in range(5)}
    assert MemorySink(target).doubled() == []


def test_a_lost_record_of_a_run_that_changed_since_is_refused(root: Path, run: Path, target: Path) -> None:
    synced(root, run, target)
    lose_record(run)
    with trainer(root, launch_id="second") as log:
        log_steps(log, 3, 7)
    before = MemorySink(target).rows()
    with pytest.raises(LedgerError, match=r"does not lead to what was sent.* or to send everything anew, remove"):
        replay(run, MemorySink(target))
    assert MemorySink(target).rows() == before


def test_a_target_that_lost_the_run_is_not_filled_from_the_middle(root: Path, run: Path, target: Path) -> None:
    synced(root, run, target)
    shutil.rmtree(target)
    with pytest.raises(LedgerError, match="commit 1 was confirmed, but the target has nothing of it"):
        replay(run, MemorySink(target))
    assert MemorySink(target).rows() == []
    lose_record(run)  # the remedy
    assert replay(run, MemorySink(target)).points == 10


def test_a_target_with_another_history_is_refused(root: Path, run: Path, target: Path) -> None:
    synced(root, run, target)
    cursor = target / "cursor.json"
    cursor.write_text(json.dumps(json.loads(cursor.read_text()) | {"digest": "f" * 64}))
    with pytest.raises(LedgerError, match="another commit 1"):
        replay(run, MemorySink(target))


def test_a_confirmation_that_we_lost_is_taken_from_the_target(root: Path, run: Path, target: Path) -> None:
    synced(root, run, target)
    for done in [*run.rglob("*.done"), *Path(os.environ["XDG_STATE_HOME"]).rglob("*.done")]:
        done.unlink()
    sink = MemorySink(target)
    assert replay(run, sink).up_to_date
    assert sink.calls == ["open", "finish finished", "close"]


def test_a_path_without_a_run_is_named(tmp_path: Path) -> None:
    sink = MemorySink(tmp_path / "target")
    with pytest.raises(RunNotFoundError, match="nowhere"):
        replay(tmp_path / "nowhere", sink)
    assert sink.calls == ["close"]


def test_a_record_that_cannot_be_written_stops_the_sync_before_anything_is_sent(
    root: Path, run: Path, target: Path
) -> None:
    with trainer(root) as log:
        log_steps(log, 0, 5)
    folder = Ledger(run, Run(run).files.run_uid, "memory", MemorySink(target).address).folder
    folder.mkdir(parents=True)
    (folder / "lease").touch()
    sink = MemorySink(target)
    with pytest.raises(SyncError, match="cannot keep the record"):
        replay(run, sink)
    assert sink.calls == ["close"]
