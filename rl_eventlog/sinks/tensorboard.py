"""TensorBoard as a target: a folder a run, and one event file in it a role.

- A file holds one value a (tag, step), at the log's times, its tags' steps rising: TensorBoard's
  server drops what precedes a lower step. `_event_folder` says how a commit is once there.
- Corrections, late steps and changed hyperparameters replace the file by a new one, which a running
  TensorBoard follows.
- Of two points with one (tag, step) the later stays; samples without a step are at step 0. Scalars
  are float32. Notes, group and tags of a run have no place in TensorBoard.
- Roles other than main, trainer and controller have sub-folders.
"""

from __future__ import annotations

import errno
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from rl_eventlog.errors import MissingDependencyError, SinkRejectedError, SinkUnavailableError
from rl_eventlog.layout import escape_run_name, sha16

from . import _samples
from ._event_folder import EventFolder
from .base import Cursor, Payload, Position, RunDescription, Sent, Sink
from .names import path_part

if TYPE_CHECKING:
    from ._event_file import Entry

OWN_FOLDER_ROLES = frozenset({"main", "trainer", "controller"})
"""Roles in the run's own folder, all in one file."""
MAX_SAMPLES = 50
"""Samples in the text of one (split, step)."""
MAX_FIELD_LENGTH = 4000
"""Characters of one field of a sample in that text."""

#: errors that waiting does not mend
_REFUSED = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)


class TensorboardSink(Sink):
    """One run in a folder that TensorBoard reads.

    Args:
        log_dir: what TensorBoard gets as ``--logdir``.

    Raises:
        MissingDependencyError: tensorboard or google-crc32c is not installed.
    """

    kind: ClassVar[str] = "tensorboard"

    def __init__(self, *, log_dir: str | Path = "./tensorboard") -> None:
        try:
            from . import _event_file  # noqa: F401 - imports the clients
        except ModuleNotFoundError as error:
            package = "google-crc32c" if error.name == "google_crc32c" else "tensorboard"
            raise MissingDependencyError(package, "tensorboard") from error
        self._log_dir = Path(log_dir).resolve()
        self._run: RunDescription
        self._folder: EventFolder

    @property
    def address(self) -> str:
        """The log folder, absolute."""
        return str(self._log_dir)

    @property
    def location(self) -> str:
        """The run's folder."""
        return str(self._folder.path)

    def open(self, run: RunDescription, position: Position) -> Cursor | None:  # noqa: ARG002 - the folder knows it
        """Find the run's folder, or make it, and check that its files are as the cursor says."""
        with _translated():
            path = self._claimed(run)
            self._run, self._folder = run, EventFolder(path, run.run_uid, run.started)
        return self._folder.record.cursor

    def send(self, payload: Payload, cursor: Cursor) -> Sent:
        """Write one commit to the files and wait for the disk; one that is there already is left alone."""
        if cursor == self._folder.record.cursor:
            return Sent()
        with _translated():
            changes = _points(payload.points)
            changes[""].update(self._hparams(payload.params))
            changes[""].update(_texts(payload.samples))
            self._folder.commit(changes, cursor=cursor, end=self._folder.record.end)
        return Sent()

    def finish(self, run: RunDescription) -> None:
        """Write the end of the run for the hyperparameters' table, or take it away if it runs again."""
        from ._event_file import END_TAG, HPARAMS_TAG, end_entry

        record = self._folder.record
        if not self._folder.holds("", HPARAMS_TAG):
            return
        end = None if run.status == "running" or run.ended is None else (run.status, run.ended.timestamp())
        if end != record.end:
            entry = end_entry(succeeded=end[0] == "finished", ended=end[1]) if end else None
            with _translated():
                self._folder.commit({"": {(END_TAG, 0): entry}}, cursor=record.cursor, end=end)

    def close(self) -> None:
        """Nothing to release: no file stays open."""

    def _claimed(self, run: RunDescription) -> Path:
        name = _folder_name(run.name)
        for candidate in (name, f"{name}-{sha16(run.run_uid.encode())[:8]}"):
            if EventFolder.claim(self._log_dir / candidate, run.run_uid):
                return self._log_dir / candidate
        raise SinkRejectedError(f"{self._log_dir / name}: holds event files of another run: give another --log-dir")

    def _hparams(self, params: pa.Table) -> dict[tuple[str, int], Entry]:
        from ._event_file import HPARAMS_TAG, hparams_entry, hparams_of

        if not params.num_rows:
            return {}
        values: dict[str, Any] = {}
        started = self._run.started.timestamp()
        if self._folder.holds("", HPARAMS_TAG):
            values, started = hparams_of(self._folder.entries("")[HPARAMS_TAG, 0])
        rows = sorted(params.to_pylist(), key=lambda row: row["attempt"])
        values.update({row["key"]: json.loads(row["value"]) for row in rows})
        latest = max(row["time"] for row in rows).timestamp()
        return {(HPARAMS_TAG, 0): hparams_entry(values, self._run.run_uid, started, latest)}


def _points(points: pa.Table) -> defaultdict[str, dict[tuple[str, int], Entry]]:
    from ._event_file import Entry

    changes: defaultdict[str, dict[tuple[str, int], Entry]] = defaultdict(dict)
    folders = {role: _role_folder(role) for role in points["role"].unique().to_pylist()}
    columns = (points["role"], points["series"], points["step"], points["time"].cast(pa.int64()), points["value"])
    for role, series, step, micros, value in zip(*(column.to_pylist() for column in columns), strict=True):
        changes[folders[role]][series, step] = Entry(series, step, micros / 1e6, value)
    return changes


def _role_folder(role: str) -> str:
    return "" if role in OWN_FOLDER_ROLES else _folder_name(role)


def _folder_name(name: str) -> str:
    try:
        return escape_run_name(name)
    except ValueError:  # empty or too long: names of roles, and names made for display, know no limits
        return path_part(name)


def _texts(samples: pa.Table) -> dict[tuple[str, int], Entry]:
    from ._event_file import text_entry

    entries = {}
    for batch in _samples.batches(samples):
        tag, step = f"samples/{batch.split}", batch.step or 0
        latest = max(batch.rows["time"].to_pylist()).timestamp()
        entries[tag, step] = text_entry(tag, step, latest, _markdown(batch.rows))
    return entries


def _markdown(rows: pa.Table) -> str:
    """The samples as one code block: Markdown renders nothing that is indented by four spaces."""
    shown = rows.slice(0, MAX_SAMPLES).to_pylist()
    texts = [_samples.to_text(row, MAX_FIELD_LENGTH) for row in shown]
    if rows.num_rows > len(shown):
        texts.append(f"and {rows.num_rows - len(shown)} more samples at this step")
    return "\n".join(f"    {line}" for line in "\n\n".join(texts).split("\n"))


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        refused = error.errno in _REFUSED
        raise (SinkRejectedError if refused else SinkUnavailableError)(f"TensorBoard folder: {error}") from error
