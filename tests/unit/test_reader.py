from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter, Runs
from rl_eventlog.documents import encode_document, time_text
from rl_eventlog.errors import RunNotFoundError, SchemaVersionError
from rl_eventlog.layout import RunLayout, SegmentName, open_name, sha16
from rl_eventlog.reader import RunFiles, files as files_module, find_runs, segments as reader_segments
from rl_eventlog.schema import Table, table as table_schema
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.segment.sealed import file_digest
from rl_eventlog.types import Identity, Span
from rl_eventlog.writer.batches import Metric, Position, metrics_batch

Document = dict[str, Any]


def enter(root: Path, launch: str = "one", **options: Any) -> EventWriter:
    return EventWriter.open(root, run="r", launch_id=launch, capture_diff=False, fsync_interval_seconds=3600, **options)


def log_steps(log: EventWriter, steps: int) -> None:
    for step in range(steps):
        log.log_metrics({"a": float(step)}, step=step)


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[EventWriter]:
    """A writer of 30 rows in 6 open segments of 5 rows, none sealed yet."""
    log = enter(tmp_path, role="trainer", rank=0)
    log_steps(log, 5)
    for _ in range(5):
        assert log._session
        log._session.rows._limits.segment_seconds = -1.0
        log._session.rows.rotate_old()
        log_steps(log, 5)
    yield log
    shutil.rmtree(tmp_path)


def files(log: EventWriter, pattern: str = "*.arrows") -> list[Path]:
    return sorted((log.path / "events" / "metrics").glob(f"*/{pattern}"), key=lambda path: path.name.split(".")[0][-1])


def values(path: Path) -> list[Any]:
    return RunFiles.open(path).rows("metrics").sort("writer", "seq").collect()["value"].to_list()


FIVE = [0.0, 1.0, 2.0, 3.0, 4.0]


class TestCoverage:
    def test_open_segments_of_a_run_being_written(self, segments: EventWriter) -> None:
        run = RunFiles.open(segments.path)
        assert values(segments.path) == FIVE * 6
        assert run.gaps("metrics") == {}
        assert run.last_seqs("metrics") == {segments.writer_id: 29}
        assert run.problems == []
        segments.log_metrics({"a": 9.0})
        assert len(values(segments.path)) == 31
        assert run.rows("metrics").collect().height == 30, "one look is one look"
        assert run.refresh().rows("metrics").collect().height == 31

    def test_a_sealed_file_beside_its_open_one_is_read_once(self, segments: EventWriter) -> None:
        for number in (0, 2):
            seal_open(files(segments)[number], number, "metrics")
        assert values(segments.path) == FIVE * 6
        assert RunFiles.open(segments.path).table("metrics").problems == []

    def test_the_columns_are_those_of_the_sealed_form_whatever_the_mix(self, segments: EventWriter) -> None:
        open_only = RunFiles.open(segments.path).rows("metrics").collect()
        seal_open(files(segments)[0], 0, "metrics")
        mixed = RunFiles.open(segments.path).rows("metrics").collect()
        segments.close()
        sealed = RunFiles.open(segments.path).rows("metrics").collect()
        for frame in (mixed, sealed):
            assert frame.schema == open_only.schema
            assert frame.sort("seq").equals(open_only.sort("seq"))

    def test_a_damaged_sealed_file_gives_way_to_the_open_one(self, segments: EventWriter) -> None:
        (sealed,) = seal_open(files(segments)[1], 1, "metrics")
        sealed.write_bytes(sealed.read_bytes()[:-7])
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").sort("seq").collect()["value"].to_list() == FIVE * 6
        assert [problem.path for problem in run.problems] == [sealed]
        assert "no readable Parquet footer" in run.problems[0].reason

    def test_a_damaged_file_among_good_ones_is_named_with_its_gap(self, segments: EventWriter) -> None:
        segments.close()
        (victim,) = [path for path in files(segments, "*.parquet") if "-3." in path.name]
        victim.write_bytes(b"PAR1" + bytes(100))
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").sort("seq").collect()["seq"].to_list() == [*range(15), *range(20, 30)]
        assert run.gaps("metrics") == {segments.writer_id: [Span(15, 19)]}
        assert run.last_seqs("metrics") == {segments.writer_id: 14}
        assert [problem.path for problem in run.problems] == [victim]

    def test_a_flipped_bit_is_found_where_digests_are_asked_for(self, segments: EventWriter) -> None:
        segments.close()
        victim = files(segments, "*.parquet")[0]
        data = bytearray(victim.read_bytes())
        data[40] ^= 1
        victim.write_bytes(data)
        run = RunFiles.open(segments.path, digests=True)
        assert run.gaps("metrics") == {segments.writer_id: [Span(0, 4)]}
        assert "does not match the digest" in run.problems[0].reason

    def test_a_damaged_batch_costs_itself_alone_and_a_torn_tail_is_none_of_the_problems(
        self, segments: EventWriter
    ) -> None:
        first, second = files(segments)[:2]
        data = bytearray(first.read_bytes())
        data[len(data) // 2] ^= 1
        first.write_bytes(data)
        second.write_bytes(second.read_bytes()[:-9])
        run = RunFiles.open(segments.path)
        seqs = run.rows("metrics").sort("seq").collect()["seq"].to_list()
        assert len(seqs) == 28
        assert 9 not in seqs
        assert sum(len(span) for span in run.gaps("metrics")[segments.writer_id]) == 2
        assert [problem.path for problem in run.problems] == [first]
        assert set(run.table("metrics").torn_tails) == {second}

    def test_rows_an_end_record_knows_of_and_no_file_holds_are_a_gap(self, segments: EventWriter) -> None:
        segments.close()
        files(segments, "*.parquet")[-1].unlink()
        assert RunFiles.open(segments.path).gaps("metrics") == {segments.writer_id: [Span(25, 29)]}

    def test_a_frontier_bounds_every_writer(self, tmp_path: Path) -> None:
        with enter(tmp_path, rank=0) as first, enter(tmp_path, rank=1) as second:
            log_steps(first, 5)
            log_steps(second, 5)
        rows = RunFiles.open(first.path).rows("metrics", frontier={first.writer_id: 1}).collect()
        assert sorted(rows.select("writer", "seq").rows()) == [(first.writer_id, 0), (first.writer_id, 1)]

    def test_files_that_are_none_of_ours_are_passed_over(self, segments: EventWriter) -> None:
        shard = files(segments)[0].parent
        (shard / ".tmp-01hzzzzzzzzzzzzzzzzzzzzzzz").write_bytes(b"half")
        (shard / "notes.parquet").write_bytes(b"mine")
        (shard.parent / "stray").touch()
        assert values(segments.path) == FIVE * 6

    def test_files_that_go_during_every_look_are_no_problem_and_no_gap(
        self, segments: EventWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a run of thousands of ranks: whenever it was listed, one more open form has given way to its seal."""
        opened = files(segments)
        going = iter(opened[:4])
        scan = reader_segments.event_files

        def listing(*arguments: Any, **options: Any) -> list[Any]:
            listed = list(scan(*arguments, **options))
            if arguments[1] == "metrics" and (path := next(going, None)):
                name = SegmentName.parse(path.name)
                assert name
                seal_open(path, name.number or 0, "metrics")
                path.unlink()
            return listed

        before = values(segments.path)
        monkeypatch.setattr(reader_segments, "event_files", listing)
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").select(pl.len()).collect().item() == len(before)
        assert run.problems == []
        assert run.gaps("metrics") == {}
        assert [path.exists() for path in opened[:4]] == [False, False, True, True]  # two listings were enough

    def test_a_link_to_nowhere_is_named(self, segments: EventWriter) -> None:
        path = files(segments)[0]
        dead = path.with_name(path.name.replace("-0.", "-77."))
        dead.symlink_to("nowhere")
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").collect().height == 5 * 6
        assert [problem.path for problem in run.problems] == [dead]

    def test_what_cannot_be_read_or_lies_in_the_wrong_table_is_named(self, segments: EventWriter) -> None:
        first = files(segments)[0]
        folder = first.parent / open_name("01hzzzzzzzzzzzzzzzzzzzzzzz", 0)
        folder.mkdir()
        misplaced = segments.path / "events" / "timings" / "00"
        misplaced.mkdir(parents=True)
        shutil.copy(first, misplaced)
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").collect().height == 30
        assert run.rows("timings").collect().height == 0
        reasons = {problem.path: problem.reason for problem in run.problems}
        assert "cannot be read" in reasons[folder]
        assert reasons[misplaced / first.name] == "it holds rows of the table 'metrics', left out"


class TestDocuments:
    def test_a_writer_whose_documents_are_gone_is_known_by_its_segments(self, segments: EventWriter) -> None:
        document = segments.path / "writers" / f"{segments.writer_id}.json"
        opened = RunFiles.open(segments.path).writers[segments.writer_id].opened
        document.unlink()
        run = RunFiles.open(segments.path)
        facts = run.writers[segments.writer_id]
        assert (facts.role, facts.rank, facts.launch) == ("trainer", 0, "one")
        assert abs(facts.opened - opened) < timedelta(seconds=10), "the id tells the time"
        assert [problem.path for problem in run.problems] == [document]
        assert run.rows("metrics").collect().height == 30
        shutil.rmtree(segments.path / "writers")
        (segments.path / "run.json").unlink()
        assert values(segments.path) == FIVE * 6

    def test_the_end_record_counts_though_the_opening_one_is_gone(self, segments: EventWriter) -> None:
        segments.close()
        (segments.path / "writers" / f"{segments.writer_id}.json").unlink()
        end = RunFiles.open(segments.path).writers[segments.writer_id].end
        assert end is not None
        assert end.last_seq == {"metrics": 29}

    def test_an_end_record_that_cannot_be_used_is_named_and_costs_itself_alone(self, segments: EventWriter) -> None:
        segments.close()
        end = segments.path / "writers" / f"{segments.writer_id}.end.json"
        end.write_bytes(encode_document({"ended": "yesterday"}))
        run = RunFiles.open(segments.path)
        facts = run.writers[segments.writer_id]
        assert [problem.path for problem in run.problems] == [end]
        assert (facts.name, facts.launches_seen, facts.end) == ("r", (), None)

    @pytest.mark.parametrize("torn", [b"", b'{"run_uid": "01', b"[]", b"{}", b"[" * 100_000])
    def test_torn_documents_cost_what_they_said(self, segments: EventWriter, torn: bytes) -> None:
        (segments.path / "run.json").write_bytes(torn)
        (segments.path / "writers" / f"{segments.writer_id}.json").write_bytes(torn)
        (segments.path / "writers" / f"{segments.writer_id}.beat").write_bytes(torn)
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").collect().height == 30
        assert {problem.path.name for problem in run.problems} >= {"run.json", f"{segments.writer_id}.json"}

    def test_values_of_the_wrong_kind_never_stop_a_run(self, segments: EventWriter) -> None:
        segments.close()
        writers = segments.path / "writers"
        odd: list[Any] = [None, "x", -1, 2**70, 1.5, [], {}, [1], {"a": "b"}, True]
        for name in (f"{segments.writer_id}.json", f"{segments.writer_id}.end.json"):
            whole: Document = json.loads((writers / name).read_bytes())
            for key in whole:
                if key == "format_version":
                    continue
                for value in odd:
                    (writers / name).write_bytes(encode_document(whole | {key: value}))
                    run = RunFiles.open(segments.path)
                    assert run.identities().height == 1, (key, value)
                    rows = run.rows("metrics").collect().height
                    # another run's uid in its document makes a stranger of the writer; nothing else does
                    assert rows == 30 or key == "run_uid", (key, value)
                    run.gaps("metrics")
            (writers / name).write_bytes(encode_document(whole))

    def test_two_uids_in_one_folder_are_told_apart(self, tmp_path: Path, segments: EventWriter) -> None:
        with EventWriter.open(tmp_path, run="other", launch_id="other", capture_diff=False) as other:
            log_steps(other, 3)
        for path in [*other.path.rglob("writers/*"), *other.path.rglob("*.parquet")]:
            target = segments.path / path.relative_to(other.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        for _ in ("with", "without"):
            run = RunFiles.open(segments.path)
            assert set(run.writers) == {segments.writer_id}
            assert run.rows("metrics").collect().height == 30
            reasons = [problem.reason for problem in run.problems]
            assert any("of another run" in reason for reason in reasons)
            assert any("belongs to another run" in reason for reason in reasons)
            (segments.path / "run.json").unlink(missing_ok=True)  # then the earliest writer says so

    def test_labels_are_the_last_that_a_writer_gave(self, tmp_path: Path) -> None:
        enter(tmp_path, "one", project="old", group="g", tags=["x"], notes="n").close()
        enter(tmp_path, "two", project="new").close()
        run = RunFiles.open(tmp_path / "r")
        assert (run.name, run.project, run.group, run.tags, run.notes) == ("r", "new", "g", ("x",), "n")


class TestVersions:
    def test_a_newer_major_version_in_a_writers_document(self, segments: EventWriter) -> None:
        path = segments.path / "writers" / f"{segments.writer_id}.json"
        path.write_bytes(encode_document(json.loads(path.read_bytes()) | {"format_version": "2.0"}))
        with pytest.raises(SchemaVersionError, match=rf"{path.name}: written in format 2\.0.* upgrade rl-eventlog"):
            RunFiles.open(segments.path)

    @pytest.mark.parametrize("version", ["1.7", "0.9"])
    def test_another_minor_is_welcome(self, segments: EventWriter, version: str) -> None:
        path = segments.path / "writers" / f"{segments.writer_id}.json"
        path.write_bytes(encode_document(json.loads(path.read_bytes()) | {"format_version": version, "more": 1}))
        assert values(segments.path) == FIVE * 6

    @pytest.mark.parametrize("version", ["two", "", None, 2, "1"])
    def test_a_version_that_is_none_is_a_torn_document(self, segments: EventWriter, version: Any) -> None:
        path = segments.path / "writers" / f"{segments.writer_id}.json"
        path.write_bytes(encode_document(json.loads(path.read_bytes()) | {"format_version": version}))
        run = RunFiles.open(segments.path)
        assert run.rows("metrics").collect().height == 30
        assert path in [problem.path for problem in run.problems]

    @pytest.mark.parametrize("form", ["open", "sealed"])
    def test_columns_of_a_newer_minor_are_left_out_and_named_once(
        self, segments: EventWriter, form: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if form == "sealed":
            segments.close()
            newer = files(segments, "*.parquet")[0]
            table = pq.read_table(newer)
            pq.write_table(table.append_column("novelty", pa.array([1] * table.num_rows)), newer)
        else:
            newer = files(segments)[0]
            schema = metrics_with_a_novelty()
            monkeypatch.setattr("rl_eventlog.segment.open_segment.table_schema", lambda _: schema)
            identity = RunFiles.open(segments.path).writers[segments.writer_id].identity
            newer.unlink()
            segment = OpenSegment(newer, "metrics", identity, 0)
            batch = metrics_batch([Metric("a", float(step), None, None) for step in range(5)], Position(1, 0))
            segment.append(pa.RecordBatch.from_arrays([*batch.columns, pa.array([1] * 5)], schema=segment.schema))
            segment.close()
            monkeypatch.undo()
        run = RunFiles.open(segments.path)
        for _ in range(2):
            assert run.rows("metrics").sort("seq").collect()["value"].to_list() == FIVE * 6
        assert [(problem.path, problem.reason) for problem in run.problems] == [
            (newer, "columns of a newer version left out: novelty")
        ]

    def test_a_newer_major_version_in_a_sealed_footer(self, segments: EventWriter) -> None:
        segments.close()
        victim = files(segments, "*.parquet")[0]
        table = pq.read_table(victim)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"rle.version": b"2.0"}), victim)
        name = SegmentName.parse(victim.name)
        assert name
        assert name.digest
        victim = victim.rename(victim.with_name(victim.name.replace(name.digest, file_digest(victim)[:16])))
        with pytest.raises(SchemaVersionError, match=rf"{victim.name}: written in format 2\.0"):
            RunFiles.open(segments.path).rows("metrics")

    def test_a_newer_major_version_in_an_open_segment(
        self, segments: EventWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        identity = RunFiles.open(segments.path).writers[segments.writer_id].identity
        path = files(segments)[0].parent / open_name(segments.writer_id, 17)
        monkeypatch.setattr("rl_eventlog.types.FORMAT_VERSION", "2.0")
        newer = OpenSegment(path, "metrics", identity, 500)
        newer.append(metrics_batch([Metric("a", 1.0, None, None)], Position(1, 0)))
        newer.close()
        monkeypatch.undo()
        with pytest.raises(SchemaVersionError, match=rf"{path.name}: written in format 2\.0"):
            RunFiles.open(segments.path).rows("metrics")


def metrics_with_a_novelty() -> Table:
    known = table_schema("metrics")
    return replace(known, open=known.open.append(pa.field("novelty", pa.int64())))


def write_document(run: Path, launch: str, **fields: Any) -> None:
    """A writer's document made by hand: another machine, another clock."""
    writer = fields.pop("writer", None) or f"01hzzzzzzzzzzzzzzzzzzzz{len(list((run / 'writers').glob('*'))):03d}"
    document = {
        "writer": writer,
        "run_uid": "u",
        "name": "r",
        "role": "trainer",
        "rank": 0,
        "data_rank": None,
        "node": "n",
        "launch": launch,
        "opened": time_text(NOON),
        "format_version": "1.0",
    } | fields
    (run / "writers").mkdir(parents=True, exist_ok=True)
    (run / "writers" / f"{writer}.json").write_bytes(encode_document(document))


NOON = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def seen(*launches: str) -> list[str]:
    return [sha16(launch.encode()) for launch in launches]


def order(run: Path) -> list[str]:
    return [launch.id for launch in RunFiles.open(run).launches]


class TestAttempts:
    def test_what_was_on_disk_orders_launches_though_clocks_are_minutes_apart(self, tmp_path: Path) -> None:
        write_document(tmp_path, "first", opened=time_text(NOON))
        write_document(tmp_path, "second", opened=time_text(NOON - timedelta(minutes=10)), launches_seen=seen("first"))
        write_document(
            tmp_path, "third", opened=time_text(NOON - timedelta(minutes=5)), launches_seen=seen("first", "second")
        )
        run = RunFiles.open(tmp_path)
        assert [(launch.id, launch.attempt) for launch in run.launches] == [("first", 1), ("second", 2), ("third", 3)]
        assert dict(run.identities().select("launch", "attempt").iter_rows()) == {"first": 1, "second": 2, "third": 3}

    def test_a_late_writer_that_saw_younger_launches_does_not_age_its_own(self, tmp_path: Path) -> None:
        write_document(tmp_path, "first")
        write_document(tmp_path, "second", launches_seen=seen("first"))
        write_document(
            tmp_path, "first", rank=1, launches_seen=seen("second"), opened=time_text(NOON + timedelta(hours=1))
        )
        assert order(tmp_path) == ["first", "second"]

    def test_a_writer_whose_document_is_gone_does_not_age_its_launch(self, tmp_path: Path) -> None:
        logs = []
        for launch in ("z", "a", "m"):
            logs += [enter(tmp_path, launch, rank=rank, world_size=2) for rank in (0, 1)]
            for log in logs[-2:]:
                log_steps(log, 1)
                log.close()
        for log in logs[-2:]:
            (log.path / "writers" / f"{log.writer_id}.json").unlink()
            assert order(log.path) == ["z", "a", "m"]

    def test_launches_that_did_not_see_one_another_follow_their_restart_counter(self, tmp_path: Path) -> None:
        for restarts, minutes in ((2, 0), (10, 1), (1, 5)):
            opened = time_text(NOON + timedelta(minutes=minutes))
            write_document(tmp_path, f"slurm-7.0-r{restarts}", restart_count=restarts, opened=opened)
        assert order(tmp_path) == ["slurm-7.0-r1", "slurm-7.0-r2", "slurm-7.0-r10"]

    def test_else_the_clock_decides_across_launchers(self, tmp_path: Path) -> None:
        write_document(tmp_path, "slurm-9.0-r0", restart_count=0, opened=time_text(NOON))
        write_document(tmp_path, "slurm-10.0-r0", restart_count=0, opened=time_text(NOON + timedelta(minutes=1)))
        write_document(tmp_path, "process-1", opened=time_text(NOON + timedelta(minutes=2)))
        assert order(tmp_path) == ["slurm-9.0-r0", "slurm-10.0-r0", "process-1"]

    def test_the_file_systems_clock_stands_above_those_of_machines(self, tmp_path: Path) -> None:
        for number, (launch, minutes) in enumerate((("a", 10), ("b", 0), ("c", -10))):
            times = {
                "opened": time_text(NOON + timedelta(minutes=minutes)),
                "opened_on_disk": time_text(NOON + timedelta(seconds=number)),
            }
            write_document(tmp_path, launch, **times)
            write_document(tmp_path, "together", rank=1, role="rollout", launches_seen=seen("a", "b", "c"), **times)
        assert order(tmp_path) == ["a", "b", "c", "together"]
        rows = RunFiles.open(tmp_path).identities().filter(pl.col("launch") == "together").sort("writer")
        assert rows["incarnation"].to_list() == [0, 1, 2]

    def test_launch_ids_of_the_environment_with_counters_are_their_own_launchers(self, tmp_path: Path) -> None:
        write_document(tmp_path, "abc", restart_count=1, opened=time_text(NOON))
        write_document(tmp_path, "def", restart_count=0, opened=time_text(NOON + timedelta(minutes=1)))
        assert order(tmp_path) == ["abc", "def"]

    def test_three_real_launches(self, tmp_path: Path) -> None:
        for launch in ("z", "a", "m"):
            enter(tmp_path, launch).close()
        assert order(tmp_path / "r") == ["z", "a", "m"]

    def test_one_rank_twice_in_a_launch_is_two_incarnations(self, tmp_path: Path) -> None:
        later = time_text(NOON + timedelta(minutes=1))
        write_document(tmp_path, "l", writer="01hzzzzzzzzzzzzzzzzzzzz001", opened=later)
        write_document(tmp_path, "l", writer="01hzzzzzzzzzzzzzzzzzzzz002")
        write_document(tmp_path, "l", writer="01hzzzzzzzzzzzzzzzzzzzz003", rank=1)
        write_document(tmp_path, "l", writer="01hzzzzzzzzzzzzzzzzzzzz004", role="rollout")
        write_document(tmp_path, "m", writer="01hzzzzzzzzzzzzzzzzzzzz005", launches_seen=seen("l"))
        rows = RunFiles.open(tmp_path).identities().sort("writer").select("rank_key", "incarnation").rows()
        assert rows == [("rank 0", 1), ("rank 0", 0), ("rank 1", 0), ("rank 0", 0), ("rank 0", 0)]

    def test_unknown_ranks_are_ranks_of_their_own_unless_one_actor(self, tmp_path: Path) -> None:
        for number, actor in enumerate((None, None, "a", "a", "b")):
            opened = time_text(NOON + timedelta(minutes=number))
            write_document(tmp_path, "l", rank=None, actor=actor, opened=opened)
        rows = RunFiles.open(tmp_path).identities().sort("writer").select("rank_key", "incarnation").rows()
        assert [incarnation for _, incarnation in rows] == [0, 0, 0, 1, 0]
        assert rows[0][0] != rows[1][0]
        assert [key for key, _ in rows[2:]] == ["actor a", "actor a", "actor b"]

    def test_a_fork_counts_as_its_parents_rank_and_incarnation(self, tmp_path: Path) -> None:
        ids = [f"01hzzzzzzzzzzzzzzzzzzzz00{number}" for number in range(5)]
        write_document(tmp_path, "l", writer=ids[0], rank=None)
        write_document(tmp_path, "l", writer=ids[1], rank=None, forked_from=ids[0])
        write_document(tmp_path, "l", writer=ids[2], rank=None, forked_from=ids[1])
        write_document(tmp_path, "l", writer=ids[3], rank=None, forked_from="gone", role="x")
        write_document(tmp_path, "l", writer=ids[4], rank=None, forked_from=ids[4], role="y")
        rows = RunFiles.open(tmp_path).identities().sort("writer").select("rank_key", "incarnation").rows()
        assert rows[:3] == [(f"writer {ids[0]}", 0)] * 3
        assert rows[3:] == [(f"writer {ids[3]}", 0), (f"writer {ids[4]}", 0)]

    def test_forks_in_a_circle_are_ranks_of_their_own(self, tmp_path: Path) -> None:
        ids = [f"01hzzzzzzzzzzzzzzzzzzzz00{number}" for number in range(2)]
        write_document(tmp_path, "l", writer=ids[0], rank=None, forked_from=ids[1])
        write_document(tmp_path, "l", writer=ids[1], rank=None, forked_from=ids[0])
        rows = RunFiles.open(tmp_path).identities().sort("writer").select("rank_key", "incarnation").rows()
        assert rows == [(f"writer {writer}", 0) for writer in ids]


class TestFinding:
    @pytest.mark.parametrize(
        "make",
        [lambda _: None, lambda path: path.mkdir(), lambda path: path.touch()],
        ids=["nothing", "folder", "file"],
    )
    def test_what_is_no_run_is_refused_with_a_remedy(self, tmp_path: Path, make: Any) -> None:
        make(tmp_path / "x")
        with pytest.raises(RunNotFoundError, match=r"x: no run of rl-eventlog: .*give the folder <root>/<run>"):
            RunFiles.open(tmp_path / "x")

    def test_runs_are_found_at_and_two_levels_below_a_root(self, tmp_path: Path) -> None:
        for place in ("a", "team/b", "team/deep/c", ".hidden/d"):
            (tmp_path / place / "writers").mkdir(parents=True)
        (tmp_path / "old" / "events").mkdir(parents=True)
        (tmp_path / "file").touch()
        assert find_runs(tmp_path) == [tmp_path / "a", tmp_path / "old", tmp_path / "team" / "b"]
        assert find_runs(tmp_path / "a") == [tmp_path / "a"]
        assert find_runs(tmp_path / "missing") == []

    def test_a_folder_that_cannot_be_looked_into_is_told_and_stops_no_other(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        enter(tmp_path).close()
        for locked in ("locked", "team"):
            (tmp_path / locked).mkdir()
        looks_like_run, folders = files_module._is_run, files_module._folders

        def is_run(path: Path) -> bool:
            if path.name == "locked":
                raise PermissionError(13, "Permission denied", str(path))
            return looks_like_run(path)

        def listed(path: Path) -> list[Path]:
            if path.name == "team":
                raise PermissionError(13, "Permission denied", str(path))
            return folders(path)

        monkeypatch.setattr(files_module, "_is_run", is_run)
        monkeypatch.setattr(files_module, "_folders", listed)
        runs = Runs(tmp_path)
        assert runs.names == ["r"]
        assert [(problem.path.name, "Permission denied" in problem.reason) for problem in runs.problems] == [
            ("locked", True),
            ("team", True),
        ]

    def test_a_run_with_events_alone_is_a_run(self, segments: EventWriter) -> None:
        shutil.rmtree(segments.path / "writers")
        shutil.rmtree(segments.path / "launches")
        (segments.path / "run.json").unlink()
        assert find_runs(segments.path.parent) == [segments.path]
        assert values(segments.path) == FIVE * 6


def test_a_compacted_file_names_its_writers_only_where_they_are_unknown(
    segments: EventWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments.close()
    paths = files(segments, "*.parquet")
    whole = pa.concat_tables([pq.read_table(path) for path in paths])
    metadata = dict(pq.read_metadata(paths[0]).metadata)
    for key in (b"rle.writer", b"rle.first_seq", b"rle.last_seq", b"ARROW:schema"):
        metadata.pop(key, None)
    metadata |= {b"rle.covers": json.dumps([[segments.writer_id, 0, 29]]).encode(), b"rle.rows": b"30"}
    folder = segments.path / "events" / "metrics" / "compacted"
    folder.mkdir()
    pq.write_table(whole.replace_schema_metadata(metadata), folder / "x")
    (folder / "x").rename(folder / f"{sha16((folder / 'x').read_bytes())}.c1.parquet")
    for path in paths:
        path.unlink()
    with monkeypatch.context() as patch:
        patch.delattr("pyarrow.parquet.read_table")  # a known writer costs a look at the footer
        assert set(RunFiles.open(segments.path).writers) == {segments.writer_id}
    shutil.rmtree(segments.path / "writers")
    run = RunFiles.open(segments.path)
    assert (run.writers[segments.writer_id].role, run.writers[segments.writer_id].rank) == ("trainer", 0)
    assert values(segments.path) == FIVE * 6


def test_an_identity_nobody_vouches_for_is_no_writer(tmp_path: Path) -> None:
    log = enter(tmp_path)
    log_steps(log, 1)
    log.close()
    stranger = Identity("u", "01hzzzzzzzzzzzzzzzzzzzzzzz", "l", "r", 0, None, "n")
    shard = RunLayout(log.path).shard("metrics", os.uname().nodename)
    OpenSegment(shard / open_name(stranger.writer, 0), "metrics", stranger, 0).close()
    run = RunFiles.open(log.path)
    assert set(run.writers) == {log.writer_id}
    assert run.rows("metrics").collect().height == 1
    assert isinstance(run.rows("metrics"), pl.LazyFrame)
