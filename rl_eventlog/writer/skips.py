"""What could not be logged, or not as it was meant: counted by reason, named once a key so that no log is flooded."""

from __future__ import annotations

import logging
import math
from collections import Counter

from rl_eventlog.types import REDUCTIONS

logger = logging.getLogger("rl_eventlog")

MAX_NAMED = 10_000


class Skips:
    """Counts and names.

    Attributes:
        counters: how often, by reason.
    """

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self._named: set[tuple[str, str]] = set()

    def skip(self, reason: str, key: str, detail: str) -> None:
        """Count something that is not logged; name it the first time."""
        self.counters[reason] += 1
        if self.first_time(reason, key):
            logger.warning("rl-eventlog skips %r (%s): %s", key, reason, detail)

    def note(self, reason: str, key: str, message: str) -> None:
        """Count something that is logged otherwise than it was meant; say so the first time."""
        self.counters[reason] += 1
        if self.first_time(reason, key):
            logger.warning("rl-eventlog: %s", message)

    def check_reduction(self, reduction: str | None, name: str) -> None:
        """Warn, once a name, of a reduction that this version does not know: it may be a typing error."""
        if reduction is None or reduction in REDUCTIONS or not self.first_time("unknown reduction", name):
            return
        logger.warning(
            "rl-eventlog does not know the reduction %r of %r and will not merge its ranks; known are %s",
            reduction,
            name,
            ", ".join(REDUCTIONS),
        )

    def check_weight(self, weight: object, number: float | None, name: str) -> None:
        """Note a weight that is no number, or none that counts; `number` is what became of it."""
        if number is None and weight is not None:
            message = f"weight of {name!r} is no number ({type(weight).__name__}): the row is kept with weight 1"
            self.note("weights that are no numbers", name, message)
        elif number is not None and not 0 <= number < math.inf:
            message = (
                f"weight {number} of {name!r} is negative, NaN or infinite: the row is kept and not counted in means"
            )
            self.note("weights that do not count", name, message)

    def first_time(self, reason: str, key: str) -> bool:
        """Whether (reason, key) is new; beyond 10,000 keys nothing is."""
        if (reason, key) in self._named or len(self._named) >= MAX_NAMED:
            return False
        self._named.add((reason, key))
        return True
