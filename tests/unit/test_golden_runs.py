"""The golden files of format 1.0: what is read of them today is what they held on the day they were made.

The judge is a second reader (`tests/support/golden_files.py`) with the merge rules in plain Python
(`tests/support/reduce_oracle.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Literal

import polars as pl
import pytest

from rl_eventlog import Run
from rl_eventlog.run.state import Thresholds
from tests.support import reduce_oracle as oracle
from tests.support.golden_files import EXPECTED, FOLDER, NAMES, TABLES, GoldenRun, Row, read_golden
from tests.support.rows import Writer

Attempts = Literal["latest", "all"]
ATTEMPTS: tuple[Attempts, ...] = ("latest", "all")
#: Silence is judged by this machine's clock, which may even be behind the one that made the runs.
SILENT_IS_LOST = Thresholds(lost_after=timedelta(days=-36500))

every_run = pytest.mark.parametrize("name", NAMES)
each_view = pytest.mark.parametrize("attempts", ATTEMPTS)


@cache
def golden(name: str) -> GoldenRun:
    return read_golden(FOLDER / name)


@cache
def run_of(name: str) -> Run:
    return Run(FOLDER / name, check="digest", thresholds=SILENT_IS_LOST)


@cache
def writers_of(name: str) -> list[Writer]:
    run = golden(name)
    return [
        Writer(
            writer,
            role=document["role"],
            rank=document["rank"],
            data_rank=document["data_rank"],
            node=document["node"],
            attempt=run.attempts[document["launch"]],
            incarnation=run.incarnations[writer],
            resume_step=document["resume_step"],
        )
        for writer, document in run.writers.items()
    ]


def known(name: str, table: str) -> list[Row]:
    """Rows by the coverage rule, with attempt and incarnation."""
    return oracle.known(golden(name).tables[table].rows.values(), writers_of(name))


def chosen(name: str, table: str, attempts: Attempts) -> list[Row]:
    """The rows of a view."""
    by = {
        "metrics": ("name", "axis", "position"),
        "timings": ("name", "step"),
        "samples": ("split", "dataset", "step"),
    }[table]
    return oracle.view(known(name, table), writers_of(name), by, attempts, "last" if table == "metrics" else "all")


def assert_same(frame: pl.LazyFrame, rows: Iterable[Mapping[str, Any]], key: Sequence[str]) -> None:
    """Compare every column: numbers that were computed to 12 digits, all else exactly."""

    def by_key(records: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], Row]:
        listed = list(records)
        found = {tuple(row[column] for column in key): {column: row[column] for column in columns} for row in listed}
        assert len(found) == len(listed), f"{key} comes twice"
        return found

    read = frame.collect()
    columns = read.columns
    actual, expected = by_key(read.to_dicts()), by_key(rows)
    assert expected
    assert actual.keys() == expected.keys()
    for place, row in expected.items():
        numbers = {column for column, value in row.items() if isinstance(value, float)}
        assert {c: v for c, v in actual[place].items() if c not in numbers} == {
            c: v for c, v in row.items() if c not in numbers
        }
        assert {c: actual[place][c] for c in numbers} == pytest.approx(
            {c: row[c] for c in numbers}, rel=1e-12, abs=0, nan_ok=True
        )


# -- against the oracle ------------------------------------------------------------------------------


@every_run
@each_view
def test_metrics_are_merged_as_the_oracle_merges_them(name: str, attempts: Attempts) -> None:
    merged = oracle.merge_metrics(chosen(name, "metrics", attempts))
    frame = run_of(name).metrics(attempts=attempts)
    assert_same(frame, merged, ["role", "name", "axis", "position", "attempt"])


@every_run
@each_view
def test_metrics_of_each_rank_are_the_rows_of_the_view(name: str, attempts: Attempts) -> None:
    rows = [
        {**row, "ranks": 1, "ranks_nan": int(row["value"] != row["value"])} for row in chosen(name, "metrics", attempts)
    ]
    assert_same(run_of(name).metrics(ranks="each", attempts=attempts), rows, ["writer", "seq"])


@every_run
@each_view
def test_timings_are_merged_as_the_oracle_merges_them(name: str, attempts: Attempts) -> None:
    merged = oracle.merge_timings(chosen(name, "timings", attempts))
    assert_same(run_of(name).timings(attempts=attempts), merged, ["role", "name", "step", "attempt"])


@every_run
@each_view
def test_timings_of_each_rank_are_its_spans_added_up(name: str, attempts: Attempts) -> None:
    key = ("role", "rank", "name", "step", "attempt")
    groups = oracle.grouped(chosen(name, "timings", attempts), lambda row: tuple(row[column] for column in key))
    added = [
        {
            **spans[0],
            "time": max(span["time"] for span in spans),
            "start": min(span["start"] for span in spans),
            "duration_seconds": sum(span["duration_seconds"] for span in spans),
            "count": sum(span["count"] for span in spans),
        }
        for spans in groups.values()
    ]
    assert_same(run_of(name).timings(ranks="each", attempts=attempts), added, key)


@every_run
def test_the_latest_value_of_each_hyperparameter_counts(name: str) -> None:
    rows = known(name, "hparams")
    groups = oracle.grouped(rows, lambda row: (row["role"], row["key"]))
    latest = [
        max(group, key=lambda row: (row["attempt"], row["time"], row["writer"], row["seq"]))
        for group in groups.values()
    ]
    assert_same(run_of(name).hparams(), latest, ["role", "key"])
    assert_same(run_of(name).hparams(history=True), rows, ["writer", "seq"])


@every_run
@each_view
def test_samples_are_those_of_the_view(name: str, attempts: Attempts) -> None:
    assert_same(run_of(name).samples(attempts=attempts), chosen(name, "samples", attempts), ["writer", "seq"])


@every_run
def test_markers_of_all_attempts_are_there(name: str) -> None:
    assert_same(run_of(name).markers(), known(name, "markers"), ["writer", "seq"])


@every_run
def test_nothing_is_missing_torn_damaged_or_odd(name: str) -> None:
    for table in golden(name).tables.values():
        assert (table.gaps, table.torn, table.damaged) == (set(), 0, 0)
    info = run_of(name).info
    assert (info.gaps, info.problems, info.rows_lost) == ((), (), 0)
    # the restart says its hyperparameters again, and they are the same
    assert run_of(name).warnings().is_empty()


@every_run
def test_info_says_what_the_documents_and_rows_say(name: str) -> None:
    run, info = golden(name), run_of(name).info
    rows = [row for table in run.tables.values() for row in table.rows.values()]
    assert info.name == name
    assert info.project == "rl-eventlog-demo"
    assert {info.run_uid} == {document["run_uid"] for document in run.writers.values()}
    assert info.rows == {table: len(found.rows) for table, found in run.tables.items() if found.rows}
    assert info.nodes == tuple({document["node"] for document in run.writers.values()})
    assert info.started == min(map(moment, (document["opened"] for document in run.writers.values())))

    for attempt in info.attempts:
        members = [document for document in run.writers.values() if document["launch"] == attempt.launch]
        its = [row for row in rows if row["launch"] == attempt.launch]
        assert attempt.attempt == run.attempts[attempt.launch]
        assert attempt.started == min(moment(document["opened"]) for document in members)
        assert attempt.roles == tuple(sorted({document["role"] for document in members}))
        assert attempt.rows == len(its)
        assert attempt.last_row == max(row["time"] for row in its)
        assert attempt.last_step == max(row["step"] for row in its if row["step"] is not None)
    assert [attempt.attempt for attempt in info.attempts] == sorted(run.attempts.values())

    newest = max(run.attempts.values())  # every role takes part in every launch
    alive = {w: d for w, d in run.writers.items() if run.attempts[d["launch"]] == newest}
    for rank in info.ranks:
        document = alive.pop(rank.writer)
        steps = [row["step"] for row in rows if row["writer"] == rank.writer and row["step"] is not None]
        assert (rank.role, rank.rank, rank.data_rank) == (document["role"], document["rank"], document["data_rank"])
        assert rank.last_step == max(steps)
        assert rank.state == ("finished" if rank.writer in run.ends else "lost")
    assert not alive
    for role in info.roles:
        numbers = [rank.rank for rank in info.ranks if rank.role == role.role]
        sizes = {document["world_size"] for document in run.writers.values() if document["role"] == role.role}
        assert {role.ranks_expected} == sizes
        assert role.ranks_seen == len(numbers)
        assert role.ranks_missing == ()
        assert role.attempt == newest


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# -- what each run is there to show ------------------------------------------------------------------


def test_clean_has_five_writers_in_three_roles_that_closed() -> None:
    run, info = golden("clean"), run_of("clean").info
    assert Counter(document["role"] for document in run.writers.values()) == {
        "trainer": 2,
        "rollout": 2,
        "controller": 1,
    }
    assert run.ends.keys() == run.writers.keys()
    assert [role.state for role in info.roles] == ["finished"] * 3
    assert not list(run.path.rglob("*.arrows"))


def test_killed_has_a_trainer_that_left_open_segments_in_the_middle_of_a_step() -> None:
    run, info = golden("killed"), run_of("killed").info
    (victim,) = (rank for rank in info.ranks if (rank.role, rank.rank) == ("trainer", 1))
    assert victim.state == info.state == "lost"
    assert victim.writer not in run.ends
    assert list(run.path.rglob(f"{victim.writer}-0.arrows"))
    assert not list(run.path.rglob("*.parquet"))
    rows = [row for row in run.tables["metrics"].rows.values() if row["writer"] == victim.writer]
    finished = {row["step"] for row in rows if row["closes_step"]}
    assert {row["step"] for row in rows} - finished == {7}


def test_restarted_has_two_attempts_whose_steps_overlap_in_every_role() -> None:
    run = run_of("restarted")
    assert [attempt.attempt for attempt in run.info.attempts] == [1, 2]
    assert run.info.state == "finished"
    points = oracle.grouped(chosen("restarted", "metrics", "all"), lambda row: (row["role"], row["step"]))
    twice: dict[str, set[int]] = {}
    for rows in points.values():
        if len({row["attempt"] for row in rows}) == 2:
            twice.setdefault(rows[0]["role"], set()).add(rows[0]["step"])
    assert twice["trainer"] == {6, 7, 8}
    assert twice["controller"] == {7}
    assert {12, 13, 14, 15} <= twice["rollout"]
    latest = run.metrics().filter(pl.col("role") == "trainer").select("step", "attempt").unique().collect()
    assert dict(latest.rows()) == {step: 1 if step < 6 else 2 for step in range(12)}
    assert len(golden("restarted").tables["samples"].rows) > run.samples().collect().height


# -- against what was written down when they were made -----------------------------------------------


@every_run
def test_rows_and_attempts_are_those_of_the_day(name: str) -> None:
    run, facts = run_of(name), EXPECTED[name]
    assert run.info.run_uid == facts["run_uid"]
    assert [
        {"launch": a.launch, "roles": list(a.roles), "rows": a.rows, "last_step": a.last_step}
        for a in run.info.attempts
    ] == facts["attempts"]
    counts = {table: dict(run.files.rows(table).group_by("writer").len().collect().rows()) for table in TABLES}
    assert {
        writer: {
            "role": found.role,
            "rank": found.rank,
            "ended": found.end is not None,
            "rows": {table: counts[table][writer] for table in TABLES if writer in counts[table]},
        }
        for writer, found in sorted(run.files.writers.items())
    } == facts["writers"]


@every_run
def test_points_and_values_are_those_of_the_day(name: str) -> None:
    run, facts = run_of(name), EXPECTED[name]
    frames = {
        "metrics": run.metrics(),
        "metrics, all attempts": run.metrics(attempts="all"),
        "metrics, each rank": run.metrics(ranks="each"),
        "metrics, each rank, all attempts": run.metrics(ranks="each", attempts="all"),
        "timings": run.timings(),
        "timings, all attempts": run.timings(attempts="all"),
        "hparams": run.hparams(),
        "samples": run.samples(),
        "samples, all attempts": run.samples(attempts="all"),
        "markers": run.markers(),
    }
    assert {what: frame.collect().height for what, frame in frames.items()} == facts["points"]
    points = {
        (row["role"], row["name"], row["step"]): row
        for row in run.metrics().collect().to_dicts()
        if row["axis"] is None
    }
    assert len(facts["values"]) > 50
    for role, series, step, attempt, ranks, value in facts["values"]:
        point = points[role, series, step]
        assert (point["attempt"], point["ranks"]) == (attempt, ranks)
        assert point["value"] == pytest.approx(value, rel=1e-12, abs=0)
    timings = {row["step"]: row for row in run.timings("training").collect().to_dicts()}
    assert len(timings) == len(facts["training"])
    for step, attempt, slowest, seconds, mean in facts["training"]:
        assert (timings[step]["attempt"], timings[step]["slowest_rank"]) == (attempt, slowest)
        assert timings[step]["duration_seconds"] == pytest.approx(seconds, rel=1e-12, abs=0)
        assert timings[step]["mean_seconds"] == pytest.approx(mean, rel=1e-12, abs=0)
