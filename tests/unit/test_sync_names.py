from __future__ import annotations

import pytest

from rl_eventlog.sync.names import SeriesKey, assign


def key(role: str, name: str, *, table: str = "metrics", axis: str | None = None) -> SeriesKey:
    return SeriesKey(table, role, name, axis)


@pytest.mark.parametrize("role", ["main", "trainer", "controller"])
def test_three_roles_have_no_prefix(role: str) -> None:
    loss = key(role, "loss")
    assert assign([loss], [], {}) == {loss: "loss"}


def test_other_roles_are_prefixed_unless_they_are_already() -> None:
    plain, prefixed = key("rollout", "tokens"), key("rollout", "rollout/tokens_per_second")
    assert assign([plain, prefixed], [], {}) == {plain: "rollout/tokens", prefixed: "rollout/tokens_per_second"}


def test_timings_are_below_timing() -> None:
    ours, theirs = key("trainer", "train", table="timings"), key("rollout", "generation", table="timings")
    assert assign([ours, theirs], [], {}) == {ours: "timing/train", theirs: "rollout/timing/generation"}


def test_of_two_that_come_together_the_trainer_keeps_the_name_before_the_controller() -> None:
    trainer, controller = key("trainer", "reward"), key("controller", "reward")
    assert assign([controller, trainer], [], {}) == {trainer: "reward", controller: "controller/reward"}


def test_who_is_committed_later_gets_the_prefix_and_keeps_it() -> None:
    first, later = key("controller", "reward"), key("trainer", "reward")
    assert assign([first], [], {}) == {first: "reward"}
    assert assign([later], [first], {}) == {later: "trainer/reward"}
    renamed = {later: "trainer/reward"}
    assert assign([first, later], [first, later], renamed) == {first: "reward", later: "trainer/reward"}


def test_of_one_name_on_two_axes_the_one_by_step_keeps_it_and_the_other_says_its_axis() -> None:
    by_step, by_tokens = key("trainer", "loss"), key("trainer", "loss", axis="tokens")
    assert assign([by_tokens, by_step], [], {}) == {by_step: "loss", by_tokens: "loss/by_tokens"}
    assert assign([by_tokens], [], {}) == {by_tokens: "loss"}


def test_no_two_series_share_a_name_whatever_they_are_called() -> None:
    keys = [
        key("trainer", "rollout/x"),
        key("rollout", "x"),
        key("rollout", "rollout/x"),
        key("main", "timing/t"),
        key("main", "t", table="timings"),
        key("main", "main/timing/t"),
    ]
    names = assign(keys, [], {})
    assert len(set(names.values())) == len(keys)
    assert names[keys[0]] == "rollout/x"
