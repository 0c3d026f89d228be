"""The controller: tells the configuration, and evaluates the policy on held-out strings.

- It evaluates while the other processes go on with the next step.
- Its steps are training steps; it logs only those after which the policy is evaluated.
"""

from __future__ import annotations

from dataclasses import asdict

from torch import Tensor

from rl_eventlog import EventWriter
from rl_eventlog_cli.demo import task
from rl_eventlog_cli.demo.config import PROCESSES
from rl_eventlog_cli.demo.job import Job
from rl_eventlog_cli.demo.model import Policy
from rl_eventlog_cli.demo.world import World


class Controller:
    """The one process of the controller role."""

    def __init__(self, job: Job, log: EventWriter, world: World) -> None:
        self._job, self._config, self._log, self._world = job, job.config, log, world
        self._policy = Policy(job.config)
        self._prompts = task.validation_prompts(job.config.validation_prompts, job.config.digits, job.config.seed)

    def run(self) -> None:
        """Follow the training from the job's first step to the last."""
        self._log.log_hyperparams(
            {"algorithm": "grpo", "task": "sort digits", "processes": PROCESSES, **asdict(self._config)}
        )
        for step in range(self._job.start, self._config.steps):
            if self._config.evaluates(step):
                weights = self._policy.weights()
                self._world.receive_from_trainer(weights)
                self._policy.load_weights(weights)
                self._evaluate(step)
            if self._config.checkpoints(step):
                self._world.wait_for_all()
                self._world.wait_for_all()
                self._log.mark("checkpoint", step=step)

    def _evaluate(self, step: int) -> None:
        log = self._log
        log.set_step(step)
        with log.timer.time("validation"):
            responses, _ = self._policy.generate(self._prompts)
            rewards, correct = task.rewards(self._prompts, responses)
        lengths = task.response_mask(responses).sum(dim=1)
        self._log_samples(responses, rewards, lengths, policy_version=step + 1)
        self._job.die_at(step)
        metrics = {
            "accuracy": float(correct.mean()),
            "reward": float(rewards.mean()),
            "response_length": float(lengths.mean()),
        }
        log.log_metrics(metrics, step=step, prefix="validation", step_finished=True)

    def _log_samples(self, responses: Tensor, rewards: Tensor, lengths: Tensor, policy_version: int) -> None:
        references = task.answers(self._prompts)
        samples = [
            {
                "sample_index": index,
                "prompt": task.text(self._prompts[index]),
                "response": task.text(responses[index]),
                "reference": task.text(references[index]),
                "reward": float(rewards[index]),
                "prompt_tokens": self._prompts.shape[1],
                "response_tokens": int(lengths[index]),
                "policy_version": policy_version,
            }
            for index in range(self._config.validation_samples)
        ]
        self._log.log_samples(samples, split="validation")
