"""Every benchmark runs to its end on a share of its calls and writes what it should; no time is judged here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.benchmarks import big_rows, imports, key_sets, log_call, memory, paced, report, scale, size_and_seal
from tests.benchmarks.contestants import CONTESTANTS
from tests.benchmarks.measure import Times, in_process
from tests.benchmarks.rounds import Block, Race, Turns, race

PROJECT = Path(__file__).parents[2]


def assert_ordered(times: Times) -> None:
    assert 0 < times.median <= times.p99 <= times.p999 <= times.highest


@pytest.fixture(scope="module")
def short_race(tmp_path_factory: pytest.TempPathFactory) -> Race:
    blocks = {count: Block(3, 0.05) for count in (1, 20)}
    return race(tmp_path_factory.mktemp("race"), blocks, rounds=2)  # raises where files hold less than was logged


@pytest.mark.integration
def test_every_contestant_logs_all_points_and_is_timed_in_each_round(short_race: Race) -> None:
    assert [*short_race.turns] == [1, 20]
    for count, by_name in short_race.turns.items():
        assert [*by_name] == [*CONTESTANTS]
        for name, turns in by_name.items():
            assert_ordered(turns.times)
            assert len(turns.medians) == 2
            assert 2 <= turns.times.calls <= 6
            assert turns.all_calls >= turns.times.calls + 2  # the untimed first call of each turn
            assert turns.cpu_nanoseconds > 0, (name, count)
    for name, points in short_race.points.items():
        assert points >= 21 + 2 * 2 * 21, name


@pytest.mark.integration
def test_the_log_call_is_shown_beside_every_contestant(short_race: Race) -> None:
    shown = log_call.section(short_race)
    for name in CONTESTANTS:
        assert sum(line.startswith(f"| {name} |") for line in shown.lines) == 2
    assert len(shown.verdicts) == 4


def test_ratios_compare_the_rounds_one_by_one() -> None:
    ours, peer = Turns(medians=[1.0, 10.0, 2.0]), Turns(medians=[3.0, 30.0, 40.0])
    assert peer.times_of(ours) == 3.0


@pytest.mark.parametrize("write", ["direct", "queued"])
def test_a_paced_run_rotates_and_seals_twice_on_the_way(tmp_path: Path, write: paced.Write) -> None:
    run = in_process(paced.run_paced, tmp_path, write, 2.0)
    assert run.ours.calls == run.bare.calls == 1_000
    for times in (run.ours, run.bare, run.during_seals):
        assert_ordered(times)
    assert run.during_seals.calls < 1_000
    assert run.seals == 2
    assert run.rows == 20 * 1_001  # with the call that makes the segment
    assert len(run.last_values) == 20
    assert run.last_values["train/int_0"] == int(run.last_values["train/int_0"])
    shown = paced.section(run, run)
    assert "Segments sealed on the way: 2 (direct), 2 (queued)." in " ".join(shown.lines)
    assert len(shown.verdicts) == 4


def test_key_sets_in_rotation_are_timed_and_evictions_counted(tmp_path: Path) -> None:
    few = key_sets.measured(tmp_path / "few", 20, 100, 100)
    many = key_sets.measured(tmp_path / "many", 750, 100, 100)
    for one in (few, many):
        assert_ordered(one.times)
        assert one.rows == 100 * (one.sets + 100)
        assert 100 * one.sets < one.memory_bytes  # less than a byte a key is no cache
    assert few.evictions == 0
    assert 0 < many.evictions <= 850
    shown = key_sets.section([few, many])
    assert [verdict.met for verdict in shown.verdicts][1:] == [True, True]  # the cache is bounded at any speed


@pytest.mark.parametrize("form", big_rows.FORMS)
def test_rollouts_arrive_whole_in_every_form(tmp_path: Path, form: str) -> None:
    found = in_process(big_rows.measured, tmp_path, form, 32, 700, 2)
    ids = big_rows.columns_of(32, 700)["token_ids"]
    assert (found.rows, found.tokens, found.token_sum) == (2 * 32, 2 * ids.size, 2 * int(ids.sum(dtype="int64")))
    assert len(found.call_milliseconds) == len(found.flushed_seconds) == 2
    assert all(
        seconds * 1000 >= call for call, seconds in zip(found.call_milliseconds, found.flushed_seconds, strict=True)
    )
    assert found.alone_milliseconds > 0
    assert found.slowed_to > 0
    assert len(big_rows.section([found]).verdicts) == 1


def test_sealed_values_take_no_more_bytes_than_promised(tmp_path: Path) -> None:
    found = size_and_seal.sizes(tmp_path, steps=2_000, rounds=1)
    for size in found.values():
        assert size.points_read == size.points == 40_000
        assert size.open_bytes > size.sealed_bytes
        assert len(size.seal_points) == 1
    assert [verdict.met for verdict in size_and_seal.section(found).verdicts] == [True, True, True]


def test_memory_is_looked_at_before_and_after(tmp_path: Path) -> None:
    found = in_process(memory.measured, tmp_path, 200, 2_000)
    assert 0 < found.opened <= found.peak
    assert max(found.early, found.late) <= found.peak
    assert found.rows == 5 * 2_000
    assert len(memory.section(found).verdicts) == 1


def test_reading_at_scale_finds_every_point_and_the_same_after_compact(tmp_path: Path) -> None:
    found = scale.measured(tmp_path, ranks=26, few_ranks=2, runs=3, metrics=10, steps=20, rounds=1)
    assert (found.keys_equal, found.keys) == (200, 200)
    assert found.same_after_compact
    assert found.files_left <= 20
    assert 0 < found.one_metric < math.inf
    assert found.large.points == 26 * 10 * 20 == 13 * found.few_ranks.points
    verdicts = {verdict.target: verdict.met for verdict in scale.section(found).verdicts}
    assert verdicts["1,024 ranks: equal to the oracle on 200 keys"]
    assert verdicts["1,024 ranks: every value as before `compact`"]


def test_imports_are_timed_in_turns() -> None:
    found = imports.seconds(rounds=1)
    assert [*found] == [*imports.STATEMENTS]
    assert all(0 < times[0] < math.inf for times in found.values())
    assert len(imports.section(found).verdicts) == 2


def test_the_document_names_machine_and_targets() -> None:
    parts = [
        report.Section("One", report.table(("", "us"), [("a", "1")]), [report.at_most("quick", 1.0, 2, "us")]),
        report.Section("Two", ["Text."], [report.at_most("small", 3.0, 2, "MB")]),
    ]
    text = report.render(parts, report.machine_of(PROJECT))
    assert "| quick: at most 2 us | 1.0 us | yes |\n| small: at most 2 MB | 3.0 MB | **no** |\n" in text
    assert "## One\n\n|  | us |\n| --- | ---: |\n| a | 1 |\n\n## Two\n\nText.\n" in text
    for word in ("cores", "Linux", "on disk", "trackio ", "orjson "):
        assert word in text
