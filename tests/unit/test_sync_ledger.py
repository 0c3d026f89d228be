from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_eventlog.errors import LedgerError, SyncError
from rl_eventlog.sinks.base import Payload
from rl_eventlog.sync.ledger import Ledger, state_folder, target_name
from rl_eventlog.sync.names import SeriesKey
from rl_eventlog.sync.record import HeldPoint, Mark, PlanState, Record
from tests.support.payloads import payload

UID = "01jnf0000000000000000000aa"
STATE = PlanState(
    frontier={"metrics": {"w": 12}, "samples": {"w": -1}},
    marks=(Mark("trainer", None, "launch", 9.0), Mark("trainer", "tokens", "launch", None)),
    limits={"trainer": 7},
    carried=(HeldPoint(SeriesKey("metrics", "trainer", "loss", None), 11.0, float("inf")),),
    renamed={SeriesKey("metrics", "controller", "loss", "tokens"): "controller/loss"},
    samples={"w": ((0, 3), (7, 9))},
    options={"final": False},
    held=4,
    unplaced=1,
)


def points(*values: float) -> Payload:
    return payload(points=[{"series": "loss", "step": step, "value": value} for step, value in enumerate(values)])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def ledger(run: Path, address: str = "somewhere") -> Ledger:
    return Ledger(run, UID, "memory", address)


def prepared(run: Path) -> Ledger:
    found = ledger(run)
    found.prepare()
    return found


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"lease", "target.json"}


def test_opening_a_ledger_writes_nothing(run: Path) -> None:
    found = ledger(run)
    assert (found.commits, found.done, found.state, found.pending(), dict(found.position)) == (0, 0, None, [], {})
    assert not (run / ".sync").exists()
    assert not state_folder(UID, target_name("memory", "somewhere")).exists()


def test_the_folder_is_named_after_kind_and_address(run: Path) -> None:
    assert ledger(run).folder == run / ".sync" / "memory-92b6359c721f"
    assert ledger(run).folder != ledger(run, "elsewhere").folder


def test_a_plan_is_read_back_as_it_was_written(run: Path) -> None:
    prepared(run).write_plan([points(1, 2), points(3), payload(params=[{"key": "lr", "value": "1"}])], STATE)
    found = ledger(run)
    assert found.state == STATE
    assert [record.commit for record in found.pending()] == [1, 2, 3]
    assert [found.payload(record).points["value"].to_pylist() for record in found.pending()] == [[1, 2], [3], []]
    assert [record.cursor.points for record in found.pending()] == [2, 3, 3]
    assert [record.plan_commits for record in found.pending()] == [3, 3, 3]


def test_the_next_plan_goes_on_from_the_last(run: Path) -> None:
    first = prepared(run)
    first.write_plan([points(1, 2)], STATE)
    second = prepared(run)
    second.write_plan([points(3)], PlanState(frontier={}))
    one, two = second.pending()
    assert (two.commit, two.plan_first, two.points_so_far, two.previous) == (2, 2, 3, one.digest)
    assert second.state == PlanState(frontier={})


def test_a_confirmed_commit_leaves_its_payload_and_keeps_the_sinks_position(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1), points(2)], STATE)
    found.confirm(found.pending()[0], {"row": 17})
    assert files(found.folder) == {"00000001.json", "00000001.done", "00000002.json", "00000002.arrow"}
    again = ledger(run)
    assert (again.done, dict(again.position), [record.commit for record in again.pending()]) == (1, {"row": 17}, [2])


def test_records_without_their_first_do_not_count_and_are_overwritten(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1), points(2), points(3)], STATE)
    (found.folder / "00000001.json").unlink()  # as if killed before the first record was there
    (found.folder / ".tmp-01jnf").write_bytes(b"half a payload")
    shutil.rmtree(state_folder(UID, found.folder.name))

    again = prepared(run)
    assert again.commits == 0
    assert files(again.folder) == set()
    again.write_plan([points(4)], STATE)
    assert ledger(run).commits == 1


def test_a_longer_plan_that_was_never_finished_does_not_lengthen_a_shorter_one(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1), points(2), points(3)], STATE)
    late = {name: (found.folder / name).read_bytes() for name in ("00000002.json", "00000003.json")}
    shutil.rmtree(run / ".sync")
    shutil.rmtree(state_folder(UID, found.folder.name))
    found = prepared(run)
    found.write_plan([points(9)], STATE)
    for name, data in late.items():
        (found.folder / name).write_bytes(data)
    again = ledger(run)
    assert again.commits == 1
    assert [again.payload(record).points["value"].to_pylist() for record in again.pending()] == [[9]]


def test_a_payload_that_is_not_the_planned_one_is_refused(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1)], STATE)
    path = found.folder / "00000001.arrow"
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="not what was planned"):
        found.payload(found.pending()[0])
    path.unlink()
    with pytest.raises(LedgerError, match="is gone: to send everything anew, remove the run at the target and"):
        found.payload(found.pending()[0])


def test_a_damaged_record_is_named(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1)], STATE)
    path = found.folder / "00000001.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(LedgerError, match=r"00000001.json: this record of what was sent is damaged"):
        ledger(run)


def test_records_survive_the_loss_of_the_runs_folder_in_the_users_state(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1), points(2)], STATE)
    for record in found.pending():
        found.confirm(record, {"row": record.commit})
    before = {record.commit: record for record in (found.record(1), found.record(2))}
    shutil.rmtree(run / ".sync")

    again = prepared(run)
    assert (again.done, again.commits, dict(again.position), again.state) == (2, 2, {"row": 2}, STATE)
    assert {n: Record.read(again.folder / f"{n:08d}.json") for n in (1, 2)} == before


def test_an_old_copy_of_the_run_is_completed_from_the_users_state(run: Path, tmp_path: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1)], STATE)
    found.confirm(found.pending()[0], {})
    shutil.copytree(run, tmp_path / "old")
    found.write_plan([points(2)], STATE)
    found.confirm(found.pending()[0], {"row": 2})
    assert prepared(tmp_path / "old").done == 2
    assert "00000002.json" in files(tmp_path / "old" / ".sync" / found.folder.name)


def test_two_histories_are_refused(run: Path) -> None:
    found = prepared(run)
    found.write_plan([points(1)], STATE)
    saved = shutil.copytree(found.folder, run / "saved")
    shutil.rmtree(found.folder)
    shutil.rmtree(state_folder(UID, found.folder.name))
    prepared(run).write_plan([points(2)], STATE)
    shutil.rmtree(found.folder)
    saved.rename(found.folder)
    with pytest.raises(LedgerError, match="different histories"):
        ledger(run)


def test_a_run_that_cannot_be_written_has_its_ledger_in_the_users_state(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: run not in (path, *Path(path).parents) and real(path, mode))
    found = prepared(run)
    found.write_plan([points(1), points(2)], STATE)
    found.confirm(found.pending()[0], {"row": 1})
    assert list(run.iterdir()) == []
    assert found.folder == state_folder(UID, target_name("memory", "somewhere"))
    again = ledger(run)
    assert (again.done, again.payload(again.pending()[0]).points["value"].to_pylist()) == (1, [2])


def test_a_state_folder_that_cannot_be_written_is_only_a_warning(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    found = prepared(run)
    found.write_plan([points(1)], STATE)
    found.confirm(found.pending()[0], {})
    assert ledger(run).done == 1
    [warning] = found.warnings
    assert "no copy of the record" in warning


def test_a_user_without_a_home_is_told_what_to_set(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", without_home)
    with pytest.raises(SyncError, match="set XDG_STATE_HOME"):
        Ledger(run, "uid", "memory", "here")


def test_facts_on_the_target_are_kept(run: Path) -> None:
    found = prepared(run)
    found.note({"location": "there"})
    assert ledger(run).target == {
        "kind": "memory",
        "address": "somewhere",
        "run_uid": UID,
        "location": "there",
    }
