"""`verify`, `seal` and `compact`: what they print and how they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_eventlog import EventWriter
from rl_eventlog.maintain import REMEDIES, removal
from tests.support.cli import rleventlog
from tests.support.small_runs import HOSTILE, of_newer_version, one_rank, two_ranks
from tests.support.upkeep import event_files, killed_writer, snapshot

pytestmark = pytest.mark.integration


@pytest.fixture
def an_hour_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the grace time."""
    seconds = removal.Ages.seconds
    monkeypatch.setattr(removal.Ages, "seconds", lambda self, path: seconds(self, path) + 3600)


def test_verify_prints_a_row_a_writer_and_table(tmp_path: Path) -> None:
    path = two_ranks(tmp_path, steps=4)
    before = snapshot(path)
    result = rleventlog("verify", path)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].split() == ["small", "all", "is", "well"]
    assert lines[1].split() == ["attempt", "rank", "writer", "state", "table", "rows", "seqs", "missing"]
    cells = lines[2].split()
    assert [*cells[:3], *cells[4:]] == ["1", "trainer", "0", "finished", "metrics", "8", "0", "to", "7"]
    assert len(lines) == 8
    assert snapshot(path) == before


def test_verify_names_what_it_finds_with_status_1(tmp_path: Path) -> None:
    path = one_rank(tmp_path, "r", {"loss": 1.0})
    (sealed,) = event_files(path)
    sealed.unlink()
    result = rleventlog("verify", path)
    assert result.status == 1
    lines = result.out.splitlines()
    assert lines[0].split() == ["r", "1", "error"]
    assert "seqs 0 to 0 are in no usable file" in result.out
    assert lines[-2].split() == ["found", "what", "to", "do"]
    assert lines[-1].split(maxsplit=1) == ["gap", REMEDIES["gap"]]


def test_verify_with_nothing_but_notes_is_well_with_status_0(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    with EventWriter.open(tmp_path, run="r", role="trainer", rank=0, launch_id="two", capture_diff=False) as log:
        log.log_metrics({"loss": 1.0}, step=9)
    result = rleventlog("verify", path)
    assert (result.status, result.err) == (0, "")
    assert result.out.splitlines()[0].split() == ["r", "all", "is", "well"]
    assert "no end" in result.out
    assert rleventlog("verify", path, "--json").json()["ok"] is True


def test_verify_json_is_what_the_documentation_says(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    result = rleventlog("verify", path, "--json")
    assert (result.status, result.err) == (1, "")
    document = result.json()
    assert {key: document[key] for key in ("name", "path", "ok", "state", "rows_at_risk", "rows_lost")} == {
        "name": "r",
        "path": str(path),
        "ok": False,
        "state": "lost",
        "rows_at_risk": 0,
        "rows_lost": 0,
    }
    assert document["rows"] == {"metrics": 10, "timings": 5, "samples": 5}
    assert set(document) == {
        *("name", "path", "run_uid", "ok", "state", "rows", "rows_at_risk", "rows_lost", "writers", "findings"),
        "thresholds",
    }
    (metrics,) = (one for one in document["writers"] if one["table"] == "metrics")
    writer = metrics.pop("writer")
    assert metrics == {
        "role": "trainer",
        "rank": 0,
        "attempt": 1,
        "state": "lost",
        "table": "metrics",
        "rows": 10,
        "first_seq": 0,
        "last_seq": 9,
        "missing": 0,
    }
    (finding,) = document["findings"]
    assert (finding["severity"], finding["kind"]) == ("warning", "lost")
    assert finding["place"].startswith("trainer 0 on ")
    assert finding["place"].endswith(f" (writer {writer})")
    assert set(finding) == {"severity", "kind", "place", "detail", "remedy"}
    assert finding["remedy"] == REMEDIES["lost"]


def test_verify_says_when_silence_counts_where_a_rank_is_not_well(tmp_path: Path) -> None:
    result = rleventlog("verify", killed_writer(tmp_path))
    assert "lost" in result.out
    assert result.err == (
        "states: stalled after 3 missed heartbeats or 10 step times without a call, lost after 10 min of silence\n"
    )


def test_verify_of_many_ranks_shows_their_sums_and_ten_findings_of_a_kind(tmp_path: Path) -> None:
    for rank in range(21):
        with EventWriter.open(
            tmp_path, run="r", role="trainer", rank=rank, world_size=64, launch_id="one", capture_diff=False
        ) as log:
            log.log_metrics({"loss": 1.0}, step=0)
            log.log_timing("step", 1.0, step=0)
    path = tmp_path / "r"
    for sealed in event_files(path)[:12]:
        sealed.unlink()
    result = rleventlog("verify", path)
    assert result.status == 1
    words = [line.split() for line in result.out.splitlines()]
    assert words[0] == ["r", "12", "errors,", "1", "warning"]
    assert words[1] == ["attempt", "role", "state", "table", "writers", "rows", "missing"]
    assert words[2] == ["1", "trainer", "finished", "metrics", "21", "9", "12"]
    assert words[3] == ["1", "trainer", "finished", "timings", "21", "21"]
    assert result.out.count("are in no usable file") == 10
    assert ["gap", "and", "2", "more", "--all", "shows", "each"] in words
    assert "of 64 ranks, 21 to 63 never wrote in attempt 1" in result.out
    assert result.err == "42 writers and tables together: --all shows each\n"
    every = rleventlog("verify", path, "--all")
    assert every.out.count("are in no usable file") == 12
    assert sum("finished" in line for line in every.out.splitlines()) == 42


@pytest.mark.usefixtures("an_hour_later")
def test_seal_and_compact_say_what_they_did_and_verify_is_content(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    result = rleventlog("seal", path)
    assert (result.status, result.err) == (0, "")
    assert [line.strip() for line in result.out.splitlines()] == [
        "3 sealed",
        *sorted(map(str, event_files(path, "*.parquet")), key=result.out.index),
        "0 left alone, since its writer may live",
    ]
    result = rleventlog("seal", path, "--reclaim")
    assert result.status == 0
    assert "3 removed" in result.out
    assert event_files(path, "*.arrows") == []

    killed_writer(tmp_path, rank=1)
    rleventlog("seal", path, "--reclaim")
    result = rleventlog("compact", path, "--reclaim")
    assert (result.status, result.err) == (0, "")
    assert "3 compacted, of 6 files" in result.out
    assert "folded the documents of 2 writers" in result.out
    assert len(event_files(path)) == 3
    kinds = {finding["kind"] for finding in rleventlog("verify", path, "--json").json()["findings"]}
    assert kinds == {"lost"}


def test_what_is_covered_and_too_young_is_told(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    result = rleventlog("seal", path, "--reclaim")
    assert result.status == 0
    assert "0 removed" in result.out
    assert result.err == "3 more can go in 15 min, when nobody needs them any more: call again then\n"
    assert len(event_files(path, "*.arrows")) == 3


def test_without_a_grace_time_one_call_does_it_all(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    result = rleventlog("seal", path, "--reclaim", "--grace", "0")
    assert (result.status, result.err) == (0, "")
    assert "3 removed" in result.out
    killed_writer(tmp_path, rank=1)
    rleventlog("seal", path, "--reclaim", "--grace", 0)
    result = rleventlog("compact", path, "--reclaim", "--grace", 0)
    assert (result.status, result.err) == (0, "")
    assert len(event_files(path)) == 3
    assert rleventlog("compact", path, "--reclaim", "--grace", "-1").status == 2


def test_what_is_left_alone_is_listed_in_short_with_a_way_on(tmp_path: Path) -> None:
    with EventWriter.open(
        tmp_path, run="r", rank=0, capture_diff=False, segment_bytes=1, beat_interval_seconds=9
    ) as log:
        for step in range(25):
            log.log_metrics({"loss": 1.0}, step=step)
        count = len(event_files(log.path, "*.arrows"))
        result = rleventlog("seal", log.path)
        assert result.status == 0
        assert f"{count} left alone, since its writer may live" in result.out
        assert f"and {count - 20} more; --json lists all" in result.out
        assert result.err.endswith("gone, call again with --assume-dead\n")
        assert rleventlog("seal", log.path, "--assume-dead").err == ""


@pytest.mark.parametrize("command", ["seal", "compact"])
def test_json_of_the_changes_is_what_the_documentation_says(tmp_path: Path, command: str) -> None:
    path = killed_writer(tmp_path)
    document = rleventlog(command, path, "--reclaim", "--assume-dead", "--json").json()
    own = {"seal": {"sealed", "left_alone"}, "compact": {"path", "compacted", "sources", "folded_writers"}}[command]
    assert set(document) == own | {"problems", "removed", "waiting"}
    assert len(document["waiting"]) == (3 if command == "seal" else 0)


def test_what_cannot_be_sealed_is_named_with_status_1(tmp_path: Path) -> None:
    path = killed_writer(tmp_path)
    segment = event_files(path, "*.arrows")[0]
    segment.write_bytes(b"\xff\xff\xff\xff no segment")
    result = rleventlog("seal", path, "--json")
    assert result.status == 1
    (problem,) = result.json()["problems"]
    assert problem["path"] == str(segment)
    assert result.err.startswith(f"not sealed: {segment}: ")


@pytest.mark.parametrize("command", ["verify", "seal", "compact"])
def test_what_is_no_run_is_one_message(tmp_path: Path, command: str) -> None:
    result = rleventlog(command, tmp_path / "nothing")
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("rleventlog: ")
    assert "no run of rl-eventlog" in result.err


def test_hostile_names_reach_no_terminal(tmp_path: Path) -> None:
    path = killed_writer(tmp_path, role=HOSTILE)
    for command in ("verify", "seal", "compact"):
        result = rleventlog(command, path)
        assert "\x1b" not in result.out + result.err
        assert "\u202e" not in result.out + result.err


@pytest.mark.parametrize("as_root", [True, False])
def test_many_runs_are_compacted_and_a_bad_one_stops_no_other(tmp_path: Path, as_root: bool) -> None:
    bad = of_newer_version(tmp_path, "b")
    good = [two_ranks(tmp_path, name) for name in ("a", "c")]
    paths = [tmp_path] if as_root else [good[0], bad, good[1]]
    result = rleventlog("compact", *paths)
    assert result.status == 1
    assert result.err.startswith(f"{bad}: ")
    assert [line for line in result.out.splitlines() if line.endswith(":")] == [f"{path}:" for path in good]
    assert result.out.count("compacted, of 4 files") == 2
    first, failed, last = rleventlog("compact", *paths, "--json").json()["runs"]
    assert (failed["path"], failed["error_type"]) == (str(bad), "SchemaVersionError")
    assert [(one["path"], one["sources"]) for one in (first, last)] == [(str(path), 0) for path in good]
