"""The task: write the digits of a string in ascending order.

- Tokens are the ten digits, `=` after the prompt, an end and a padding token.
- Strings whose number is divisible by 11 are kept for validation; training never sees one.
- A reward is in [0, 1]: half for the share of right tokens, half for the whole answer.
"""

from __future__ import annotations

import torch
from torch import Tensor

EQUALS, END, PAD = 10, 11, 12
VOCABULARY = 13
_HELD_OUT = 11


def training_prompts(count: int, digits: int, generator: torch.Generator) -> Tensor:
    """Draw prompts to train on: int64 `[count, digits + 1]`."""
    numbers = torch.randint(10**digits - 1, (count,), generator=generator)
    return _tokens(torch.where(numbers % _HELD_OUT == 0, numbers + 1, numbers), digits)


def validation_prompts(count: int, digits: int, seed: int) -> Tensor:
    """The validation prompts of a seed, all different: int64 `[count, digits + 1]`."""
    generator = torch.Generator().manual_seed(seed)
    held_out = (10**digits - 1) // _HELD_OUT + 1
    return _tokens(torch.randperm(held_out, generator=generator)[:count] * _HELD_OUT, digits)


def answers(prompts: Tensor) -> Tensor:
    """The right responses, end token included: int64 `[N, digits + 1]` for prompts of that shape."""
    ordered = prompts[:, :-1].sort(dim=1).values
    return torch.cat([ordered, torch.full((len(prompts), 1), END)], dim=1)


def rewards(prompts: Tensor, responses: Tensor) -> tuple[Tensor, Tensor]:
    """Judge responses: reward in [0, 1] and 1.0 where the answer is right, both float32 `[N]`."""
    expected = answers(prompts)
    right = responses[:, : expected.shape[1]] == expected
    correct = right.all(dim=1).float()
    return 0.5 * right.float().mean(dim=1) + 0.5 * correct, correct


def response_mask(responses: Tensor) -> Tensor:
    """1.0 on the tokens up to and including the first end token: float32 `[N, length]`."""
    ended_before = (responses == END).cumsum(dim=1) - (responses == END).long()
    return (ended_before == 0).float()


def text(tokens: Tensor) -> str:
    """One row of tokens as text; the end token and padding are left out."""
    return "".join("=" if token == EQUALS else str(token) for token in tokens.tolist() if token < END)


def _tokens(numbers: Tensor, digits: int) -> Tensor:
    places = 10 ** torch.arange(digits - 1, -1, -1)
    return torch.cat([numbers[:, None] // places % 10, torch.full((len(numbers), 1), EQUALS)], dim=1)
