"""Replaying a run to a target, exactly once.

- What is sent is written down before, and sent again bit for bit after a kill; what the target
  confirmed is never sent again.
- The cursor at the target is compared with our record before anything is sent. Where they do not
  agree and the run does not explain it, nothing is sent.
- One sync of a run to a target at a time: the lease is looked at before each send.
- A dry run writes nothing anywhere and opens no connection.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rl_eventlog.run import Run
from rl_eventlog.sinks.base import Sink

from .agree import agree
from .lease import Lease, hold_lease
from .ledger import Ledger, plan_records
from .options import SyncOptions
from .plan import Plan, make_plan, nothing_new
from .record import Record
from .report import SyncReport, make_report
from .source import Source

Progress = Callable[[int, int], None]
"""Told after each commit: points sent, and points to send as far as it is known."""


def replay(
    run: Run | Path | str,
    sink: Sink,
    options: SyncOptions | None = None,
    *,
    progress: Progress | None = None,
) -> SyncReport:
    """Send what a target lacks of a run.

    Args:
        run: folder of the run; of a `Run` only its path counts, its files are read anew.
        sink: the target, not opened yet; it is closed in the end.
        options: what to send and how; None for the defaults.
        progress: called after each commit.

    Raises:
        RunNotFoundError: the path holds no run.
        LeaseHeldError: another sync of this run to this target is at work.
        LedgerError: our record and the target do not agree; the message says what to do.
        SinkUnavailableError: the target did not answer in time; a later sync goes on from there.
        SinkRejectedError: the target refused.
        SyncError: our record could not be written.
    """
    try:
        source = Source(run.path if isinstance(run, Run) else Path(run))
    except BaseException:
        sink.close()
        raise
    return replay_source(source, sink, options or SyncOptions(), progress=progress)


def replay_source(source: Source, sink: Sink, options: SyncOptions, *, progress: Progress | None) -> SyncReport:
    """As `replay`, of a run that was looked at just now."""
    try:
        ledger = Ledger(source.path, source.run_uid, sink.kind, sink.address)
        work = _Replay(source, sink, ledger, options)
        if options.dry_run:
            work.preview()
        else:
            work.send(progress or (lambda _sent, _of: None))
        return make_report(source, sink, ledger, work.sent, work.plan, resent=work.resent, dry_run=options.dry_run)
    finally:
        sink.close()


class _Replay:
    """One replay.

    Attributes:
        sent: the commits sent, or to be sent.
        resent: how many of them an earlier sync planned.
        plan: what was planned; None where there was nothing new.
    """

    def __init__(self, source: Source, sink: Sink, ledger: Ledger, options: SyncOptions) -> None:
        self._source, self._sink, self._ledger, self._options = source, sink, ledger, options
        self.sent: list[Record] = []
        self.resent = 0
        self.plan: Plan | None = None

    def preview(self) -> None:
        """Find out what would be sent."""
        left, self.plan = self._ledger.pending(), self._make_plan()
        planned = [record for record, _ in plan_records(self.plan.payloads(), self._ledger.last)] if self.plan else []
        self.sent, self.resent = left + planned, len(left)

    def send(self, progress: Progress) -> None:
        """Send under the lease: first what an earlier sync left, then what is new."""
        ledger, sink = self._ledger, self._sink
        with hold_lease(ledger.folder) as lease:
            ledger.prepare()
            description = self._source.description
            cursor = sink.open(description, ledger.position)
            ledger.note({"location": sink.location})
            agree(ledger, cursor, self._make_plan)
            self.resent = len(ledger.pending())
            self._send_pending(lease, progress)
            self.plan = self._make_plan()
            if self.plan and not self.plan.is_empty:
                ledger.write_plan(self.plan.payloads(), self.plan.state)
                self._send_pending(lease, progress)
            lease.check()
            sink.finish(description)
            ledger.note({"status": description.status})

    def _send_pending(self, lease: Lease, progress: Progress) -> None:
        pending = self._ledger.pending()
        total = sum(record.points for record in [*self.sent, *pending])
        for record in pending:
            lease.check()
            sent = self._sink.send(self._ledger.payload(record), record.cursor)
            lease.check()
            self._ledger.confirm(record, sent.position)
            self.sent.append(record)
            progress(sum(record.points for record in self.sent), total)

    def _make_plan(self) -> Plan | None:
        if nothing_new(self._source, self._ledger.state):
            return None
        return make_plan(self._source, self._ledger.state, self._options)
