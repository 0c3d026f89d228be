"""`compact`: few files in place of many, and no result of reading changes."""

from __future__ import annotations

import importlib
import shutil
import threading
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_eventlog import EventWriter, Run
from rl_eventlog.errors import SegmentError
from rl_eventlog.layout import SegmentName
from rl_eventlog.maintain import compact, fold, seal, verify
from rl_eventlog.maintain.removal import Reclaimed
from rl_eventlog.reader import RunFiles, read_folded
from rl_eventlog.schema import table as table_schema
from rl_eventlog.segment.compacted import write_compacted
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.segment.sealed import file_digest, read_footer
from rl_eventlog.sync import replay
from rl_eventlog.types import Span
from tests.support.memory_sink import MemorySink
from tests.support.raw import every_row
from tests.support.upkeep import event_files, flip, killed_writer, results, snapshot

# the package gives its function of the same name
module = importlib.import_module("rl_eventlog.maintain.compact")


def written(root: Path, *, attempts: int = 2, ranks: int = 3, steps: int = 6) -> Path:
    """The run `r` of several attempts whose ranks rotate as often as they can, so that it has many small files."""
    for attempt in range(attempts):
        for rank in range(ranks):
            with EventWriter.open(
                root,
                run="r",
                role="trainer",
                rank=rank,
                world_size=ranks,
                data_rank=rank,
                launch_id=f"launch-{attempt}",
                capture_diff=False,
                segment_bytes=1,
            ) as log:
                log.log_hyperparams({"lr": 0.5})
                for step in range(3 * attempt, 3 * attempt + steps):
                    values = {"loss": step / (rank + 1), "odd": float("nan") if step % 2 else -0.0}
                    log.log_metrics(values, step=step, prefix="train", step_finished=True)
                    log.log_metrics({"progress": step}, step=step, reduce="max")
                    log.log_timing("training", 0.25 * rank, step=step)
                    log.log_samples([{"prompt": f"{step}", "response": "é" * rank, "reward": 0.5}], step=step)
                log.mark("checkpoint", step=3 * attempt + steps - 1)
    return root / "r"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("original"))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "r")


def compacted(run: Path, table: str = "*") -> list[Path]:
    return sorted(run.glob(f"events/{table}/compacted/*.parquet"))


def test_compacting_changes_no_result_and_leaves_every_file(run: Path) -> None:
    before, files = results(run), snapshot(run)
    assert len(event_files(run)) > 60
    report = compact(run)
    assert results(run) == before
    assert snapshot(run).items() >= files.items()
    assert {path.parts[-3] for path in report.compacted} == {"metrics", "timings", "samples", "hparams", "markers"}
    assert report.sources == len(files) - len([name for name in files if not name.startswith("events/")])
    assert (report.folded_writers, report.problems, report.removed) == (6, (), ())


def test_reclaim_leaves_one_file_a_table_and_the_same_results(run: Path) -> None:
    before, rows = results(run), {table: every_row(run, table) for table in ("metrics", "timings", "samples")}
    findings = verify(run).findings
    compact(run)
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert report.compacted == ()
    assert event_files(run) == compacted(run)
    assert len(event_files(run)) == 5
    assert results(run) == before
    for table, expected in rows.items():
        found = every_row(run, table)
        assert found.keys() == expected.keys()
        assert all(repr(found[key]) == repr(expected[key]) for key in found)
    assert verify(run).findings == findings


def test_a_second_call_has_nothing_to_do(run: Path) -> None:
    compact(run)
    before = snapshot(run)
    report = compact(run)
    assert (report.compacted, report.sources, report.folded_writers) == ((), 0, 0)
    assert snapshot(run) == before
    compact(run, reclaim_covered=True, grace_seconds=0)
    before = snapshot(run)
    assert compact(run, reclaim_covered=True, grace_seconds=0).removed == ()
    assert snapshot(run) == before


def test_nothing_goes_before_the_compacted_file_is_old_enough(run: Path) -> None:
    files = set(event_files(run))
    report = compact(run, reclaim_covered=True)
    assert report.removed == ()
    assert files <= set(report.waiting)
    assert files <= set(event_files(run))


def test_a_compacted_file_is_what_the_format_says(run: Path) -> None:
    compact(run)
    (path,) = compacted(run, "metrics")
    name = SegmentName.parse(path.name)
    assert name
    assert (name.level, name.compactions, name.digest) == ("compacted", 1, file_digest(path)[:16])
    footer = read_footer(path, name)
    assert (footer.table, footer.run_uid) == ("metrics", RunFiles.open(run).run_uid)
    assert footer.rows == 6 * 18
    assert footer.holds == {writer: [Span(0, 17)] for writer in RunFiles.open(run).writers}
    assert (footer.min_step, footer.max_step, footer.unique_steps) == (0, 8, False)
    rows = pq.read_table(path)
    assert rows.schema.remove_metadata().equals(table_schema("metrics").sealed)
    order = [(row["name"], row["step"], row["writer"], row["seq"]) for row in rows.to_pylist()]
    assert order == sorted(order)


def test_what_is_added_later_is_compacted_once_more(run: Path, tmp_path: Path) -> None:
    compact(run)
    compact(run, reclaim_covered=True, grace_seconds=0)
    written(run.parent, attempts=3, ranks=1)  # launches that exist are joined
    before = results(run)
    report = compact(run)
    assert {path.name.split(".")[1] for path in report.compacted} == {"c2"}
    compact(run, reclaim_covered=True, grace_seconds=0)
    assert len(event_files(run)) == 5
    assert len(list(run.glob("writers/compacted/*"))) == 1
    assert results(run) == before


def test_memory_is_that_of_a_block(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = results(run)
    monkeypatch.setattr(module, "BLOCK_BYTES", 2000)
    sizes: list[int] = []
    sort = module._sorted

    def counted(tables: list[pa.Table]) -> pa.Table:
        sizes.append(sum(table.nbytes for table in tables))
        return sort(tables)

    monkeypatch.setattr(module, "_sorted", counted)
    compact(run)
    compact(run, reclaim_covered=True, grace_seconds=0)
    assert len(sizes) > 30
    assert max(sizes) < 4000
    (path,) = compacted(run, "metrics")
    with pq.ParquetFile(path) as file:
        assert file.num_row_groups > 5
        for group in range(file.num_row_groups):
            names = file.read_row_group(group)["name"].to_pylist()
            assert names == sorted(names)
    assert results(run) == before


def test_compacted_files_are_of_a_size_and_what_has_it_is_left_as_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = results(run)
    sizes = sorted(path.stat().st_size for path in event_files(run))
    monkeypatch.setattr(module, "FILE_BYTES", sizes[0])
    assert compact(run).compacted == ()
    monkeypatch.setattr(module, "FILE_BYTES", 5 * sizes[-1] // 2)
    compact(run)
    assert len(compacted(run, "metrics")) > 1
    assert results(run) == before
    rounds = 0
    while compact(run).compacted:
        compact(run, reclaim_covered=True, grace_seconds=0)
        rounds += 1
        assert results(run) == before
    assert 0 < rounds < 12


def test_a_lost_compacted_file_costs_nothing_while_its_sources_are_there(run: Path) -> None:
    before = results(run)
    compact(run)
    for path in compacted(run):
        path.write_bytes(path.read_bytes()[:-100])
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert len(report.compacted) == 5
    assert {problem.path for problem in report.problems} <= set(compacted(run))
    after = results(run)
    assert {key: after[key] for key in ("metrics", "samples", "timings")} == {
        key: before[key] for key in ("metrics", "samples", "timings")
    }


def test_an_altered_source_is_named_and_goes_into_no_file(run: Path) -> None:
    source = event_files(run, "*.parquet")[0]
    flip(source, 4)
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert [problem.path for problem in report.problems] == [source]
    assert source.is_file()
    assert "error" in {finding.severity for finding in verify(run).findings}


def test_an_altered_compacted_file_covers_nothing(run: Path) -> None:
    compact(run)
    for path in compacted(run):
        flip(path, 4)
    files = [path for path in event_files(run) if path not in compacted(run)]
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert not set(files) & set(report.removed)


def test_rows_with_columns_of_a_newer_version_go_into_no_file(run: Path) -> None:
    source = event_files(run, "*.parquet")[0]
    rows = pq.read_table(source)
    pq.write_table(rows.append_column("joules", pa.array([1.0] * rows.num_rows)), source)
    stem = source.name.rsplit(".", 2)[0]
    newer = source.with_name(f"{stem}.{file_digest(source)[:16]}.parquet")
    source.rename(newer)
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert [(problem.path, "joules" in problem.reason) for problem in report.problems] == [(newer, True)]
    assert newer.is_file()


def test_beside_a_live_writer_its_open_segments_stay(tmp_path: Path) -> None:
    with EventWriter.open(tmp_path, run="r", rank=0, capture_diff=False, segment_bytes=1) as log:
        for step in range(4):
            log.log_metrics({"loss": 1.0}, step=step)
        log.flush()
        left = event_files(log.path, "*.arrows")
        for _ in range(2):
            compact(log.path, reclaim_covered=True, assume_dead=True, grace_seconds=0)
        log.log_metrics({"loss": 1.0}, step=4)
        assert set(left) <= set(event_files(log.path, "*.arrows"))
        assert list(log.path.glob("writers/*.beat"))
        assert Run(log.path).metrics().collect().height == 5
    assert verify(log.path).ok
    assert Run(log.path).metrics().collect().height == 5


def test_a_foreign_seal_of_a_shorter_copy_is_merged_once(run: Path) -> None:
    """Two sealed files overlap: the compacted one has each row once, and covers both."""
    before = results(run)
    longer = event_files(run, "*.parquet")
    metrics = next(path for path in longer if path.parts[-3] == "metrics")
    compact(run)
    kept = {path: path.read_bytes() for path in longer}
    compact(run, reclaim_covered=True, grace_seconds=0)
    metrics.parent.mkdir(exist_ok=True)
    metrics.write_bytes(kept[metrics])  # an old copy comes back
    assert results(run) == before
    report = compact(run, reclaim_covered=True, grace_seconds=0)
    assert (report.compacted, report.removed) == ((), (metrics,))
    assert results(run) == before


def test_a_prefix_that_was_compacted_and_the_whole_segment_are_merged_once(tmp_path: Path) -> None:
    """Someone sealed a copy of a live segment, someone compacted it, and the segment went on."""
    path = killed_writer(tmp_path)
    killed_writer(tmp_path, rank=1)
    (segment, _) = (path / "events/metrics").glob("*/*.arrows")
    copy = tmp_path / segment.name
    copy.write_bytes(segment.read_bytes()[: segment.stat().st_size * 2 // 3])
    (prefix,) = seal_open(copy, 0, "metrics")
    shutil.copy(prefix, segment.parent)
    (other,) = (one for one in (path / "events/metrics").glob("*/*.arrows") if one != segment)
    seal_open(other, 0, "metrics")
    before = results(path)
    compact(path)
    seal(path)
    compact(path)
    (second,) = path.glob("events/metrics/compacted/*.c2.parquet")
    assert pq.read_metadata(second).num_rows == 20
    compact(path, reclaim_covered=True, grace_seconds=0)
    assert compacted(path, "metrics") == [second]
    seal(path, reclaim_covered=True, grace_seconds=0)
    assert event_files(path, "*.arrows") == []
    assert results(path) == before


def test_a_sync_sends_nothing_anew(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    first = replay(run, MemorySink(target))
    assert first.points > 0
    compact(run)
    compact(run, reclaim_covered=True, grace_seconds=0)
    again = replay(run, MemorySink(target))
    assert (again.points, again.commits, again.corrections) == (0, 0, 0)
    assert MemorySink(target).doubled() == []


def test_two_at_once_are_harmless(run: Path) -> None:
    before = results(run)
    failures: list[Exception] = []

    def work() -> None:
        try:
            for _ in range(3):
                compact(run, reclaim_covered=True, grace_seconds=0)
                seal(run, reclaim_covered=True, grace_seconds=0)
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test names it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert results(run) == before
    assert len(event_files(run)) == 5


def test_rows_that_are_not_those_covered_make_no_file(tmp_path: Path) -> None:
    rows = pq.read_table(event_files(written(tmp_path), "*.parquet")[0])
    (writer,) = set(rows["writer"].to_pylist())
    folder = tmp_path / "compacted"
    folder.mkdir()
    with pytest.raises(SegmentError, match="covers"):
        write_compacted(folder, lambda: [rows], {writer: [Span(0, 99)]}, compactions=1, table="hparams", run_uid="x")
    blocks = iter([[rows], [rows, rows]])
    with pytest.raises(SegmentError, match="read back"):
        write_compacted(
            folder,
            lambda: next(blocks),
            {writer: [Span(0, rows.num_rows - 1)]},
            compactions=1,
            table="hparams",
            run_uid="x",
        )
    assert list(folder.iterdir()) == []


def remove_now(run: Path) -> Reclaimed:
    """Remove documents alone, whatever their age."""
    reclaimed = Reclaimed()
    fold.remove_folded(RunFiles.open(run), reclaimed, assume_dead=False, grace_seconds=0)
    return reclaimed


class TestFolding:
    def documents(self, run: Path) -> list[Path]:
        return sorted(path for path in run.glob("writers/*") if path.is_file())

    def test_documents_of_gone_writers_are_one_file_and_the_earliest_keeps_its_own(self, run: Path) -> None:
        before = results(run)
        assert len(self.documents(run)) == 18
        compact(run)
        (folded,) = run.glob("writers/compacted/*")
        assert [entry["writer"] for entry in read_folded(folded)] == sorted(RunFiles.open(run).writers)
        compact(run, reclaim_covered=True, grace_seconds=0)
        assert {path.name.partition(".")[0] for path in self.documents(run)} == {min(RunFiles.open(run).writers)}
        assert results(run) == before

    def test_who_joins_finds_the_uid_without_run_json(self, run: Path, tmp_path: Path) -> None:
        uid = RunFiles.open(run).run_uid
        compact(run)
        compact(run, reclaim_covered=True, grace_seconds=0)
        (run / "run.json").unlink()
        written(tmp_path, attempts=1, ranks=1)
        files = RunFiles.open(run)
        assert files.run_uid == uid
        assert len(files.writers) == 7

    def test_documents_of_a_live_writer_stay(self, run: Path, tmp_path: Path) -> None:
        with EventWriter.open(tmp_path, run="r", role="eval", rank=0, capture_diff=False) as log:
            log.log_metrics({"accuracy": 1.0}, step=0)
            (eval_writer,) = (w for w, facts in RunFiles.open(run).writers.items() if facts.role == "eval")
            for _ in range(2):
                compact(run, reclaim_covered=True, assume_dead=True, grace_seconds=0)
            assert {path.name for path in self.documents(run)} >= {f"{eval_writer}.json", f"{eval_writer}.beat"}
            assert "running" in {rank.state for rank in Run(run).info.ranks}

    def test_a_killed_writer_is_lost_as_before(self, run: Path, tmp_path: Path) -> None:
        killed_writer(tmp_path, role="rollout", launch_id="launch-1")
        before = results(run)
        for _ in range(2):
            compact(run, reclaim_covered=True, grace_seconds=0)
        assert len(self.documents(run)) == 3
        assert results(run) == before
        assert "lost" in {rank.state for rank in Run(run).info.ranks}

    def test_an_end_that_came_later_is_folded_too(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A copy of the run was folded before the end records arrived."""
        before = results(run)
        ends = {path: path.read_bytes() for path in run.glob("writers/*.end.json")}
        for path in ends:
            path.unlink()
        monkeypatch.setattr(fold, "is_gone", lambda facts, assume_dead: True)  # the process that wrote it all is this
        compact(run)
        for path, content in ends.items():
            path.write_bytes(content)
        compact(run)
        assert len(list(run.glob("writers/compacted/*"))) == 2
        compact(run, reclaim_covered=True, grace_seconds=0)
        assert len(list(run.glob("writers/compacted/*"))) == 1
        assert results(run) == before

    def test_a_single_document_that_says_more_stays(self, run: Path) -> None:
        compact(run)
        last = max(RunFiles.open(run).writers)
        beat = run / "writers" / f"{last}.beat"
        earlier, later = min(run.glob("writers/*.beat")).read_bytes(), beat.read_bytes()
        assert earlier != later
        (run / "writers" / f"{last}.json").write_text('{"torn')
        compact(run, reclaim_covered=True, grace_seconds=0)
        assert beat.is_file()

    def test_an_altered_folded_file_removes_nothing(self, run: Path) -> None:
        compact(run)
        (folded,) = run.glob("writers/compacted/*")
        folded.rename(folded.with_name(f"{'0' * 16}.jsonl.zst"))
        before = self.documents(run)
        assert remove_now(run).removed == []
        assert self.documents(run) == before


def test_the_order_of_writers_is_that_of_their_ids_folded_or_not(run: Path) -> None:
    compact(run)
    compact(run, reclaim_covered=True, grace_seconds=0)
    assert all(before < after for before, after in pairwise(RunFiles.open(run).writers))
