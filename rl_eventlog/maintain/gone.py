"""Whether a writer is gone. Silence is never proof."""

from __future__ import annotations

from rl_eventlog.reader import WriterFacts
from rl_eventlog.run import is_provably_alive, is_provably_dead


def is_gone(facts: WriterFacts | None, *, assume_dead: bool) -> bool:
    """Whether nobody will write into this writer's files any more.

    Proof is its end record, or a dead process on this host.

    Args:
        facts: the writer; None where it entered the run a moment ago.
        assume_dead: a person says that it is; no word counts against a process that is seen to run.
    """
    if facts is None:
        return False
    if facts.end is not None or is_provably_dead(facts):
        return True
    return assume_dead and not is_provably_alive(facts)
