"""A writer keeps its damaged open segment: what was whole is sealed beside it, the rest stays as evidence."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rl_eventlog.layout import RunLayout, SegmentName
from rl_eventlog.writer.places import Places
from rl_eventlog.writer.rows import RowStore
from rl_eventlog.writer.table import Limits
from tests.support.segment_files import IDENTITY, example_batch


@pytest.mark.parametrize("flipped", [2, 5])
def test_an_open_segment_with_a_damaged_batch_stays_beside_its_seals(
    tmp_path: Path, flipped: int, caplog: pytest.LogCaptureFixture
) -> None:
    store = RowStore(Places(RunLayout(tmp_path), IDENTITY), Limits())
    for start, rows in ((0, 2), (2, 3), (5, 1)):
        store.append("metrics", example_batch("metrics", rows, start=start))
    (path,) = tmp_path.rglob("*.arrows")
    data = bytearray(path.read_bytes())
    data[data.index(b"%020d" % flipped)] ^= 1
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert store.finish(timeout_seconds=5)
        store.seal_all()
        store.remove_open_forms()
    assert path.read_bytes() == data
    names = [SegmentName.parse(file.name) for file in sorted(path.parent.glob("*.parquet"))]
    spans = {2: [(0, 1), (5, 5)], 5: [(0, 4)]}[flipped]
    assert sorted((name.first, name.last) for name in names if name) == spans
    assert "it is damaged, what is whole in it was sealed" in caplog.text
