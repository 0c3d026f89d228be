"""Crash-safe event logs for distributed RL training.

- `import rl_eventlog` loads nothing heavier than pyarrow, on every rank: each name is imported at its first use.
- Training uses `EventWriter` (or `current()`); notebooks use `Run` and `Runs`.
- All exceptions are in `rl_eventlog.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_eventlog import errors
    from rl_eventlog.integrations.merge import merge_ranks
    from rl_eventlog.integrations.torch_distributed import reduce_across_ranks
    from rl_eventlog.run import Run, Runs
    from rl_eventlog.value_types import Last, Max, Mean, Min, Quantiles, Sum
    from rl_eventlog.writer import CloseReport, EventWriter, NullWriter, Timer, current

    __version__: str

__all__ = [
    "CloseReport",
    "EventWriter",
    "Last",
    "Max",
    "Mean",
    "Min",
    "NullWriter",
    "Quantiles",
    "Run",
    "Runs",
    "Sum",
    "Timer",
    "__version__",
    "current",
    "errors",
    "merge_ranks",
    "reduce_across_ranks",
]

_HOME = {
    "CloseReport": "rl_eventlog.writer",
    "EventWriter": "rl_eventlog.writer",
    "NullWriter": "rl_eventlog.writer",
    "Run": "rl_eventlog.run",
    "Runs": "rl_eventlog.run",
    "Timer": "rl_eventlog.writer",
    "current": "rl_eventlog.writer",
    "merge_ranks": "rl_eventlog.integrations.merge",
    "reduce_across_ranks": "rl_eventlog.integrations.torch_distributed",
    **dict.fromkeys(("Last", "Max", "Mean", "Min", "Quantiles", "Sum"), "rl_eventlog.value_types"),
}


if not TYPE_CHECKING:  # a type checker that saw __getattr__ would take any name

    def __getattr__(name: str) -> object:
        """Import a public name at its first use and keep it."""
        if name in _HOME:
            value = getattr(import_module(_HOME[name]), name)
        elif name == "errors":
            value = import_module("rl_eventlog.errors")
        elif name == "__version__":
            from importlib.metadata import version

            value = version("rl-eventlog")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
