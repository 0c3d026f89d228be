"""The reference job: a small training whose ranks are real processes, with environments as real launchers leave them.

- `environments` says what torchrun, `srun`, `mpirun` and Ray inside Slurm put into the environment of a rank.
- `launcher` starts all ranks of one start of the job, each as a process; `launch` waits for them, `start` does not.
- `trainer` is what a rank runs, also under a real launcher: `python -m tests.reference_job.trainer PLAN`. It logs
  metrics of known values, `expected` merges them over the ranks, goes on from its checkpoint, and can die at a step.
"""
