"""The script that made the sample runs still makes such runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_eventlog import Run

SCRIPT = Path(__file__).parents[2] / "sample_runs" / "make.py"


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.timeout(1200)
def test_the_script_makes_all_three_runs(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(SCRIPT), "--into", str(tmp_path)], check=True)
    expected = json.loads((tmp_path / "expected.json").read_text())
    committed = json.loads((SCRIPT.parent / "expected.json").read_text())
    assert expected.keys() == committed.keys()
    for name, facts in expected.items():
        info = Run(tmp_path / name, check="digest").info
        assert (info.gaps, info.problems) == ((), ())
        assert [a["roles"] for a in facts["attempts"]] == [a["roles"] for a in committed[name]["attempts"]]
    for name in ("clean", "restarted"):
        for what in ("metrics", "hparams", "samples"):
            assert expected[name]["points"][what] == committed[name]["points"][what]
