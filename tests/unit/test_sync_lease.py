from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from rl_eventlog.errors import LeaseHeldError, SyncError
from rl_eventlog.sync.lease import Lease, hold_lease


def taken_by_a_process_that_was_killed(folder: Path) -> Path:
    """The file of a lease whose holder was killed with SIGKILL."""
    script = (
        "import os, pathlib, signal, sys; from rl_eventlog.sync.lease import Lease; "
        "Lease.acquire(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=False)
    assert done.returncode == -9
    [path] = (folder / "lease").glob("*.json")
    return path


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_released_lease_is_free(tmp_path: Path) -> None:
    with hold_lease(tmp_path) as first:
        first.check()
    with hold_lease(tmp_path) as second:
        second.check()


def test_a_live_holder_is_named_and_keeps_the_lease(tmp_path: Path) -> None:
    with hold_lease(tmp_path) as lease:
        with pytest.raises(LeaseHeldError, match=rf"process {os.getpid()} on .* is syncing"):
            Lease.acquire(tmp_path)
        lease.check()


def test_a_killed_holder_on_this_host_is_taken_over_at_once(tmp_path: Path) -> None:
    taken_by_a_process_that_was_killed(tmp_path)
    with hold_lease(tmp_path) as lease:
        lease.check()


@pytest.mark.parametrize("change", [{"host": "other"}, {"boot_id": "other"}, {"pid_namespace": "pid:[1]"}])
def test_a_holder_that_cannot_be_seen_from_here_is_not_taken_over(tmp_path: Path, change: dict[str, str]) -> None:
    path = taken_by_a_process_that_was_killed(tmp_path)
    rewrite(path, **change)
    with pytest.raises(LeaseHeldError, match=r"remove .*json"):
        Lease.acquire(tmp_path)
    path.unlink()
    Lease.acquire(tmp_path).check()


def test_another_process_with_the_same_pid_is_not_the_holder(tmp_path: Path) -> None:
    path = taken_by_a_process_that_was_killed(tmp_path)
    rewrite(path, pid=os.getpid())
    Lease.acquire(tmp_path).check()


def test_of_many_who_take_over_one_gets_it(tmp_path: Path) -> None:
    taken_by_a_process_that_was_killed(tmp_path)
    barrier = Barrier(8)

    def take(_: int) -> Lease | None:
        barrier.wait()
        try:
            return Lease.acquire(tmp_path)
        except LeaseHeldError:
            return None

    with ThreadPoolExecutor(8) as pool:
        leases = [lease for lease in pool.map(take, range(8)) if lease]
    assert len(leases) == 1
    leases[0].check()


def test_a_holder_whose_lease_was_taken_stops_and_does_not_release_the_new_one(tmp_path: Path) -> None:
    old = Lease.acquire(tmp_path)
    [path] = (tmp_path / "lease").glob("*.json")
    rewrite(path, pid=2**22 + 1)
    new = Lease.acquire(tmp_path)
    with pytest.raises(LeaseHeldError, match="took over"):
        old.check()
    old.release()
    new.check()
    with pytest.raises(LeaseHeldError, match="is syncing"):
        Lease.acquire(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SyncError, match="file/ledger: cannot keep the record"):
        Lease.acquire(tmp_path / "file" / "ledger")
