"""A short supervised start, so that the policy earns some reward before reinforcement learning begins.

- It ends as soon as the policy sorts a small share of fresh strings, or after a fixed number of steps.
- Held-out strings are not used, neither to learn nor to decide when to end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from rl_eventlog_cli.demo import task
from rl_eventlog_cli.demo.config import DemoConfig
from rl_eventlog_cli.demo.model import Policy

_BATCH = 128
_CHECK_EVERY = 5


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What the warm-up did."""

    steps: int
    accuracy: float
    """Share of fresh strings sorted right at its end, in [0, 1]."""


def warm_up(policy: Policy, config: DemoConfig, generator: torch.Generator) -> WarmUp:
    """Teach `policy` the form of an answer, and a little of the task."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=config.warm_up_learning_rate)
    accuracy = 0.0
    for step in range(config.warm_up_steps):
        if step % _CHECK_EVERY == 0:
            accuracy = _accuracy(policy, config, generator)
            if accuracy >= config.warm_up_accuracy:
                return WarmUp(step, accuracy)
        prompts = task.training_prompts(_BATCH, config.digits, generator)
        responses = task.answers(prompts)
        log_probs = policy.response_log_probs(prompts, responses)
        optimizer.zero_grad()
        torch.autograd.backward(functional.nll_loss(log_probs.flatten(0, 1), responses.flatten()))
        optimizer.step()
    return WarmUp(config.warm_up_steps, accuracy)


def _accuracy(policy: Policy, config: DemoConfig, generator: torch.Generator) -> float:
    prompts = task.training_prompts(4 * _BATCH, config.digits, generator)
    responses, _ = policy.generate(prompts)
    return float(task.rewards(prompts, responses)[1].mean())
