"""Start the processes of one launch and wait for them.

- All processes end, or none goes on: when one fails the others are ended within seconds.
- A launch that died is started again with `resume=True`; it goes on after the newest checkpoint.
- Each launch has an id of its own, which its processes inherit as RLEVENTLOG_LAUNCH_ID.
- Needs no torch itself.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from rl_eventlog.errors import MissingDependencyError
from rl_eventlog_cli.demo import checkpoint
from rl_eventlog_cli.demo.config import PROCESSES, Death, DemoConfig, Role
from rl_eventlog_cli.demo.job import Job

_SECONDS_TO_TERMINATE = 3.0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended that did not finish."""

    role: Role
    rank: int
    status: int
    """Exit status; -n where signal n ended it."""
    output: Path
    """What it printed."""


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What became of a launch."""

    launch_id: str
    start: int
    """First training step."""
    seconds: float
    failure: Exit | None
    """The process that failed first, None where all finished."""


def launch(
    config: DemoConfig,
    *,
    root: Path,
    run: str,
    work: Path | None = None,
    resume: bool = False,
    death: Death | None = None,
) -> LaunchResult:
    """Run one launch of the training to its end.

    Args:
        config: the training.
        root: folder of the runs; the event log goes to `<root>/<run>`.
        run: name of the run.
        work: folder of this run's checkpoints and output; default `checkpoints/<run>` beside `root`.
        resume: go on after the newest checkpoint, from the beginning where there is none.
        death: a process to kill in the middle of a step.

    Raises:
        FileExistsError: there are checkpoints, and `resume` is False.
        MissingDependencyError: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError("torch", "torch")
    work = work or root.parent / "checkpoints" / run
    saved = checkpoint.newest(work)
    if saved is not None and not resume:
        raise FileExistsError(f"{work}: holds checkpoints of an earlier training; resume it or choose another run name")
    launch_id = uuid.uuid4().hex
    output = work / f"launch-{launch_id}"
    output.mkdir(parents=True)
    jobs = [
        Job(
            config=config,
            role=role,
            rank=rank,
            root=root,
            run=run,
            checkpoints=work,
            rendezvous=output / "rendezvous",
            start=0 if saved is None else saved + 1,
            resume=resume,
            death=death,
        )
        for role, count in PROCESSES.items()
        for rank in range(count)
    ]
    began = time.monotonic()
    failure = _run(jobs, output, {**os.environ, "RLEVENTLOG_LAUNCH_ID": launch_id})
    return LaunchResult(launch_id, jobs[0].start, time.monotonic() - began, failure)


def _run(jobs: list[Job], output: Path, environment: dict[str, str]) -> Exit | None:
    """Start a process for each job and wait for all, or for the first that fails."""
    ended: SimpleQueue[tuple[Job, int]] = SimpleQueue()
    processes: list[subprocess.Popen[bytes]] = []
    watchers: list[Thread] = []

    def watch(job: Job, process: subprocess.Popen[bytes]) -> None:
        ended.put((job, process.wait()))

    try:
        for job in jobs:
            command = [sys.executable, "-m", "rl_eventlog_cli.demo.worker", job.to_json()]
            with _output(output, job).open("wb") as file:
                processes.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
            watchers.append(Thread(target=watch, args=(job, processes[-1])))
            watchers[-1].start()
        for _ in jobs:
            job, status = ended.get()
            if status != 0:
                return Exit(job.role, job.rank, status, _output(output, job))
        return None
    finally:
        _terminate(processes)
        for watcher in watchers:
            watcher.join()


def _terminate(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run: asked first, killed after some seconds."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _SECONDS_TO_TERMINATE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def _output(folder: Path, job: Job) -> Path:
    return folder / f"{job.role}-{job.rank}.log"


def main() -> int:
    """Run one launch from the command line; returns the exit status, 1 where a process failed."""
    parser = argparse.ArgumentParser(prog="python -m rl_eventlog_cli.demo.launch", description=main.__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="training steps")
    parser.add_argument("--small", action="store_true", help="a few seconds, learns nothing")
    parser.add_argument("--work", type=Path, help="folder of checkpoints and output")
    parser.add_argument("--resume", action="store_true", help="go on after the newest checkpoint")
    parser.add_argument("--die", type=Death.parse, metavar="ROLE:RANK@STEP", help="kill this process in this step")
    options = parser.parse_args()
    config = DemoConfig.small(seed=options.seed) if options.small else DemoConfig(seed=options.seed)
    if options.steps is not None:
        config = replace(config, steps=options.steps)
    result = launch(
        config, root=options.root, run=options.run, work=options.work, resume=options.resume, death=options.die
    )
    if result.failure is None:
        print(f"trained steps {result.start} to {config.steps - 1} in {result.seconds:.1f} s")
        return 0
    failure = result.failure
    print(
        f"{failure.role} {failure.rank} ended with status {failure.status} after {result.seconds:.1f} s; "
        f"its output: {failure.output}",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
