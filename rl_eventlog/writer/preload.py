"""What logging and sealing load late, loaded at open.

Not at import, which every process pays. Not at the first use either: a fork while the background
thread imports something leaves locks behind that the child can never take.
"""

from __future__ import annotations

from importlib import import_module

_LATE = ("rl_eventlog.segment.seal",)


def load_all() -> None:
    """Load it now."""
    for name in _LATE:
        import_module(name)
