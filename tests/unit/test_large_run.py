"""A generated run of many ranks, overlapping attempts and repeated rows: reading gives what the oracle computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_eventlog import Run
from tests.benchmarks.large_run import write_large_run


def test_every_point_of_a_generated_run_is_the_oracles(tmp_path: Path) -> None:
    written = write_large_run(tmp_path, ranks=26, metrics=10, steps=40)
    keys = [(metric, step) for metric in range(written.metrics) for step in range(written.steps)]
    merged = Run(written.path).metrics().collect()
    assert merged.height == len(keys)
    assert merged["ranks"].unique().to_list() == [written.ranks]
    found = {(row["name"], row["step"]): row["value"] for row in merged.iter_rows(named=True)}
    expected = written.expected(keys)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, rel=1e-9, abs=1e-9), key
    first, second = written.spans
    attempts = dict(merged.select("step", "attempt").unique().rows())
    assert attempts == {step: 2 if step >= second.start else 1 for step in range(written.steps)}
    assert first.stop > second.start
