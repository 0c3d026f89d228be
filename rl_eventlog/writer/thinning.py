"""Which samples of a step are kept: all, unless the user bounds them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Thinning:
    """The bounds, and what was kept of the present step."""

    max_samples_per_step: int | None = None
    keep_rollouts_every: int | None = None
    _step: int | None = None
    _kept: Counter[str] = field(default_factory=Counter)
    """Samples of `_step`, by split."""

    def take(self, count: int, step: int | None, split: str) -> int:
        """How many of the `count` samples of a call are kept: the first ones."""
        if split == "rollout" and self.keep_rollouts_every and step is not None and step % self.keep_rollouts_every:
            return 0
        if self.max_samples_per_step is None:
            return count
        if step != self._step:
            self._step = step
            self._kept.clear()
        kept = min(count, self.max_samples_per_step - self._kept[split])
        self._kept[split] += kept
        return kept
