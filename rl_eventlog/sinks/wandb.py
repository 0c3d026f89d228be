"""Weights & Biases as a target, online and offline, through its own client.

- A W&B row is one (role, axis, step, position, attempt); `_step` is its dense number over all
  commits, so the number of rows the server holds says how far a killed send got.
- A commit counts once the server itself reports its last row and carries its cursor. The cursor is
  sent with the rows: where the rows it promises are missing, the one before it holds.
- Offline there is no server to ask: one folder a commit, and only our own record guards it. A commit
  sent again replaces its folder.
- The client runs in a child process, in bounded time. No credential is read, stored or printed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit, urlunsplit

from rl_eventlog.durable import fsync_file, fsync_folder, make_folder
from rl_eventlog.errors import MissingDependencyError, SinkRejectedError, SinkUnavailableError
from rl_eventlog.sinks._wandb_process import AXES_KEY, CURSOR_KEY, ORIGIN_KEY, ClientProcess
from rl_eventlog.sinks._wandb_rows import HistoryRow, history_rows
from rl_eventlog.sinks.base import Cursor, Payload, Position, RunDescription, Sent, Sink

_START_SECONDS = 60.0
_CLIENT_SHARE = 0.9  # of the time allowed: the client gives up by itself and can say what is missing
_NAME_LENGTH, _TAG_LENGTH = 128, 64  # limits of W&B
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_SETTINGS_VARIABLES = ("HOME", "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "WANDB_ENTITY")
_known_settings: dict[tuple[str | None, ...], dict[str, Any]] = {}

Json = dict[str, Any]
Axes = dict[str, list[str]]


class WandbSink(Sink):
    """A run at W&B.

    Args:
        project: name of the project; made by the server if missing.
        entity: user or team; None means the client's own default.
        base_url: address of the server; None means the client's own default.
        offline: write folders for `wandb sync` instead of sending.
        folder: where offline folders go, `<folder>/<run id>-<commit>/wandb/offline-run-*`.
        run_id: id at W&B; None takes the run's uid. A run deleted at W&B needs another id.
        timeout_seconds: the longest wait for the server; the time to hand rows to the client is not counted.

    Raises:
        MissingDependencyError: the client is not installed.
    """

    kind: ClassVar[str] = "wandb"

    def __init__(
        self,
        *,
        project: str = "rl-eventlog",
        entity: str | None = None,
        base_url: str | None = None,
        offline: bool = False,
        folder: str | Path = "./wandb",
        run_id: str | None = None,
        timeout_seconds: float = 120.0,
    ) -> None:
        found = importlib.util.find_spec("wandb")
        if found is None or found.origin is None:  # a folder ./wandb passes for a package without origin
            raise MissingDependencyError("wandb", "wandb")
        if run_id is not None and not _RUN_ID.fullmatch(run_id):
            raise SinkRejectedError(f"{run_id!r} is no W&B run id: 1 to 64 of letters, digits, _ and -")
        self._project, self._entity, self._run_id = project, entity, run_id
        self._offline, self._folder = offline, Path(folder).absolute()
        self._seconds = timeout_seconds
        self._base_url = base_url
        self._client = ClientProcess(base_url)
        self._address: str | None = None
        self._location: str
        self._run: RunDescription
        self._id: str
        self._held: dict[int, Json]
        self._axes: Axes

    @property
    def address(self) -> str:
        """`<base URL>/<entity>/<project>`, `-` for an entity that is left to the server."""
        if self._offline:
            return f"offline:{self._folder}/{self._project}"
        if self._address is None:
            settings = self._client_settings()
            entity = self._entity or settings["entity"] or "-"
            self._address = f"{_without_credentials(settings['base_url'])}/{entity}/{self._project}"
        return self._address

    @property
    def location(self) -> str:
        """The run's page, or the folder of the offline folders."""
        return self._location

    def open(self, run: RunDescription, position: Position) -> Cursor | None:
        """Offline the cursor is the one in `position`; online it is the server's."""
        self._run = run
        self._id = self._run_id or run.run_uid
        # how many rows a commit ends with, for those commits that may be followed by the next
        self._held = {0: {"commit": 0, "points": 0, "digest": "", "rows": 0}}
        self._axes = {key: list(names) for key, names in position.get("axes", {}).items()}
        if position:
            self._hold(position)
        if self._offline:
            self._location = str(self._folder)
            return _cursor(position)
        there = self._client.call(
            "look",
            self._seconds,
            entity=self._entity,
            project=self._project,
            run_id=self._id,
            seconds=_CLIENT_SHARE * self._seconds,
        )
        self._entity, self._location = there["entity"], there["url"]
        self._learn_axes(there["axes"])
        carried = there["cursor"]
        if carried and there["rows"] < position.get("rows", 0):
            # the run was not deleted: a server may report an old number right after a write
            raise SinkUnavailableError(
                f"{self._location} reports {there['rows']} rows, {position['rows']} were confirmed: try again later"
            )
        while carried and carried["rows"] > there["rows"]:
            carried = carried.get("previous")
        if carried:
            self._hold(carried)
        return _cursor(carried)

    def send(self, payload: Payload, cursor: Cursor) -> Sent:
        """Send what the server has not got yet of the commit's rows, and wait until it reports the last one."""
        before = self._held.get(cursor.commit - 1)
        if before is None:
            raise SinkRejectedError(f"nothing tells how many W&B rows came before commit {cursor.commit}: rebuild")
        rows = list(history_rows(payload))
        self._learn_axes(_axes_of(rows))
        held = {
            "commit": cursor.commit,
            "points": cursor.points,
            "digest": cursor.digest,
            "rows": before["rows"] + len(rows),
        }
        config = _parameters(payload, cursor.commit) | {CURSOR_KEY: held | {"previous": before}}
        self._transmit(rows, before["rows"], config, f"{cursor.commit:08d}", exit_code=None)
        self._hold(held)
        return Sent({**held, "axes": self._axes})

    def finish(self, run: RunDescription) -> None:
        """Offline, a run that ended gets one more folder, `<run id>-finish`."""
        self._run = run
        ended = run.status != "running"
        if self._offline and not ended:
            return
        rows = self._held[max(self._held)]["rows"]
        self._transmit([], rows, {}, "finish", exit_code=int(run.status == "failed") if ended else None)

    def close(self) -> None:
        """End the client's process."""
        self._client.close()

    def _client_settings(self) -> Json:
        """The client's own settings; asking takes a second, which many runs of one sync share."""
        key = (self._base_url, *(os.environ.get(name) for name in _SETTINGS_VARIABLES))
        if key not in _known_settings:
            _known_settings[key] = self._client.call("settings", _START_SECONDS)
        return _known_settings[key]

    def _hold(self, held: Position) -> None:
        self._held[held["commit"]] = {key: held[key] for key in ("commit", "points", "digest", "rows")}

    def _learn_axes(self, axes: Axes) -> None:
        """The client forgets the metrics it does not define anew, so all of them are kept."""
        for key, names in axes.items():
            known = self._axes.setdefault(key, [])
            known.extend(name for name in names if name not in known)

    def _transmit(self, rows: list[HistoryRow], base: int, config: Json, part: str, exit_code: int | None) -> None:
        run, home = self._run, self._client.home
        folder = self._folder / f"{self._id}-{part}" if self._offline else home / "run"
        shutil.rmtree(folder, ignore_errors=not self._offline or not folder.exists())
        make_folder(folder)
        head = {
            "config": config | {ORIGIN_KEY: _origin(run), AXES_KEY: self._axes},
            "axes": self._axes,
            "base": base,
            "total": base + len(rows),
        }
        content = home / "content.jsonl"
        with content.open("w", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in _lines(head, rows))
        about = {
            "entity": self._entity,
            "project": self._project,
            "id": self._id,
            "name": run.name[:_NAME_LENGTH],
            "group": run.group,
            "tags": [tag[:_TAG_LENGTH] for tag in run.tags],
            "notes": run.notes,
            "dir": str(folder),
        }
        sent = self._client.call(
            "send",
            self._seconds,
            about=about,
            content=str(content),
            offline=self._offline,
            exit_code=exit_code,
            seconds=_CLIENT_SHARE * self._seconds,
        )
        if self._offline:
            _make_durable(folder)
        else:
            self._location = sent["url"]


def _lines(head: Json, rows: list[HistoryRow]) -> Iterator[Json]:
    yield head
    for row in rows:
        yield {"values": row.values, "table": row.table}


def _axes_of(rows: list[HistoryRow]) -> Axes:
    axes: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.position_key is not None:
            axes.setdefault(row.position_key, {}).update(dict.fromkeys(row.series))
    return {key: list(names) for key, names in axes.items()}


def _parameters(payload: Payload, commit: int) -> Json:
    """The latest value of each parameter, and what the commit changed under a key of its own."""
    records = payload.params.to_pylist()
    latest = {record["key"]: json.loads(record["value"]) for record in records}
    keys = [record["key"] for record in records]
    changes = [
        {"key": r["key"], "value": json.loads(r["value"]), "time": r["time"].isoformat(), "attempt": r["attempt"]}
        for r in records
        if commit > 1 or keys.count(r["key"]) > 1
    ]
    return latest | ({f"rleventlog_params_{commit:08d}": changes} if changes else {})


def _origin(run: RunDescription) -> Json:
    """What W&B has no field for: its own start, creation and end times are those of the replay."""
    return {
        "run_uid": run.run_uid,
        "started": run.started.isoformat(),
        "ended": run.ended.isoformat() if run.ended else None,
        "status": run.status,
        "roles": list(run.roles),
        "attempts": run.attempts,
    }


def _cursor(carried: Position | None) -> Cursor | None:
    if not carried or not carried["commit"]:
        return None
    return Cursor(commit=carried["commit"], points=carried["points"], digest=carried["digest"])


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def _make_durable(folder: Path) -> None:
    """A commit is marked done after this: its folder must survive a power loss."""
    for path in list(folder.rglob("*")):
        if path.is_symlink():
            path.unlink()  # to logs that go with the client's process
        elif path.is_file():
            fsync_file(path)
        elif path.is_dir():
            fsync_folder(path)
    fsync_folder(folder)
