"""MLflow as a target: one MLflow run per run, at original steps and times.

- The store drops a point it already holds (same key, ms time, step and value), params and tags are
  written by key and artifacts by path: a commit sent again changes nothing. Times come from the log.
- The cursor is a tag of the MLflow run, written in the request of the last points, after all else.
- Keys pass through `names.key`; a name too long for MLflow is kept whole in a tag
  ``rleventlog.name.<digest>``. Texts over MLflow's limits are cut and say so.
- MLflow's params cannot change. A param keeps its first value; later ones are tags
  ``rleventlog.param.<key>.attempt_<n>``, the newest of each attempt.
- MLflow's database stores infinities as +-1.797e308 and has no negative times.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from rl_eventlog.errors import SinkRejectedError

from . import _mlflow_client, _samples
from .base import Cursor, Payload, Position, RunDescription, Sent, Sink
from .names import MAX_KEY_LENGTH, cut, key, path_part

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

MAX_METRICS = 1000
"""Metrics, params and tags in one request, all together."""
MAX_PARAMS_OR_TAGS = 100
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 8000

CURSOR_TAG = "rleventlog.cursor"
RUN_UID_TAG = "rleventlog.run_uid"
_MADE_TAG = "rleventlog.made_ms"
_COMMIT = b"rle.commit"
_STATUS = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED"}

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_T = TypeVar("_T")


class MLflowSink(Sink):
    """One run at an MLflow server or in an MLflow database.

    Args:
        tracking_uri: where; None for MLflow's own default (``MLFLOW_TRACKING_URI``, else
            ``sqlite:///mlflow.db`` in the working folder).
        experiment: name of the experiment, made if it is not there.
        timeout_seconds: bound on each call of the server, retries included. MLflow's own variables
            for timeout and retries go before it where they are set.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """

    kind: ClassVar[str] = "mlflow"

    def __init__(
        self, *, tracking_uri: str | None = None, experiment: str = "rl-eventlog", timeout_seconds: float = 120.0
    ) -> None:
        _mlflow_client.import_client()
        self._uri = _mlflow_client.resolve_uri(tracking_uri)
        self._experiment = experiment
        self._timeout_seconds = timeout_seconds
        self._client: MlflowClient
        self._run_id: str
        self._location: str
        self._params: dict[str, str]
        self._tags: dict[str, str]

    @property
    def address(self) -> str:
        """The tracking URI, absolute and without credentials, ``#`` and the experiment."""
        return f"{_mlflow_client.without_credentials(self._uri)}#{quote(self._experiment, safe='')}"

    @property
    def location(self) -> str:
        """The run's page at a server; the same path behind the URI of a database."""
        return self._location

    def open(self, run: RunDescription, position: Position) -> Cursor | None:  # noqa: ARG002 - the tag finds the run
        """Find the run by its tag, or make it, and read the cursor's tag."""
        from mlflow import MlflowClient

        with _mlflow_client.calls(self._timeout_seconds):
            _mlflow_client.check_store(self._uri)
            self._client = MlflowClient(self._uri)
            experiment_id = self._find_or_create_experiment()
            remote = self._find(experiment_id, run.run_uid) or self._create(experiment_id, run)
        self._run_id = remote.info.run_id
        self._params, self._tags = dict(remote.data.params), dict(remote.data.tags)
        base = _mlflow_client.without_credentials(self._uri)
        slash = "/" if base.startswith("http") else ""
        self._location = f"{base}{slash}#/experiments/{experiment_id}/runs/{self._run_id}"
        try:
            return Cursor(**json.loads(self._tags[CURSOR_TAG])) if CURSOR_TAG in self._tags else None
        except (ValueError, TypeError) as error:
            raise SinkRejectedError(f"{self._location}: the tag {CURSOR_TAG} was changed: {error}") from error

    def send(self, payload: Payload, cursor: Cursor) -> Sent:
        """Send samples, params and points, then the cursor; each request is confirmed by the server."""
        with _mlflow_client.calls(self._timeout_seconds):
            self._send_samples(payload.samples, cursor.commit)
            self._send_params(payload.params)
            self._send_points(payload.points, cursor)
        return Sent({"run_id": self._run_id})

    def finish(self, run: RunDescription) -> None:
        """Set tags, status and the original end time. MLflow cannot clear an end time it has."""
        with _mlflow_client.calls(self._timeout_seconds):
            self._set_tags(_describe(run))
            if run.status == "running" or run.ended is None:
                self._client.update_run(self._run_id, status=_STATUS[run.status])
            else:
                self._client.set_terminated(self._run_id, _STATUS[run.status], end_time=_ms(run.ended))

    def close(self) -> None:
        """Nothing to release: the client keeps no connection of its own, and sends at once."""

    def _find_or_create_experiment(self) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                return self._client.create_experiment(self._experiment, self._artifact_location())
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._client.get_experiment_by_name(self._experiment)
        if found is None or found.lifecycle_stage != "active":
            raise SinkRejectedError(
                f"the experiment {self._experiment!r} is deleted in MLflow: restore it, or give another --experiment"
            )
        return str(found.experiment_id)

    def _artifact_location(self) -> str | None:
        """Beside an sqlite file; MLflow would take the folder this process happens to run in."""
        path = _mlflow_client.sqlite_path(self._uri)
        return (path.parent / "mlruns" / path_part(self._experiment)).as_uri() if path else None

    def _find(self, experiment_id: str, run_uid: str) -> Run | None:
        """The oldest MLflow run that carries the tag."""
        found = self._client.search_runs([experiment_id], f"tags.`{RUN_UID_TAG}` = '{run_uid}'")
        return min(found, key=lambda run: (int(run.data.tags.get(_MADE_TAG, 0)), run.info.run_id), default=None)

    def _create(self, experiment_id: str, run: RunDescription) -> Run:
        tags = {**_describe(run), RUN_UID_TAG: run.run_uid, _MADE_TAG: str(time.time_ns() // 1_000_000)}
        made = self._client.create_run(experiment_id, _ms(run.started), tags, cut(run.name, MAX_KEY_LENGTH))
        # two syncs on two machines may both have found nothing; the tag is not unique at the server
        oldest = self._find(experiment_id, run.run_uid) or made
        if oldest.info.run_id != made.info.run_id:
            self._client.delete_run(made.info.run_id)
        return oldest

    def _send_points(self, points: pa.Table, cursor: Cursor) -> None:
        from mlflow.entities import RunTag

        keys = {name: key(name) for name in points["series"].unique().to_pylist()}
        self._set_tags({f"rleventlog.name.{k.digest}": name for name, k in keys.items() if k.digest})
        metrics = _metrics(points, {name: k.text for name, k in keys.items()})
        for _ in range(points.num_rows // MAX_METRICS):
            self._log(metrics=list(islice(metrics, MAX_METRICS)))
        text = json.dumps({"commit": cursor.commit, "points": cursor.points, "digest": cursor.digest})
        self._log(metrics=list(metrics), tags=[RunTag(CURSOR_TAG, text)])

    def _send_params(self, params: pa.Table) -> None:
        from mlflow.entities import Param

        # of several values in one attempt the last counts
        newest = {(row["key"], row["attempt"]): row["value"] for row in params.to_pylist()}
        first, history = dict(self._params), {}
        for (name, attempt), value in sorted(newest.items(), key=lambda item: item[0][1]):
            param, text = key(name), _param_text(value)
            if param.digest:
                history[f"rleventlog.name.{param.digest}"] = name
            # once an attempt changed it, the first value is news again
            changed = any(_history_tag(name, n) in self._tags | history for n in range(1, attempt + 1))
            if first.setdefault(param.text, text) != text or changed:
                history[_history_tag(name, attempt)] = text
        new = {name: text for name, text in first.items() if name not in self._params}
        for chunk in _chunks(list(new.items()), MAX_PARAMS_OR_TAGS):
            self._log(params=[Param(name, text) for name, text in chunk])
        self._params = first
        self._set_tags(history)

    def _set_tags(self, tags: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        texts = {name: cut(text, MAX_TAG_LENGTH) for name, text in tags.items()}
        news = [(name, text) for name, text in texts.items() if self._tags.get(name) != text]
        for chunk in _chunks(news, MAX_PARAMS_OR_TAGS):
            self._log(tags=[RunTag(name, text) for name, text in chunk])
        self._tags.update(news)

    def _log(self, **content: Sequence[object]) -> None:
        """One request: MLflow would split a larger one, and put the tags before the last points."""
        self._client.log_batch(self._run_id, synchronous=True, **content)  # type: ignore[arg-type]

    def _send_samples(self, samples: pa.Table, commit: int) -> None:
        """One Parquet file and one page per (split, step); what a later commit adds gets files of its own."""
        held: dict[str, set[str]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for batch in _samples.batches(samples):
                target = f"samples/{path_part(batch.split)}"
                if target not in held:
                    held[target] = {file.path for file in self._client.list_artifacts(self._run_id, target)}
                name = f"step_{batch.step:08d}" if batch.step is not None else "no_step"
                artifact = f"{target}/{name}.parquet"
                if artifact in held[target] and self._wrote_other_commit(artifact, commit, folder):
                    name += f".commit_{commit}"
                parquet, page = Path(folder, f"{name}.parquet"), Path(folder, f"{name}.html")
                pq.write_table(batch.rows.replace_schema_metadata({_COMMIT: str(commit).encode()}), parquet)
                page.write_text(_samples.to_html(batch), encoding="utf-8")
                for path in (page, parquet):
                    self._client.log_artifact(self._run_id, str(path), target)

    def _wrote_other_commit(self, artifact: str, commit: int, folder: str) -> bool:
        """Tell a file of an earlier commit; a damaged one is what a kill left of this commit."""
        path = self._client.download_artifacts(self._run_id, artifact, tempfile.mkdtemp(dir=folder))
        try:
            metadata = pq.read_schema(path).metadata or {}
        except pa.ArrowInvalid:
            return False
        return bool(metadata.get(_COMMIT) != str(commit).encode())


def _describe(run: RunDescription) -> dict[str, str]:
    described = {
        "mlflow.note.content": run.notes,
        "rleventlog.project": run.project,
        "rleventlog.group": run.group,
        "rleventlog.tags": json.dumps(list(run.tags)) if run.tags else None,
        "rleventlog.roles": ", ".join(run.roles) or None,
        "rleventlog.attempts": str(run.attempts),
    }
    return {name: cut(text, MAX_TAG_LENGTH) for name, text in described.items() if text}


def _metrics(points: pa.Table, keys: Mapping[str, str]) -> Iterator[Metric]:
    from mlflow.entities import Metric

    columns = (points["series"], points["value"], points["time"].cast(pa.int64()), points["step"])
    for series, value, micros, step in zip(*(column.to_pylist() for column in columns), strict=True):
        yield Metric(keys[series], value, max(0, micros // 1000), step)


def _param_text(value: str) -> str:
    """Strings without their quotes, all else as the JSON text it is."""
    plain = json.loads(value)
    return cut(plain if isinstance(plain, str) else value, MAX_PARAM_LENGTH)


def _history_tag(name: str, attempt: int) -> str:
    return key(f"rleventlog.param.{name}.attempt_{attempt}").text


def _chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
