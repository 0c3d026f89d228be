"""Group-relative policy optimisation: advantages and the loss with its parts.

- Advantages are normalised within the responses to one prompt.
- Losses are sums over response tokens divided by a count given by the caller, so that the gradients
  of micro-batches and ranks add up to the gradient of the mean over all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_eventlog_cli.demo import task
from rl_eventlog_cli.demo.config import DemoConfig
from rl_eventlog_cli.demo.model import Policy


@dataclass(frozen=True, slots=True)
class Batch:
    """Responses of one rollout worker with all that training on them needs. N responses of R tokens."""

    prompts: Tensor
    """int64 `[N, P]`, equal ones next to one another."""
    responses: Tensor
    """int64 `[N, R]`, padded after the end token."""
    log_probs: Tensor
    """float32 `[N, R]`: of the tokens under the policy that wrote them."""
    rewards: Tensor
    """float32 `[N]`."""
    correct: Tensor
    """float32 `[N]`: 1.0 where the answer is right."""
    advantages: Tensor
    """float32 `[N]`."""

    def tensors(self) -> tuple[Tensor, ...]:
        """The parts, in the order of the fields."""
        return self.prompts, self.responses, self.log_probs, self.rewards, self.correct, self.advantages

    def select(self, index: Tensor) -> Batch:
        """The responses at `index`, in that order."""
        return Batch(*(part[index] for part in self.tensors()))

    @staticmethod
    def empty(config: DemoConfig) -> Batch:
        """Room for one generation batch."""
        count = config.responses_per_batch
        return Batch(
            prompts=torch.zeros(count, config.digits + 1, dtype=torch.int64),
            responses=torch.zeros(count, config.digits + 2, dtype=torch.int64),
            log_probs=torch.zeros(count, config.digits + 2),
            rewards=torch.zeros(count),
            correct=torch.zeros(count),
            advantages=torch.zeros(count),
        )

    @staticmethod
    def concatenate(batches: list[Batch]) -> Batch:
        """All responses of several batches as one."""
        return Batch(*(torch.cat(parts) for parts in zip(*(batch.tensors() for batch in batches), strict=True)))


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a micro-batch and what to log of it, each a mean over its response tokens."""

    total: Tensor
    """To differentiate: sum over the tokens, divided by the caller's count."""
    tokens: int
    loss: float
    policy_loss: float
    kl: float
    """Estimate of the divergence from the reference policy, in nats a token."""
    entropy: float
    """Of the policy, in nats a token."""
    clip_fraction: float
    """Share of tokens whose probability ratio was cut off."""


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """Normalise rewards `[N]` within consecutive groups to mean 0 and deviation 1; 0 in a group of equals."""
    groups = rewards.view(-1, group_size)
    deviation = groups.std(dim=1, keepdim=True, correction=0)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (deviation + 1e-4)).flatten()


def loss(policy: Policy, reference: Policy, batch: Batch, config: DemoConfig, total_tokens: float) -> Loss:
    """The clipped policy-gradient loss with a penalty on leaving the reference policy.

    Args:
        policy: the policy in training.
        reference: the policy it must stay near.
        batch: one micro-batch.
        config: clip range and weight of the penalty.
        total_tokens: response tokens of the whole update, over all micro-batches and ranks.
    """
    mask = task.response_mask(batch.responses)
    picked = batch.responses[:, :, None]
    all_log_probs = policy.response_log_probs(batch.prompts, batch.responses)
    log_probs = all_log_probs.gather(2, picked)[:, :, 0]
    with torch.no_grad():
        reference_log_probs = reference.response_log_probs(batch.prompts, batch.responses).gather(2, picked)[:, :, 0]
        entropy = -(all_log_probs.exp() * all_log_probs).sum(dim=2)
    # masked before exp(): an overflow on padding would survive a mask applied later as NaN
    ratio = ((log_probs - batch.log_probs) * mask).exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    advantages = batch.advantages[:, None]
    policy_loss = -torch.minimum(ratio * advantages, clipped * advantages)
    # never negative and unbiased for responses drawn from the policy, unlike the plain difference
    difference = (reference_log_probs - log_probs) * mask
    kl = difference.exp() - difference - 1.0
    total = policy_loss + config.kl_coefficient * kl
    tokens = float(mask.sum())

    def mean(values: Tensor) -> float:
        return float((values * mask).sum()) / tokens

    return Loss(
        total=(total * mask).sum() / total_tokens,
        tokens=int(tokens),
        loss=mean(total.detach()),
        policy_loss=mean(policy_loss.detach()),
        kl=mean(kl.detach()),
        entropy=mean(entropy),
        clip_fraction=mean((ratio.detach() != clipped.detach()).float()),
    )
