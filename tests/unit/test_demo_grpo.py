"""The parts of the demo's training that need no second process."""

from __future__ import annotations

import pytest
import torch

from rl_eventlog_cli.demo import grpo, task
from rl_eventlog_cli.demo.config import Death, DemoConfig
from rl_eventlog_cli.demo.grpo import Batch
from rl_eventlog_cli.demo.job import world_rank
from rl_eventlog_cli.demo.model import Policy

CONFIG = DemoConfig.small()


def sampled(policy: Policy, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    prompts = task.training_prompts(CONFIG.prompts_per_batch, CONFIG.digits, generator)
    prompts = prompts.repeat_interleave(CONFIG.group_size, dim=0)
    responses, log_probs = policy.generate(prompts, generator)
    rewards, correct = task.rewards(prompts, responses)
    # random ones, since an untrained policy earns nothing to compare
    advantages = torch.randn(len(rewards), generator=generator)
    return Batch(prompts, responses, log_probs, rewards, correct, advantages)


def policies() -> tuple[Policy, Policy]:
    torch.manual_seed(0)
    return Policy(CONFIG), Policy(CONFIG)


def gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None])


def test_advantages_are_normalised_within_each_group_and_zero_among_equals() -> None:
    advantages = grpo.group_advantages(torch.tensor([0.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5]), group_size=4)
    assert advantages.tolist() == pytest.approx([-1, 1, -1, 1, 0, 0, 0, 0], abs=1e-3)


def test_gradients_of_micro_batches_add_up_to_that_of_the_whole_batch() -> None:
    policy, reference = policies()
    batch = sampled(policy, seed=1)
    tokens = float(task.response_mask(batch.responses).sum())
    torch.autograd.backward(grpo.loss(policy, reference, batch, CONFIG, tokens).total)
    whole = gradient(policy)
    policy.zero_grad()
    for part in torch.arange(len(batch.rewards)).chunk(4):
        torch.autograd.backward(grpo.loss(policy, reference, batch.select(part), CONFIG, tokens).total)
    assert torch.allclose(gradient(policy), whole, atol=1e-6)


def test_a_policy_that_has_not_moved_has_ratio_one_and_no_divergence() -> None:
    policy, _ = policies()
    batch = sampled(policy, seed=2)
    loss = grpo.loss(policy, policy, batch, CONFIG, total_tokens=1.0)
    mask = task.response_mask(batch.responses)
    assert loss.tokens == int(mask.sum())
    assert loss.kl == pytest.approx(0, abs=1e-6)
    assert loss.clip_fraction == 0
    assert loss.policy_loss == pytest.approx(-float((batch.advantages[:, None] * mask).sum()) / loss.tokens, abs=1e-5)
    assert float(loss.total.detach()) == pytest.approx(loss.loss * loss.tokens, abs=1e-3)


def test_divergence_from_another_policy_is_positive() -> None:
    policy, reference = policies()
    assert grpo.loss(policy, reference, sampled(policy, seed=3), CONFIG, total_tokens=1.0).kl > 0


def test_two_policies_given_the_same_weights_do_not_share_them() -> None:
    policy, reference = policies()
    weights = policy.weights()
    policy.load_weights(weights)
    reference.load_weights(weights)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    assert torch.equal(reference.weights(), weights)
    assert torch.equal(policy.weights(), weights + 1.0)


def test_rewards_count_right_tokens_and_right_answers() -> None:
    prompts = torch.tensor([[3, 1, 2, task.EQUALS]]).repeat(3, 1)
    responses = torch.tensor(
        [
            [1, 2, 3, task.END, task.PAD],
            [1, 2, 2, task.END, task.PAD],
            [0, 0, 0, 0, 0],
        ]
    )
    rewards, correct = task.rewards(prompts, responses)
    assert rewards.tolist() == [1.0, 0.375, 0.0]
    assert correct.tolist() == [1.0, 0.0, 0.0]
    assert task.response_mask(responses).sum(dim=1).tolist() == [4, 4, 5]
    assert task.text(prompts[0]) == "312="
    assert task.text(responses[0]) == "123"


def test_training_never_sees_a_validation_prompt() -> None:
    trained = task.training_prompts(50_000, 3, torch.Generator().manual_seed(0))
    held_out = task.validation_prompts(90, 3, seed=0)
    assert len({task.text(prompt) for prompt in held_out}) == 90
    assert not {task.text(prompt) for prompt in trained} & {task.text(prompt) for prompt in held_out}


def test_sampled_log_probabilities_are_those_of_the_policy() -> None:
    policy, _ = policies()
    batch = sampled(policy, seed=4)
    again = policy.response_log_probs(batch.prompts, batch.responses).gather(2, batch.responses[:, :, None])[:, :, 0]
    mask = task.response_mask(batch.responses)
    assert torch.allclose(again * mask, batch.log_probs * mask, atol=1e-5)


def test_a_configuration_survives_json() -> None:
    assert DemoConfig.from_json(CONFIG.to_json()) == CONFIG


def test_trainers_come_first_in_the_world() -> None:
    assert [world_rank("trainer", 1), world_rank("rollout", 0), world_rank("controller", 0)] == [1, 2, 4]


def test_a_death_is_read_back_from_its_text() -> None:
    death = Death.parse("rollout:1@37")
    assert death == Death("rollout", 1, 37)
    assert str(death) == "rollout:1@37"


@pytest.mark.parametrize(
    "text", ["", "trainer", "trainer:1", "trainer:2@3", "trainer:1@-3", "judge:0@3", "trainer:x@3"]
)
def test_a_death_of_no_process_or_step_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write ROLE:RANK@STEP"):
        Death.parse(text)
