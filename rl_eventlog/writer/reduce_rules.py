"""How keys that declare no reduction are merged by the conventions of NeMo RL and verl, where a writer asks for it.

- The last segment of a name decides, by its whole words: ``probs_ratio_min`` ends in the word ``min``,
  ``maximum_len`` and ``minibatch_loss`` have none, and ``admin/loss`` is about a loss.
- What a call declares, by `reduce=` or a value type, always wins.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

Rule = Callable[[str], str]
"""From the name of a metric to its reduction."""

_MAX_KEPT = 10_000
_EXTREMES = ("min", "max")

#: NeMo RL averages these; other metrics of its training come divided by the global number of tokens or sequences.
_MEANS = frozenset(
    {"lr", "wd", "reward", "filtered_reward", "trajectory_duration_s", "mean", "median", "std", "stddev"}
)
_MEAN_STARTS = ("global_valid_", "mean_", "avg_", "average_")
_QUANTILES = frozenset({"p50", "p90", "p95", "p99"})


@lru_cache(_MAX_KEPT)
def nemo_rl(name: str) -> str:
    """NeMo RL's driver: extremes, a few means, the first worker's grad_norm, and the sum of all else."""
    segment = _last_segment(name)
    # before the extremes: `max_turns_reached_rate` is a mean
    if segment.endswith("_rate") or segment.startswith(_MEAN_STARTS) or segment in _MEANS or segment in _QUANTILES:
        return "mean"
    if segment == "grad_norm":
        return "last"
    return _extreme(segment) or "sum"


@lru_cache(_MAX_KEPT)
def verl(name: str) -> str:
    """As verl's `reduce_metrics`, but by words, where verl looks for ``max`` and ``min`` anywhere in the key."""
    return _extreme(_last_segment(name)) or "mean"


RULES: dict[str, Rule] = {"nemo_rl": nemo_rl, "verl": verl}
"""By the name that `EventWriter.open` takes."""


def _last_segment(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2]


def _extreme(segment: str) -> str | None:
    """The extreme that a segment is, ends in, or begins with; of two its end says."""
    words = segment.split("_")
    return next((word for word in (words[-1], words[0]) if word in _EXTREMES), None)
