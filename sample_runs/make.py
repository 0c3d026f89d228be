"""Make the sample runs: real trainings of the demo, one clean, one killed, one killed and restarted.

- A run that is there is never touched: the script makes what is missing, and adds it to `expected.json`.
- No file with rows is edited. What a writer says of its machine is made harmless in `writers/*.json`,
  where no digest covers it; a run in which a path of the machine is left is thrown away and made again.
- The training runs in an empty folder, in no git repository, with an environment of its own.

Run it as `python sample_runs/make.py [--into DIR]`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from rl_eventlog import Run
from rl_eventlog.documents import encode_document, read_document
from rl_eventlog.layout import RunLayout
from rl_eventlog.schema import TABLES

TRIES = 8
ROLES = {"trainer", "rollout", "controller"}
#: A machine shows in these, whatever the file.
MACHINE = re.compile(
    rb"/(bin|dev|etc|home|lib|media|mnt|opt|private|proc|root|run|srv|tmp|usr|var|work|Users|pytorch|__w)/"
    rb"|(site|dist)-packages|Traceback"
)
#: Series whose points are written to `expected.json`: a weighted mean, a mean, two sums, a maximum, a minimum.
PINNED = [
    ("trainer", "train/loss"),
    ("trainer", "train/grad_norm"),
    ("trainer", "train/tokens"),
    ("trainer", "train/advantage_max"),
    ("rollout", "tokens"),
    ("rollout", "policy_version"),
    ("controller", "validation/accuracy"),
]


@dataclass(frozen=True, slots=True)
class Plan:
    """One sample run."""

    name: str
    seed: int
    steps: int
    die: str | None = None
    """Process that is killed, and its step."""
    restart: bool = False


PLANS = (
    Plan("clean", seed=0, steps=10),
    Plan("killed", seed=1, steps=10, die="trainer:1@7"),
    Plan("restarted", seed=2, steps=12, die="trainer:1@8", restart=True),
)


def main() -> int:
    """Make the runs that are missing; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the sample runs that are missing.")
    parser.add_argument("--into", type=Path, default=Path(__file__).parent, metavar="DIR", help="default: beside me")
    into: Path = parser.parse_args().into
    into.mkdir(parents=True, exist_ok=True)
    catalogue = into / "expected.json"
    expected = json.loads(catalogue.read_text()) if catalogue.exists() else {}
    for plan in PLANS:
        path = into / plan.name
        if path.exists():
            print(f"{path}: is there and stays as it is")
            continue
        _make(plan, path)
        expected[plan.name] = _facts(path)
        catalogue.write_text(_as_text(expected))
        sizes = [file.stat().st_size for file in path.rglob("*") if file.is_file()]
        print(f"{path}: {len(sizes)} files, {sum(sizes):,} bytes")
    return 0


def _make(plan: Plan, path: Path) -> None:
    """Train until the run is one to keep, and put it at `path`."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            _train(plan, folder)
            run = folder / "runs" / plan.name
            for document in RunLayout(run).writers.glob("*.json"):
                _make_harmless(document)
            if reason := _unfit(plan, run):
                print(f"{plan.name}: made again, {reason}")
                continue
            shutil.copytree(run, path)
            return
    raise SystemExit(f"{plan.name}: no run to keep in {TRIES} tries")


def _train(plan: Plan, folder: Path) -> None:
    _launch(plan, folder, *(("--die", plan.die) if plan.die else ()), status=1 if plan.die else 0)
    if plan.restart:
        _launch(plan, folder, "--resume", status=0)


def _launch(plan: Plan, folder: Path, *options: str, status: int) -> None:
    """Start the demo's training in `folder`; all paths it is told are relative."""
    command = [sys.executable, "-m", "rl_eventlog_cli.demo.launch", "--small", f"--seed={plan.seed}"]
    command += [f"--steps={plan.steps}", "--root=runs", f"--run={plan.name}", f"--work=checkpoints/{plan.name}"]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run([*command, *options], cwd=folder, env=environment, stderr=subprocess.PIPE, check=False)
    if done.returncode != status:
        raise SystemExit(f"{plan.name}: the launch ended with status {done.returncode}: {done.stderr.decode()}")


def _make_harmless(document: Path) -> None:
    """Keep every key of the provenance, and nothing of the machine and person in it."""
    content = read_document(document)
    if provenance := content.get("provenance"):
        provenance["command"][0] = "python"
        provenance |= {"folder": ".", "user": "user", "platform": "Linux"}
        document.write_bytes(encode_document(content))


def _unfit(plan: Plan, run: Path) -> str | None:
    """Why a run is none to keep; None where it is."""
    for path in sorted(file for file in run.rglob("*") if file.is_file()):
        if found := MACHINE.search(_plain(path)):
            return f"{path.relative_to(run)} holds {found[0].decode()!r}"
    layout = RunLayout(run)
    if not plan.die and len(list(layout.writers.glob("*.end.json"))) < 5:
        return "a writer did not end"
    if plan.restart:
        points = Run(run).metrics(attempts="all").group_by("role", "position").agg(pl.col("attempt").n_unique())
        twice = set(points.filter(pl.col("attempt") > 1).collect()["role"])
        if twice != ROLES:
            return f"steps overlap in {sorted(twice)} only"
    return None


def _plain(path: Path) -> bytes:
    """What is in a file, without compression."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    table = pq.ParquetFile(path).read()
    return json.dumps([table.to_pylist(), str(table.schema.metadata)], default=str).encode()


def _facts(path: Path) -> dict[str, Any]:
    """What the run holds, as read on the day it was made."""
    run = Run(path)
    info = run.info
    values = run.metrics().filter(pl.struct("role", "name").is_in([{"role": r, "name": n} for r, n in PINNED]))
    training = run.timings("training").sort("step")
    return {
        "run_uid": info.run_uid,
        "files": {
            file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(path.rglob("*"))
            if file.is_file()
        },
        "attempts": [
            {"launch": attempt.launch, "roles": attempt.roles, "rows": attempt.rows, "last_step": attempt.last_step}
            for attempt in info.attempts
        ],
        "writers": {
            writer: {
                "role": facts.role,
                "rank": facts.rank,
                "ended": facts.end is not None,
                "rows": {table: counts[writer] for table in TABLES if writer in (counts := _rows(run, table))},
            }
            for writer, facts in sorted(run.files.writers.items())
        },
        "points": {
            "metrics": _count(run.metrics()),
            "metrics, all attempts": _count(run.metrics(attempts="all")),
            "metrics, each rank": _count(run.metrics(ranks="each")),
            "metrics, each rank, all attempts": _count(run.metrics(ranks="each", attempts="all")),
            "timings": _count(run.timings()),
            "timings, all attempts": _count(run.timings(attempts="all")),
            "hparams": _count(run.hparams()),
            "samples": _count(run.samples()),
            "samples, all attempts": _count(run.samples(attempts="all")),
            "markers": _count(run.markers()),
        },
        "values": _records(
            values.select("role", "name", "step", "attempt", "ranks", "value").sort("role", "name", "step")
        ),
        "training": _records(training.select("step", "attempt", "slowest_rank", "duration_seconds", "mean_seconds")),
    }


def _rows(run: Run, table: str) -> dict[str, int]:
    return dict(run.files.rows(table).group_by("writer").len().collect().rows())


def _count(frame: pl.LazyFrame) -> int:
    return int(frame.select(pl.len()).collect().item())


def _records(frame: pl.LazyFrame) -> list[list[Any]]:
    return [list(row) for row in frame.collect().rows()]


def _as_text(expected: dict[str, Any]) -> str:
    """As JSON, each innermost list on one line."""
    text = json.dumps(expected, indent=1)
    return re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), text) + "\n"


if __name__ == "__main__":
    sys.exit(main())
