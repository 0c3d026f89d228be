"""Which steps are complete, and which are held back.

- A step is complete for a role when every writer of the role's newest attempt that ever logged on
  that axis is beyond it, has closed it, or is gone. A newer attempt completes the older ones.
- Under hold, while the attempt is alive, a role's steps beyond its newest checkpoint wait, so that a
  restart corrects nothing. A role that never wrote a checkpoint is not held.
- A run that nobody writes has neither marks nor limits: it is sent whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from .record import Mark


@dataclass(frozen=True, slots=True)
class WriterState:
    """What completeness needs to know of a writer."""

    writer: str
    role: str
    launch: str
    attempt: int
    alive: bool
    resume_step: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a writer is on one axis."""

    writer: str
    axis: str | None
    last: float
    """Highest position it logged."""
    closed: float | None = None
    """Highest position it declared finished."""

    @property
    def through(self) -> float:
        """The last position the writer is done with."""
        if self.closed is not None and self.closed >= self.last:
            return self.last
        return self.last - 1 if self.axis is None else math.nextafter(self.last, -math.inf)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A ``checkpoint`` marker."""

    role: str
    attempt: int
    step: int


def find_marks(
    writers: Sequence[WriterState], progress: Iterable[Progress], axes: Iterable[tuple[str, str | None]]
) -> tuple[Mark, ...]:
    """How far each (role, axis) is complete; those without a mark wholly.

    Args:
        writers: all writers of the run.
        progress: of all of them, seen before the rows that are judged by it.
        axes: each (role, axis) of those rows.
    """
    newest = {state.writer: state for state in _newest(writers)}
    through: dict[tuple[str, str | None], float] = {}
    for step in progress:
        if state := newest.get(step.writer):
            key = (state.role, step.axis)
            through[key] = min(through.get(key, math.inf), step.through if state.alive else math.inf)
    launches = {state.role: state.launch for state in newest.values() if state.alive}
    marks = []
    for role, axis in axes:
        # an axis without progress began after the look at progress
        bound = through.get((role, axis))
        if role in launches and bound != math.inf:
            marks.append(Mark(role, axis, launches[role], bound))
    return tuple(marks)


def find_limits(writers: Sequence[WriterState], checkpoints: Sequence[Checkpoint]) -> dict[str, int]:
    """The last step to send of each role that is held.

    A declared resume step says that the steps before it are as good as a checkpoint, and that
    checkpoints of older attempts from it on are void.
    """
    alive = {state.launch for state in writers if state.alive}
    limits: dict[str, int] = {}
    for role in sorted({checkpoint.role for checkpoint in checkpoints}):
        newest = [state for state in _newest(writers) if state.role == role]
        if not any(state.launch in alive for state in newest):
            continue
        attempt = newest[0].attempt
        resumes = [state.resume_step for state in newest if state.resume_step is not None]
        resume = min(resumes, default=None)
        steps = [
            (checkpoint.attempt, checkpoint.step)
            for checkpoint in checkpoints
            if checkpoint.role == role and (resume is None or checkpoint.attempt == attempt or checkpoint.step < resume)
        ]
        if resume is not None:
            steps.append((attempt - 1, resume - 1))
        limits[role] = max(steps)[1]
    return limits


def split(
    points: pl.DataFrame, marks: Sequence[Mark], limits: Mapping[str, int], attempts: Mapping[str, int]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Part rows that may be sent from rows that are held back.

    Args:
        points: rows with `role`, `axis`, `position`, `step` and `attempt`.
        marks: how far (role, axis) are complete.
        limits: last step to send by role.
        attempts: number of the attempt by launch id.

    Returns:
        The rows to send, and those held with `reason`: `incomplete` or `checkpoint`.
    """
    known = [mark for mark in marks if mark.launch in attempts]
    bounds = pl.DataFrame(
        {
            "role": [mark.role for mark in known],
            "axis": [mark.axis for mark in known],
            "_attempt": [attempts[mark.launch] for mark in known],
            "_through": [mark.through for mark in known],
        },
        schema={"role": pl.String(), "axis": pl.String(), "_attempt": pl.Int32(), "_through": pl.Float64()},
    )
    steps = pl.DataFrame(
        {"role": list(limits), "_limit": list(limits.values())}, schema={"role": pl.String(), "_limit": pl.Int64()}
    )
    beyond = pl.col("_through").is_null() | (pl.col("position") > pl.col("_through"))
    beyond_mark = (pl.col("attempt") > pl.col("_attempt")) | ((pl.col("attempt") == pl.col("_attempt")) & beyond)
    reason = (
        pl.when(beyond_mark.fill_null(value=False))
        .then(pl.lit("incomplete"))
        .when((pl.col("step") > pl.col("_limit")).fill_null(value=False))
        .then(pl.lit("checkpoint"))
    )
    judged = (
        points.join(bounds, on=["role", "axis"], how="left", nulls_equal=True, maintain_order="left")
        .join(steps, on="role", how="left", maintain_order="left")
        .with_columns(reason=reason)
        .drop("_attempt", "_through", "_limit")
    )
    return judged.filter(pl.col("reason").is_null()).drop("reason"), judged.filter(pl.col("reason").is_not_null())


def _newest(writers: Sequence[WriterState]) -> list[WriterState]:
    """The writers of each role's newest attempt."""
    newest: dict[str, int] = {}
    for state in writers:
        newest[state.role] = max(newest.get(state.role, 0), state.attempt)
    return [state for state in writers if state.attempt == newest[state.role]]
