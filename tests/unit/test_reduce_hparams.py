"""Hyperparameters: the latest value holds, changes and differences are reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from rl_eventlog import reduce
from tests.support.rows import Writer, at, identities_of, rows_of

Logged = Sequence[tuple[Writer, dict[str, Any]]]


def rows(logged: Logged) -> pl.LazyFrame:
    identities = identities_of({writer.writer: writer for writer, _ in logged}.values())
    return reduce.identify(rows_of("hparams", logged).lazy(), identities)


def test_the_latest_by_attempt_then_time_holds() -> None:
    first, second = Writer("w0"), Writer("w1", attempt=2)
    logged = [
        (first, {"key": "lr", "value": "1", "time": at(0)}),
        (first, {"key": "lr", "value": "2", "time": at(90)}),
        (second, {"key": "lr", "value": "3", "time": at(50)}),
        (second, {"key": "lr", "value": "4", "time": at(60)}),
        (first, {"key": "seed", "value": "0", "time": at(1)}),
    ]
    latest = reduce.latest_hparams(rows(logged)).collect()
    assert latest.columns == ["role", "key", "value", "time", "attempt"]
    assert latest.rows() == [("trainer", "lr", "4", at(60), 2), ("trainer", "seed", "0", at(1), 1)]
    history = reduce.hparam_history(rows(logged)).collect()
    assert history.filter(key="lr")["value"].to_list() == ["1", "2", "3", "4"]


def test_of_equal_times_the_later_row_holds() -> None:
    writer = Writer("w0")
    logged = [(writer, {"key": "lr", "value": value, "time": at(0)}) for value in "312"]
    assert reduce.latest_hparams(rows(logged)).collect()["value"].to_list() == ["2"]


def test_roles_have_their_own_values() -> None:
    logged = [(Writer("w0"), {"key": "lr", "value": "1"}), (Writer("w1", role="eval"), {"key": "lr", "value": "2"})]
    assert reduce.latest_hparams(rows(logged)).collect().select("role", "value").rows() == [
        ("eval", "2"),
        ("trainer", "1"),
    ]
    assert reduce.hparam_warnings(rows(logged)).collect().height == 0


def test_changes_and_differences_between_ranks_are_reported() -> None:
    rank0, rank1, later = Writer("w0"), Writer("w1", rank=1), Writer("w2", attempt=2)
    logged = [
        *[(writer, {"key": "same", "value": "1"}) for writer in (rank0, rank1, later)],
        *[(rank0, {"key": "within", "value": value}) for value in "12"],
        *[(writer, {"key": "between", "value": writer.writer}) for writer in (rank0, later)],
        *[(writer, {"key": "ranks", "value": writer.writer}) for writer in (rank0, rank1)],
    ]
    assert reduce.hparam_warnings(rows(logged)).collect().rows() == [
        ("hparam_changed", "trainer", "between", "logged with another value later; the latest one holds"),
        ("hparam_changed", "trainer", "within", "logged with another value later; the latest one holds"),
        ("hparam_differs", "trainer", "ranks", "ranks of one attempt logged different values"),
    ]
