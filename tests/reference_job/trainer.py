"""What one rank runs. All it logs is known beforehand, so that merged values can be told from doubled ones."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from rl_eventlog import EventWriter, documents

_PATIENCE_SECONDS = 60
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the ranks of one start do. Paths are text, as it travels as JSON."""

    root: str
    run: str | None = "job"
    """Name of the run; None: what the launcher suggests."""
    role: str = "trainer"
    steps: int = 8
    """Steps are logged up to here, from the checkpoint on."""
    first: int = 0
    """Step to begin with where there is no checkpoint."""
    every: int = 0
    """Steps from one checkpoint to the next; 0: none is written, and none is read."""
    die: tuple[int, int] | None = None
    """(rank, step): this rank kills itself there, after it has logged the step, once a root."""
    wait_at: int | None = None
    """Every rank waits in this step, after it has logged it and before it dies, until the file `go` is in the root."""
    hold: str | None = None
    """Before it closes, a rank waits until this file is there."""
    clock_seconds: float = 0.0
    """How far this machine's clock is ahead."""
    data_ranks: int | None = None
    """Groups of replicas: the data rank is the rank modulo this; None: it is not declared."""


def logged(rank: int, step: int) -> dict[str, float]:
    """What a rank logs at a step: `tokens` are to be added up over the ranks, `loss` averaged."""
    return {"tokens": 100.0 + 10 * rank + step, "loss": (rank + 1) / 2.0**step}


def expected(ranks: int, step: int) -> dict[str, float]:
    """What merging over the ranks must give."""
    tokens = ranks * (100.0 + step) + 10 * (ranks * (ranks - 1) // 2)
    return {"tokens": tokens, "loss": (ranks + 1) / 2 / 2.0**step}


def train(plan: Plan) -> None:
    """Log all steps, in step with the other ranks where checkpoints are written."""
    shift_clock(plan.clock_seconds)
    checkpoint = Path(plan.root) / f"{plan.run}.{plan.role}.checkpoint"
    done = int(checkpoint.read_text()) if plan.every and checkpoint.exists() else None
    first = plan.first if done is None else done + 1
    resume_step = None if done is None else first
    rank, ranks = _number(*_RANK, otherwise=0), _number(*_RANKS, otherwise=1)
    data_rank = None if plan.data_ranks is None else rank % plan.data_ranks
    with EventWriter.open(
        plan.root, run=plan.run, role=plan.role, data_rank=data_rank, resume_step=resume_step, capture_diff=False
    ) as log:
        for step in range(first, plan.steps):
            log.log_metrics(logged(rank, step), step=step, reduce={"tokens": "sum"}, step_finished=True)
            if plan.wait_at == step and not (Path(plan.root) / "go").exists():
                (Path(plan.root) / f"waits.{ranks}.{rank}").touch()
                _wait_for(Path(plan.root) / "go")
            if plan.die == (rank, step):
                _die_once(Path(plan.root) / f"died.{rank}.{step}")
            if plan.every:
                _meet(Path(plan.root) / "met", first, step, rank, ranks)
            if plan.every and rank == 0 and (step + 1) % plan.every == 0:
                log.mark("checkpoint", step=step)
                temporary = checkpoint.with_suffix(".tmp")
                temporary.write_text(str(step))
                temporary.replace(checkpoint)
        if plan.hold:
            _wait_for(Path(plan.hold))


def _number(*names: str, otherwise: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), otherwise)


def shift_clock(seconds: float) -> None:
    """Put this process's clock ahead, for all that the library asks."""
    if not seconds:
        return
    now, now_ns = time.time, time.time_ns

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Shifted:
            return cls.fromtimestamp(time.time(), tz)

    time.time = lambda: now() + seconds
    time.time_ns = lambda: now_ns() + int(seconds * 1e9)
    documents.datetime = Shifted  # type: ignore[attr-defined]


def _die_once(marker: Path) -> None:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def _meet(folder: Path, first: int, step: int, rank: int, ranks: int) -> None:
    """Wait for all ranks, as a collective would."""
    folder.mkdir(exist_ok=True)
    (folder / f"{first}.{step}.{rank}").touch()
    for other in range(ranks):
        _wait_for(folder / f"{first}.{step}.{other}")


def _wait_for(path: Path) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not come")
        time.sleep(0.01)


def plan_of(given: dict[str, Any]) -> Plan:
    """A plan that came as JSON."""
    return Plan(**given | {"die": tuple(given["die"]) if given.get("die") else None})


if __name__ == "__main__":  # PLAN as JSON
    train(plan_of(json.loads(sys.argv[1])))
