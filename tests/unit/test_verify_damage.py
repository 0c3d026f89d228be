"""`verify` finds damage wherever it is: a segment of every table, open or sealed, cut or with a byte flipped.

All tables are damaged at once, each at another place: `verify` must name every one, and no row that is read may
be another than the one written.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.layout import RunLayout
from rl_eventlog.maintain import verify
from rl_eventlog.reader import RunFiles
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.seal import seal_open
from tests.support.segment_files import write_open

SIZES = [2, 1, 3, 2]
MASKS = (0x01, 0x80, 0xFF)


class Original:
    """A run with one segment a table, of a writer whose end record says how many rows each has."""

    def __init__(self, root: Path, form: str) -> None:
        with EventWriter.open(root, run="r", rank=0, launch_id="one", capture_diff=False) as log:
            pass
        self.path = log.path
        layout = RunLayout(self.path)
        (facts,) = RunFiles.open(self.path).writers.values()
        end = layout.end(facts.writer)
        last_seqs = dict.fromkeys(TABLES, sum(SIZES) - 1)
        end.write_text(json.dumps(json.loads(end.read_text()) | {"last_seq": last_seqs}))
        self.files: dict[str, Path] = {}
        for table in TABLES:
            shard = layout.shard(table, facts.node)
            shard.mkdir(parents=True, exist_ok=True)
            path = write_open(shard, table, SIZES, identity=facts.identity)
            if form == "sealed":
                (sealed,) = seal_open(path, 0, table)
                path.unlink()
                path = sealed
            self.files[table] = path
        self.data = {table: path.read_bytes() for table, path in self.files.items()}
        self.rows = {table: self.read(table) for table in TABLES}
        assert {len(rows) for rows in self.rows.values()} == {sum(SIZES)}
        assert not self.damaged()

    def read(self, table: str) -> dict[int, str]:
        rows = RunFiles.open(self.path, digests=True).rows(table).collect().to_dicts()
        return {row["seq"]: repr(row) for row in rows}

    def write(self, contents: dict[str, bytes]) -> None:
        for table, content in contents.items():
            self.files[table].unlink()
            self.files[table].write_bytes(content)

    def damaged(self) -> set[str]:
        """Tables in which something is found, and whether `verify` is content."""
        report = verify(self.path)
        places = {str(path): table for table, path in self.files.items()}
        found = {
            one.place.partition(" of ")[0] if one.kind == "gap" else places[one.place]
            for one in report.findings
            if one.kind in ("file", "gap", "torn tail")
        }
        assert not (found and report.ok)
        return found

    def check(self) -> None:
        assert self.damaged() == set(TABLES)
        for table, rows in self.rows.items():
            left = self.read(table)
            assert left.items() < rows.items(), table


def trials(original: Original, count: int, seed: int) -> None:
    places = random.Random(seed)
    for trial in range(count):
        at = {table: places.randrange(len(data)) for table, data in original.data.items()}
        kind = trial % (1 + len(MASKS))
        damaged = {}
        for table, data in original.data.items():
            flipped = bytearray(data)
            flipped[at[table]] ^= MASKS[kind - 1]
            damaged[table] = bytes(flipped) if kind else data[: at[table]]
        original.write(damaged)
        original.check()
        original.write(original.data)
    assert not original.damaged()


@pytest.mark.parametrize("form", ["open", "sealed"])
def test_verify_finds_every_cut_and_every_flip(tmp_path: Path, form: str) -> None:
    trials(Original(tmp_path, form), 20, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("form", ["open", "sealed"])
def test_verify_finds_many_cuts_and_flips(tmp_path: Path, form: str) -> None:
    trials(Original(tmp_path, form), 600, seed=2)
    print(f"{form}: 600 x {len(TABLES)} damaged segments, each found")


@pytest.mark.parametrize("form", ["open", "sealed"])
def test_verify_finds_a_file_that_is_gone_empty_or_of_zeros(tmp_path: Path, form: str) -> None:
    original = Original(tmp_path, form)
    for content in (b"", None):
        original.write({t: bytes(len(data)) if content is None else content for t, data in original.data.items()})
        original.check()
    for path in original.files.values():
        path.unlink()
    original.check()
