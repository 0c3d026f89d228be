"""`seal` makes sealed files of what is left open, and what `--reclaim` may remove."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rl_eventlog import EventWriter, Run
from rl_eventlog.layout import SegmentName
from rl_eventlog.maintain import removal, seal, verify
from rl_eventlog.segment import seal as sealing
from rl_eventlog.segment.frames import frame_end
from tests.support.raw import every_row
from tests.support.upkeep import event_files, flip, killed_writer, results, snapshot


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of one writer that was killed."""
    return killed_writer(tmp_path)


def opens(run: Path) -> list[Path]:
    return event_files(run, "*.arrows")


def sealed(run: Path) -> list[Path]:
    return event_files(run, "*.parquet")


def moved_elsewhere(run: Path) -> None:
    """Say that the writer's process ran on another host, where nobody here can see it."""
    (document,) = run.glob("writers/*.json")
    document.write_text(json.dumps(json.loads(document.read_text()) | {"host": "elsewhere"}))


def test_what_a_killed_writer_left_is_sealed_beside_it(run: Path) -> None:
    before, rows, left = results(run), every_row(run, "metrics"), opens(run)
    assert len(left) == 3
    report = seal(run)
    assert set(report.sealed) == set(sealed(run))
    assert len(report.sealed) == 3
    assert (report.left_alone, report.problems, report.removed, report.waiting) == ((), (), (), ())
    assert opens(run) == left
    assert results(run) == before
    for path in left:
        path.unlink()
    assert results(run) == before
    assert every_row(run, "metrics").keys() == rows.keys()


def test_a_second_call_has_nothing_to_do(run: Path) -> None:
    seal(run)
    before = snapshot(run)
    assert seal(run).sealed == ()
    assert snapshot(run) == before


def test_a_live_writer_is_left_alone_whatever_a_person_says(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False, segment_bytes=1) as log:
        for step in range(3):
            log.log_metrics({"loss": 1.0}, step=step)
        log.flush()
        before = opens(log.path)
        for assume_dead in (False, True):
            report = seal(log.path, reclaim_covered=True, assume_dead=assume_dead, grace_seconds=0)
            assert (report.sealed, report.removed) == ((), ())
            assert set(report.left_alone) == set(before)
        log.log_metrics({"loss": 1.0}, step=3)
        assert set(before) <= set(opens(log.path))
    assert Run(log.path).metrics().collect().height == 4


def test_silence_is_no_proof_and_a_persons_word_is(run: Path) -> None:
    moved_elsewhere(run)
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert (report.sealed, report.removed, set(report.left_alone)) == ((), (), set(opens(run)))
    assert len(seal(run, assume_dead=True).sealed) == 3
    assert seal(run, reclaim_covered=True, grace_seconds=0).removed == ()
    assert len(seal(run, reclaim_covered=True, assume_dead=True, grace_seconds=0).removed) == 3


def test_a_segment_that_was_open_when_its_writer_ended_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False)
    log.log_metrics({"loss": 1.0}, step=0)

    def full(*_: Any) -> list[Path]:
        raise OSError(28, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "seal_open", full)
        assert log.close().left_open
    assert len(seal(log.path).sealed) == 1
    assert verify(log.path).ok


def test_the_open_segments_of_a_writer_that_ended_a_moment_ago_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be sealing them, after its end record; its process lives."""
    log = EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False)
    log.log_metrics({"loss": 1.0}, step=0)
    (segment,) = opens(log.path)
    whole = segment.read_bytes()
    log.close()
    segment.write_bytes(whole)  # as before its last step
    report = seal(log.path, reclaim_covered=True, assume_dead=True, grace_seconds=0)
    assert (report.sealed, report.removed, report.waiting) == ((), (), (segment,))
    monkeypatch.setattr(removal, "_CLOSING_SECONDS", 0.0)
    assert seal(log.path, reclaim_covered=True, grace_seconds=0).removed == (segment,)


def test_reclaim_removes_the_open_form_once_the_sealed_one_is_old_enough(run: Path) -> None:
    before, left = results(run), opens(run)
    report = seal(run, reclaim_covered=True)
    assert (report.removed, set(report.waiting)) == ((), set(left))
    assert opens(run) == left
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert (set(report.removed), report.waiting) == (set(left), ())
    assert opens(run) == []
    assert results(run) == before
    assert seal(run, reclaim_covered=True, grace_seconds=0).removed == ()


def test_an_old_date_makes_no_copy_old(run: Path) -> None:
    seal(run)
    for path in sealed(run):
        os.utime(path, (0, 0))
    assert seal(run, reclaim_covered=True, grace_seconds=3600).removed == ()


def test_a_date_in_the_future_makes_a_file_young(run: Path) -> None:
    seal(run)
    for path in sealed(run):
        os.utime(path, (2**33, 2**33))
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert report.removed == ()
    assert len(report.waiting) == 3


def test_an_open_segment_must_be_at_rest_too(run: Path) -> None:
    seal(run)
    for path in opens(run):
        os.utime(path, (2**33, 2**33))
    assert seal(run, reclaim_covered=True, grace_seconds=0).removed == ()


def test_an_altered_sealed_file_covers_nothing(run: Path) -> None:
    seal(run)
    left = opens(run)
    for path in sealed(run):
        flip(path, 4)  # the footer is whole: only the digest tells
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert (report.removed, report.waiting) == ((), ())
    assert opens(run) == left


def test_a_sealed_file_of_a_shorter_copy_does_not_cover_the_rest(run: Path, tmp_path: Path) -> None:
    """A foreign seal of what could be read at an earlier time."""
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    before = results(run)
    _seal_prefix(segment, tmp_path / "copy")
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    metrics = [path for path in report.sealed if path.parts[-3] == "metrics"]
    assert [path.name.split(".")[1] for path in metrics] == ["0-9"]
    # the shorter one goes as well: the longer one comes before it in the order of the coverage rule
    assert [path.name.split(".")[1] for path in sealed(run) if path.parts[-3] == "metrics"] == ["0-9"]
    assert results(run) == before


def test_an_open_segment_that_is_sealed_in_part_stays(run: Path, tmp_path: Path) -> None:
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    _seal_prefix(segment, tmp_path / "copy")
    moved_elsewhere(run)
    assert seal(run, reclaim_covered=True, grace_seconds=0).sealed == ()
    reclaimed = removal.reclaim(Run(run).files, assume_dead=True, grace_seconds=0)
    assert (reclaimed.removed, reclaimed.waiting) == ([], [])


def _seal_prefix(segment: Path, folder: Path) -> None:
    folder.mkdir()
    copy = folder / segment.name
    copy.write_bytes(segment.read_bytes()[: segment.stat().st_size * 2 // 3])
    name = SegmentName.parse(segment.name)
    assert name
    assert name.number is not None
    for path in sealing.seal_open(copy, name.number, "metrics"):
        shutil.copy(path, segment.parent)


def test_a_damaged_segment_is_sealed_around_the_damage_and_kept(run: Path) -> None:
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    flip(segment, segment.stat().st_size // 2)
    rows = Run(run).metrics().collect().height
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert len([path for path in report.sealed if path.parts[-3] == "metrics"]) == 2
    assert segment not in report.removed
    assert opens(run) == [segment]
    assert Run(run).metrics().collect().height == rows == 8
    gaps = [finding for finding in verify(run).findings if finding.kind == "gap"]
    assert len(gaps) == 1


def test_a_torn_tail_goes_with_its_segment(run: Path) -> None:
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    segment.write_bytes(segment.read_bytes()[:-40])
    seal(run, reclaim_covered=True, grace_seconds=0)
    assert opens(run) == []
    assert Run(run).metrics("train/*").collect().height == 8
    assert {finding.kind for finding in verify(run).findings} == {"lost"}


def test_what_cannot_be_sealed_is_named_and_stays(run: Path) -> None:
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    segment.write_bytes(b"\xff\xff\xff\xff not a segment")
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert [problem.path for problem in report.problems] == [segment]
    assert opens(run) == [segment]
    assert len(report.sealed) == 2


@pytest.mark.parametrize("left", ["nothing", "its schema", "half a batch"])
def test_a_segment_whose_writer_was_killed_before_its_first_row_goes_once_it_is_at_rest(run: Path, left: str) -> None:
    (segment,) = (run / "events/metrics").glob("*/*.arrows")
    data = segment.read_bytes()
    end = frame_end(memoryview(data), 0)
    assert end
    bare = segment.with_name(segment.name.replace("-0.", "-1."))
    bare.write_bytes(data[: {"nothing": 0, "its schema": end, "half a batch": end + 200}[left]])
    rows = results(run)["metrics"]
    seal(run)
    report = seal(run, reclaim_covered=True, grace_seconds=3600)
    assert (report.removed, bare in report.waiting) == ((), True)
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert bare in report.removed
    assert opens(run) == []
    assert results(run)["metrics"] == rows


def test_a_segment_without_a_row_of_a_writer_that_may_live_stays(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False) as log:
        log.log_metrics({"loss": 1.0}, step=0)
        (segment,) = opens(log.path)
        bare = segment.with_name(segment.name.replace("-0.", "-1."))
        bare.write_bytes(b"")
        assert seal(log.path, reclaim_covered=True, assume_dead=True, grace_seconds=0).removed == ()
        assert bare.exists()


def test_columns_of_a_newer_version_are_not_sealed_away(run: Path) -> None:
    (segment,) = (run / "events/timings").glob("*/*.arrows")
    segment.write_bytes(_with_a_new_column(segment))
    before = segment.read_bytes()
    report = seal(run, reclaim_covered=True, grace_seconds=0)
    assert [(problem.path, "a newer version wrote" in problem.reason) for problem in report.problems] == [
        (segment, True)
    ]
    assert segment.read_bytes() == before


def _with_a_new_column(segment: Path) -> bytes:
    """The segment as a writer of format 1.1 would have written it, with one more column."""
    from rl_eventlog.segment.frames import encode_frame
    from rl_eventlog.segment.open_segment import read_open

    content = read_open(segment)
    ((span, rows),) = content.pieces
    rows = rows.append_column("joules", pa.array([1.0] * rows.num_rows))
    schema = rows.schema.with_metadata(content.identity.to_metadata(content.table))
    message = schema.serialize().to_pybytes()
    (batch,) = rows.to_batches()
    frame: bytes = encode_frame(batch, span.first, schema, message)
    return bytes(message) + frame


def test_temporary_files_of_processes_that_are_long_gone_are_removed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(run)
    places = [sealed(run)[0].parent, run / "writers", run]
    for place in places:
        (place / ".tmp-01jzrn00000000000000000000").write_bytes(b"half")
    assert not any(".tmp-" in path.name for path in seal(run, reclaim_covered=True, grace_seconds=0).removed)
    monkeypatch.setattr(removal, "_TEMPORARY_SECONDS", -1.0)
    removed = seal(run, reclaim_covered=True, grace_seconds=0).removed
    assert {path.parent for path in removed if path.name.startswith(".tmp-")} == set(places)
