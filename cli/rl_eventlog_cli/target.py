"""A target as the command line knows it: its kind, and what the user said about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_eventlog.sinks.base import RunDescription, Sink

#: The option of each sink that a run's project fills where the user gave none.
_PLACE = {"mlflow": "experiment", "wandb": "project"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where runs are sent."""

    kind: str
    """A key of `rl_eventlog.sinks.SINKS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the sink; what is left out takes the sink's default."""

    def make_sink(self, run: RunDescription) -> Sink:
        """Make the sink for one run.

        Raises:
            SyncError: there is no such target.
            MissingDependencyError: its client is not installed.
        """
        from rl_eventlog.sinks import make_sink

        place = _PLACE.get(self.kind)
        of_run = {place: run.project} if place and run.project else {}
        return make_sink(self.kind, **{**of_run, **self.options})
