from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rl_eventlog.errors import IdentityError
from rl_eventlog.host import process_key
from rl_eventlog.writer.whoami import LaunchId, Rank, WhoAmI, who_am_i

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "ROLE_RANK": "5",
    "ROLE_NAME": "default",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_MAX_RESTARTS": "3",
    "TORCHELASTIC_RUN_ID": "job-7",
}
ALLOCATION = {
    "SLURM_JOB_ID": "4711",
    "SLURM_JOBID": "4711",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "node-[0-1]",
    "SLURM_NTASKS": "8",
    "SLURM_NPROCS": "8",
}
BATCH = ALLOCATION | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASK_PID": "99"}
SRUN = ALLOCATION | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEPID": "0",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_PROCID": "6",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_ess_base_jobid": "1234567",
    "PMIX_NAMESPACE": "prterun-node-0-99@1",
    "PMIX_RANK": "3",
}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}


def identity(env: dict[str, str], **arguments: Any) -> WhoAmI:
    return who_am_i(env=env, **arguments)


@pytest.mark.parametrize(
    ("env", "rank"),
    [
        ({}, Rank(None, None, "none")),
        (TORCHRUN, Rank(5, 8, "torchrun")),
        (TORCHRUN | SRUN, Rank(5, 8, "torchrun")),
        (SRUN, Rank(6, 8, "slurm")),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "7", "SLURM_NTASKS": "16"}, Rank(6, 7, "slurm")),
        (BATCH, Rank(None, None, "none")),
        (ALLOCATION, Rank(None, None, "none")),
        (OPEN_MPI, Rank(3, 4, "mpi")),
        (OPEN_MPI | SRUN, Rank(3, 4, "mpi")),
        (HYDRA, Rank(1, 4, "mpi")),
        ({"RANK": "3"}, Rank(None, None, "none")),
        ({"WORLD_SIZE": "8"}, Rank(None, None, "none")),
        ({"RLEVENTLOG_RANK": "2"} | TORCHRUN, Rank(2, None, "environment")),
        ({"RLEVENTLOG_RANK": "2", "RLEVENTLOG_WORLD_SIZE": "3"} | TORCHRUN, Rank(2, 3, "environment")),
    ],
)
def test_rank_and_world_size_as_each_launcher_leaves_them(env: dict[str, str], rank: Rank) -> None:
    assert identity(env).rank == rank


def test_an_unknown_rank_is_none_and_never_zero() -> None:
    assert identity({}).rank.rank is None
    assert identity({}).data_rank is None


def test_arguments_stand_above_everything() -> None:
    env = TORCHRUN | {"RLEVENTLOG_RANK": "1", "RLEVENTLOG_ROLE": "rollout", "RLEVENTLOG_DATA_RANK": "4"}
    who = identity(env, role="eval", rank=0, world_size=2, data_rank=1, launch_id="mine")
    assert (who.role, who.rank, who.data_rank) == ("eval", Rank(0, 2, "argument"), 1)
    assert who.launch == LaunchId("mine", "argument")


def test_our_own_variables_stand_above_launchers() -> None:
    env = TORCHRUN | {"RLEVENTLOG_ROLE": "rollout", "RLEVENTLOG_DATA_RANK": "4", "RLEVENTLOG_LAUNCH_ID": "l"}
    who = identity(env | {"RLEVENTLOG_RESTART_COUNT": "3"})
    assert (who.role, who.data_rank, who.launch) == ("rollout", 4, LaunchId("l", "environment", 3, "environment"))


def test_the_default_role_is_main() -> None:
    assert identity({}).role == "main"


@pytest.mark.parametrize(
    ("env", "arguments"),
    [
        ({"RANK": "8", "WORLD_SIZE": "8"}, {}),
        ({}, {"rank": -1}),
        (TORCHRUN, {"rank": 9}),
        ({"RLEVENTLOG_RANK": "3", "RLEVENTLOG_WORLD_SIZE": "2"}, {}),
    ],
)
def test_a_rank_outside_its_world_is_an_error_that_says_what_to_do(
    env: dict[str, str], arguments: dict[str, Any]
) -> None:
    with pytest.raises(IdentityError, match=r"rank -?\d .*pass rank= and world_size=, or set RLEVENTLOG_RANK"):
        identity(env, **arguments)


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(IdentityError, match="RLEVENTLOG_RANK='one' is no whole number: correct it or unset it"):
        identity({"RLEVENTLOG_RANK": "one"})


class TestLaunch:
    def test_ranks_of_torchrun_on_several_nodes_share_where_they_meet_and_how_many_they_are(self) -> None:
        first = identity(TORCHRUN).launch
        assert first == LaunchId("torchelastic-job-7-node-0:29500-w8-r0", "torchelastic", 0, "launches", os.getpid())
        other_agent = {"RANK": "0", "GROUP_RANK": "0", "TORCHELASTIC_RESTART_COUNT": "0"}
        assert identity(TORCHRUN | other_agent).launch == first
        assert identity(TORCHRUN | {"WORLD_SIZE": "6"}).launch.id == "torchelastic-job-7-node-0:29500-w6-r0"

    def test_a_requeued_job_is_another_launch_also_with_the_rendezvous_id_of_the_job(self) -> None:
        env = TORCHRUN | ALLOCATION | {"TORCHELASTIC_RUN_ID": "4711"}
        assert identity(env).launch.id == "torchelastic-4711-node-0:29500-4711-w8-r0"
        requeued = identity(env | {"SLURM_RESTART_COUNT": "1"}).launch
        assert requeued.id == "torchelastic-4711-node-0:29500-4711-1-w8-r0"

    def test_torchrun_on_one_node_is_its_agent_and_what_that_counts(self) -> None:
        env = TORCHRUN | {"WORLD_SIZE": "4", "RANK": "1"}
        agent = process_key(os.getppid())
        assert identity(env).launch == LaunchId(
            f"torchelastic-job-7-{agent}-r2", "torchelastic", 2, "TORCHELASTIC_RESTART_COUNT", os.getpid()
        )
        assert identity(env | {"TORCHELASTIC_RUN_ID": "none"}).launch.id == f"torchelastic-none-{agent}-r2"

    def test_slurm_job_step_and_restart_count(self) -> None:
        assert identity(SRUN).launch == LaunchId("slurm-4711.0-r0", "slurm", 0, "SLURM_RESTART_COUNT")
        again = identity(SRUN | {"SLURM_RESTART_COUNT": "1", "SLURM_PROCID": "0"}).launch
        assert again == LaunchId("slurm-4711.0-r1", "slurm", 1, "SLURM_RESTART_COUNT")
        assert identity(SRUN | {"SLURM_STEP_ID": "1"}).launch.id == "slurm-4711.1-r0"

    def test_in_a_step_of_one_task_each_process_is_its_own_launch(self) -> None:
        one_task = SRUN | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "40001"}
        assert identity(one_task).launch == LaunchId(f"process-{process_key()}", "process")
        several = one_task | {"SLURM_STEP_NUM_TASKS": "8"}  # srun from within that shell inherits its port
        assert identity(several).launch.id == "slurm-4711.0-r0"
        ranks = one_task | {"RANK": "1", "WORLD_SIZE": "2"}  # spawned by the one task
        assert identity(ranks).launch.id == "slurm-4711.0-r0"

    def test_mpi_ranks_share_their_job_whether_or_not_slurm_calls_them_a_step(self) -> None:
        first = identity(OPEN_MPI | ALLOCATION).launch
        daemon = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
        second = identity(OPEN_MPI | ALLOCATION | daemon | {"OMPI_COMM_WORLD_RANK": "0"}).launch
        assert first == second == LaunchId("mpi-4711.prterun-node-0-99@1-r0", "mpi", 0, "SLURM_RESTART_COUNT")
        assert identity(OPEN_MPI).launch.id == "mpi-prterun-node-0-99@1-r0"

    def test_several_processes_of_an_unknown_launcher_share_address_or_parent(self) -> None:
        address = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "23456", "WORLD_SIZE": "2"}
        first, second = (identity(address | {"RANK": rank}).launch for rank in "01")
        assert first == second == LaunchId("master-10.0.0.1:23456", "master")
        requeued = address | {"RANK": "0", "SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "2"}
        assert identity(requeued).launch.id == "master-10.0.0.1:23456-4711-2"
        first, second = (identity({}, rank=rank, world_size=2).launch for rank in (0, 1))
        assert first == second
        assert first.source == "parent"

    @pytest.mark.parametrize("env", [{}, ALLOCATION, BATCH])
    def test_one_process_alone_is_its_own_launch(self, env: dict[str, str]) -> None:
        assert identity(env).launch == LaunchId(f"process-{process_key()}", "process")


class TestDefaultRun:
    @pytest.mark.parametrize("env", [ALLOCATION, BATCH, SRUN, SRUN | TORCHRUN])
    def test_a_slurm_job(self, env: dict[str, str]) -> None:
        assert identity(env).default_run == "slurm-4711"

    def test_an_array_job_has_one_run_a_task(self) -> None:
        task = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "11"}
        assert identity(ALLOCATION | task).default_run == "slurm-4700-11"

    @pytest.mark.parametrize("env", [{}, TORCHRUN, OPEN_MPI])
    def test_nobody_else_names_it(self, env: dict[str, str]) -> None:
        assert identity(env).default_run is None


def ray_module(*, task: str = "", actor: str | None = None, initialised: bool = True) -> ModuleType:
    """What `import ray` would give; the real one is tested in tests/integration."""
    context = SimpleNamespace(
        get_job_id=lambda: "01000000",
        get_actor_id=lambda: actor,
        get_task_name=lambda: task,
        gcs_address="10.0.0.1:6379",
    )
    module = ModuleType("ray")
    vars(module).update(is_initialized=lambda: initialised, get_runtime_context=lambda: context)
    return module


class TestRay:
    def test_the_raylets_slurm_and_mpi_variables_are_not_the_actors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray_module(task="Worker.step", actor="a1"))
        who = identity(SRUN | OPEN_MPI | HYDRA)
        assert who.rank == Rank(None, None, "ray")
        assert (who.role, who.actor) == ("Worker", "a1")
        assert who.launch.id == who.default_run == "ray-10.0.0.1:6379-01000000"

    def test_rank_and_world_size_set_for_the_actor_count_if_both_are_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray_module(task="Worker.step", actor="a1"))
        assert identity({"RANK": "1", "WORLD_SIZE": "2"}).rank == Rank(1, 2, "ray+RANK")
        assert identity({"RANK": "1"}).rank == Rank(None, None, "ray")

    def test_ray_train_knows_its_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        train = ModuleType("ray.train")
        context = SimpleNamespace(get_world_rank=lambda: 3, get_world_size=lambda: 4)
        vars(train).update(get_context=lambda: context)
        monkeypatch.setitem(sys.modules, "ray", ray_module(task="RayTrainWorker.execute", actor="a1"))
        monkeypatch.setitem(sys.modules, "ray.train", train)
        assert identity({"RANK": "0", "WORLD_SIZE": "2"}).rank == Rank(3, 4, "ray.train")

    def test_a_ray_that_is_imported_but_not_used_is_no_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray_module(initialised=False))
        assert identity(SRUN).rank.source == "slurm"

    def test_a_ray_that_changed_its_mind_is_no_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
        assert identity(SRUN).rank.source == "slurm"

    def test_tasks_and_odd_names_have_the_default_role(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", ray_module(task="train", actor="a1"))
        assert identity({}).role == "main"
        monkeypatch.setitem(sys.modules, "ray", ray_module(task="Worker.step", actor=None))
        assert identity({}).role == "main"
