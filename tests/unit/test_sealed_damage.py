"""A damaged sealed file: cut anywhere, any byte flipped. It covers nothing and is named, and nothing crashes."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rl_eventlog.errors import SchemaVersionError
from rl_eventlog.layout import RunLayout
from rl_eventlog.reader.segments import look, rows
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.segment.sealed import file_digest
from tests.support.segment_files import IDENTITY, RUN, WRITER, write_open

MASKS = (0x01, 0x80, 0xFF)
ROWS = 8


class Original:
    """A run with one sealed file, and nothing else."""

    def __init__(self, folder: Path, table: str) -> None:
        self.layout, self.table = RunLayout(folder), table
        shard = self.layout.shard(table, IDENTITY.node)
        shard.mkdir(parents=True)
        opened = write_open(shard, table, [ROWS])
        (self.path,) = seal_open(opened, 0, table)
        opened.unlink()
        self.data = self.path.read_bytes()

    def seen(self, data: bytes) -> tuple[list[Path], int]:
        """Files that are named, and rows that are covered, where the file has this content."""
        self.path.unlink()
        self.path.write_bytes(data)
        files = look(self.layout, self.table, RUN, digests=True)
        covered = files.coverage.covered.get(WRITER, ())
        return [problem.path for problem in files.problems], len(covered)

    def check(self, stride: int) -> None:
        assert self.seen(self.data) == ([], ROWS)
        for place in range(0, len(self.data), stride):
            assert self.seen(self.data[:place]) == ([self.path], 0)
            for mask in MASKS:
                flipped = bytearray(self.data)
                flipped[place] ^= mask
                assert self.seen(bytes(flipped)) == ([self.path], 0)


@pytest.mark.parametrize("table", TABLES)
def test_a_sealed_file_cut_or_flipped_anywhere_is_named_and_gives_no_row(tmp_path: Path, table: str) -> None:
    Original(tmp_path, table).check(stride=13)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("table", TABLES)
def test_every_cut_and_every_flip_of_every_table(tmp_path: Path, table: str) -> None:
    original = Original(tmp_path, table)
    original.check(stride=1)
    print(f"{table}, sealed: {len(original.data)} cuts, {len(MASKS) * len(original.data)} flips")


def test_a_version_that_no_digest_vouches_for_costs_only_its_own_file(tmp_path: Path) -> None:
    original = Original(tmp_path, "metrics")
    place = original.data.index(b"1.0", original.data.rindex(b"rle.version"))
    newer = original.data[:place] + b"9" + original.data[place + 1 :]
    assert original.seen(newer) == ([original.path], 0)
    digest = original.path.name.split(".")[2]
    original.path.rename(original.path.with_name(original.path.name.replace(digest, file_digest(original.path)[:16])))
    with pytest.raises(SchemaVersionError, match=r"written in format 9\.0"):
        look(original.layout, "metrics", RUN, digests=True)


@pytest.mark.parametrize("table", TABLES)
def test_without_the_digest_a_flipped_page_is_an_error_and_no_wrong_row_where_its_checksum_is_asked_for(
    tmp_path: Path, table: str
) -> None:
    """Plain readers may verify page checksums; ours compares digests instead, which `Run(path)` does on request."""
    original = Original(tmp_path, table)
    right = rows(look(original.layout, table, RUN)).collect().rows()
    data = bytearray(original.data)
    with pq.ParquetFile(original.path) as file:
        chunk = file.metadata.row_group(0).column(0)
        data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 0xFF
    original.seen(bytes(data))
    with pytest.raises(OSError, match="CRC"), pq.ParquetFile(original.path, page_checksum_verification=True) as file:
        assert file.read().num_rows == len(right)
