"""Every benchmark runs to its end on a share of its calls; no time is judged here."""

from __future__ import annotations

from pathlib import Path

import pytest

from .log_call import CONTESTANTS, beside_others, by_number_of_keys, rotating_key_sets
from .size_and_seal import sizes


@pytest.mark.integration
def test_the_log_call_is_measured_beside_the_others(tmp_path: Path) -> None:
    times = beside_others(tmp_path, share=0.002)
    assert times.keys() == CONTESTANTS.keys()
    assert all(0 < one.median <= one.p99 <= one.p999 <= one.highest for one in times.values())


def test_the_log_call_is_measured_by_number_of_keys(tmp_path: Path) -> None:
    assert [*by_number_of_keys(tmp_path, share=0.001)] == [1, 5, 20, 100, 1000]
    assert rotating_key_sets(tmp_path, share=0.05).calls >= 1000


def test_sealed_values_take_no_more_bytes_than_promised(tmp_path: Path) -> None:
    random, constant, growing = sizes(tmp_path, steps=2_000)
    assert random.sealed_bytes <= 8.2
    assert constant.sealed_bytes <= 1.5
    assert growing.sealed_bytes <= 1.5
