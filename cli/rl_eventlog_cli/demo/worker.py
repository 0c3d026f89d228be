"""The entry point of every process of a launch: opens its event log, plays its role, closes the log.

- An exception is written to the log before it ends the process with a status other than 0.
- One thread for each process: five of them share the machine.
"""

from __future__ import annotations

import sys

import torch

from rl_eventlog_cli.demo.config import PROCESSES, Role
from rl_eventlog_cli.demo.controller import Controller
from rl_eventlog_cli.demo.job import Job
from rl_eventlog_cli.demo.rollout import Rollout
from rl_eventlog_cli.demo.trainer import Trainer
from rl_eventlog_cli.demo.witness import open_witnessed
from rl_eventlog_cli.demo.world import World

_ROLES: dict[Role, type[Trainer | Rollout | Controller]] = {
    "trainer": Trainer,
    "rollout": Rollout,
    "controller": Controller,
}


def main(argument: str) -> None:
    """Run one process; `argument` is its job as JSON."""
    job = Job.from_json(argument)
    torch.set_num_threads(1)
    # a rollout worker counts batches, not training steps: where it resumes, the newest attempt wins anyway
    resume_step = job.start if job.resume and job.role != "rollout" else None
    log = open_witnessed(
        job.rendezvous.parent,
        job.root,
        run=job.run,
        project="rl-eventlog-demo",
        role=job.role,
        rank=job.rank,
        world_size=PROCESSES[job.role],
        data_rank=job.rank if job.role == "trainer" else None,
        resume_step=resume_step,
    )
    try:
        if resume_step is not None:
            log.mark("resumed", step=resume_step)
        world = World(job)
        _ROLES[job.role](job, log, world).run()
        world.leave()
        log.mark("finished")
    except Exception as error:
        log.mark("exception", level="error", text=f"{type(error).__name__}: {error}")
        raise
    finally:
        log.close()


if __name__ == "__main__":
    main(sys.argv[1])
