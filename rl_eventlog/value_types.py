"""Values that say how ranks are merged: `log_metrics({"loss": Mean(loss, weight=tokens), "tokens": Sum(n)})`.

- A value type declares the reduction of its key as `reduce=` does, and wins over it. A subclass counts as the
  type it is made from.
- The same types work in `log_metrics`, `accumulate` and `reduce_across_ranks`.
- `Quantiles` takes many values; the others take one number, and any other value is skipped.
- They hold what they were given and look at nothing: that is left to the call they are handed to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Mean:
    """Weighted mean over micro-batches and ranks."""

    value: Any
    weight: Any = None
    """What the value is a mean over, say a number of tokens, finite and not negative; None: the call's, else 1."""
    reduction: ClassVar[str] = "mean"


@dataclass(frozen=True, slots=True)
class Sum:
    """Sum over micro-batches and data-parallel replicas."""

    value: Any
    reduction: ClassVar[str] = "sum"


@dataclass(frozen=True, slots=True)
class Max:
    """Maximum over micro-batches and ranks."""

    value: Any
    reduction: ClassVar[str] = "max"


@dataclass(frozen=True, slots=True)
class Min:
    """Minimum over micro-batches and ranks."""

    value: Any
    reduction: ClassVar[str] = "min"


@dataclass(frozen=True, slots=True)
class Last:
    """The last micro-batch's value, of the lowest rank."""

    value: Any
    reduction: ClassVar[str] = "last"


@dataclass(frozen=True, slots=True)
class Quantiles:
    """One value or many, of any shape: logged as a distribution, whose quantiles are right over all ranks."""

    value: Any
    reduction: ClassVar[str] = "histogram"


VALUE_TYPES = (Mean, Sum, Max, Min, Last, Quantiles)
ValueType = Mean | Sum | Max | Min | Last | Quantiles
