"""What one training is: its processes, its sizes, its learning.

- `DemoConfig` is plain data: it goes through JSON to the processes and whole into the hyperparameters.
- The same configuration and seed give the same task, initial policy and validation prompts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Role = Literal["trainer", "rollout", "controller"]

#: Processes of each role. The order gives each process its rank in the world of the launch.
PROCESSES: dict[Role, int] = {"trainer": 2, "rollout": 2, "controller": 1}


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Configuration of one training. Counts of prompts and responses are per process."""

    seed: int = 0
    steps: int = 100
    """Training steps, numbered from 0; one run of the job makes all of them."""
    digits: int = 5
    """Length of the strings to sort."""
    width: int = 64
    """Width of the transformer."""
    layers: int = 2
    heads: int = 4
    warm_up_accuracy: float = 0.05
    """The supervised warm-up ends once the policy sorts this share of fresh strings."""
    warm_up_steps: int = 400
    """Most optimizer steps of the warm-up."""
    warm_up_learning_rate: float = 1e-3
    batches_per_step: int = 2
    """Generation batches a rollout worker makes for one training step."""
    prompts_per_batch: int = 16
    group_size: int = 8
    """Responses to one prompt, whose rewards are normalised together."""
    updates_per_step: int = 2
    """Optimizer steps in one training step."""
    micro_batches: int = 2
    """Parts an update is split into, to log through the accumulators."""
    learning_rate: float = 1e-3
    """At step 0; falls linearly to a tenth of it."""
    kl_coefficient: float = 0.002
    clip: float = 0.2
    max_grad_norm: float = 1.0
    evaluate_every: int = 2
    """Training steps between two evaluations."""
    validation_prompts: int = 128
    validation_samples: int = 8
    """Validation samples logged at each evaluation."""
    rollout_samples: int = 4
    """Samples a rollout worker logs of each generation batch."""
    checkpoint_every: int = 20
    """Training steps between two checkpoints."""

    @staticmethod
    def small(*, seed: int = 0, steps: int = 8) -> DemoConfig:
        """A training of a few seconds that learns nothing, for crash tests and sample runs."""
        return DemoConfig(
            seed=seed,
            steps=steps,
            digits=3,
            width=16,
            layers=1,
            heads=2,
            warm_up_steps=20,
            prompts_per_batch=4,
            group_size=4,
            validation_prompts=16,
            validation_samples=2,
            rollout_samples=2,
            checkpoint_every=3,
        )

    @property
    def responses_per_batch(self) -> int:
        """Responses in one generation batch."""
        return self.prompts_per_batch * self.group_size

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of training step `step`."""
        return self.learning_rate * (1.0 - 0.9 * step / self.steps)

    def evaluates(self, step: int) -> bool:
        """Whether the policy is evaluated after training step `step`."""
        return (step + 1) % self.evaluate_every == 0

    def checkpoints(self, step: int) -> bool:
        """Whether a checkpoint is written after training step `step`."""
        return (step + 1) % self.checkpoint_every == 0

    def to_json(self) -> str:
        """The configuration as one JSON object."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> DemoConfig:
        """The configuration that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        return DemoConfig(**fields)


@dataclass(frozen=True, slots=True)
class Death:
    """The process that is to kill itself in the middle of a step, to show what a crash leaves."""

    role: Role
    rank: int
    step: int
    """Step in the process's own numbering: training steps, or generation batches of a rollout worker."""

    def __str__(self) -> str:
        return f"{self.role}:{self.rank}@{self.step}"

    @staticmethod
    def parse(text: str) -> Death:
        """Read `ROLE:RANK@STEP`, as in `trainer:1@37`.

        Raises:
            ValueError: another form, or no such process.
        """
        process, _, step = text.partition("@")
        name, _, rank = process.partition(":")
        for role, count in PROCESSES.items():
            if role == name and rank.isdecimal() and int(rank) < count and step.isdecimal():
                return Death(role, int(rank), int(step))
        raise ValueError(f"{text!r} names no process and step: write ROLE:RANK@STEP, as in trainer:1@37")
