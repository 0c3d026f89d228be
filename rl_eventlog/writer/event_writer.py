"""`EventWriter`: what a training process calls.

- A log call that returned is with the kernel, or counted as lost.
- No log call raises because of a value; what cannot be logged is skipped, counted, and named once.
- Calls may come from any thread, and from a signal handler.
- After a fork the child is a writer of its own, from its first row on.
- `close` reports what is there and what is not; it does not raise unless asked to.
"""

from __future__ import annotations

import io
import logging
import math
import os
import threading
import time
import traceback
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args

from rl_eventlog.errors import OpenError, WriteError, WriterClosedError
from rl_eventlog.ids import new_ulid

from .artifacts import store_artifact
from .calls import LogCalls
from .options import byte_count, one_of, seconds, step_number, tag_texts
from .preload import load_all
from .provenance import git_diff, provenance
from .registration import Labels, Resume, inherit_launch, run_folder
from .rows import Limits
from .session import CloseReport, Options, Session
from .whoami import who_am_i

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("rl_eventlog")

OnError = Literal["warn", "raise"]
_MAX_INTERVAL_SECONDS = 86_400.0


class EventWriter(LogCalls):
    """Writes the events of one process. Make it with `EventWriter.open`."""

    def __init__(self, options: Options, facts: Mapping[str, Any] | None, diff: bytes | None) -> None:
        """Use `open`."""
        super().__init__()
        self._options = options
        self._closed: CloseReport | None = None
        self._last_call = time.monotonic()
        self._forked_from: str | None = None
        self._locked = threading.RLock()  # starting and closing; a signal handler may come in
        self._session: Session | None = Session(options, self._activity, self._skips, provenance=facts)
        for warning in self._session.warnings:
            logger.warning("rl-eventlog: %s", warning)
        if diff:
            self._store(lambda layout: store_artifact(layout, io.BytesIO(diff), "git.diff", "file", None), None)
        _writers.add(self)

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] | None = None,
        *,
        run: str | None = None,
        project: str | None = None,
        group: str | None = None,
        tags: str | Sequence[str] = (),
        notes: str | None = None,
        role: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        data_rank: int | None = None,
        launch_id: str | None = None,
        resume: Resume = "allow",
        resume_step: int | None = None,
        parent_run: str | None = None,
        on_error: OnError = "warn",
        capture_diff: bool = True,
        segment_bytes: int = 64 << 20,
        segment_seconds: float = 6 * 3600.0,
        fsync_interval_seconds: float = 5.0,
        beat_interval_seconds: float = 30.0,
    ) -> Self:
        """Enter a run, or make it, and return a writer for this process.

        Args:
            root: folder of the runs; `$RLEVENTLOG_DIR` or ``./runs`` where not given. A relative root
                lies in `$RLEVENTLOG_DIR`, if that is set.
            run: name of the run; else `$RLEVENTLOG_RUN`, else what the scheduler calls the job.
            project: project of the run at the targets.
            group: group of runs at the targets.
            tags: free words, one or several.
            notes: free text.
            role: what the process does; else `$RLEVENTLOG_ROLE`, the class of a Ray actor, or ``main``.
            rank: number within the role, from 0; else from the launcher, else unknown.
            world_size: ranks of the role.
            data_rank: data-parallel rank, where other ranks see the same data.
            launch_id: id of this start of the run, equal in all its processes.
            resume: ``never`` refuses a run that exists, ``must`` one that does not.
            resume_step: first step this attempt will log; hides what older attempts have from there on.
            parent_run: `run_uid` of the run this one goes on from.
            on_error: ``raise`` lets log calls raise `WriteError` when the disk refuses.
            capture_diff: keep uncommitted changes of the code as an artifact.
            segment_bytes: size at which a segment is rotated, bytes.
            segment_seconds: age at which a segment is rotated, seconds.
            fsync_interval_seconds: how often the background puts rows on the disk.
            beat_interval_seconds: how often the heartbeat is written.

        Raises:
            OpenError: nothing could be written there; path and reason are named.
            IdentityError: the process cannot tell its run or its rank.
            OptionError: an argument has a value it cannot have.
        """
        one_of("resume", resume, get_args(Resume))
        one_of("on_error", on_error, get_args(OnError))
        who = who_am_i(role=role, rank=rank, world_size=world_size, data_rank=data_rank, launch_id=launch_id)
        path, name = run_folder(root, run, who, new_ulid())
        options = Options(
            path=path,
            run=name,
            who=who,
            labels=Labels(project, group, tag_texts(tags), notes),
            resume=resume,
            resume_step=step_number("resume_step", resume_step),
            parent_run=parent_run,
            limits=Limits(
                byte_count("segment_bytes", segment_bytes), seconds("segment_seconds", segment_seconds, most=math.inf)
            ),
            raise_errors=on_error == "raise",
            fsync_seconds=seconds("fsync_interval_seconds", fsync_interval_seconds, most=_MAX_INTERVAL_SECONDS),
            beat_seconds=seconds("beat_interval_seconds", beat_interval_seconds, most=_MAX_INTERVAL_SECONDS),
        )
        load_all()
        carries_provenance = who.rank.rank in (0, None)
        writer = cls(
            options,
            provenance() if carries_provenance else None,
            git_diff() if carries_provenance and capture_diff else None,
        )
        inherit_launch(who)
        _opened.append(writer)
        return writer

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self._options.path

    @property
    def run(self) -> str:
        """Name of the run."""
        return self._options.run

    @property
    def writer_id(self) -> str:
        """Id of this writer."""
        return (self._session or self._ready()).writer

    def flush(self, fsync: bool = False) -> None:
        """Wait until every row is with the kernel, or, with `fsync`, on the disk.

        Raises:
            OSError: the disk refused.
        """
        if fsync and self._session is not None:
            self._session.rows.fsync()

    def close(self, timeout: float = 5.0, *, reason: str = "finished") -> CloseReport:
        """Seal all segments and write the end record. A second call returns the first report.

        Args:
            timeout: seconds to wait for sealing; what is not sealed by then stays open.
            reason: why the training ended.
        """
        with self._locked:
            if self._closed is None:
                if left := self._accumulator.take():
                    self._skips.counters["accumulated and never logged"] += len(left)
                session = self._session  # None in a fork that logged nothing
                self._closed = session.end(timeout, reason, self._skips.counters) if session else CloseReport({}, {})
                if self in _opened:
                    _opened.remove(self)
            return self._closed

    def __enter__(self) -> Self:
        """Use as a context manager: `close` at the end, also of a failed training."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; an exception of the training is marked and passes through."""
        if error is not None and kind is not None and not issubclass(kind, (SystemExit, GeneratorExit)):
            with suppress(WriteError, WriterClosedError):  # the training's own exception is the one to be seen
                self.mark("exception", level="error", text="".join(traceback.format_exception(kind, error, trace)))
        self.close(reason="finished" if kind is None else kind.__name__)

    def _ready(self) -> Session:
        """The session; after a fork the child's own, made at its first call.

        Raises:
            WriterClosedError: the writer is closed.
        """
        if self._closed is not None:
            raise WriterClosedError(f"the writer of {self.path} is closed: open a new one to log more")
        self._last_call = time.monotonic()
        if self._session is None:
            with self._locked:
                if self._session is None:
                    try:
                        self._session = Session(
                            self._options, self._activity, self._skips, forked_from=self._forked_from
                        )
                    except OpenError as error:
                        if not self._options.raise_errors:
                            raise
                        raise WriteError(str(error)) from error
        return self._session

    def _activity(self) -> dict[str, Any]:
        return {
            "step": self._last_step,
            "idle_seconds": round(time.monotonic() - self._last_call, 3),
            "open_timers": self.timer.open_labels()[:8],
        }

    def _forked(self) -> None:
        """In the child of a fork: the parent's files are the parent's."""
        if self._session is not None:
            self._forked_from = self._session.writer
            self._session.abandon()
        self._session = None
        self._locked = threading.RLock()  # starting and closing; a signal handler may come in
        self._start_anew()


_writers: weakref.WeakSet[EventWriter] = weakref.WeakSet()
_opened: list[EventWriter] = []


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._forked()  # noqa: SLF001 -- the same module


os.register_at_fork(after_in_child=_after_fork_in_child)


def last_opened() -> EventWriter | None:
    """The last writer of this process that was opened and not closed."""
    return _opened[-1] if _opened else None
