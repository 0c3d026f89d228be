"""A rollout worker: writes responses with the newest policy, judges them, hands them to its trainer.

- Its steps are its generation batches: `batches_per_step` of them for each training step.
- The rows of a batch are logged before the batch is sent, so a trained step never lacks them.
- Each launch samples with new random numbers, as a restarted inference engine would.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from rl_eventlog import EventWriter
from rl_eventlog_cli.demo import grpo, task
from rl_eventlog_cli.demo.config import PROCESSES
from rl_eventlog_cli.demo.grpo import Batch
from rl_eventlog_cli.demo.job import Job
from rl_eventlog_cli.demo.model import Policy
from rl_eventlog_cli.demo.world import World


class Rollout:
    """One rank of the rollout role."""

    def __init__(self, job: Job, log: EventWriter, world: World) -> None:
        self._job, self._config, self._log, self._world = job, job.config, log, world
        self._policy = Policy(job.config)
        self._generator = torch.Generator()

    def run(self) -> None:
        """Make the generation batches of all training steps from the job's first to the last."""
        seeds = torch.zeros(PROCESSES["rollout"], dtype=torch.int64)
        self._world.share(seeds)
        self._generator.manual_seed(int(seeds[self._job.rank]))
        for step in range(self._job.start, self._config.steps):
            first = step * self._config.batches_per_step
            last = first + self._config.batches_per_step - 1
            self._log.set_step(first)
            with self._log.timer.time("weight_sync"):
                weights = self._policy.weights()
                self._world.share(weights)
                self._policy.load_weights(weights)
            for batch in range(first, last + 1):
                self._world.send_batch(self._make_batch(batch, policy_version=step))
            if self._config.checkpoints(step):
                self._world.wait_for_all()
                self._world.wait_for_all()
                if self._job.rank == 0:
                    self._log.mark("checkpoint", step=last)

    def _make_batch(self, number: int, policy_version: int) -> Batch:
        log, config = self._log, self._config
        log.set_step(number)
        began = time.perf_counter()
        with log.timer.time("generation"):
            prompts = task.training_prompts(config.prompts_per_batch, config.digits, self._generator)
            prompts = prompts.repeat_interleave(config.group_size, dim=0)
            responses, log_probs = self._policy.generate(prompts, self._generator)
        seconds = time.perf_counter() - began
        with log.timer.time("reward"):
            rewards, correct = task.rewards(prompts, responses)
        advantages = grpo.group_advantages(rewards, config.group_size)
        batch = Batch(prompts, responses, log_probs, rewards, correct, advantages)
        lengths = task.response_mask(responses).sum(dim=1)
        self._log_samples(batch, lengths, policy_version)
        self._job.die_at(number)
        metrics = {
            "reward/mean": float(rewards.mean()),
            "reward/max": float(rewards.max()),
            "accuracy": float(correct.mean()),
            "response_length": float(lengths.mean()),
            "truncated_ratio": 1.0 - float(_ended(responses).float().mean()),
            "tokens": int(lengths.sum()),
            "tokens_per_second": float(lengths.sum()) / seconds,
            "policy_version": policy_version,
        }
        reduce = {"reward/max": "max", "tokens": "sum", "tokens_per_second": "sum", "policy_version": "min"}
        log.log_metrics(metrics, step=number, reduce=reduce, step_finished=True)
        return batch

    def _log_samples(self, batch: Batch, lengths: Tensor, policy_version: int) -> None:
        references = task.answers(batch.prompts)
        ended = _ended(batch.responses)
        samples = []
        for index in range(self._config.rollout_samples):
            count = int(lengths[index])
            samples.append(
                {
                    "sample_index": index,
                    "group_index": index // self._config.group_size,
                    "prompt": task.text(batch.prompts[index]),
                    "response": task.text(batch.responses[index]),
                    "reference": task.text(references[index]),
                    "reward": float(batch.rewards[index]),
                    "advantage": float(batch.advantages[index]),
                    "prompt_tokens": batch.prompts.shape[1],
                    "response_tokens": count,
                    "finish_reason": "stop" if ended[index] else "length",
                    "policy_version": policy_version,
                    "token_ids": batch.responses[index, :count].tolist(),
                    "token_logprobs": batch.log_probs[index, :count].tolist(),
                }
            )
        self._log.log_samples(samples, split="rollout")


def _ended(responses: Tensor) -> Tensor:
    """Whether each response has an end token: bool `[N]`."""
    return (responses == task.END).any(dim=1)
