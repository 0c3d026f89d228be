"""Who is this process: role, rank, world size, launch; and which run does it belong to.

The first source that applies wins: arguments, ``RLEVENTLOG_*``, Ray, torchrun, MPI, Slurm, else one
process alone with an unknown rank. An unknown rank is None, never 0. A launch id is never None.
No source is asked over a network, and Ray is seen only where the program has loaded it already.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from rl_eventlog.errors import IdentityError
from rl_eventlog.host import environment_names, parent_of, process_key

from .options import rank_number
from .ray_context import RayContext, ray_context

LAUNCH_VARIABLE = "RLEVENTLOG_LAUNCH_ID"
_MPI_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid")
_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))


@dataclass(frozen=True, slots=True)
class Rank:
    """Number within the role, and where it came from."""

    rank: int | None
    world_size: int | None
    source: str


@dataclass(frozen=True, slots=True)
class LaunchId:
    """One start of the run: its id, the launcher's restart counter, and where both came from."""

    id: str
    source: str
    restart_count: int | None = None
    restart_source: str | None = None
    rank_pid: int | None = None
    """The process that torchrun started, where `restarts.counted_on_disk` has to count."""


@dataclass(frozen=True, slots=True)
class WhoAmI:
    """What is known about this process."""

    role: str
    rank: Rank
    data_rank: int | None
    launch: LaunchId
    actor: str | None
    """Id of the Ray actor, where there is one."""
    default_run: str | None
    """Name of the run that the scheduler suggests; None where there is none."""


def who_am_i(
    *,
    role: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    data_rank: int | None = None,
    launch_id: str | None = None,
    env: Mapping[str, str] | None = None,
) -> WhoAmI:
    """Find out; arguments that are given stand.

    Raises:
        IdentityError: an argument or a variable that should be a number is none, or a rank is outside its world.
    """
    rank, world_size = rank_number("rank", rank), rank_number("world_size", world_size)
    data_rank = rank_number("data_rank", data_rank)
    env = os.environ if env is None else env
    ray = ray_context()
    found = _rank(env, ray)
    if rank is not None:
        found = Rank(rank, world_size if world_size is not None else found.world_size, "argument")
    elif world_size is not None:
        found = Rank(found.rank, world_size, found.source)
    if found.rank is not None and (found.rank < 0 or (found.world_size is not None and found.rank >= found.world_size)):
        raise IdentityError(
            f"rank {found.rank} is outside its world of {found.world_size} (from {found.source}): "
            "pass rank= and world_size=, or set RLEVENTLOG_RANK and RLEVENTLOG_WORLD_SIZE"
        )
    return WhoAmI(
        role=role or env.get("RLEVENTLOG_ROLE") or (ray.actor_class if ray else None) or "main",
        rank=found,
        data_rank=data_rank if data_rank is not None else _number(env, "RLEVENTLOG_DATA_RANK"),
        launch=LaunchId(launch_id, "argument") if launch_id else _launch(env, ray, found),
        actor=ray.actor_id if ray else None,
        default_run=_default_run(env, ray),
    )


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name)
    if not text:
        return None
    if not re.fullmatch(r"-?\d+", text):
        raise IdentityError(f"{name}={text!r} is no whole number: correct it or unset it")
    return int(text)


def _pair(env: Mapping[str, str], rank: str, size: str, source: str) -> Rank | None:
    """Both variables, or nothing: one alone is left over from something else."""
    if env.get(rank) and env.get(size):
        return Rank(_number(env, rank), _number(env, size), source)
    return None


def _rank(env: Mapping[str, str], ray: RayContext | None) -> Rank:
    if env.get("RLEVENTLOG_RANK"):
        return Rank(_number(env, "RLEVENTLOG_RANK"), _number(env, "RLEVENTLOG_WORLD_SIZE"), "environment")
    if ray and ray.train_rank is not None:
        return Rank(ray.train_rank, ray.train_world_size, "ray.train")
    if found := _pair(env, "RANK", "WORLD_SIZE", "torchrun" if not ray else "ray+RANK"):
        return found
    if ray:  # the raylet's SLURM_*, PMI and OMPI variables are not this actor's
        return Rank(None, None, "ray")
    for rank, size in _MPI:
        if found := _pair(env, rank, size, "mpi"):
            return found
    if env.get("SLURM_STEP_ID"):  # a batch script has SLURM_PROCID=0 too, but no step
        size = "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
        if found := _pair(env, "SLURM_PROCID", size, "slurm"):
            return found
    return Rank(None, None, "none")


def _launch(env: Mapping[str, str], ray: RayContext | None, rank: Rank) -> LaunchId:
    if env.get(LAUNCH_VARIABLE):
        return LaunchId(env[LAUNCH_VARIABLE], "environment", _number(env, "RLEVENTLOG_RESTART_COUNT"), "environment")
    if ray:
        return LaunchId(f"ray-{ray.session}-{ray.job}", "ray")
    if env.get("TORCHELASTIC_RUN_ID"):
        return _torchelastic_launch(env)
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")
    restarts = _number(env, "SLURM_RESTART_COUNT") or 0
    mpi = next((env[name] for name in _MPI_JOBS if env.get(name)), None) if rank.source == "mpi" else None
    if mpi:  # mpirun's daemons are Slurm steps of their own, on all nodes but the first
        return LaunchId(f"mpi-{'.'.join(filter(None, (job, mpi)))}-r{restarts}", "mpi", restarts, "SLURM_RESTART_COUNT")
    if job and step and not _is_alone(env, rank):
        return LaunchId(f"slurm-{job}.{step}-r{restarts}", "slurm", restarts, "SLURM_RESTART_COUNT")
    if rank.world_size is not None and rank.world_size > 1:
        return _launch_of_several(env)
    return LaunchId(f"process-{process_key()}", "process")


def _is_alone(env: Mapping[str, str], rank: Rank) -> bool:
    """Whether the step is one process, or a shell where people start one after another: then the step says nothing."""
    return env.get("SLURM_STEP_NUM_TASKS") == "1" and rank.world_size in (1, None)


def _launch_of_several(env: Mapping[str, str]) -> LaunchId:
    """No launcher that we know: what its processes share is the address they meet at, else their parent."""
    if env.get("MASTER_ADDR"):
        return LaunchId(f"master-{_meeting_point(env)}", "master")
    return LaunchId(f"parent-{process_key(os.getppid())}", "parent")


def _meeting_point(env: Mapping[str, str]) -> str:
    """Where processes meet. A requeued job has its old id, and often its old first node and port."""
    address = f"{env.get('MASTER_ADDR', '')}:{env.get('MASTER_PORT', '')}"
    return "-".join(filter(None, (address, env.get("SLURM_JOB_ID"), env.get("SLURM_RESTART_COUNT"))))


def _torchrun_processes() -> tuple[int, int]:
    """The agent, which is the nearest ancestor that torchrun did not start, and what it started for this rank.

    There may be shells and wrappers between that and us.
    """
    rank, agent = os.getpid(), os.getppid()
    while "TORCHELASTIC_RUN_ID" in environment_names(agent) and (parent := parent_of(agent)):
        rank, agent = agent, parent
    return agent, rank


def _torchelastic_launch(env: Mapping[str, str]) -> LaunchId:
    """On one node its agent, on several where they meet and how many they are; the disk counts from there.

    The run id alone will not do: it may be given to a second torchrun too, and `none` is the default.
    """
    agent, rank_pid = _torchrun_processes()
    world_size = _number(env, "WORLD_SIZE") or 1
    if world_size > (_number(env, "LOCAL_WORLD_SIZE") or 1):
        own, restarts, counter = f"{_meeting_point(env)}-w{world_size}", 0, "launches"
    else:
        own, counter = process_key(agent), "TORCHELASTIC_RESTART_COUNT"
        restarts = _number(env, counter) or 0
    launch_id = f"torchelastic-{env['TORCHELASTIC_RUN_ID']}-{own}-r{restarts}"
    return LaunchId(launch_id, "torchelastic", restarts, counter, rank_pid)


def _default_run(env: Mapping[str, str], ray: RayContext | None) -> str | None:
    if ray:
        return f"ray-{ray.session}-{ray.job}"
    if env.get("SLURM_JOB_ID"):
        task = env.get("SLURM_ARRAY_TASK_ID")
        job = env.get("SLURM_ARRAY_JOB_ID") if task else None
        return f"slurm-{job or env['SLURM_JOB_ID']}" + (f"-{task}" if task else "")
    return None
