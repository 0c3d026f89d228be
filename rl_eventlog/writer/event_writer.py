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

from .accumulate import Accumulator
from .artifacts import Artifact
from .calls import LogCalls
from .mounts import file_system, may_stall
from .options import above_zero, absolute_path, duration, one_of, step_number, tag_texts
from .preload import load_all
from .provenance import git_diff, provenance
from .reduce_rules import RULES
from .registration import Labels, Resume, inherit_launch, run_folder
from .session import CloseReport, Options, Session
from .table import Limits
from .thinning import Thinning
from .whoami import who_am_i

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("rl_eventlog")

OnError = Literal["warn", "raise"]
Write = Literal["direct", "queued"]
ReduceRules = Literal["nemo_rl", "verl"]
_MAX_INTERVAL_SECONDS = 86_400.0


class EventWriter(LogCalls):
    """Writes the events of one process. Make it with `EventWriter.open`."""

    def __init__(
        self, options: Options, thinning: Thinning, facts: Mapping[str, Any] | None, diff: bytes | None
    ) -> None:
        """Use `open`."""
        super().__init__(thinning, options.rule)
        self._options = options
        self._closed: CloseReport | None = None
        self._last_call = time.monotonic()
        self._forked_from: str | None = None
        self._locked = threading.RLock()  # starting and closing; a signal handler may come in
        self._session: Session | None = Session(options, self._activity, self._skips, provenance=facts)
        for warning in self._session.warnings:
            logger.warning("rl-eventlog: %s", warning)
        if diff:
            self._store(Artifact(io.BytesIO(diff), "git.diff", "file"), self._position(None, "open"), size=len(diff))
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
        write: Write | None = None,
        stall_budget_ms: float = 20.0,
        fallback_dir: str | os.PathLike[str] | None = None,
        max_samples_per_step: int | None = None,
        keep_rollouts_every: int | None = None,
        reduce_rules: ReduceRules | None = None,
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
            write: ``direct`` lets the caller write; ``queued`` lets a thread do it, so that a file system
                that does not answer holds a call for the stall budget at most. By the type of the file
                system where not given: queued on NFS, Lustre, GPFS, BeeGFS, Ceph, FUSE, 9p and SMB.
            stall_budget_ms: how long a call waits for the thread, milliseconds; then its rows wait in memory.
            fallback_dir: folder on another disk, of this node, for rows that the run's folder does not take.
            max_samples_per_step: keep so many samples of a step and split, the first ones.
            keep_rollouts_every: keep rollout samples of every so many steps, counted from step 0.
            reduce_rules: how metrics that declare no reduction are merged: by the key conventions of NeMo RL
                (``nemo_rl``) or verl (``verl``); as the mean where not given.

        Raises:
            OpenError: nothing could be written there; path and reason are named.
            IdentityError: the process cannot tell its run or its rank.
            OptionError: an argument has a value it cannot have.
        """
        one_of("resume", resume, get_args(Resume))
        one_of("on_error", on_error, get_args(OnError))
        one_of("write", write, (*get_args(Write), None))
        one_of("reduce_rules", reduce_rules, (*get_args(ReduceRules), None))
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
                above_zero("segment_bytes", segment_bytes, of="bytes"),
                duration("segment_seconds", segment_seconds, most=math.inf),
            ),
            raise_errors=on_error == "raise",
            fsync_seconds=duration("fsync_interval_seconds", fsync_interval_seconds, most=_MAX_INTERVAL_SECONDS),
            beat_seconds=duration("beat_interval_seconds", beat_interval_seconds, most=_MAX_INTERVAL_SECONDS),
            queued=write == "queued" or (write is None and may_stall(file_system(path))),
            stall_budget_seconds=duration("stall_budget_ms", stall_budget_ms, most=60_000.0, unit="ms") / 1000,
            fallback=None if fallback_dir is None else absolute_path(fallback_dir) / path.name,
            rule=None if reduce_rules is None else RULES[reduce_rules],
        )
        thinning = Thinning(
            None
            if max_samples_per_step is None
            else above_zero("max_samples_per_step", max_samples_per_step, of="samples"),
            None if keep_rollouts_every is None else above_zero("keep_rollouts_every", keep_rollouts_every, of="steps"),
        )
        load_all()
        carries_provenance = who.rank.rank in (0, None)
        writer = cls(
            options,
            thinning,
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
            OSError: the disk refuses; the rows wait in memory and are tried again.
        """
        session = self._session
        if session is None or self._closed is not None:
            return
        session.rows.flush()
        if fsync:
            session.rows.fsync(again=True)

    def close(self, timeout: float = 5.0, *, reason: str = "finished") -> CloseReport:
        """Seal all segments and write the end record. A second call returns the first report.

        Args:
            timeout: seconds to wait for sealing; what is not sealed by then stays open.
            reason: why the training ended.

        Raises:
            WriteError: rows are lost or not written yet, with ``on_error="raise"``.
        """
        with self._locked:
            if self._closed is None:
                self._closed = report = self._end(timeout, reason)
                for problem in report.problems():
                    logger.warning("rl-eventlog, closing %s: %s", self.path, problem)
                if report.missing and self._options.raise_errors:
                    raise WriteError(f"{self.path} was closed without {report.missing}")
            return self._closed

    def _end(self, timeout: float, reason: str) -> CloseReport:
        left, _ = self._accumulator.take()
        if left:
            self._skips.counters["accumulated and never logged"] += len(left)
        if self in _opened:
            _opened.remove(self)
        if self._session is None:  # a fork that logged nothing
            return CloseReport({}, {})
        return self._session.end(timeout, reason, self._skips.counters)

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
        with suppress(*(() if error is None else (WriteError,))):
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
        self._accumulator = Accumulator()


_writers: weakref.WeakSet[EventWriter] = weakref.WeakSet()
_opened: list[EventWriter] = []


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._forked()  # noqa: SLF001 -- the same module


os.register_at_fork(after_in_child=_after_fork_in_child)


def last_opened() -> EventWriter | None:
    """The last writer of this process that was opened and not closed."""
    return _opened[-1] if _opened else None
