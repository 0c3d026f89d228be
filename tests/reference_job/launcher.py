"""Starts the ranks of one start of the job, as `srun` or an agent of torchrun does.

Run as a module it is that launcher: it imports everything once and forks a process for each rank, which
keeps a job of 64 ranks cheap. When a rank fails, the others are ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .environments import Environment
from .trainer import Plan, plan_of, train

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Launch:
    """Ranks that were started."""

    process: subprocess.Popen[str]

    def wait(self) -> list[int]:
        """Wait for them.

        Returns:
            Exit status of each, in their order; negative: the signal that ended it.
        """
        out, err = self.process.communicate(timeout=120)
        sys.stderr.write(err)
        statuses: list[int] = json.loads(out.splitlines()[-1])
        return statuses


def start(environments: Sequence[Environment], plan: Plan) -> Launch:
    """Start a process for each environment."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.reference_job.launcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=CHECKOUT,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"environments": environments, "plan": asdict(plan)}) + "\n")
    process.stdin.flush()
    return Launch(process)


def launch(environments: Sequence[Environment], plan: Plan) -> list[int]:
    """Start a process for each environment and wait; see `Launch.wait`."""
    return start(environments, plan).wait()


def wait_until(what: Callable[[], bool], *, seconds: float = 60) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it does not in time.
    """
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not come about in {seconds} s")
        time.sleep(0.02)


def _rank(environment: Environment, plan: Plan) -> int:
    """Fork; the child never returns."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ.update(environment)
        train(plan)
        status = 0
    except BaseException:  # noqa: BLE001 -- it must not get back to the launcher's own loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    """Read the job from stdin, run it, print the exit statuses."""
    job = json.loads(sys.stdin.readline())
    plan = plan_of(job["plan"])
    pids = [_rank(environment, plan) for environment in job["environments"]]
    statuses: dict[int, int] = {}
    while len(statuses) < len(pids):
        pid, status = os.wait()
        statuses[pid] = os.waitstatus_to_exitcode(status)
        if statuses[pid]:
            for other in set(pids) - set(statuses):
                os.kill(other, signal.SIGTERM)
    print(json.dumps([statuses[pid] for pid in pids]))


if __name__ == "__main__":
    main()
