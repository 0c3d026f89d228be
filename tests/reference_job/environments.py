"""What launchers put into the environment of a rank. Each function returns one dict a rank, in rank order."""

from __future__ import annotations

Environment = dict[str, str]


def allocation(*, job: int = 4711, nodes: int = 2, tasks: int = 8, restarts: int = 0) -> Environment:
    """Of a shell that `salloc` opened, and of all that is started in it. `restarts` is how often it was requeued."""
    found = {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOBID": str(job),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NNODES": str(nodes),
        "SLURM_JOB_NODELIST": f"node-[0-{nodes - 1}]",
        "SLURM_NODELIST": f"node-[0-{nodes - 1}]",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NPROCS": str(tasks),
        "SLURM_JOB_NAME": "train",
        "SLURM_CLUSTER_NAME": "cluster",
    }
    return found | ({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {})


def batch(**options: int) -> Environment:
    """Of a script that `sbatch` runs: a task without a step."""
    task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_TASK_PID": "99", "SLURM_GTIDS": "0"}
    return allocation(**options) | task


def array_task(task: int, *, array: int = 4700) -> Environment:
    """Of a script that `sbatch --array` runs."""
    found = {
        "SLURM_ARRAY_JOB_ID": str(array),
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_TASK_COUNT": "8",
        "SLURM_ARRAY_TASK_MIN": "0",
        "SLURM_ARRAY_TASK_MAX": "7",
    }
    return batch(job=array + 1 + task) | found


def srun(ranks: int, *, step: int = 0, nodes: int = 2, job: int = 4711, restarts: int = 0) -> list[Environment]:
    """Of the tasks of one `srun`, in blocks over the nodes."""
    local = -(-ranks // nodes)
    return [
        batch(job=job, nodes=nodes, tasks=ranks, restarts=restarts)
        | {
            "SLURM_STEP_ID": str(step),
            "SLURM_STEPID": str(step),
            "SLURM_STEP_NUM_NODES": str(nodes),
            "SLURM_STEP_NUM_TASKS": str(ranks),
            "SLURM_STEP_NODELIST": f"node-[0-{nodes - 1}]",
            "SLURM_STEP_TASKS_PER_NODE": f"{local}(x{nodes})",
            "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1",
            "SLURM_SRUN_COMM_HOST": "10.0.0.1",
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank % local),
            "SLURM_NODEID": str(rank // local),
            "SLURMD_NODENAME": f"node-{rank // local}",
        }
        for rank in range(ranks)
    ]


def pty_shell(**options: int) -> Environment:
    """Of a shell that `srun --pty bash` opened: one step for all that is typed there."""
    return srun(1, nodes=1, **options)[0] | {"SLURM_PTY_PORT": "40001", "SLURM_PTY_WIN_COL": "80"}


def interactive_shell(**options: int) -> Environment:
    """Of a shell that `salloc` opened where `use_interactive_step` is set: a step with a number of its own."""
    return srun(1, nodes=1, step=2**32 - 6, **options)[0] | {"SLURM_NTASKS": "8", "SLURM_NPROCS": "8"}


def torchrun(
    ranks: int,
    *,
    local: int,
    run_id: str = "none",
    restarts: tuple[int, ...] = (),
    max_restarts: int = 3,
    port: int = 29500,
) -> list[Environment]:
    """Of the ranks of one start of `torchrun`, `local` to an agent; `restarts`: what each agent counts, else 0."""
    agents = -(-ranks // local)
    counts = restarts or (0,) * agents
    return [
        {
            "LOCAL_RANK": str(rank % local),
            "RANK": str(rank),
            "GROUP_RANK": str(rank // local),
            "ROLE_RANK": str(rank),
            "ROLE_NAME": "default",
            "LOCAL_WORLD_SIZE": str(min(local, ranks - rank // local * local)),
            "WORLD_SIZE": str(ranks),
            "GROUP_WORLD_SIZE": str(agents),
            "ROLE_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "node-0",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RESTART_COUNT": str(counts[rank // local]),
            "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic/attempt_{counts[rank // local]}/{rank % local}/error.json",
            "OMP_NUM_THREADS": "1",
        }
        for rank in range(ranks)
    ]


def mpirun(ranks: int, *, job: int = 1234567) -> list[Environment]:
    """Of the ranks of one `mpirun` of Open MPI."""
    return [
        {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(ranks),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(ranks),
            "OMPI_UNIVERSE_SIZE": str(ranks),
            "OMPI_MCA_ess_base_jobid": str(job),
            "PMIX_NAMESPACE": f"prterun-node-0-{job}@1",
            "PMIX_RANK": str(rank),
        }
        for rank in range(ranks)
    ]


def raylet_inside_slurm(node: int = 0) -> Environment:
    """Of a raylet that `srun` started, one a node, which all its actors inherit. Ray itself must be real."""
    return srun(2)[node] | {"PMI_RANK": str(node), "PMI_SIZE": "2", "PMIX_NAMESPACE": "slurm.pmix.4711.0"}
