"""A trainer rank: learns from the batches of its rollout worker, in step with the other rank.

- Both ranks hold the same weights and optimizer state; gradients are summed over both.
- A step's row with `step_finished` comes last; a checkpoint of the step only after all roles wrote theirs.
"""

from __future__ import annotations

import torch
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from rl_eventlog import EventWriter
from rl_eventlog_cli.demo import grpo, task
from rl_eventlog_cli.demo.checkpoint import Checkpoint
from rl_eventlog_cli.demo.config import PROCESSES
from rl_eventlog_cli.demo.grpo import Batch
from rl_eventlog_cli.demo.job import Job
from rl_eventlog_cli.demo.model import Policy
from rl_eventlog_cli.demo.warm_up import warm_up
from rl_eventlog_cli.demo.world import World


class Trainer:
    """One rank of the trainer role."""

    def __init__(self, job: Job, log: EventWriter, world: World) -> None:
        self._job, self._config, self._log, self._world = job, job.config, log, world
        torch.manual_seed(job.config.seed)
        self._policy = Policy(job.config)
        self._reference = Policy(job.config)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=job.config.learning_rate)
        # the seed is the same on all ranks up to the offset, which no other seed below 1000 reaches
        self._generator = torch.Generator().manual_seed(job.config.seed + 1000 * job.rank)

    def run(self) -> None:
        """Train from the job's first step to the last."""
        if self._job.start > 0:
            self._restore()
        else:
            self._begin()
        self._world.share(torch.randint(2**62, (PROCESSES["rollout"],), generator=self._generator))
        for step in range(self._job.start, self._config.steps):
            self._step(step)
            if self._config.checkpoints(step):
                self._checkpoint(step)

    def _begin(self) -> None:
        self._log.set_step(0)
        if self._job.rank == 0:
            with self._log.timer.time("warm_up"):
                done = warm_up(self._policy, self._config, self._generator)
            self._log.mark("warm_up", steps=done.steps, accuracy=done.accuracy)
        weights = self._policy.weights()
        self._world.share_among_trainers(weights)
        self._policy.load_weights(weights)
        self._reference.load_weights(weights)

    def _restore(self) -> None:
        saved = Checkpoint.load(self._job.checkpoints, self._job.start - 1)
        self._policy.load_weights(saved.policy)
        self._reference.load_weights(saved.reference)
        self._optimizer.load_state_dict(saved.optimizer)
        self._generator.set_state(saved.generators[self._job.rank])

    def _step(self, step: int) -> None:
        log, first = self._log, self._job.rank == 0
        log.set_step(step)
        with log.timer.time("weight_sync"):
            self._world.share(self._policy.weights())
        with log.timer.time("wait_for_rollouts"):
            batch = Batch.concatenate([self._world.receive_batch() for _ in range(self._config.batches_per_step)])
        with log.timer.time("training"):
            grad_norm = self._train(step, batch)
        log.log_accumulated(prefix="train")
        self._job.die_at(step)
        if first and self._config.evaluates(step):
            with log.timer.time("weight_sync"):
                self._world.send_to_controller(self._policy.weights())
        lengths = task.response_mask(batch.responses).sum(dim=1)
        metrics = {
            "reward": float(batch.rewards.mean()),
            "accuracy": float(batch.correct.mean()),
            "advantage_max": float(batch.advantages.max()),
            "response_length": float(lengths.mean()),
            "tokens": int(lengths.sum()),
            "responses": len(lengths),
            "grad_norm": grad_norm,
            "learning_rate": self._config.learning_rate_at(step),
        }
        reduce = {"tokens": "sum", "responses": "sum", "advantage_max": "max"}
        log.log_metrics(metrics, step=step, prefix="train", reduce=reduce, step_finished=True)

    def _train(self, step: int, batch: Batch) -> float:
        """Make all updates of a step; returns the mean norm of the gradient before clipping."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._config.learning_rate_at(step)
        order = torch.randperm(len(batch.rewards), generator=self._generator)
        norms = [self._update(batch.select(part)) for part in order.chunk(self._config.updates_per_step)]
        return sum(norms) / len(norms)

    def _update(self, batch: Batch) -> float:
        """Make one optimizer step together with the other ranks; returns the norm of the gradient."""
        total_tokens = task.response_mask(batch.responses).sum()
        self._world.add_up(total_tokens)
        self._optimizer.zero_grad()
        for part in torch.arange(len(batch.rewards)).chunk(self._config.micro_batches):
            loss = grpo.loss(self._policy, self._reference, batch.select(part), self._config, float(total_tokens))
            torch.autograd.backward(loss.total)
            self._log.accumulate(
                {
                    "loss": loss.loss,
                    "policy_loss": loss.policy_loss,
                    "kl": loss.kl,
                    "entropy": loss.entropy,
                    "clip_fraction": loss.clip_fraction,
                },
                weight=loss.tokens,
            )
        gradients = [parameter.grad for parameter in self._policy.parameters() if parameter.grad is not None]
        flat = parameters_to_vector(gradients)
        self._world.add_up(flat)
        vector_to_parameters(flat, gradients)
        norm = clip_grad_norm_(self._policy.parameters(), self._config.max_grad_norm)
        self._optimizer.step()
        return float(norm)

    def _checkpoint(self, step: int) -> None:
        generators = self._world.gather_from_trainers(self._generator.get_state())
        self._world.wait_for_all()
        if self._job.rank == 0:
            Checkpoint(
                step=step,
                policy=self._policy.weights(),
                reference=self._reference.weights(),
                optimizer=self._optimizer.state_dict(),
                generators=generators,
            ).save(self._job.checkpoints)
        self._world.wait_for_all()
        if self._job.rank == 0:
            self._log.mark("checkpoint", step=step)
