"""Whether our record and the cursor at the target tell one history.

- Equal, or one commit of ours on its way: they agree.
- The target is ahead of our record, because that was lost or is an old copy: the next plan is made
  again from the run, and where its digest is the target's, it is taken as sent. Nothing is guessed.
- In all other cases nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable

from rl_eventlog.errors import LedgerError
from rl_eventlog.sinks.base import Cursor

from .ledger import Ledger, plan_records
from .plan import Plan


def agree(ledger: Ledger, cursor: Cursor | None, replan: Callable[[], Plan | None]) -> None:
    """Bring our record to where the target is.

    Args:
        ledger: our record.
        cursor: what the target carries.
        replan: makes the plan that follows the ledger's last; None where there is nothing new.

    Raises:
        LedgerError: they do not agree; the message says what to do.
    """
    there = cursor.commit if cursor else 0
    if there < ledger.done:
        has = f"only commit {there}" if there else "nothing of it"
        raise LedgerError(f"commit {ledger.done} was confirmed, but the target has {has}: {ledger.remedy}")
    if cursor is None or not there:
        return
    adopted = there > ledger.commits
    if adopted:
        _adopt(ledger, cursor, replan())
    elif ledger.record(there).digest != cursor.digest:
        raise LedgerError(f"the target holds another commit {there} than was sent from here: {ledger.remedy}")
    if there == ledger.done + 1 and ledger.has_payload(there) and not adopted:
        return  # it is sent again, which is harmless, to get the sink's position
    for number in range(ledger.done + 1, there + 1):
        ledger.confirm(ledger.record(number), {})


def _adopt(ledger: Ledger, cursor: Cursor, plan: Plan | None) -> None:
    """Take a plan as sent if it has the target's digest."""
    made = {} if plan is None else {r.commit: r.digest for r, _ in plan_records(plan.payloads(), ledger.last)}
    if plan is None or made.get(cursor.commit) != cursor.digest:
        raise LedgerError(
            f"the target holds {cursor.commit} commits ({cursor.points} points), our record {ledger.commits}, and the "
            f"run as it is now does not lead to what was sent: bring the record back ({ledger.folder}, or a copy of "
            f"it), or {ledger.remedy}"
        )
    ledger.write_plan(plan.payloads(), plan.state)
