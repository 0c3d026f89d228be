"""The TensorBoard sink, read back by TensorBoard's own reader and through the server users start."""

from __future__ import annotations

import json
import math
import signal
import struct
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_eventlog.errors import SinkRejectedError
from rl_eventlog.sinks._event_file import MAX_VALUES, Entry, decode, encode, header
from rl_eventlog.sinks.base import Cursor, RunDescription
from rl_eventlog.sinks.tensorboard import TensorboardSink
from tests.support.payloads import START, at, cursor, payload, run
from tests.support.servers import eventually, free_port, serving

pytestmark = pytest.mark.integration

Points = list[tuple[int, float, float]]


def opened(log_dir: Path, about: RunDescription | None = None) -> tuple[TensorboardSink, Cursor | None]:
    sink = TensorboardSink(log_dir=log_dir)
    return sink, sink.open(about or run(), {})


def accumulated(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def scalars(folder: Path, tag: str) -> Points:
    return [(event.step, event.wall_time, event.value) for event in accumulated(folder).Scalars(tag)]


def event_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*tfevents*"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def curve(steps: range, series: str = "train/loss", **more: Any) -> list[dict[str, Any]]:
    return [{"series": series, "step": step, "value": step / 2, **more} for step in steps]


def expected(steps: range) -> Points:
    return [(step, START.timestamp() + step, step / 2) for step in steps]


PARAMS = [
    {"key": "lr", "value": "0.5"},
    {"key": "model", "value": '"qwen"'},
    {"key": "amp", "value": "true"},
    {"key": "layers", "value": "[1, 2]"},
    {"key": "nothing", "value": "null"},
    {"key": "seed", "value": str(2**60)},
    {"key": "bound", "value": "NaN"},
]


def test_points_arrive_at_original_steps_and_times_in_a_file_per_role(tmp_path: Path) -> None:
    sink, found = opened(tmp_path)
    assert found is None
    sink.send(
        payload(
            [
                *curve(range(5), role="trainer"),
                *curve(range(3), "ctl/queue", role="controller"),
                *curve(range(4), "rollout/tps", role="rollout"),
                {"series": "x", "step": 0, "value": math.nan},
                {"series": "x", "step": 1, "value": math.inf},
                {"series": "by_epoch", "axis": "epoch", "step": 7, "position": 0.7, "value": 1.0},
            ]
        ),
        cursor(1, 15),
    )
    folder = Path(sink.location)
    name = "events.out.tfevents.1772600767.rleventlog.000001"
    assert folder == tmp_path / "grpo-qwen"
    assert event_files(folder) == [name, f"rollout/{name}"]
    assert scalars(folder, "train/loss") == expected(range(5))
    assert scalars(folder, "ctl/queue") == expected(range(3))
    assert scalars(folder / "rollout", "rollout/tps") == expected(range(4))
    assert math.isnan(scalars(folder, "x")[0][2])
    assert scalars(folder, "x")[1][2] == math.inf
    assert scalars(folder, "by_epoch")[0][0] == 7


@pytest.mark.parametrize("name", ["", " ", "a\nb", "/", "x" * 300])
def test_odd_names_stay_as_they_are(tmp_path: Path, name: str) -> None:
    sink, _ = opened(tmp_path)
    sink.send(payload(curve(range(2), name)), cursor(1, 2))
    assert scalars(Path(sink.location), name) == expected(range(2))


def test_later_points_are_appended_and_bytes_already_there_stay(tmp_path: Path) -> None:
    sink, _ = opened(tmp_path)
    sink.send(payload(curve(range(5))), cursor(1, 5))
    before = contents(tmp_path / "grpo-qwen")
    sink, found = opened(tmp_path)
    assert found == cursor(1, 5)
    sink.send(payload(curve(range(5, 9))), cursor(2, 9))
    after = contents(tmp_path / "grpo-qwen")
    (name,) = event_files(tmp_path / "grpo-qwen")
    assert after[name].startswith(before[name])
    assert scalars(tmp_path / "grpo-qwen", "train/loss") == expected(range(9))
    assert opened(tmp_path)[1] == cursor(2, 9)


def test_one_record_holds_one_step_and_time_and_at_most_64_values(tmp_path: Path) -> None:
    sink, _ = opened(tmp_path)
    points = [{"series": f"m{i}", "step": 1, "value": i} for i in range(MAX_VALUES + 6)]
    sink.send(payload([*points, {"series": "late", "step": 1, "value": 1, "time": at(5)}]), cursor(1, len(points) + 1))
    data = next((tmp_path / "grpo-qwen").glob("*tfevents*")).read_bytes()
    records, offset = 0, 0
    while offset < len(data):
        offset += struct.unpack_from("<Q", data, offset)[0] + 16
        records += 1
    assert records == 4  # the version, 64 values, 6 values, the later one
    assert len(accumulated(tmp_path / "grpo-qwen").Tags()["scalars"]) == MAX_VALUES + 7


@pytest.mark.parametrize(
    ("late", "total"),
    [
        ([{"series": "train/loss", "step": 2, "value": 99.0, "correction": True, "attempt": 2}], 6),
        ([{"series": "train/loss", "step": -1, "value": 99.0}], 7),
    ],
    ids=["correction", "late step"],
)
def test_corrections_and_late_steps_make_a_new_file_in_step_order(
    tmp_path: Path, late: list[dict[str, Any]], total: int
) -> None:
    sink, _ = opened(tmp_path)
    sink.send(payload([*curve(range(6)), *curve(range(3), "other")], PARAMS), cursor(1, 9))
    sink.send(payload([*late, *curve(range(3, 5), "other")]), cursor(2, 12))
    folder = tmp_path / "grpo-qwen"
    assert event_files(folder) == ["events.out.tfevents.1772600767.rleventlog.000002"]
    found = scalars(folder, "train/loss")
    assert [step for step, _, _ in found] == sorted({*range(6), late[0]["step"]})
    assert len(found) == total
    assert (late[0]["step"], at(late[0]["step"]).timestamp(), 99.0) in found
    assert scalars(folder, "other") == expected(range(5))
    sink.send(payload(curve(range(6, 8))), cursor(3, 14))
    assert len(scalars(folder, "train/loss")) == total + 2


def test_a_commit_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    sink, _ = opened(tmp_path)
    commit = payload(curve(range(3)), PARAMS, [{"step": 1, "prompt": "p"}])
    sink.send(commit, cursor(1, 3))
    before = contents(tmp_path)
    opened(tmp_path)[0].send(commit, cursor(1, 3))
    assert contents(tmp_path) == before


SENDER = """
import os, signal, sys
from pathlib import Path
from rl_eventlog.sinks import _event_folder
from tests.integration.test_tensorboard_sink import COMMITS, opened
from tests.support.payloads import cursor

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def torn(path, offset, data):
    put(path, offset, data[: len(data) // 2])
    die()

def recorded(path, data):
    write(path, data)
    die()

put, write = _event_folder._put, _event_folder.write_durably
log_dir, number, fault = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
sink, _ = opened(log_dir)
if fault == "torn":
    _event_folder._put = torn
elif fault == "unrecorded":
    _event_folder.write_durably = die
elif fault == "recorded":
    _event_folder.write_durably = recorded
sink.send(COMMITS[number - 1](), cursor(number))
"""

COMMITS = [
    lambda: payload([*curve(range(50)), *curve(range(9), role="rollout")], PARAMS, [{"step": 1, "prompt": "a"}]),
    lambda: payload([*curve(range(50, 90)), *curve(range(9, 12), role="rollout")]),
    lambda: payload(
        [{"series": "train/loss", "step": 7, "value": -1.0, "correction": True}, *curve(range(90, 95))],
        [{"key": "lr", "value": "0.25", "attempt": 2}],
        [{"step": 1, "prompt": "b"}],
    ),
]


@pytest.mark.crash
@pytest.mark.parametrize("fault", ["torn", "unrecorded", "recorded"])
@pytest.mark.parametrize("number", [1, 2, 3], ids=["first", "append", "rewrite"])
def test_a_resend_after_a_kill_leaves_the_bytes_of_one_undisturbed_call(
    tmp_path: Path, fault: str, number: int
) -> None:
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    for log_dir, commits in ((killed, number - 1), (undisturbed, number)):
        for earlier in range(1, commits + 1):
            opened(log_dir)[0].send(COMMITS[earlier - 1](), cursor(earlier))
    done = subprocess.run([sys.executable, "-c", SENDER, str(killed), str(number), fault], check=False)
    assert done.returncode == -signal.SIGKILL

    sink, found = opened(killed)
    assert found == (cursor(number) if fault == "recorded" else cursor(number - 1) if number > 1 else None)
    sink.send(COMMITS[number - 1](), cursor(number))
    assert contents(killed) == contents(undisturbed)


def test_a_changed_file_is_not_vouched_for_and_is_sent_anew(tmp_path: Path) -> None:
    sink, _ = opened(tmp_path)
    sink.send(payload(curve(range(5))), cursor(1, 5))
    (path,) = (tmp_path / "grpo-qwen").glob("*tfevents*")
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    sink, found = opened(tmp_path)
    assert found is None
    sink.send(payload(curve(range(5))), cursor(1, 5))
    assert scalars(tmp_path / "grpo-qwen", "train/loss") == expected(range(5))
    path.unlink()
    assert opened(tmp_path)[1] is None


def test_another_run_of_that_name_and_foreign_event_files_get_a_folder_of_their_own(tmp_path: Path) -> None:
    opened(tmp_path)[0].send(payload(curve(range(5))), cursor(1, 5))
    other, found = opened(tmp_path, run("another-uid"))
    assert found is None
    assert Path(other.location).name.startswith("grpo-qwen-")
    assert opened(tmp_path, run("another-uid"))[0].location == other.location
    assert opened(tmp_path)[1] == cursor(1, 5)

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "events.out.tfevents.1.host").write_bytes(b"")
    assert Path(opened(tmp_path, run("uid", "mine"))[0].location).name.startswith("mine-")
    assert Path(opened(tmp_path, run("uid", "../a b"))[0].location).name == "%2E.%2Fa%20b"
    assert Path(opened(tmp_path, run("uid", "n" * 200))[0].location).parent == tmp_path


def test_bad_places_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkRejectedError, match="file"):
        opened(tmp_path / "file")
    (tmp_path / "logs" / "grpo-qwen").mkdir(parents=True)
    (tmp_path / "logs" / "grpo-qwen" / "rleventlog.json").write_text("{")
    with pytest.raises(SinkRejectedError, match=r"rleventlog\.json: not a record"):
        opened(tmp_path / "logs")


@pytest.mark.parametrize("module", ["tensorboard", "google_crc32c"])
def test_a_missing_client_names_the_extra(module: str) -> None:
    script = f"""
import sys
sys.modules[{module!r}] = None
from rl_eventlog.errors import MissingDependencyError
from rl_eventlog.sinks.tensorboard import TensorboardSink
try:
    TensorboardSink()
except MissingDependencyError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout == f'{module.replace("_", "-")} is not installed: pip install "rl-eventlog[tensorboard]"\n'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """TensorBoard with its data server, over an empty folder."""
    folder = tmp_path_factory.mktemp("tensorboard")
    (folder / "logs").mkdir()
    port = free_port()
    command = ["tensorboard", "--logdir", str(folder / "logs"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--load_fast=true", "--reload_interval=1", "--samples_per_plugin=scalars=10000,text=100"]
    address = f"http://127.0.0.1:{port}"
    with serving(command, health=f"{address}/data/environment", log=folder / "log", cwd=folder):
        yield folder / "logs", address


def asked(address: str, place: str, body: Any = None, **query: str) -> Any:
    url = f"{address}/data/plugin/{place}?{urllib.parse.urlencode(query)}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError:
        return None


def shown(address: str, name: str, tag: str, points: int) -> Points:
    """The curve once the server shows as many points."""

    def ask() -> Points | None:
        found = asked(address, "scalars/scalars", run=name, tag=tag)
        return [(step, time, value) for time, step, value in found] if found and len(found) == points else None

    return eventually(ask)


def test_a_running_tensorboard_follows_appended_and_replaced_files(server: tuple[Path, str]) -> None:
    log_dir, address = server
    about = run("followed", "followed")
    sink, _ = opened(log_dir, about)
    sink.send(payload([*curve(range(2000)), *curve(range(3), role="rollout")]), cursor(1, 2003))
    assert shown(address, "followed", "train/loss", 2000) == expected(range(2000))
    assert shown(address, "followed/rollout", "train/loss", 3) == expected(range(3))
    sink.send(payload(curve(range(2000, 2010))), cursor(2, 2013))
    assert shown(address, "followed", "train/loss", 2010) == expected(range(2010))
    sink.send(
        payload([{"series": "train/loss", "step": 4, "value": 99.0, "correction": True}, *curve(range(2010, 2012))]),
        cursor(3, 2015),
    )
    after = expected(range(2012))
    after[4] = (4, START.timestamp() + 4, 99.0)
    assert shown(address, "followed", "train/loss", 2012) == after


def test_hyperparameters_and_status_are_in_the_table(server: tuple[Path, str]) -> None:
    log_dir, address = server
    sink, _ = opened(log_dir, run("with-params", "with-params"))
    sink.send(payload(curve(range(3), "hp/loss"), PARAMS), cursor(1, 3))
    sink.finish(run("with-params", status="failed", ended=at(9)))
    sink.send(payload(params=[{"key": "lr", "value": "0.25", "attempt": 2}]), cursor(2, 3))
    for _ in range(2):
        sink.finish(run("with-params", status="running"))
        sink.finish(run("with-params", status="finished", ended=at(10)))

    wanted = {
        "allowedStatuses": ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
        "colParams": [{"metric": {"tag": "hp/loss", "group": ""}}],
        "startIndex": 0,
        "sliceSize": 100,
    }

    def ask() -> Any:
        groups = (asked(address, "hparams/session_groups", wanted) or {}).get("sessionGroups", [])
        found = [group for group in groups if group["name"] == "with-params" and "lr" in group["hparams"]]
        ended = found and found[0]["sessions"][0].get("status") == "STATUS_SUCCESS" and found[0]["metricValues"]
        return found[0] if ended else None

    group = eventually(ask)
    assert group["hparams"] == {
        "lr": 0.25,
        "model": "qwen",
        "amp": True,
        "layers": "[1, 2]",
        "seed": str(2**60),
        "bound": "NaN",
    }
    session = group["sessions"][0]
    assert (session["startTimeSecs"], session["endTimeSecs"]) == (START.timestamp(), at(10).timestamp())
    assert [(m["name"]["tag"], m["value"], m["trainingStep"]) for m in group["metricValues"]] == [("hp/loss", 1.0, 2)]


def test_hostile_samples_stay_text(server: tuple[Path, str]) -> None:
    log_dir, address = server
    hostile = "<script>alert(1)</script>\n# heading\n```\n<b>bold</b>\n```\n**strong** [a](http://x)\n"
    hostile += "|a|b|\n|-|-|\n|c|d|\n\x02\x1b[31m\u2028"
    samples = [
        {"step": 5, "prompt": hostile, "response": "\r\r    <img src=x>"},
        *({"step": 6, "prompt": f"p{i}"} for i in range(60)),
    ]
    sink, _ = opened(log_dir, run("texts", "texts"))
    sink.send(payload(samples=samples), cursor(1))
    sink.send(payload(samples=[{"step": 5, "prompt": "more, later"}]), cursor(2))

    def ask() -> Any:
        found = asked(address, "text/text", run="texts", tag="samples/validation")
        return found if found and len(found) == 2 and "more, later" in found[0]["text"] else None

    first, second = eventually(ask)
    assert (first["step"], first["wall_time"]) == (5, at(5).timestamp())
    for markup in ("<script", "<h1", "<b>", "<strong", "<a ", "<img", "<table", "\x1b", "\x02"):
        assert markup not in first["text"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in first["text"]
    assert "\\x02\\x1b[31m\\u2028" in first["text"]
    assert "and 10 more samples at this step" in second["text"]


def test_the_same_entries_are_the_same_bytes_in_any_order() -> None:
    entries = [Entry("a", step, step + 0.5, float(step)) for step in range(20)]
    assert encode(reversed(entries)) == encode(entries)
    assert list(decode(header(0.0) + encode(entries))) == entries
