"""The W&B sink with the real client: online against a loopback server, offline read back from its files."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_eventlog.errors import MissingDependencyError, SinkRejectedError, SinkUnavailableError
from rl_eventlog.sinks.base import Payload
from rl_eventlog.sinks.wandb import WandbSink
from rl_eventlog.sinks.wandb_file import read_records
from rl_eventlog_cli.demo.wandb_file import read_offline_runs, read_wandb_file
from tests.support.payloads import START, at, cursor, payload, run
from tests.support.servers import eventually, free_port
from tests.support.wandb_server import API_KEY, ENTITY, StoredRun, WandbServer

pytestmark = pytest.mark.integration

RUN_ID = run().run_uid
VALUES = [1.5, math.nan, math.inf, -math.inf, 0.1 + 0.2, -1e300, 1e-300, 2.0**53 - 1]
MANY = 2000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    with WandbServer() as server:
        yield server


@pytest.fixture
def sinks() -> Iterator[list[WandbSink]]:
    """Sinks put in here are closed after the test."""
    opened: list[WandbSink] = []
    yield opened
    for sink in opened:
        sink.close()


def first_commit() -> Payload:
    points: list[dict[str, Any]] = [
        {"series": "train/loss", "step": step, "value": value, "time": at(step + 0.000001)}
        for step, value in enumerate(VALUES)
    ]
    points.append({"role": "rollout", "series": "rollout/return", "step": 3, "value": 7.0})
    points.append({"series": "eval/score", "axis": "tokens", "step": 3, "position": 1.5, "value": 8.0, "attempt": 2})
    return payload(
        points,
        params=[{"key": "lr", "value": "0.1"}, {"key": "optimizer.betas", "value": "[0.9, 0.95]"}],
        samples=[
            {"step": 7, "prompt": "1+1=", "response": "2", "reward": 1.0},
            {"step": 7, "prompt": "1+2=", "response": "4", "reward": 0.0},
        ],
    )


def second_commit() -> Payload:
    point = {"series": "train/kl", "step": 8, "value": 0.25}
    return payload([point], params=[{"key": "lr", "value": "0.2", "attempt": 2}])


def many_points(count: int = MANY) -> Payload:
    sample = {"step": 1, "prompt": "1+1=", "response": "2"}
    return payload([{"series": "loss", "step": step, "value": step / 7} for step in range(count)], samples=[sample])


def check_first_rows(rows: list[dict[str, Any]]) -> None:
    """Original values, steps, times and attempts, each once, numbered densely."""
    assert [row["_step"] for row in rows] == list(range(len(VALUES) + 3))
    losses = rows[: len(VALUES)]
    assert [repr(float(row["train/loss"])) for row in losses] == [repr(value) for value in VALUES]
    assert [row["step"] for row in losses] == list(range(len(VALUES)))
    started = round(START.timestamp() * 1e6)
    assert [round(row["_timestamp"] * 1e6) - started for row in losses] == [
        step * 1_000_000 + 1 for step in range(len(VALUES))
    ]
    rollout, evaluation, samples = rows[len(VALUES) :]
    assert (rollout["rollout/return"], rollout["rollout_step"], rollout["attempt"]) == (7.0, 3, 1)
    assert (evaluation["eval/score"], evaluation["tokens"], evaluation["attempt"]) == (8.0, 1.5, 2)
    assert "step" not in rollout.keys() | evaluation.keys()
    assert samples["step"] == 7
    assert (samples["samples/validation"]["_type"], samples["samples/validation"]["nrows"]) == ("table-file", 2)


def check_many_rows(stored: StoredRun) -> None:
    assert [row["_step"] for row in stored.rows] == list(range(MANY + 1))
    assert [row["loss"] for row in stored.rows[:MANY]] == [step / 7 for step in range(MANY)]
    assert stored.conflicting == 0
    assert stored.rows[MANY]["samples/validation"]["path"] in stored.files


def axes(stored: StoredRun) -> dict[str, str]:
    """Metric -> x-axis, from the client's encoding: 1 is a name, 5 the 1-based number of the axis."""
    metrics = stored.config["_wandb"]["value"]["m"]
    return {metric["1"]: metrics[metric["5"] - 1]["1"] for metric in metrics if "5" in metric}


def test_online_run_has_every_row_once_at_its_original_step_and_time(
    server: WandbServer, sinks: list[WandbSink], capfd: pytest.CaptureFixture[str]
) -> None:
    sink = WandbSink(project="grpo", base_url=server.url)
    sinks.append(sink)
    assert sink.address == f"{server.url}/-/grpo"
    described: dict[str, Any] = {"tags": ("math", "x" * 70), "notes": "a note", "group": "sweep 3"}
    assert sink.open(run(**described), {}) is None

    sent = sink.send(first_commit(), cursor(1, 10))
    assert sent.position["rows"] == len(VALUES) + 3
    assert sink.location == f"{server.url}/{ENTITY}/grpo/runs/{RUN_ID}"
    stored = server.run(RUN_ID)
    check_first_rows(stored.rows)
    assert server.run(RUN_ID).exit_code is None, "the run goes on"

    sink.send(second_commit(), cursor(2, 11))
    last = stored.rows[-1]
    assert (last["_step"], last["train/kl"], last["step"]) == (len(VALUES) + 3, 0.25, 8)
    assert stored.values["lr"] == 0.2
    assert stored.values["optimizer.betas"] == [0.9, 0.95]
    (change,) = stored.values["rleventlog_params_00000002"]
    assert change == {"key": "lr", "value": 0.2, "time": START.isoformat(), "attempt": 2}
    assert axes(stored) == {
        "train/loss": "step",
        "train/kl": "step",
        "samples/validation": "step",
        "rollout/return": "rollout_step",
        "eval/score": "tokens",
    }
    table = json.loads(stored.files[stored.rows[len(VALUES) + 2]["samples/validation"]["path"]])
    cells = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(cell["prompt"], cell["response"], cell["reward"]) for cell in cells] == [
        ("1+1=", "2", 1),
        ("1+2=", "4", 0),
    ]

    sink.finish(run(status="failed", ended=at(60), **described))
    sink.finish(run(status="failed", ended=at(60), **described))
    assert server.run(RUN_ID).exit_code == 1
    assert stored.values["rleventlog"]["started"] == START.isoformat()
    assert stored.values["rleventlog"]["ended"] == at(60).isoformat()
    assert stored.about == {
        "displayName": "grpo-qwen",
        "groupName": "sweep 3",
        "notes": "a note",
        "tags": ["math", "x" * 64],
    }
    assert len(stored.rows) == len(VALUES) + 4
    assert stored.rewritten == 0
    assert capfd.readouterr() == ("", "")
    assert not [name for name in (".netrc", "_netrc") if (Path.home() / name).exists()]


def test_a_commit_sent_again_doubles_nothing(server: WandbServer, sinks: list[WandbSink]) -> None:
    first = WandbSink(base_url=server.url)
    sinks.append(first)
    first.open(run(), {})
    sent = first.send(first_commit(), cursor(1, 10))
    first.close()
    again = WandbSink(base_url=server.url)
    sinks.append(again)
    assert again.open(run(), {}) == cursor(1, 10)
    assert again.send(first_commit(), cursor(1, 10)) == sent
    with pytest.raises(SinkUnavailableError, match="11 rows, 12 were confirmed"):
        again.open(run(), {**sent.position, "rows": 12})
    assert again.open(run(), sent.position) == cursor(1, 10)
    stored = server.run(RUN_ID)
    check_first_rows(stored.rows)
    assert stored.rewritten == 0
    again.send(second_commit(), cursor(2, 11))
    assert stored.rows[-1]["_step"] == len(VALUES) + 3


SENDER = """
import sys
from rl_eventlog.sinks.wandb import WandbSink
from tests.integration.test_wandb_sink import many_points
from tests.support.payloads import cursor, run
sink = WandbSink(base_url=sys.argv[1])
sink.open(run(), {})
print(sink._client._child.process.pid, flush=True)
sink.send(many_points(), cursor(1, 2000))
"""


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(3))
def test_killed_at_a_random_request_and_sent_again_every_row_is_there_once(
    seed: int, server: WandbServer, sinks: list[WandbSink], pytestconfig: pytest.Config
) -> None:
    requests_before_the_kill = random.Random(seed).randrange(6)
    # in half of the cases the server got some of the rows, but said so to nobody
    server.cut_after_rows = 700 if seed % 2 else None
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, server.url],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(pytestconfig.rootpath)},
        cwd=pytestconfig.rootpath,
        text=True,
    )
    seen = 0

    def kill(operation: str) -> None:
        nonlocal seen
        # counted from the first rows on
        seen += seen > 0 or operation == "file_stream"
        if seen > requests_before_the_kill:
            sender.send_signal(signal.SIGKILL)

    server.before_answer = kill
    output, _ = sender.communicate()
    assert sender.returncode == -signal.SIGKILL
    client = int(output)
    eventually(lambda: ended(client), seconds=10)

    server.before_answer = server.cut_after_rows = None
    sink = WandbSink(base_url=server.url)
    sinks.append(sink)
    if sink.open(run(), {}) is None:
        sink.send(many_points(), cursor(1, MANY))
    check_many_rows(server.run(RUN_ID))
    sink.send(second_commit(), cursor(2, MANY + 1))
    assert server.run(RUN_ID).rows[-1]["_step"] == MANY + 1


def ended(pid: int) -> bool | None:
    """True for a process that is gone or a zombie, None for one that runs."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return True if state == "Z" else None


def test_a_cursor_whose_rows_are_missing_does_not_count(server: WandbServer, sinks: list[WandbSink]) -> None:
    sink = WandbSink(base_url=server.url, timeout_seconds=8)
    sinks.append(sink)
    sink.open(run(), {})
    sink.send(second_commit(), cursor(1, 1))
    server.cut_after_rows = 3
    with pytest.raises(SinkUnavailableError, match="rows 4 to 11 are missing"):
        sink.send(first_commit(), cursor(2, 11))
    server.cut_after_rows = None
    assert server.run(RUN_ID).values["rleventlog_cursor"]["commit"] == 2
    assert sink.open(run(), {}) == cursor(1, 1)
    sink.send(first_commit(), cursor(2, 11))
    assert [row["_step"] for row in server.run(RUN_ID).rows] == list(range(12))
    assert sink.open(run(), {}) == cursor(2, 11)


@pytest.mark.parametrize("status", [401, 404])
def test_refused_rows_are_a_rejection(status: int, server: WandbServer, sinks: list[WandbSink]) -> None:
    sink = WandbSink(base_url=server.url)
    sinks.append(sink)
    sink.open(run(), {})
    server.file_stream_status = status
    with pytest.raises(SinkRejectedError, match=rf"{status}: rows 0 to 10 are missing"):
        sink.send(first_commit(), cursor(1, 10))


def test_a_refused_run_is_a_rejection(server: WandbServer, sinks: list[WandbSink]) -> None:
    server.graphql_status = 401
    sink = WandbSink(base_url=server.url)
    sinks.append(sink)
    with pytest.raises(SinkRejectedError) as caught:
        sink.open(run(), {})
    assert API_KEY not in str(caught.value)


def test_a_missing_key_is_a_rejection(
    server: WandbServer, sinks: list[WandbSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    sink = WandbSink(base_url=server.url)
    sinks.append(sink)
    with pytest.raises(SinkRejectedError, match="wandb login"):
        sink.open(run(), {})


def test_rows_of_somebody_else_are_a_rejection(server: WandbServer, sinks: list[WandbSink]) -> None:
    sink = WandbSink(base_url=server.url)
    sinks.append(sink)
    sink.open(run(), {})
    sink.send(first_commit(), cursor(1, 10))
    sink.open(run(), {"commit": 1, "points": 10, "digest": cursor(1).digest, "rows": 2, "axes": {}})
    server.run(RUN_ID).config.pop("rleventlog_cursor")
    sink.open(run(), {"commit": 1, "points": 10, "digest": cursor(1).digest, "rows": 2, "axes": {}})
    with pytest.raises(SinkRejectedError, match="holds 11 rows"):
        sink.send(second_commit(), cursor(2, 11))


def test_nobody_at_the_address_is_told_within_seconds(sinks: list[WandbSink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    sink = WandbSink(base_url=f"http://127.0.0.1:{free_port()}")
    sinks.append(sink)
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError, match="no server answers"):
        sink.open(run(), {})
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("fault", ["hang", "graphql_status"])
def test_a_server_that_does_not_work_is_told_in_bounded_time(
    fault: str, server: WandbServer, sinks: list[WandbSink]
) -> None:
    sink = WandbSink(base_url=server.url, timeout_seconds=3)
    sinks.append(sink)
    setattr(server, fault, 503)
    began = time.monotonic()
    with pytest.raises(SinkUnavailableError):
        sink.open(run(), {})
    assert time.monotonic() - began < 10


def test_a_process_whose_server_hangs_ends_with_an_error(server: WandbServer, pytestconfig: pytest.Config) -> None:
    server.hang = True
    script = SENDER.replace("sys.argv[1])", "sys.argv[1], timeout_seconds=3)")
    done = subprocess.run(
        [sys.executable, "-c", script, server.url],
        env=os.environ | {"PYTHONPATH": str(pytestconfig.rootpath)},
        cwd=pytestconfig.rootpath,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "SinkUnavailableError" in done.stderr
    assert done.stdout == ""


def send_offline(folder: Path) -> None:
    sink = WandbSink(offline=True, folder=folder)
    try:
        assert sink.open(run(), {}) is None
        sent = sink.send(first_commit(), cursor(1, 10))
        assert sink.open(run(), sent.position) == cursor(1, 10)
        sink.send(second_commit(), cursor(2, 11))
        sink.finish(run(status="finished", ended=at(60)))
    finally:
        sink.close()


def test_offline_folders_hold_what_was_sent(tmp_path: Path) -> None:
    folder = tmp_path / "wandb"
    send_offline(folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        f"{RUN_ID}-00000001",
        f"{RUN_ID}-00000002",
        f"{RUN_ID}-finish",
    ]
    first, second, end = read_offline_runs(folder)
    assert (first.run_id, first.project, first.name) == (RUN_ID, "rl-eventlog", "grpo-qwen")
    check_first_rows(first.history)
    assert first.config["optimizer.betas"] == [0.9, 0.95]
    assert first.axes["rollout/return"] == "rollout_step"
    assert [(row["_step"], row["train/kl"]) for row in second.history] == [(len(VALUES) + 3, 0.25)]
    assert second.axes["train/loss"] == second.axes["train/kl"] == "step"
    assert second.summary["train/kl"] == 0.25
    assert (end.history, end.exit_code) == ([], 0)
    assert end.config["rleventlog"]["ended"] == at(60).isoformat()


def test_every_name_is_taken_by_the_client_and_kept_apart(tmp_path: Path, sinks: list[WandbSink]) -> None:
    names = ["", " ", "a\nb", "/", "x" * 300, "a*b"]
    points = [{"series": name, "step": 1, "value": float(n)} for n, name in enumerate(names)]
    points += [{"series": "loss", "step": 2, "axis": axis, "value": 9.0} for axis in ("", " ", "a*b")]
    sinks.append(sink := WandbSink(offline=True, folder=tmp_path))
    sink.open(run(), {})
    sink.send(payload(points), cursor(1, len(points)))
    (sent,) = read_offline_runs(tmp_path)
    keys = ["metric/", "metric/ ", "a\nb", "/", "x" * 300, "a*b"]
    assert [sent.history[0][key] for key in keys] == list(range(len(names)))
    assert [row[key] for row, key in zip(sent.history[1:], ("axis/", "axis/ ", "a_0x2a_b"), strict=True)] == [2, 2, 2]


def test_a_half_written_offline_folder_is_replaced(tmp_path: Path, sinks: list[WandbSink]) -> None:
    leftover = tmp_path / f"{RUN_ID}-00000001" / "wandb" / "offline-run-20250101_000000-x" / "run-x.wandb"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b":W&B")
    sink = WandbSink(offline=True, folder=tmp_path)
    sinks.append(sink)
    sink.open(run(), {})
    sink.send(first_commit(), cursor(1, 10))
    sink.send(first_commit(), cursor(1, 10))
    (content,) = read_offline_runs(tmp_path)
    check_first_rows(content.history)


def test_wandb_sync_of_the_offline_folders_gives_the_run_an_online_sync_gives(
    server: WandbServer, tmp_path: Path
) -> None:
    folder = tmp_path / "offline"
    send_offline(folder)
    folders = sorted(folder.glob("*/wandb/offline-run-*"))
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", "--yes", *folders],
        env=os.environ | {"WANDB_BASE_URL": server.url, "WANDB_ERROR_REPORTING": "false"},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    stored = server.run(RUN_ID)
    check_first_rows(stored.rows[:-1])
    assert stored.rows[-1]["_step"] == len(VALUES) + 3
    assert stored.values["lr"] == 0.2
    assert stored.values["rleventlog"]["status"] == "finished"
    assert stored.rows[len(VALUES) + 2]["samples/validation"]["path"] in stored.files
    assert stored.rewritten == 0


def test_a_damaged_offline_file_is_named_with_the_byte(tmp_path: Path, sinks: list[WandbSink]) -> None:
    sink = WandbSink(offline=True, folder=tmp_path)
    sinks.append(sink)
    sink.open(run(), {})
    sink.send(many_points(400), cursor(1, 400))
    (path,) = tmp_path.glob("*/wandb/offline-run-*/run-*.wandb")
    whole = path.read_bytes()
    assert len(whole) > 3 * 32 * 1024, "records cross blocks"
    assert [row["loss"] for row in read_wandb_file(path).history[:400]] == [step / 7 for step in range(400)]
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    with pytest.raises(ValueError, match=r"run-.*\.wandb: .* at byte \d+"):
        list(read_records(path))
    path.write_bytes(whole[:middle])
    with pytest.raises(ValueError, match="cut off within"):
        list(read_records(path))
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"not a \.wandb file"):
        list(read_records(path))


def test_without_the_client_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()  # the folder of earlier offline runs is no client
    monkeypatch.chdir(tmp_path)
    elsewhere = [path for path in sys.path if not (Path(path) / "wandb" / "__init__.py").exists()]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *elsewhere])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MissingDependencyError, match=r'pip install "rl-eventlog\[wandb\]"'):
        WandbSink()


def test_a_run_id_that_the_server_would_refuse_is_rejected_early() -> None:
    with pytest.raises(SinkRejectedError, match="a/b"):
        WandbSink(run_id="a/b")
