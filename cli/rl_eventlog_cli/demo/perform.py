"""The demo from start to end: train, kill a rank, restart, sync to three targets, read them back, compare.

Each demo is a run of its own, so several in one folder are there to be compared in the targets.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rl_eventlog import Run
from rl_eventlog.errors import EventLogError
from rl_eventlog.sync import sync_many
from rl_eventlog_cli.demo import targets
from rl_eventlog_cli.demo.config import Death, DemoConfig
from rl_eventlog_cli.demo.launch import LaunchResult, launch
from rl_eventlog_cli.demo.report import Report, accuracies, count_points, count_rows, slowest_rank
from rl_eventlog_cli.target import Target

Say = Callable[[str], None]


class DemoError(EventLogError):
    """The demo could not be carried out."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a demo puts what."""

    folder: Path

    @property
    def runs(self) -> Path:
        """Event logs."""
        return self.folder / "runs"

    @property
    def tracking_uri(self) -> str:
        """MLflow's database."""
        return f"sqlite:///{self.folder.resolve() / 'mlflow.db'}"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's log folder."""
        return self.folder / "tensorboard"

    def wandb(self, run: str) -> Path:
        """W&B's offline folders of one run."""
        return self.folder / "wandb" / run

    def checkpoints(self, run: str) -> Path:
        """Checkpoints of one run, and what its processes printed."""
        return self.folder / "checkpoints" / run


def perform(places: Places, config: DemoConfig, *, must_learn: bool, say: Say) -> Report:
    """Carry out one demo.

    Args:
        places: where everything goes.
        config: the training.
        must_learn: whether the accuracy counts.
        say: told what happens, a line at a time.

    Raises:
        DemoError: a process of the training failed that was not to be killed, or the other way round; or a sync
            failed.
    """
    # telemetry of the clients is off, and MLflow's files stay in the demo's folder
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    places.runs.mkdir(parents=True, exist_ok=True)
    name = _free_name(places.runs)
    seconds, death = _train(places, name, config, say)
    run = Run(places.runs / name)
    for target in _targets(places, name):
        (result,) = sync_many([run.path], target.make_sink)
        if result.report is None:
            raise DemoError(f"the sync to {target.kind} failed: {result.error}")
        say(f"sent {result.report.points:,} points to {target.kind}: {result.report.location}")
    say("reading back what each target holds, by its own means")
    uid = run.info.run_uid
    first, last = accuracies(run)
    return Report(
        run=run.path,
        run_uid=uid,
        seed=config.seed,
        killed=str(death),
        training_seconds=seconds,
        attempts=len(run.info.attempts),
        rows=count_rows(run.path, places.checkpoints(name)),
        points=count_points(run),
        points_at={
            "mlflow": sum(targets.mlflow_points(places.tracking_uri, uid).values()),
            "tensorboard": sum(targets.tensorboard_points(places.tensorboard / name).values()),
            "wandb": sum(targets.wandb_points(places.wandb(name)).values()),
        },
        accuracy_first=first,
        accuracy_last=last,
        slowest=slowest_rank(run),
        must_learn=must_learn,
    )


def _train(places: Places, name: str, config: DemoConfig, say: Say) -> tuple[float, Death]:
    # three quarters on the way from the checkpoint in the middle to the next: the restart does these steps again
    middle = config.steps // 2 // config.checkpoint_every * config.checkpoint_every
    death = Death("trainer", 1, middle + config.checkpoint_every * 3 // 4)
    say(f"training {name} on 5 processes; trainer 1 is killed with SIGKILL in step {death.step}")
    work = places.checkpoints(name)
    first = launch(config, root=places.runs, run=name, work=work, death=death)
    if first.failure is None or (first.failure.role, first.failure.rank) != (death.role, death.rank):
        raise DemoError(f"trainer 1 was to be killed in step {death.step}; instead {_outcome(first)}")
    say(f"trainer 1 died with status {first.failure.status}; starting again from the last checkpoint")
    second = launch(config, root=places.runs, run=name, work=work, resume=True)
    if second.failure is not None:
        raise DemoError(f"the restart failed: {_outcome(second)}")
    say(f"trained steps 0 to {config.steps - 1}, {death.step - second.start + 1} of them twice")
    return first.seconds + second.seconds, death


def _outcome(result: LaunchResult) -> str:
    if result.failure is None:
        return "all processes finished"
    failure = result.failure
    return f"{failure.role} {failure.rank} ended with status {failure.status}; its output: {failure.output}"


def _targets(places: Places, run: str) -> list[Target]:
    return [
        Target("mlflow", {"tracking_uri": places.tracking_uri}),
        Target("tensorboard", {"log_dir": places.tensorboard}),
        Target("wandb", {"offline": True, "folder": places.wandb(run)}),
    ]


def _free_name(runs: Path) -> str:
    return next(name for n in count(1) if not (runs / (name := f"sort-digits-{n}")).exists())
