"""The policy: a small decoder-only transformer over the tokens of `task`.

- Lengths are fixed: `digits + 1` prompt tokens, then at most `digits + 2` response tokens.
- Weights travel between processes as one flat float32 vector.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rl_eventlog_cli.demo import task
from rl_eventlog_cli.demo.config import DemoConfig


class _Block(nn.Module):
    """One pre-norm transformer block: float32 `[N, T, width]` to the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        shape = hidden.shape
        parts: Tensor = self.attention_in(self.attention_norm(hidden))
        query, key, value = parts.view(*shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(shape))
        added: Tensor = self.mlp(hidden)
        return hidden + added


class Policy(nn.Module):
    """Next-token logits for sequences of prompt and response."""

    def __init__(self, config: DemoConfig) -> None:
        super().__init__()
        self.response_length = config.digits + 2
        self.embedding = nn.Embedding(task.VOCABULARY, config.width)
        self.position = nn.Embedding(2 * config.digits + 3, config.width)
        self.blocks = nn.Sequential(*(_Block(config.width, config.heads) for _ in range(config.layers)))
        self.head = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, task.VOCABULARY))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each position: int64 `[N, T]` to float32 `[N, T, vocabulary]`."""
        hidden = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.blocks(hidden))
        return logits

    def response_log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """Log-probabilities of the whole vocabulary at each response token: `[N, length, vocabulary]`."""
        logits = self(torch.cat([prompts, responses[:, :-1]], dim=1))
        return functional.log_softmax(logits[:, prompts.shape[1] - 1 :], dim=2)

    @torch.no_grad()
    def generate(self, prompts: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Write a response to each prompt.

        Args:
            prompts: int64 `[N, P]`.
            generator: source of the randomness to sample with; without one the likeliest token is taken.

        Returns:
            Responses, int64 `[N, response_length]` with padding after the end token, and the
            log-probability of each of their tokens, float32 of the same shape.
        """
        tokens = prompts
        chosen: list[Tensor] = []
        ended = torch.zeros(len(prompts), dtype=torch.bool)
        for _ in range(self.response_length):
            log_probs = functional.log_softmax(self(tokens)[:, -1], dim=1)
            if generator is None:
                token = log_probs.argmax(dim=1, keepdim=True)
            else:
                token = torch.multinomial(log_probs.exp(), 1, generator=generator)
            token[ended] = task.PAD
            chosen.append(log_probs.gather(1, token))
            tokens = torch.cat([tokens, token], dim=1)
            ended |= token[:, 0] == task.END
        return tokens[:, prompts.shape[1] :], torch.cat(chosen, dim=1)

    def weights(self) -> Tensor:
        """A copy of all weights as one float32 vector."""
        return parameters_to_vector(self.parameters()).detach().clone()

    def load_weights(self, weights: Tensor) -> None:
        """Take over the vector that `weights` gave."""
        # a copy: the parameters become views of what they are set to, and two policies must not share theirs
        vector_to_parameters(weights.clone(), self.parameters())
