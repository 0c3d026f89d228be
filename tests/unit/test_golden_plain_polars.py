"""The specification's Polars recipe reads the sealed files of the golden runs, in a process without rl_eventlog."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rl_eventlog import Run
from tests.support.golden_files import FOLDER, read_golden
from tests.support.spec_reader import SCHEMAS

PRELUDE = "import sys; out = sys.argv[1]\n"
POSTLUDE = "\nassert 'rl_eventlog' not in sys.modules, 'the recipe needs us'\n"

#: What the merge rule says of `train/loss`, by hand: a mean weighted with tokens.
BY_HAND = """
loss = (
    metrics.filter(pl.col("name") == "train/loss")
    .group_by("step")
    .agg((pl.col("value") * pl.col("weight")).sum() / pl.col("weight").sum(), ranks=pl.len())
    .sort("step")
)
loss.collect().write_parquet(out)
"""


def recipe(table: str = "metrics") -> str:
    """The recipe as printed, for another table where wanted."""
    section = (SCHEMAS / "README.md").read_text(encoding="utf-8").split("\n## 13. Reading with other tools")[1]
    found = re.search(r"```python\n(import polars as pl\n.*?)```", section, re.DOTALL)
    assert found
    return found[1].replace("metrics", table)


def run_alone(code: str, run: Path, out: Path) -> pl.DataFrame:
    """Run the code in the folder of a run; return the frame it wrote."""
    command = [sys.executable, "-c", PRELUDE + code + POSTLUDE, str(out)]
    done = subprocess.run(command, cwd=run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return pl.read_parquet(out)


@pytest.mark.parametrize("name", ["clean", "restarted"])
@pytest.mark.parametrize("table", ["metrics", "timings", "hparams", "samples", "markers"])
def test_the_recipe_gives_the_rows_that_the_reader_finds_in_sealed_files(tmp_path: Path, name: str, table: str) -> None:
    run, golden = FOLDER / name, read_golden(FOLDER / name)
    plain = run_alone(f"{recipe(table)}{table}.collect().write_parquet(out)", run, tmp_path / "out.parquet")
    assert set(plain.select("writer", "seq").rows()) == golden.tables[table].sealed
    # who closed its log has sealed segments only
    ours = Run(run).files.rows(table).filter(pl.col("writer").is_in(list(golden.ends))).collect()
    assert ours.height > 0
    assert_frame_equal(plain.sort("writer", "seq"), ours.sort("writer", "seq"), check_exact=True)


def test_a_metric_reduced_over_ranks_by_hand_is_what_the_reader_says(tmp_path: Path) -> None:
    by_hand = run_alone(recipe() + BY_HAND, FOLDER / "clean", tmp_path / "out.parquet")
    ours = Run(FOLDER / "clean").metrics("train/loss", role="trainer").sort("step").collect()
    assert by_hand["step"].to_list() == list(range(10))
    assert by_hand["ranks"].to_list() == [2] * 10
    assert by_hand["value"].to_list() == pytest.approx(ours["value"].to_list(), rel=1e-12)
