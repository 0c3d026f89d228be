"""The specification is enough: a second implementation made from its text reads what we write, and we what it writes.

The recipes for other tools in it work as printed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_eventlog.errors import SegmentError
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.open_segment import read_open
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.types import Identity, Span
from tests.support.segment_files import IDENTITY, RUN, WRITER, example_batch, write_open
from tests.support.spec_reader import Segment, columns, read_segment, write_segment

README = Path(__file__).parents[2] / "schemas" / "README.md"
NAME = re.compile(
    r"(?P<writer>[0-7][0-9a-hjkmnp-tv-z]{25})-(?P<n>0|[1-9][0-9]*)"
    r"\.(?P<first>0|[1-9][0-9]*)-(?P<last>0|[1-9][0-9]*)\.(?P<sha16>[0-9a-f]{16})\.parquet"
)


def test_the_reader_of_the_specification_uses_nothing_of_ours() -> None:
    code = "import sys, tests.support.spec_reader; print([m for m in sys.modules if m.startswith('rl_eventlog')])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=README.parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("table", TABLES)
def test_an_open_segment_is_read_from_the_specification(tmp_path: Path, table: str) -> None:
    segment = read_segment(write_open(tmp_path, table, [2, 1, 4], first_seq=5).read_bytes())
    assert segment.metadata == {
        "rle.version": "1.0",
        "rle.table": table,
        "rle.run_uid": RUN,
        "rle.writer": WRITER,
        "rle.launch": "launch-1",
        "rle.role": "trainer",
        "rle.rank": "3",
        "rle.node": "node-1",
    }
    assert (segment.damage, segment.torn_tail) == ([], 0)
    assert [(seq, batch.num_rows) for seq, batch in segment.batches] == [(5, 2), (7, 1), (8, 4)]
    for seq, batch in segment.batches:
        assert batch.schema.equals(columns(table, "open"))
        expected = example_batch(table, batch.num_rows, start=seq)
        assert repr(batch.to_pylist()) == repr(expected.to_pylist())


def test_the_specification_and_we_agree_on_every_damage(tmp_path: Path) -> None:
    path = write_open(tmp_path, "timings", [2, 1, 3])
    whole = path.read_bytes()
    for place in range(0, len(whole), 5):
        for data in (whole[:place], whole[:place] + b"\xff" + whole[place + 1 :], whole[:place] + whole[place + 8 :]):
            path.unlink()
            path.write_bytes(data)
            try:
                theirs = read_segment(data)
            except (ValueError, OSError, struct.error, pa.ArrowException):
                theirs = Segment({}, [], [], len(data))
            try:
                ours = read_open(path)
            except SegmentError:
                assert theirs.batches == []
                continue
            seqs = [seq for span, _ in ours.pieces for seq in range(span.first, span.last + 1)]
            assert seqs == [seq + i for seq, batch in theirs.batches for i in range(batch.num_rows)]
            if seqs:
                assert [(d.offset, d.size) for d in ours.damage] == theirs.damage
                assert ours.torn_tail == theirs.torn_tail


def test_we_read_what_a_writer_made_from_the_specification_wrote(tmp_path: Path) -> None:
    time = datetime(2025, 1, 31, 12, tzinfo=timezone.utc)
    identity = {
        "rle.run_uid": RUN,
        "rle.writer": WRITER,
        "rle.launch": "slurm-17.0",
        "rle.role": "rollout",
        "rle.data_rank": "2",
        "rle.node": "n7",
    }
    rows: list[dict[str, Any]] = [
        {"step": 1, "time": time, "name": "loss", "value": 0.5},
        {"step": None, "time": time, "name": "loss", "value": math.inf, "closes_step": True},
    ]
    path = tmp_path / f"{WRITER}-0.arrows"
    path.write_bytes(write_segment("metrics", identity, [(0, rows), (2, rows[:1])]))
    content = read_open(path)
    assert content.identity == Identity(RUN, WRITER, "slurm-17.0", "rollout", None, 2, "n7")
    assert (content.damage, content.torn_tail) == ([], 0)
    ((span, table),) = content.pieces
    assert span == Span(0, 2)
    assert table["value"].to_pylist() == [0.5, math.inf, 0.5]
    assert table["closes_step"].to_pylist() == [None, True, None]
    (sealed,) = seal_open(path, 0, "metrics")
    assert pq.ParquetFile(sealed).read()["role"].to_pylist() == ["rollout"] * 3


@pytest.mark.parametrize("table", TABLES)
def test_a_sealed_segment_is_read_with_parquet_and_its_name_alone(tmp_path: Path, table: str) -> None:
    (path,) = seal_open(write_open(tmp_path, table, [3, 2], first_seq=10, number=4), 4, table)
    match = NAME.fullmatch(path.name)
    assert match is not None
    assert match.group("writer", "n", "first", "last") == (WRITER, "4", "10", "14")
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == match["sha16"]
    file = pq.ParquetFile(path)
    assert file.schema_arrow.equals(columns(table, "sealed"))
    footer = {k.decode(): v.decode() for k, v in file.metadata.metadata.items() if k.startswith(b"rle.")}
    steps = [step for step in file.read()["step"].to_pylist() if step is not None]
    assert footer.pop("rle.unique_steps") in {"true", "false"}
    assert footer == {
        "rle.version": "1.0",
        "rle.table": table,
        "rle.run_uid": RUN,
        "rle.writer": WRITER,
        "rle.launch": "launch-1",
        "rle.role": "trainer",
        "rle.rank": "3",
        "rle.node": "node-1",
        "rle.rows": "5",
        "rle.first_seq": "10",
        "rle.last_seq": "14",
        "rle.min_step": str(min(steps)),
        "rle.max_step": str(max(steps)),
    }
    rows = file.read()
    assert rows["seq"].to_pylist() == list(range(10, 15))
    assert set(rows["writer"].to_pylist()) == {WRITER}


def recipes(language: str) -> list[str]:
    section = README.read_text(encoding="utf-8").split("\n## 13. Reading with other tools")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def test_the_recipes_work_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "events" / "metrics" / "5f"
    folder.mkdir(parents=True)
    path = write_open(folder, "metrics", [4, 3])
    seal_open(path, 0, "metrics")
    path.write_bytes(path.read_bytes()[:-8])
    seal_open(path, 0, "metrics")  # someone sealed a shorter copy: rows 0 to 3 come twice
    other = Identity(RUN, "01jzw000000000000000000001", "launch-1", "trainer", 4, None, "node-2")
    path = write_open(folder, "metrics", [2], identity=other)
    (sealed,) = seal_open(path, 0, "metrics")
    table = pq.ParquetFile(sealed).read()
    pq.write_table(table.append_column("novelty", pa.array([1, 2])), sealed)  # a newer minor version
    polars_recipe, pandas_recipe, arrow_recipe = recipes("python")
    monkeypatch.chdir(tmp_path)
    expected = [(WRITER, seq) for seq in range(7)] + [(other.writer, 0), (other.writer, 1)]

    scope: dict[str, Any] = {}
    exec(polars_recipe, scope)
    metrics = scope["metrics"].collect()
    assert sorted(metrics.select("writer", "seq").rows()) == expected
    values = metrics.filter(pl.col("writer") == WRITER).sort("seq")["value"].to_list()
    assert repr(values) == repr(example_batch("metrics", 7)["value"].to_pylist())

    scope = {}
    exec(pandas_recipe, scope)
    assert sorted(zip(scope["metrics"]["writer"], scope["metrics"]["seq"], strict=True)) == expected

    scope = {}
    exec(arrow_recipe.replace("events/metrics/5f/01jz...-0.arrows", path.as_posix()), scope)
    assert scope["first_seq"] == 0
    assert scope["batch"].num_rows == 2


def test_the_specification_names_every_file_of_the_folder_and_every_metadata_key() -> None:
    text = README.read_text(encoding="utf-8")
    for path in README.parent.glob("*.json"):
        assert f"({path.name})" in text
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["version"] == "1.0"
    for key in IDENTITY.to_metadata("metrics"):
        assert f"`{key.decode()}`" in text
    for heading in re.findall(r"^- \[(.*?)\]\(#(.*?)\)$", text, re.MULTILINE):
        anchor = re.sub(r"[^a-z0-9 -]", "", heading[0].lower()).replace(" ", "-")
        assert anchor == heading[1]
        assert f"\n## {heading[0]}\n" in text
