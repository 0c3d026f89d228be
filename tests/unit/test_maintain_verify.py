"""`verify` names everything that is not as it should be, and nothing where all is well."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter
from rl_eventlog.documents import encode_beat, time_text
from rl_eventlog.errors import RunNotFoundError, SchemaVersionError
from rl_eventlog.maintain import REMEDIES, Finding, compact, verify
from rl_eventlog.reader import RunFiles
from rl_eventlog.run import Run, Thresholds
from rl_eventlog.segment.open_segment import OpenSegment
from tests.support.small_runs import of_newer_version, one_rank, two_ranks
from tests.support.upkeep import event_files, flip, killed_writer, snapshot


def found(path: Path) -> list[tuple[str, str]]:
    return [(finding.severity, finding.kind) for finding in verify(path).findings]


def only(path: Path, kind: str) -> Finding:
    (finding,) = [finding for finding in verify(path).findings if finding.kind == kind]
    return finding


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def beat(path: Path, writer: str, *, age: timedelta = timedelta(0), **fields: Any) -> None:
    """Make the last heartbeat of a writer say so."""
    said = {"writer": writer, "time": time_text(datetime.now(timezone.utc) - age), "rows_at_risk": 0, "rows_lost": 0}
    (path / f"writers/{writer}.beat").write_bytes(encode_beat(said | fields))


def opened(root: Path, **options: Any) -> EventWriter:
    given: dict[str, Any] = {"run": "r", "role": "trainer", "rank": 0, "launch_id": "one"} | options
    return EventWriter.open(root, capture_diff=False, **given)


def test_a_finished_run_is_well_and_its_rows_are_counted_by_writer_and_table(tmp_path: Path) -> None:
    path = two_ranks(tmp_path, steps=4)
    before = snapshot(path)
    report = verify(path)
    assert report.ok
    assert report.findings == ()
    assert [(one.role, one.rank, one.table, one.rows, one.first_seq, one.last_seq) for one in report.writers] == [
        ("trainer", 0, "metrics", 8, 0, 7),
        ("trainer", 0, "timings", 4, 0, 3),
        ("trainer", 0, "hparams", 2, 0, 1),
        ("trainer", 0, "markers", 1, 0, 0),
        ("trainer", 1, "metrics", 8, 0, 7),
        ("trainer", 1, "timings", 4, 0, 3),
    ]
    assert {(one.attempt, one.state, one.missing) for one in report.writers} == {(1, "finished", 0)}
    assert snapshot(path) == before


def test_a_run_that_is_written_can_be_well(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.log_metrics({"loss": 1.0}, step=0)
        report = verify(log.path)
        assert report.ok
        assert [(one.state, one.rows) for one in report.writers] == [("running", 1)]


def test_a_run_without_a_row_is_well(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        assert verify(log.path).ok


def test_what_is_no_run_and_what_is_newer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError):
        verify(tmp_path)
    with pytest.raises(SchemaVersionError):
        verify(of_newer_version(tmp_path, "newer"))


@pytest.mark.parametrize("offset", [4, 100, 400])
def test_a_flipped_byte_of_a_sealed_file_is_an_error_and_its_rows_are_a_gap(tmp_path: Path, offset: int) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (sealed,) = event_files(path, "*.parquet")
    flip(sealed, offset)
    assert found(path) == [("error", "file"), ("error", "gap")]
    assert only(path, "file").place == str(sealed)
    assert only(path, "gap").detail == "seqs 0 to 0 are in no usable file"
    (row,) = verify(path).writers
    assert (row.rows, row.first_seq, row.last_seq, row.missing) == (0, None, None, 1)


def test_every_cut_and_every_flip_of_a_sealed_file_is_found(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (sealed,) = event_files(path, "*.parquet")
    whole = sealed.read_bytes()
    for offset in range(0, len(whole), 211):
        flip(sealed, offset)
        assert ("error", "file") in found(path), offset
        sealed.write_bytes(whole[:offset])
        assert ("error", "file") in found(path), offset
        sealed.write_bytes(whole)
    assert verify(path).ok


def test_a_writer_that_enters_during_the_look_is_named_by_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = killed_writer(tmp_path)
    killed_writer(tmp_path, rank=1)
    (segment, _) = (path / "events/metrics").glob("*/*.arrows")
    flip(segment, segment.stat().st_size // 2)
    late = segment.name.partition("-")[0]
    read = RunFiles.open

    def too_early(at: Path, *, digests: bool = False) -> RunFiles:
        files = read(at, digests=digests)
        del files.writers[late]
        return files

    monkeypatch.setattr(RunFiles, "open", too_early)
    assert only(path, "gap").place == f"metrics of writer {late}"


def test_a_sealed_file_that_is_gone_is_a_gap(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    sealed = event_files(path, "*.parquet")
    sealed[-1].unlink()
    writer, seqs = sealed[-1].name.partition("-")[0], sealed[-1].name.split(".")[1].split("-")
    gap = only(path, "gap")
    assert gap.place.startswith(f"{sealed[-1].parts[-3]} of trainer 1 on ")
    assert gap.place.endswith(f"(writer {writer})")
    assert gap.detail == f"seqs {seqs[0]} to {seqs[1]} are in no usable file"
    assert not verify(path).ok


def test_a_damaged_batch_of_an_open_segment_is_an_error_with_its_place(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for step in range(5):
            log.log_metrics({"loss": 1.0}, step=step)
        (segment,) = event_files(log.path, "*.arrows")
        flip(segment, segment.stat().st_size // 2)
        assert found(log.path) == [("error", "file"), ("error", "gap")]
        assert only(log.path, "file").detail.startswith("damaged at byte ")
        (row,) = verify(log.path).writers
        assert (row.rows, row.missing) == (4, 1)


def test_a_torn_tail_is_a_warning_once_its_writer_is_gone_and_before_that_a_note(tmp_path: Path) -> None:
    with opened(tmp_path / "live") as log:
        log.log_metrics({"loss": 1.0}, step=0)
        (segment,) = event_files(log.path, "*.arrows")
        with segment.open("ab") as file:
            file.write(b"\xff\xff\xff\xff")
        assert found(log.path) == [("note", "torn tail")]
        assert only(log.path, "torn tail").detail == "4 bytes of a write that may be going on"
        assert verify(log.path).ok
    path = killed_writer(tmp_path)
    (segment,) = (path / "events/metrics").glob("*/*.arrows")
    segment.write_bytes(segment.read_bytes()[:-40])
    torn = only(path, "torn tail")
    assert (torn.severity, torn.place) == ("warning", str(segment))
    assert torn.detail.endswith(" bytes of a write that was cut off")


def test_a_killed_rank_is_lost(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    assert found(path) == [("warning", "lost")]
    assert {(one.state, one.rows) for one in verify(path).writers if one.table == "metrics"} == {("lost", 10)}


def test_a_rank_that_was_killed_in_an_earlier_attempt_is_a_note(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    with opened(tmp_path, launch_id="two") as log:
        log.log_metrics({"loss": 1.0}, step=9)
    assert found(path) == [("note", "no end")]
    assert verify(path).ok
    assert {(one.attempt, one.state) for one in verify(path).writers} == {(1, "no end"), (2, "finished")}


def test_ranks_that_never_wrote_are_named(tmp_path: Path) -> None:
    with opened(tmp_path, world_size=4, rank=1) as log:
        log.log_metrics({"loss": 1.0}, step=0)
    assert found(log.path) == [("warning", "never wrote")]
    assert only(log.path, "never wrote").detail == "of 4 ranks, 0 and 2 to 3 never wrote in attempt 1"


def test_rows_that_a_writer_lost_are_named_by_table(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "lost", {"loss": 1.0})
    (end,) = path.glob("writers/*.end.json")
    edit(end, rows_lost={"metrics": 3, "samples": 1, "timings": 0})
    assert found(path) == [("error", "rows lost")]
    assert only(path, "rows lost").detail == "rows that could not be written: 3 metrics, 1 samples"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_rows_in_memory_are_at_risk_while_their_process_may_live_and_an_error_once_it_is_gone(
    tmp_path: Path, elsewhere: bool
) -> None:
    path = killed_writer(tmp_path)
    (writer,) = RunFiles.open(path).writers
    beat(path, writer, rows_at_risk=7, rows_lost=2)
    if elsewhere:
        edit(path / f"writers/{writer}.json", host="elsewhere")
    risk = only(path, "rows at risk")
    assert risk.severity == ("warning" if elsewhere else "error")
    assert risk.detail.startswith("7 rows waited in memory at its last heartbeat")
    assert f"(writer {writer})" in risk.place
    assert only(path, "rows lost").detail == "2 rows could not be written, by its last heartbeat"
    assert not verify(path).ok


def two_elsewhere(root: Path) -> tuple[Path, list[str]]:
    """A run of two ranks on another machine, each at step 4, with a step each hundredth of a second or so."""
    for rank in (0, 1):
        killed_writer(root, rank=rank, world_size=2)
    path = root / "r"
    for document in path.glob("writers/*.json"):
        edit(document, host="elsewhere", node="node-7")
    return path, list(RunFiles.open(path).writers)


def test_a_rank_that_hangs_and_one_that_waits_for_it_are_told_apart(tmp_path: Path) -> None:
    path, (waiting, stalled) = two_elsewhere(tmp_path)
    beat(path, waiting, step=4, idle_seconds=300, open_timers=["all_reduce"])
    beat(path, stalled, step=3, idle_seconds=310, open_timers=["generation", "step"])
    assert found(path) == [("warning", "waiting"), ("warning", "stalled")]
    pid = RunFiles.open(path).writers[stalled].pid
    assert only(path, "stalled").place == f"trainer 1 on node-7, pid {pid} (writer {stalled})"
    assert only(path, "stalled").detail == (
        "no call for 310 s, and no rank of its role is behind it; it was timing generation, step"
    )
    assert only(path, "waiting").detail.endswith("behind or silent; it was timing all_reduce")
    assert [(one.state, one.table) for one in verify(path).writers][::3] == [
        ("waiting", "metrics"),
        ("stalled", "metrics"),
    ]


def test_a_rank_without_a_heartbeat_is_stalled_then_lost_by_the_thresholds_given(tmp_path: Path) -> None:
    path, (well, silent) = two_elsewhere(tmp_path)
    beat(path, well, step=4, idle_seconds=1)
    beat(path, silent, age=timedelta(seconds=200), step=4)
    assert found(path) == [("warning", "stalled")]
    assert only(path, "stalled").detail == "no heartbeat for 200 s"
    report = verify(path, thresholds=Thresholds(lost_after=timedelta(seconds=100)))
    assert [finding.kind for finding in report.findings] == ["lost"]
    assert verify(path, thresholds=Thresholds(missed_beats=8)).ok


def test_rows_under_a_fallback_folder_are_named_until_they_are_home(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    with opened(tmp_path, launch_id="two") as log:
        log.log_metrics({"loss": 1.0}, step=5)
        log.mark("fallback", host="node-7", path="/scratch/r/x-1.arrows", table="metrics", first_seq=1)
        log.mark("fallback", table="metrics", first_seq="none")
        log.mark("fallback", host="node-7", path="/elsewhere", table="metrics", first_seq=0)
        assert only(path, "fallback").severity == "warning"
    away = only(path, "fallback")
    assert (away.severity, away.place.endswith(f"(writer {log.writer_id})")) == ("error", True)
    assert away.detail == "metrics from seq 1 on lie on node-7: /scratch/r/x-1.arrows"


def test_processes_that_were_one_rank_at_the_same_time_are_named(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    killed_writer(tmp_path)
    first, second = RunFiles.open(path).writers
    assert ("warning", "same rank") not in found(path)
    beat(path, first, age=timedelta(minutes=-3))
    finding = only(path, "same rank")
    assert f"(writer {second})" in finding.place
    assert f"(writer {first}), whose rows it hides" in finding.detail


def test_a_clock_that_is_ahead_of_this_machine_is_named(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (end,) = path.glob("writers/*.end.json")
    edit(end, ended=time_text(datetime.now(timezone.utc) + timedelta(minutes=5)))
    assert found(path) == [("warning", "clock")]
    assert re.fullmatch(r"its last sign is (299|300) s later than now by .*", only(path, "clock").detail)


def test_a_document_that_is_torn_is_an_error(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (document,) = (path for path in path.glob("writers/*.json") if not path.name.endswith(".end.json"))
    document.write_text("{")
    assert ("error", "file") in found(path)


def test_a_clock_that_went_back_is_named(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (sealed,) = event_files(path, "*.parquet")
    (facts,) = RunFiles.open(path).writers.values()
    rows = pq.read_table(sealed)
    segment = OpenSegment(sealed.with_name(f"{facts.writer}-1.arrows"), "metrics", facts.identity, 1)
    times = pa.array([rows["time"][0].as_py() - timedelta(minutes=3)], rows.schema.field("time").type)
    earlier = rows.set_column(rows.column_names.index("time"), rows.schema.field("time"), times)
    segment.append(earlier.select(segment.schema.names).combine_chunks().to_batches()[0])
    segment.close()
    clock = only(path, "clock")
    assert clock.severity == "warning"
    assert clock.place.startswith("metrics of main 0 on ")
    assert clock.place.endswith(f"(writer {facts.writer})")
    assert "0:03:00" in clock.detail


def test_an_attempt_that_began_before_the_one_before_it_is_named(tmp_path: Path) -> None:
    for launch in ("one", "two"):
        with opened(tmp_path, launch_id=launch) as log:
            log.log_metrics({"loss": 1.0}, step=0)
    documents = [path for path in (tmp_path / "r").glob("writers/*.json") if not path.name.endswith(".end.json")]
    (second,) = [path for path in documents if json.loads(path.read_text())["launch"] == "two"]
    edit(second, opened="2001-01-01T00:00:00.000000Z")
    assert only(tmp_path / "r", "clock").place == "attempt 2"


def log_sums(root: Path, values_by_rank: list[list[int]]) -> Path:
    for rank, values in enumerate(values_by_rank):
        with opened(root, rank=rank) as log:
            for step, value in enumerate(values):
                log.log_metrics({"tokens": value, "seen": value + rank}, step=step, reduce="sum")
    return root / "r"


@pytest.mark.parametrize("values", [[64, 64, 64, 64, 64], [64, 128, 192, 256, 320], [7, 9]])
def test_ranks_that_count_alike_are_no_replicas(tmp_path: Path, values: list[int]) -> None:
    assert found(log_sums(tmp_path, [values, values])) == []


def test_a_sum_that_all_ranks_log_alike_is_suspected(tmp_path: Path) -> None:
    path = log_sums(tmp_path, [[512, 498, 530, 12]] * 2)
    assert found(path) == [("warning", "replicated sum")]
    finding = only(path, "replicated sum")
    assert finding.place == "trainer"
    assert finding.detail == "tokens: ranks 0 to 1 agree at the last 4 positions, and each rank is added"
    assert "data_rank=" in finding.remedy


def test_tensor_parallel_ranks_are_found_within_their_replicas(tmp_path: Path) -> None:
    """Two replicas of two ranks; the last rank was lost on the way."""
    path = log_sums(tmp_path, [[512, 498, 530, 12], [512, 498, 530, 12], [500, 400, 300, 50], [500, 400, 300]])
    detail = "tokens: ranks 0 to 1; ranks 2 to 3 agree at the last 3 positions, and each rank is added"
    assert only(path, "replicated sum").detail == detail


def log_means(root: Path, values_by_rank: list[list[float]], names: tuple[str, ...] = ("loss",)) -> Path:
    for rank, values in enumerate(values_by_rank):
        with opened(root, rank=rank) as log:
            for step, value in enumerate(values):
                log.log_metrics({"seen": value * (rank + 1.5), **dict.fromkeys(names, value)}, step=step)
    return root / "r"


def test_means_of_equally_many_replicas_are_right_and_a_note(tmp_path: Path) -> None:
    path = log_means(tmp_path, [[3.5, 2.25, 1.5]] * 2 + [[3.0, 2.5, 1.0]] * 2, names=("loss", "entropy"))
    assert verify(path).ok
    assert only(path, "replicated mean").detail == (
        "entropy, loss: ranks 0 to 1; ranks 2 to 3 agree at the last 3 positions; the mean is right, as each group has "
        "as many ranks, a sum would not be"
    )


def test_means_in_which_a_larger_replica_weighs_more_are_suspected(tmp_path: Path) -> None:
    path = log_means(tmp_path, [[3.5, 2.25, 1.5]] * 4 + [[3.0, 2.5, 1.0]] * 2)
    assert found(path) == [("warning", "replicated mean")]
    detail = "loss: ranks 0 to 3; ranks 4 to 5 agree at the last 3 positions, and groups with more ranks weigh more"
    assert only(path, "replicated mean").detail == detail


def test_a_mean_that_all_ranks_log_alike_is_well(tmp_path: Path) -> None:
    assert found(log_means(tmp_path, [[3.5, 2.25, 1.5, 9.0, 0.5]] * 4)) == []


def test_small_numbers_that_agree_by_luck_are_no_replicas(tmp_path: Path) -> None:
    """Truncated responses in a run of a few steps: two of six ranks had equally many each time."""
    values = [[0, 2, 1, 4], [0, 2, 1, 4], [1, 2, 0, 1], [3, 0, 1, 0], [0, 1, 1, 4], [2, 2, 2, 0]]
    assert found(log_sums(tmp_path / "sums", values)) == []
    assert found(log_means(tmp_path / "means", [[float(value) for value in rank] for rank in values])) == []


def test_among_lone_ranks_those_are_suspected_that_agree_in_many_values(tmp_path: Path) -> None:
    values = [[rank * rank + step * step + rank * step for step in range(9)] for rank in (1, 1, 2, 3)]
    detail = "tokens: ranks 0 to 1; rank 2; rank 3 agree at the last 9 positions, and each rank is added"
    path = log_sums(tmp_path / "sums", values)
    assert only(path, "replicated sum").detail == detail
    path = log_means(tmp_path / "means", [[float(value) for value in rank] for rank in values])
    assert [finding.severity for finding in verify(path).findings] == ["note"]


def test_replicas_that_data_rank_tells_apart_are_well(tmp_path: Path) -> None:
    for rank in (0, 1):
        with opened(tmp_path, rank=rank, data_rank=0) as log:
            for step in range(4):
                log.log_metrics({"tokens": 2**step}, step=step, reduce="sum")
    assert found(tmp_path / "r") == []


def test_a_changed_reduction_is_a_warning_and_a_changed_hyperparameter_a_note(tmp_path: Path) -> None:
    for launch, reduction in (("one", "sum"), ("two", "mean")):
        with opened(tmp_path, launch_id=launch) as log:
            log.log_hyperparams({"lr": launch})
            log.log_metrics({"x": 1.0}, step=len(launch) + (launch == "two"), reduce=reduction)
    assert found(tmp_path / "r") == [("warning", "changed reduction"), ("note", "hparam changed")]


@pytest.mark.parametrize("gone", [True, False])
def test_an_artifact_that_is_gone_or_altered_is_an_error(tmp_path: Path, gone: bool) -> None:
    (tmp_path / "plan.txt").write_text("sort the digits")
    with opened(tmp_path) as log:
        log.log_artifact(tmp_path / "plan.txt")
    assert verify(log.path).ok
    (artifact,) = (path for path in log.path.glob("artifacts/*/*") if path.is_file())
    if gone:
        artifact.unlink()
    else:
        flip(artifact, 3)
    assert found(log.path) == [("error", "artifact")]
    assert only(log.path, "artifact").place == str(artifact)


def test_files_that_are_compacted_and_removed_meanwhile_are_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_ranks(tmp_path)
    module = importlib.import_module("rl_eventlog.maintain.verify")
    check, calls = module._artifacts, 0

    def meanwhile(run: Run) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            compact(path, reclaim_covered=True, grace_seconds=0)
        return check(run)

    monkeypatch.setattr(module, "_artifacts", meanwhile)
    report = verify(path)
    assert (report.ok, report.findings, calls) == (True, (), 2)
    assert sum(one.rows for one in report.writers) == 27


def test_a_damaged_folded_file_is_an_error(tmp_path: Path) -> None:
    path = two_ranks(tmp_path)
    compact(path, reclaim_covered=True, grace_seconds=0)
    assert verify(path).ok
    (folded,) = path.glob("writers/compacted/*")
    folded.write_bytes(folded.read_bytes() + b" ")
    assert ("error", "folded file") in found(path)


@pytest.mark.parametrize("kind", REMEDIES)
def test_every_kind_is_in_the_documentation_with_what_to_do(kind: str) -> None:
    text = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")
    section = text.partition("## verify")[2].partition("\n## ")[0]
    assert f"`{kind}`" in section
    assert Finding("note", kind, "", "").remedy


def test_the_worst_comes_first(tmp_path: Path) -> None:
    path = killed_writer(tmp_path, world_size=2)
    with opened(tmp_path, launch_id="two", world_size=2) as log:
        log.log_metrics({"loss": 1.0}, step=9)
    (sealed,) = event_files(path, "*.parquet")
    flip(sealed, 4)
    assert [severity for severity, _ in found(path)] == ["error", "error", "warning", "note"]
    assert dataclasses.asdict(verify(path).findings[0])["place"] == str(sealed)
