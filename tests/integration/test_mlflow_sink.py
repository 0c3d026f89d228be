"""The MLflow sink with the real client, on sqlite and through a real server, read back by other means."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rl_eventlog.errors import MissingDependencyError, SinkRejectedError, SinkUnavailableError
from rl_eventlog.sinks.base import Cursor
from rl_eventlog.sinks.mlflow import MLflowSink
from tests.support.payloads import at, cursor, payload, run
from tests.support.servers import eventually, free_port, serving

pytestmark = pytest.mark.integration

#: `START` in milliseconds
START_MS = 1772600767890
UID = run().run_uid


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make its tables: made once, copied for each test."""
    folder = tmp_path_factory.mktemp("empty")
    sink = MLflowSink(tracking_uri=f"sqlite:///{folder}/mlflow.db", experiment="made-once")
    sink.open(run("someone-else"), {})
    return folder / "mlflow.db"


@pytest.fixture
def database(tmp_path: Path, empty_database: Path) -> Path:
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path / "mlflow.db"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Iterator[tuple[str, Path]]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_database, folder / "mlflow.db")
    port = free_port()
    command = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        str(folder / "store"),
    ]
    # the job runners of the server are of no use here, and slow
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    address = f"http://127.0.0.1:{port}"
    with serving(command, health=f"{address}/health", log=folder / "server.log", cwd=folder, env=quiet):
        yield address, folder / "mlflow.db"


def rows(database: Path, uid: str = UID) -> list[tuple[str, int, int, float | None]]:
    """(key, step, ms time, value) of all points of a run, read past MLflow; NaN as None."""
    query = """select key, step, timestamp, case when is_nan then null else value end from metrics
               where run_uuid in (select run_uuid from tags where key = 'rleventlog.run_uid' and value = ?)
               order by key, step, timestamp, value"""
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (uid,)).fetchall()


def opened(uri: str, uid: str = UID, **more: Any) -> tuple[MLflowSink, Cursor | None]:
    sink = MLflowSink(tracking_uri=uri, **more)
    return sink, sink.open(run(uid), {})


def curve(steps: range, series: str = "train/loss") -> list[dict[str, Any]]:
    return [{"series": series, "step": step, "value": step / 3} for step in steps]


def remote(sink: MLflowSink) -> Any:
    return sink._client.get_run(sink._run_id)


@pytest.mark.parametrize("over_http", [False, True], ids=["sqlite", "server"])
def test_points_arrive_once_at_original_steps_and_times(
    over_http: bool, database: Path, server: tuple[str, Path]
) -> None:
    uri, store = server if over_http else (f"sqlite:///{database}", database)
    sink, found = opened(uri)
    assert found is None
    points = [*curve(range(-1, 2400)), *curve(range(50), "timing/generation")]
    commit = payload(points)
    sink.send(commit, cursor(1, len(points)))
    expected = sorted((p["series"], p["step"], START_MS + 1000 * p["step"], p["value"]) for p in points)
    assert rows(store) == expected

    again, found = opened(uri)
    assert found == cursor(1, len(points))
    assert again.location == sink.location
    again.send(commit, cursor(1, len(points)))
    assert rows(store) == expected
    again.send(payload(curve(range(2400, 2405))), cursor(2, len(points) + 5))
    assert len(rows(store)) == len(expected) + 5
    assert opened(uri)[1] == cursor(2, len(points) + 5)


def test_the_cursor_is_written_after_the_last_point_of_a_full_request(database: Path) -> None:
    sink, _ = opened(f"sqlite:///{database}")
    requests: list[tuple[int, int]] = []
    log_batch = sink._client.log_batch

    def counted(run_id: str, metrics: Any = (), params: Any = (), tags: Any = (), synchronous: bool = True) -> None:
        requests.append((len(metrics), len(tags)))
        log_batch(run_id, metrics, params, tags, synchronous=synchronous)

    sink._client.log_batch = counted  # type: ignore[method-assign, assignment]
    sink.send(payload(curve(range(2000))), cursor(1, 2000))
    assert requests == [(1000, 0), (1000, 0), (0, 1)]


def test_start_end_status_and_description_are_the_originals(server: tuple[str, Path]) -> None:
    about: dict[str, Any] = {
        "project": "grpo-dev",
        "group": "sweep 1",
        "tags": ("baseline", "long"),
        "notes": "first *try*",
        "roles": ("trainer", "rollout"),
        "attempts": 3,
    }
    uid = "original-times"
    sink = MLflowSink(tracking_uri=server[0])
    sink.open(run(uid), {})
    assert remote(sink).info.status == "RUNNING"
    for _ in range(2):
        sink.finish(run(uid, status="failed", ended=at(12.5), **about))
    found = remote(sink)
    assert (found.info.run_name, found.info.status) == ("grpo-qwen", "FAILED")
    assert (found.info.start_time, found.info.end_time) == (START_MS, START_MS + 12500)
    assert found.data.tags | {"mlflow.note.content": "first *try*", "rleventlog.group": "sweep 1"} == found.data.tags
    assert json.loads(found.data.tags["rleventlog.tags"]) == ["baseline", "long"]
    assert found.data.tags["rleventlog.roles"] == "trainer, rollout"
    assert found.data.tags["rleventlog.attempts"] == "3"
    sink.finish(run(uid, status="running"))
    assert remote(sink).info.status == "RUNNING"
    sink.finish(run(uid, status="finished", ended=at(20)))
    assert (remote(sink).info.status, remote(sink).info.end_time) == ("FINISHED", START_MS + 20000)


def test_nonfinite_values_arrive_as_the_store_keeps_them(database: Path) -> None:
    sink, _ = opened(f"sqlite:///{database}")
    values = [math.nan, math.inf, -math.inf]
    sink.send(payload([{"series": "x", "step": i, "value": v} for i, v in enumerate(values)]), cursor(1, 3))
    sink.send(payload([{"series": "x", "step": i, "value": v} for i, v in enumerate(values)]), cursor(1, 3))
    assert [row[3] for row in rows(database)] == [None, sys.float_info.max, -sys.float_info.max]


def test_keys_that_mlflow_refuses_stay_apart_and_readable(server: tuple[str, Path]) -> None:
    names = ["pass@1", "pass@2", "a//b", "a/_0x2f_b", "../up", "", "é/漢字", " ", "a\nb", "/"]
    short = len(names)
    names += ["n" * 300 + "a", "n" * 300 + "b"]
    sink, _ = opened(server[0], "hard-keys")
    sink.send(payload([{"series": name, "step": i, "value": i} for i, name in enumerate(names)]), cursor(1, len(names)))
    stored = sorted(rows(server[1], "hard-keys"), key=lambda row: row[1])
    keys = [row[0] for row in stored]
    assert keys[:7] == ["pass_0x40_1", "pass_0x40_2", "a/_0x2f_b", "a/_0x5f_0x2f_b", "_0x2e_./up", "_0x_", "é/漢字"]
    assert keys[7:short] == [" ", "a_0xa_b", "_0x2f_"]
    assert [row[3] for row in stored] == list(range(len(names)))
    tags = remote(sink).data.tags
    kept = {tags["rleventlog.name." + key.rpartition("_0xh")[2].rstrip("_")] for key in keys[short:]}
    assert kept == set(names[short:])


def test_params_keep_their_first_value_and_tags_the_changes(server: tuple[str, Path]) -> None:
    sink, _ = opened(server[0], "params")
    first = payload(
        params=[
            {"key": "lr", "value": "0.1"},
            {"key": "model", "value": '"qwen"'},
            {"key": "eos", "value": '""'},
            {"key": "layers", "value": "[1, 2]"},
            {"key": "prompt (system)", "value": json.dumps("x" * 9000)},
            *({"key": f"many.{i}", "value": str(i)} for i in range(150)),
        ]
    )
    second = payload(params=[{"key": "lr", "value": "0.2", "attempt": 2}, {"key": "new", "value": "1", "attempt": 2}])
    third = payload(params=[{"key": "lr", "value": "0.1", "attempt": 3}])
    for number, commit in enumerate((first, second, third), 1):
        sink.send(commit, cursor(number))
        opened(server[0], "params")[0].send(commit, cursor(number))
    data = remote(sink).data
    assert len(data.params) == 156
    assert (data.params["lr"], data.params["model"], data.params["eos"]) == ("0.1", "qwen", "")
    assert (data.params["layers"], data.params["new"], data.params["many.149"]) == ("[1, 2]", "1", "149")
    assert len(data.params["prompt _0x28_system_0x29_"]) == 6000
    assert "[cut: 9000 characters, sha256 " in data.params["prompt _0x28_system_0x29_"]
    history = {name: value for name, value in data.tags.items() if name.startswith("rleventlog.param.")}
    assert history == {"rleventlog.param.lr.attempt_2": "0.2", "rleventlog.param.lr.attempt_3": "0.1"}


def test_params_changed_and_changed_back_in_one_commit_are_the_same_after_a_resend(database: Path) -> None:
    sink, _ = opened(f"sqlite:///{database}")
    commit = payload(params=[{"key": "lr", "value": v, "attempt": n} for n, v in enumerate(("1", "2", "1"), 1)])
    histories = []
    for _ in range(2):
        sink.send(commit, cursor(1))
        data = remote(opened(f"sqlite:///{database}")[0]).data
        histories.append((data.params, {k: v for k, v in data.tags.items() if "param" in k}))
    tags = {"rleventlog.param.lr.attempt_2": "2", "rleventlog.param.lr.attempt_3": "1"}
    assert histories == [({"lr": "1"}, tags)] * 2


def test_samples_are_a_table_and_a_harmless_page_per_split_and_step(server: tuple[str, Path], tmp_path: Path) -> None:
    hostile = "</pre><script>alert(1)</script>\x1b[31m\u202e"
    samples = [
        {"step": 10, "prompt": "1+1", "response": "2", "reward": 1.0, "rewards": [{"key": "exact", "value": 1.0}]},
        {"step": 10, "prompt": hostile, "response": hostile, "token_ids": [1, 2]},
        {"step": 20, "prompt": "2+2", "messages": [{"role": "user", "content": "2+2", "name": None}]},
        {"step": 20, "split": "../x", "prompt": "2+2"},
    ]
    sink, _ = opened(server[0], "samples")
    for _ in range(2):
        sink.send(payload(samples=samples), cursor(1))
    sink.send(payload(samples=[{"step": 10, "prompt": "late", "rank": 1}]), cursor(2))

    client = sink._client
    assert [f.path for f in client.list_artifacts(sink._run_id, "samples/validation")] == [
        "samples/validation/step_00000010.commit_2.html",
        "samples/validation/step_00000010.commit_2.parquet",
        "samples/validation/step_00000010.html",
        "samples/validation/step_00000010.parquet",
        "samples/validation/step_00000020.html",
        "samples/validation/step_00000020.parquet",
    ]
    assert [f.path for f in client.list_artifacts(sink._run_id, "samples")] == [
        "samples/_0x2e_._0x2f_x",
        "samples/validation",
    ]
    folder = Path(client.download_artifacts(sink._run_id, "samples/validation", str(tmp_path)))
    table = pq.read_table(folder / "step_00000010.parquet")
    assert table["prompt"].to_pylist() == ["1+1", hostile]
    assert table["token_ids"].to_pylist() == [None, [1, 2]]
    assert pq.read_table(folder / "step_00000010.commit_2.parquet")["prompt"].to_pylist() == ["late"]
    page = (folder / "step_00000010.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page
    assert "\x1b" not in page
    assert "exact 1.0" in page


SENDER = """
import sys
from rl_eventlog.sinks.mlflow import MLflowSink
from tests.support.payloads import cursor, payload, run
sink = MLflowSink(tracking_uri=sys.argv[1])
sink.open(run(sys.argv[2]), {})
sink.send(payload([{"series": "train/loss", "step": i, "value": i / 3} for i in range(12_000)]), cursor(1, 12_000))
"""


@pytest.mark.crash
@pytest.mark.parametrize("over_http", [False, True], ids=["sqlite", "server"])
def test_a_killed_sender_leaves_no_cursor_and_a_resend_completes_the_points(
    over_http: bool, database: Path, server: tuple[str, Path]
) -> None:
    uri, store = server if over_http else (f"sqlite:///{database}", database)
    with subprocess.Popen([sys.executable, "-c", SENDER, uri, "killed"]) as sender:
        eventually(lambda: len(rows(store, "killed")) >= 1000 or None)
        sender.send_signal(signal.SIGKILL)
    assert sender.returncode == -signal.SIGKILL
    assert len(rows(store, "killed")) < 12_000

    sink, found = opened(uri, "killed")
    assert found is None
    sink.send(payload(curve(range(12_000))), cursor(1, 12_000))
    assert [(row[1], row[2]) for row in rows(store, "killed")] == [(i, START_MS + 1000 * i) for i in range(12_000)]
    assert opened(uri, "killed")[1] == cursor(1, 12_000)


def test_of_two_runs_made_at_once_the_older_one_is_kept(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{database}"
    first, _ = opened(uri)
    find, answers = MLflowSink._find, [None]

    def blind_once(self: MLflowSink, experiment_id: str, run_uid: str) -> Any:
        return answers.pop() if answers else find(self, experiment_id, run_uid)

    monkeypatch.setattr(MLflowSink, "_find", blind_once)
    second, _ = opened(uri)
    assert second.location == first.location
    assert len(first._client.search_runs([remote(first).info.experiment_id])) == 1


def test_the_default_is_mlflows_own(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert MLflowSink().address == f"sqlite:///{tmp_path}/mlflow.db#rl-eventlog"
    assert (
        MLflowSink(tracking_uri="sqlite:///x/../mlflow.db").address != MLflowSink(tracking_uri="sqlite:///x.db").address
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:pw@Example.org:5000/")
    assert MLflowSink(experiment="my exp").address == "http://example.org:5000#my%20exp"


def test_opening_is_quiet_and_leaves_logging_and_environment_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, level, handlers = dict(os.environ), logging.getLogger("mlflow").level, logging.getLogger().handlers[:]
    sink, _ = opened(f"sqlite:///{tmp_path}/new folder/mlflow.db")
    sink.send(payload(curve(range(3)), samples=[{"step": 1}]), cursor(1, 3))
    sink.finish(run(status="finished", ended=at(5)))
    assert capfd.readouterr() == ("", "")
    assert (dict(os.environ), logging.getLogger("mlflow").level) == (before, level)
    assert logging.getLogger().handlers == handlers
    assert (tmp_path / "new folder" / "mlruns" / "rl-eventlog").is_dir()


def test_a_server_that_is_not_there_is_reported_in_bounded_time(capfd: pytest.CaptureFixture[str]) -> None:
    sink = MLflowSink(tracking_uri=f"http://me:secret@127.0.0.1:{free_port()}", timeout_seconds=5)
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match="refused") as caught:
        sink.open(run(), {})
    assert time.monotonic() - began < 5
    assert "secret" not in str(caught.value)
    assert capfd.readouterr().err == ""


def test_a_server_that_never_answers_is_reported_in_bounded_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sink = MLflowSink(tracking_uri=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=2)
        began = time.monotonic()
        with pytest.raises(SinkUnavailableError, match="tim"):
            sink.open(run(), {})
        assert time.monotonic() - began < 4


def test_what_the_server_refuses_is_rejected(server: tuple[str, Path]) -> None:
    sink, _ = opened(server[0], "refused")
    sink._run_id = "no-such-run"
    with pytest.raises(SinkRejectedError, match="no-such-run"):
        sink.send(payload(curve(range(1))), cursor(1, 1))
    with pytest.raises(SinkRejectedError, match="404"):
        opened(server[0] + "/no/such/place")


def test_a_cursor_that_is_none_of_ours_is_refused(database: Path) -> None:
    sink, _ = opened(f"sqlite:///{database}")
    sink._client.set_tag(sink._run_id, "rleventlog.cursor", "7")
    with pytest.raises(SinkRejectedError, match=r"tag rleventlog\.cursor was changed"):
        opened(f"sqlite:///{database}")


def test_stores_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(SinkRejectedError, match="--tracking-uri sqlite"):
        opened(str(tmp_path / "mlruns"))
    (tmp_path / "text.db").write_text("this is no database, and long enough to be told from one" * 20)
    with pytest.raises(SinkRejectedError, match=r"text\.db"):
        opened(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(SinkRejectedError, match=r"text\.db"):
        opened(f"sqlite:///{tmp_path}/text.db/mlflow.db")


def test_a_deleted_experiment_is_refused_with_a_remedy(database: Path) -> None:
    uri = f"sqlite:///{database}"
    sink, _ = opened(uri)
    sink._client.delete_experiment(remote(sink).info.experiment_id)
    with pytest.raises(SinkRejectedError, match="restore it"):
        opened(uri)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingDependencyError, match=r"rl-eventlog\[mlflow\]"):
        MLflowSink()
