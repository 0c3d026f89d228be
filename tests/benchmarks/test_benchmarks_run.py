"""Every benchmark runs to its end on a share of its calls; no time is judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .log_call import CONTESTANTS, by_number_of_keys, rotating_key_sets
from .size_and_seal import sizes

PROJECT = Path(__file__).parents[2]


@pytest.mark.integration
def test_the_log_call_is_measured_beside_the_others(tmp_path: Path) -> None:
    code = "import pathlib, sys; from tests.benchmarks.log_call import beside_others\n"
    code += "for name, one in beside_others(pathlib.Path(sys.argv[1]), share=0.002).items():\n"
    code += "    print('time', name, one.median, one.p99, one.p999, one.highest, sep='\\t')"
    # in a process of its own: the clients keep what they are told for the rest of it
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    rows = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("time\t")]
    assert [name for name, *_ in rows] == [*CONTESTANTS]
    for _, *times in rows:
        assert float(times[0]) > 0
        assert sorted(map(float, times)) == [*map(float, times)]


def test_the_log_call_is_measured_by_number_of_keys(tmp_path: Path) -> None:
    assert [*by_number_of_keys(tmp_path, share=0.001)] == [1, 5, 20, 100, 1000]
    assert rotating_key_sets(tmp_path, share=0.05).calls >= 1000


def test_sealed_values_take_no_more_bytes_than_promised(tmp_path: Path) -> None:
    random, constant, growing = sizes(tmp_path, steps=2_000)
    assert random.sealed_bytes <= 8.2
    assert constant.sealed_bytes <= 1.5
    assert growing.sealed_bytes <= 1.5
