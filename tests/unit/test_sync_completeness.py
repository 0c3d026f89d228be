from __future__ import annotations

import polars as pl
import pytest

from rl_eventlog.sync.completeness import Checkpoint, Progress, WriterState, find_limits, find_marks, split
from rl_eventlog.sync.record import Mark


def writer(
    name: str, *, role: str = "trainer", attempt: int = 1, alive: bool = True, resume_step: int | None = None
) -> WriterState:
    return WriterState(name, role, f"launch-{attempt}", attempt, alive, resume_step)


BY_STEP = [("trainer", None)]


def test_a_step_is_complete_when_every_live_writer_is_beyond_it() -> None:
    progress = [Progress("a", None, 10), Progress("b", None, 7)]
    assert find_marks([writer("a"), writer("b")], progress, BY_STEP) == (Mark("trainer", None, "launch-1", 6),)


def test_a_step_that_was_declared_finished_is_complete() -> None:
    progress = [Progress("a", None, 10), Progress("b", None, 7, closed=7)]
    assert find_marks([writer("a"), writer("b")], progress, BY_STEP) == (Mark("trainer", None, "launch-1", 7),)


def test_a_step_begun_after_the_last_finished_one_is_not_complete() -> None:
    [mark] = find_marks([writer("a")], [Progress("a", None, 8, closed=7)], BY_STEP)
    assert mark.through == 7


def test_writers_that_are_gone_or_never_logged_on_the_axis_hold_nothing_back() -> None:
    writers = [writer("a"), writer("gone", alive=False), writer("silent")]
    progress = [Progress("a", None, 10), Progress("gone", None, 3), Progress("silent", "tokens", 1.0)]
    assert find_marks(writers, progress, BY_STEP) == (Mark("trainer", None, "launch-1", 9),)


def test_without_live_writers_everything_is_complete() -> None:
    assert find_marks([writer("a", alive=False)], [Progress("a", None, 10)], BY_STEP) == ()


def test_roles_and_axes_are_judged_apart() -> None:
    writers = [writer("a"), writer("r", role="rollout")]
    progress = [Progress("a", None, 10), Progress("a", "tokens", 0.5), Progress("r", None, 3)]
    marks = find_marks(writers, progress, [("trainer", None), ("trainer", "tokens"), ("rollout", None)])
    assert [(mark.role, mark.axis) for mark in marks] == [("trainer", None), ("trainer", "tokens"), ("rollout", None)]
    assert [mark.through for mark in marks] == [9, pytest.approx(0.5), 2]
    assert marks[1].through is not None
    assert marks[1].through < 0.5


def test_an_axis_that_began_after_the_look_at_progress_is_not_complete_anywhere() -> None:
    assert find_marks([writer("a")], [], BY_STEP) == (Mark("trainer", None, "launch-1", None),)


def test_a_newer_attempt_completes_the_older_ones() -> None:
    writers = [writer("a"), writer("b", attempt=2)]
    [mark] = find_marks(writers, [Progress("a", None, 10), Progress("b", None, 8)], BY_STEP)
    assert mark == Mark("trainer", None, "launch-2", 7)
    rows = points((9, 1), (10, 1), (7, 2), (8, 2))
    sent, held = split(rows, [mark], {}, {"launch-1": 1, "launch-2": 2})
    assert sent["position"].to_list() == [9, 10, 7]
    assert held.select("position", "reason").rows() == [(8, "incomplete")]


def test_a_live_role_waits_for_its_newest_checkpoint() -> None:
    checkpoints = [Checkpoint("trainer", 1, 5), Checkpoint("trainer", 1, 10)]
    assert find_limits([writer("a"), writer("r", role="rollout")], checkpoints) == {"trainer": 10}


def test_nobody_alive_nothing_waits() -> None:
    assert find_limits([writer("a", alive=False)], [Checkpoint("trainer", 1, 5)]) == {}


def test_a_role_waits_while_any_role_of_its_attempt_lives() -> None:
    writers = [writer("a", alive=False), writer("r", role="rollout")]
    assert find_limits(writers, [Checkpoint("trainer", 1, 5)]) == {"trainer": 5}


def test_a_resume_step_voids_older_checkpoints_from_there_on_and_is_one_itself() -> None:
    writers = [writer("a", alive=False), writer("b", attempt=2, resume_step=121)]
    checkpoints = [Checkpoint("trainer", 1, 100), Checkpoint("trainer", 1, 140)]
    assert find_limits(writers, checkpoints) == {"trainer": 120}
    assert find_limits(writers, [*checkpoints, Checkpoint("trainer", 2, 130)]) == {"trainer": 130}


def test_steps_beyond_the_limit_are_held_on_every_axis() -> None:
    rows = points((3, 1), (4, 1)).with_columns(axis=pl.Series([None, "tokens"], dtype=pl.String))
    sent, held = split(rows, [], {"trainer": 3}, {})
    assert sent["step"].to_list() == [3]
    assert held["reason"].to_list() == ["checkpoint"]


def points(*rows: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(
        [("trainer", None, step, float(step), attempt) for step, attempt in rows],
        schema={
            "role": pl.String,
            "axis": pl.String,
            "step": pl.Int64,
            "position": pl.Float64,
            "attempt": pl.Int32,
        },
        orient="row",
    )
