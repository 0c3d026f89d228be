"""What a launch tells each of its processes.

- A job goes through one JSON argument of the command line; nothing else is passed to the process.
- Needs no torch: the launcher uses it too.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from rl_eventlog_cli.demo.config import PROCESSES, Death, DemoConfig, Role


@dataclass(frozen=True, slots=True)
class Job:
    """One process of one launch."""

    config: DemoConfig
    role: Role
    rank: int
    """Number within the role."""
    root: Path
    """Folder of the runs."""
    run: str
    checkpoints: Path
    """Folder of the checkpoints."""
    rendezvous: Path
    """File through which the processes of this launch find each other; new for each launch."""
    start: int
    """First training step of this launch."""
    resume: bool
    """Whether the launch goes on where an earlier one stopped."""
    death: Death | None

    def world_rank(self) -> int:
        """Rank among all processes of the launch: the trainers come first."""
        return world_rank(self.role, self.rank)

    def die_at(self, step: int) -> None:
        """End this process with SIGKILL if it was chosen to die in `step`, a number of its own counting."""
        if self.death == Death(self.role, self.rank, step):
            os.kill(os.getpid(), signal.SIGKILL)

    def to_json(self) -> str:
        """The job as one JSON object."""
        return json.dumps(
            {
                "config": self.config.to_json(),
                "role": self.role,
                "rank": self.rank,
                "root": str(self.root),
                "run": self.run,
                "checkpoints": str(self.checkpoints),
                "rendezvous": str(self.rendezvous),
                "start": self.start,
                "resume": self.resume,
                "death": None if self.death is None else str(self.death),
            }
        )

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote."""
        fields = json.loads(text)
        return Job(
            config=DemoConfig.from_json(fields["config"]),
            role=fields["role"],
            rank=fields["rank"],
            root=Path(fields["root"]),
            run=fields["run"],
            checkpoints=Path(fields["checkpoints"]),
            rendezvous=Path(fields["rendezvous"]),
            start=fields["start"],
            resume=fields["resume"],
            death=None if fields["death"] is None else Death.parse(fields["death"]),
        )


def world_rank(role: Role, rank: int) -> int:
    """Rank among all processes of a launch of the process `rank` of `role`."""
    before = 0
    for other, count in PROCESSES.items():
        if other == role:
            break
        before += count
    return before + rank
