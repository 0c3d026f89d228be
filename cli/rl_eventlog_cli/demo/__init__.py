"""A small but real reinforcement-learning training that logs through rl-eventlog.

- Five processes: two trainers, two rollout workers, one controller. Each writes its own event log.
- Everything it logs was measured in the training: rewards, losses, KL, timings, samples.
- It downloads nothing: the task is sorting short digit strings.
- torch is imported by the processes of a training only; `config` and `launch` do without.
"""
