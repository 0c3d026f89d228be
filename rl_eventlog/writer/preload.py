"""What logging and sealing load late, loaded at open.

Not at import, which every process pays. Not at the first use either: there the training would wait
(pyarrow imports pandas for its first array, where that is installed), and a fork while the background
thread imports something leaves locks behind that the child can never take.
"""

from __future__ import annotations

from importlib import import_module

import pyarrow as pa

_LATE = ("pyarrow.acero", "rl_eventlog.segment.seal")


def load_all() -> None:
    """Load it now."""
    pa.array([0.0])
    for name in _LATE:
        import_module(name)
