"""What one log call costs the training, by number of metrics, beside what people use today."""

from __future__ import annotations

from pathlib import Path

from .contestants import CONTESTANTS, JSONL, OURS, QUEUED, WANDB
from .report import Section, Verdict, at_most, prose, table
from .rounds import Block, Race, Turns, race

_ROUNDS = 10
#: The calls of a turn are bounded so that none writes more than about 10 MB.
_BLOCKS = {
    1: Block(5_000, 0.1),
    5: Block(5_000, 0.1),
    20: Block(5_000, 0.4),
    100: Block(1_000, 0.15),
    1000: Block(100, 0.15),
}
_HOT = 20


def log_calls(folder: Path) -> Section:
    """Measure."""
    return section(race(folder, _BLOCKS, _ROUNDS))


def section(found: Race) -> Section:
    """Tables and targets."""
    hot = found.turns[_HOT]
    ours = hot[OURS]
    heads = ("", "calls", "median us", "p99", "p99.9", "highest", "times ours", "CPU us a call", "at rest after s")
    rows = [
        (name, f"{turns.times.calls:,}", *turns.times.cells(), f"{turns.times_of(ours):.1f}", *_beside(turns))
        for name, turns in hot.items()
    ]
    lines = [
        *prose(
            f"One call with {_HOT} metrics, without a pause between calls. `times ours`: ratio of the medians, median",
            "over the rounds. `CPU`: all threads and processes, background work included. `at rest`: from the last",
            "call of a turn until its files changed no more (longest turn); `-`: a call leaves nothing to be done.",
        ),
        "",
        *table(heads, rows),
        "",
        "Median microseconds of a call, by its number of metrics; in brackets: times ours.",
        "",
        *table(("", *(str(count) for count in found.turns)), [_by_count(found, name) for name in CONTESTANTS]),
        "",
        f"Points that readers found in the files: all {sum(found.points.values()):,} that were logged.",
    ]
    return Section(
        "One log call",
        lines,
        (
            at_most(f"{_HOT} float metrics, hot loop, median of a call", ours.times.median, 6, "us"),
            _cheaper("line-buffered JSONL", hot[JSONL], ours, 2),
            _cheaper("W&B offline", hot[WANDB], ours, 15),
            at_most(f"{_HOT} float metrics, queued, median of a call", hot[QUEUED].times.median, 150, "us"),
        ),
    )


def _cheaper(name: str, peer: Turns, ours: Turns, times: float) -> Verdict:
    ratio = peer.times_of(ours)
    return Verdict(f"at least {times:g} times cheaper than {name}", f"{ratio:.1f} times", ratio >= times)


def _beside(turns: Turns) -> tuple[str, str]:
    return f"{turns.cpu:.1f}", f"{max(turns.rest_seconds):.2f}" if turns.rest_seconds else "-"


def _by_count(found: Race, name: str) -> list[str]:
    turns = [(by_name[name], by_name[OURS]) for by_name in found.turns.values()]
    return [name, *(f"{one.times.median:.1f} ({one.times_of(ours):.1f})" for one, ours in turns)]
