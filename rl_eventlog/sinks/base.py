"""What a target must be able to do, and the typed batches it is given.

- A sink sends; it knows nothing of progress. `rl_eventlog.sync` decides what is sent, and when.
- `Sink.send` may be called again with the same payload after a kill at any moment. Afterwards the
  target must hold what one undisturbed call would have left there.
- A sink keeps the order of the rows, their steps and their times. It never invents a time.
- Third-party clients are imported when the sink is made, never when its module is.
- Errors of a client leave a sink as `SinkUnavailableError` (later may work) or `SinkRejectedError`
  (never will), and every wait is bounded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

#: One row a reduced point, in send order.
POINTS = pa.schema(
    [
        pa.field("role", pa.string(), nullable=False),
        # name at the target before its own rules on characters: `train/loss`, `timing/generation`
        pa.field("series", pa.string(), nullable=False),
        # name of the x-axis, null for the training step
        pa.field("axis", pa.string()),
        # integer position, for targets that know no other
        pa.field("step", pa.int64(), nullable=False),
        # position on the axis; equals `step` where axis is null
        pa.field("position", pa.float64(), nullable=False),
        pa.field("time", TIME, nullable=False),
        # NaN and infinities are values; null points are never sent
        pa.field("value", pa.float64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        # True where the target already holds another value for this (series, axis, position)
        pa.field("correction", pa.bool_(), nullable=False),
    ]
)

#: One row a hyperparameter, new or changed. `value` is JSON.
PARAMS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("value", pa.string(), nullable=False),
        pa.field("time", TIME, nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
    ]
)

Status = Literal["running", "finished", "failed"]
Position = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RunDescription:
    """What a target is told about the run as a whole."""

    run_uid: str
    name: str
    started: datetime
    """Start of the first attempt, UTC."""
    status: Status
    ended: datetime | None = None
    """Time of the last row or end record, UTC; None while it runs."""
    project: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    notes: str | None = None
    roles: tuple[str, ...] = ()
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Payload:
    """The content of one commit, in send order.

    `samples` has the columns of the samples table plus `role`, `rank` and `attempt`, sorted by
    (split, step, dataset, sample_index); all tables may be empty.
    """

    points: pa.Table
    params: pa.Table
    samples: pa.Table


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a target got, kept at the target itself beside our own record.

    `digest` chains over all commits, so two equal cursors mean two equal histories.
    """

    commit: int
    """Number of the last commit the target holds, from 1; 0 for none."""
    points: int
    """Points sent in all commits up to and including it."""
    digest: str
    """64 lower-case hex digits."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What `Sink.send` reports: handed back to `Sink.open` the next time.

    `position` is the sink's own JSON-able note (a byte offset, a row number).
    """

    position: Position = field(default_factory=dict)


class Sink(ABC):
    """One run at one target.

    Life: construct (imports the client, raises `MissingDependencyError`), `open` once, `send` once
    a commit, `finish`, `close`. `close` may come at any time and twice.
    """

    kind: ClassVar[str]
    """`mlflow`, `wandb` or `tensorboard`."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Canonical address of the target: two sinks with one address are one target."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Where a person finds the run at the target: a URL or a path. Valid after `open`."""

    @abstractmethod
    def open(self, run: RunDescription, position: Position) -> Cursor | None:
        """Find the remote run, or make it, and read the cursor it carries.

        Args:
            run: the run as the reader sees it now.
            position: what the last `send` returned; empty the first time, and where our record was lost and
                the cursor at the target stands in for it.

        Returns:
            The cursor found at the target, None where there is none.

        Raises:
            SinkUnavailableError: the target did not answer in time.
            SinkRejectedError: the target refused.
        """

    @abstractmethod
    def send(self, payload: Payload, cursor: Cursor) -> Sent:
        """Send one commit, wait until the target confirms it, and store `cursor` there.

        Raises:
            SinkUnavailableError: the target did not confirm in time; the same call may be repeated.
            SinkRejectedError: the target refused; nothing after the refused part was sent.
        """

    @abstractmethod
    def finish(self, run: RunDescription) -> None:
        """Set status, end time, tags and notes at the target; repeated calls are harmless."""

    @abstractmethod
    def close(self) -> None:
        """Release the client. Sends nothing that `send` has not confirmed."""
