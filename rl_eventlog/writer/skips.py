"""What could not be logged: counted by reason, and named once a key so that no log is flooded."""

from __future__ import annotations

import logging
from collections import Counter

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

    def first_time(self, reason: str, key: str) -> bool:
        """Whether (reason, key) is new; beyond 10,000 keys nothing is."""
        if (reason, key) in self._named or len(self._named) >= MAX_NAMED:
            return False
        self._named.add((reason, key))
        return True
