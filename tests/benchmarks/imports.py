"""What `import rl_eventlog` costs each rank, beside pyarrow alone."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

from .report import Section, at_most, prose, table

_ROUNDS = 15
_ARROW, _OURS, _WRITER = "import pyarrow", "import rl_eventlog", "from rl_eventlog import EventWriter"
STATEMENTS = (_ARROW, _OURS, _WRITER)


def imports(_: Path) -> Section:
    """Measure."""
    return section(seconds(_ROUNDS))


def section(found: dict[str, list[float]]) -> Section:
    """Table and target."""
    arrow = statistics.median(found[_ARROW])
    rows = [
        (
            f"`{statement}`",
            f"{statistics.median(times) * 1000:.0f}",
            f"{min(times) * 1000:.0f}",
            f"{statistics.median(times) / arrow:.2f}",
        )
        for statement, times in found.items()
    ]
    return Section(
        "Import",
        [
            *prose(
                f"In fresh interpreters, in turns, {len(found[_ARROW])} each. Names are imported at their first use:",
                "what a training pays in all is the last line.",
            ),
            "",
            *table(("", "median ms", "least", f"times `{_ARROW}`"), rows),
        ],
        tuple(
            at_most(f"`{statement}` over `{_ARROW}`", statistics.median(found[statement]) / arrow, 1.3, "times", 2)
            for statement in (_OURS, _WRITER)
        ),
    )


def seconds(rounds: int) -> dict[str, list[float]]:
    """Seconds of each import, by statement."""
    found: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(rounds):
        for statement, times in found.items():
            code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            times.append(float(done.stdout))
    return found
