"""Rows handed out writer by writer: the rows of the table, each once, in the order of their seqs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

import rl_eventlog as rle
from rl_eventlog.errors import SegmentError
from rl_eventlog.maintain import compact, seal
from rl_eventlog.reader import RunFiles
from rl_eventlog.reduce import NamePatterns
from rl_eventlog.segment import compacted as compacted_form
from tests.support.small_runs import damage_a_page

COLUMNS = ("writer", "seq", "name", "step", "value", "reduction")
RANKS, STEPS = 5, 8


def write(root: Path, ranks: range, *, steps: int = STEPS) -> None:
    for rank in ranks:
        with rle.EventWriter.open(root=root, run="run", rank=rank, role="trainer") as log:
            for step in range(steps):
                log.log_metrics({f"train/m{n}": rank + step / 8 for n in range(4)}, step=step, reduce={"*m1": "sum"})
                if step == steps // 2:
                    log.flush()


def only_sealed(root: Path) -> None:
    write(root, range(RANKS))


def compacted(root: Path) -> None:
    write(root, range(RANKS))
    compact(root / "run", reclaim_covered=True, grace_seconds=0)


def compacted_and_sealed(root: Path) -> None:
    compacted(root)
    write(root, range(2, RANKS + 2))


def compacted_in_small_row_groups(root: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compacted_form, "GROUP_ROWS", 7)
        compacted(root)


def partly_open(root: Path) -> None:
    golden = Path(__file__).parents[2] / "sample_runs" / "killed"
    shutil.copytree(golden, root / "run")


def partly_sealed(root: Path) -> None:
    partly_open(root)
    seal(root / "run", assume_dead=True)


MAKERS = [only_sealed, compacted, compacted_and_sealed, compacted_in_small_row_groups, partly_open, partly_sealed]


@pytest.fixture(scope="module", params=MAKERS, ids=lambda make: make.__name__)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    make: Callable[[Path], None] = request.param
    root = tmp_path_factory.mktemp(make.__name__)
    make(root)
    return RunFiles.open(root / "run")


def all_rows(files: RunFiles) -> pl.DataFrame:
    return files.rows("metrics").select(COLUMNS).sort("writer", "seq").collect()


def rows_of(files: RunFiles, writers: list[str], **options: object) -> Iterator[pl.DataFrame]:
    schema = all_rows(files).schema
    for table in files.rows_by_writer("metrics", writers, columns=COLUMNS, **options):  # type: ignore[arg-type]
        frame = pl.DataFrame(table)
        yield frame.cast(schema)


def test_each_writer_gets_its_rows_in_order_whatever_the_order_of_writers(files: RunFiles) -> None:
    every = all_rows(files)
    writers = every["writer"].unique().to_list()
    random.Random(3).shuffle(writers)
    assert len(writers) > 1
    for writer, found in zip(writers, rows_of(files, writers), strict=True):
        assert found.equals(every.filter(pl.col("writer") == writer))


def test_a_writer_without_rows_has_none(files: RunFiles) -> None:
    writer = all_rows(files)["writer"][0]
    nobody, somebody = rows_of(files, ["nobody", writer])
    assert nobody.height == 0
    assert nobody.columns == list(COLUMNS)
    assert somebody.height > 0


@pytest.mark.parametrize("patterns", ["train/m2", "*m[13]", ["train/loss", "nothing"]])
def test_only_wanted_names_come(files: RunFiles, patterns: str | list[str]) -> None:
    every = all_rows(files).filter(NamePatterns(patterns).expression("name"))
    writers = all_rows(files)["writer"].unique(maintain_order=True).to_list()
    assert pl.concat(rows_of(files, writers, names=NamePatterns(patterns))).equals(every)


def test_rows_after_the_frontier_and_of_writers_outside_it_do_not_come(files: RunFiles) -> None:
    every = all_rows(files)
    writers = every["writer"].unique(maintain_order=True).to_list()
    frontier = {writers[0]: 2, writers[1]: -1}
    expected = every.filter((pl.col("writer") == writers[0]) & (pl.col("seq") <= 2))
    assert expected.height == 3
    assert pl.concat(rows_of(files, writers, frontier=frontier)).equals(expected)


def test_a_reader_that_stops_early_leaves_no_thread_behind(files: RunFiles) -> None:
    import threading

    before = threading.active_count()
    reading = rows_of(files, all_rows(files)["writer"].unique().to_list())
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_a_file_that_is_gone_or_broken_since_the_look_is_named(tmp_path: Path) -> None:
    only_sealed(tmp_path)
    files = RunFiles.open(tmp_path / "run")
    writers = all_rows(files)["writer"].unique().to_list()
    path = files.table("metrics").coverage.uses[0].candidate.path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(SegmentError, match=path.name):
        list(files.rows_by_writer("metrics", writers, columns=COLUMNS))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=path.name):
        list(files.rows_by_writer("metrics", writers, columns=COLUMNS))


def test_a_byte_that_changed_in_a_page_is_found_and_not_read_as_a_value(tmp_path: Path) -> None:
    only_sealed(tmp_path)
    files = RunFiles.open(tmp_path / "run")
    writers = all_rows(files)["writer"].unique().to_list()
    path = files.table("metrics").coverage.uses[0].candidate.path
    damage_a_page(path)
    with pytest.raises(SegmentError, match=path.name):
        list(files.rows_by_writer("metrics", writers, columns=COLUMNS))


@pytest.mark.parametrize(
    ("patterns", "lowest", "highest", "expected"),
    [
        ("b", "a", "c", True),
        ("b", "b", "b", True),
        ("b", "c", "d", False),
        ("b*", "a", "b/x", True),
        ("b*", "bb", "bz", True),
        ("bx*", "c", "d", False),
        ("*x", "a", "b", True),
        (["a", "z"], "b", "c", False),
        (["a", "c"], "b", "c", True),
    ],
)
def test_patterns_know_which_parts_of_sorted_names_may_hold_a_match(
    patterns: str | list[str], lowest: str, highest: str, expected: bool
) -> None:
    assert NamePatterns(patterns).may_lie_between(lowest, highest) is expected
