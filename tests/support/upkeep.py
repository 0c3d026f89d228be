"""Runs to look after: writers that were killed, and what must stay the same whatever is done to their files."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl

from rl_eventlog import Run
from rl_eventlog.segment.sealed import file_digest

KILLED = """
import json, os, signal, sys
from rl_eventlog import EventWriter
options, steps = json.loads(sys.argv[2]), int(sys.argv[3])
log = EventWriter.open(sys.argv[1], run="r", capture_diff=False, **options)
for step in range(steps):
    log.log_metrics({"loss": step + 0.5, "tokens": 10}, step=step, prefix="train", reduce={"tokens": "sum"})
    log.log_timing("training", 0.25, step=step)
    log.log_samples([{"prompt": f"{step} = ", "response": "é" * step, "reward": 1.0}], step=step)
log.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed_writer(root: Path, *, steps: int = 5, **options: Any) -> Path:
    """The run `r` with a writer that logged and was killed: SIGKILL, no end record, its segments open."""
    given = {"role": "trainer", "rank": 0, "launch_id": "one"} | options
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), json.dumps(given), str(steps)], check=False)
    assert done.returncode == -signal.SIGKILL
    return root / "r"


def event_files(run: Path, pattern: str = "*") -> list[Path]:
    """Event files of all tables whose names match, temporary ones left out."""
    found = run.glob(f"events/*/*/{pattern}")
    return sorted(path for path in found if not path.name.startswith("."))


def snapshot(run: Path) -> dict[str, str]:
    """Digest of every file."""
    return {str(path.relative_to(run)): file_digest(path) for path in sorted(run.rglob("*")) if path.is_file()}


def results(run: Path) -> dict[str, Any]:
    """Everything that reading a run gives, but for the moment of the look."""
    look = Run(run)
    frames: dict[str, pl.LazyFrame] = {
        "metrics": look.metrics(),
        "each metric": look.metrics(ranks="each", attempts="all"),
        "timings": look.timings(),
        "hparams": look.hparams(history=True),
        "samples": look.samples(),
        "markers": look.markers(),
    }
    found: dict[str, Any] = {name: sorted(map(repr, frame.collect().rows())) for name, frame in frames.items()}
    info = dataclasses.asdict(look.info)
    del info["read"]
    return found | {"info": info, "warnings": look.warnings().rows(), "last": look.files.last_seqs("metrics")}


def flip(path: Path, offset: int) -> None:
    """Turn all bits of one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)
