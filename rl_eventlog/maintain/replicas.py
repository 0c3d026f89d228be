"""Ranks that log the same values and have no `data_rank`: replicas that count more than once, probably.

- Tensor-parallel ranks of a replica log the same, other replicas something else. So ranks that agree are
  suspected only where their values change, and not by the same amount each time: a batch size, a step count
  and a learning rate are equal on all ranks and say nothing.
- Agreement by luck, of small whole numbers in a short run, is told apart: either every rank agrees with another
  one, or there are many different values.
- A sum is wrong then. A mean is wrong where the groups have different numbers of ranks; where all ranks agree it is
  a value that was merged already, and no finding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import polars as pl

from rl_eventlog.run import Run
from rl_eventlog.run.stalls import numbers

from .findings import Finding, Severity

MIN_VALUES = 3
"""Different values of a rank before it is compared."""
MANY_VALUES = 8
"""Different values with which ranks agree by no luck, though others agree with none."""
_POSITIONS = 64  # the last ones of a series: more would tell nothing new, and a run may have millions
_MAX_LISTED = 4
_SERIES = ["role", "name", "axis", "attempt"]
_VALUE = pl.col("value")

Groups = tuple[tuple[int | None, ...], ...]
"""Ranks by what they logged, one group for each sequence of values."""


class _Pattern(NamedTuple):
    """What the series of one finding have in common."""

    role: str
    summed: bool
    groups: Groups


def find_replicas(run: Run) -> Iterator[Finding]:
    """One finding for all series of a role in which the same ranks agree."""
    found: defaultdict[_Pattern, dict[str, int]] = defaultdict(dict)
    for (role, name, *_), group in _sequences(run).group_by(_SERIES, maintain_order=True):
        groups: Groups = tuple(sorted((tuple(ranks) for ranks in group["ranks"]), key=str))
        summed = bool(group["summed"].any())
        if _agree(group) and (summed or len(groups) > 1):
            positions = found[_Pattern(role, summed, groups)]
            positions[name] = max(group["positions"][0], positions.get(name, 0))
    for pattern, positions in found.items():
        yield _finding(pattern, sorted(positions), max(positions.values()))


def _sequences(run: Run) -> pl.DataFrame:
    """The sequences of values of each series: who logged them, of how many positions, how they change."""
    by_writer = (
        _compared(run)
        .sort("position")
        .group_by(*_SERIES, pl.coalesce(pl.col("rank").cast(pl.String), "writer").alias("_who"))
        .agg("value", pl.col("rank").first(), summed=(pl.col("reduction") == "sum").any())
    )
    return (
        by_writer.group_by(*_SERIES, "value")
        .agg(ranks=pl.col("rank").sort(), summed=pl.col("summed").any())
        .select(
            *(*_SERIES, "ranks", "summed"),
            positions=_VALUE.list.len(),
            values=_VALUE.list.n_unique(),
            changes=_VALUE.list.diff(null_behavior="drop").list.n_unique(),
        )
        .sort(*_SERIES, "ranks")
    )


def _compared(run: Run) -> pl.DataFrame:
    """The rows to compare: of each series the last positions at which most ranks have a value."""
    rows = run.metrics(ranks="each").filter(
        (pl.col("reduction").is_null() | pl.col("reduction").is_in(["sum", "mean", "std"]))
        & pl.col("data_rank").is_null()
        & _VALUE.is_finite()
    )
    positions = (
        rows.group_by(*_SERIES, "position")
        .agg(_ranks=pl.len())
        # a rank that started late, or was lost, is compared as well
        .filter((pl.col("_ranks") > 1) & (pl.col("_ranks") == pl.col("_ranks").max().over(_SERIES)))
        .sort("position")
        .group_by(_SERIES)
        .tail(_POSITIONS)
    )
    return rows.join(positions, on=[*_SERIES, "position"], how="semi", nulls_equal=True).collect()


def _agree(sequences: pl.DataFrame) -> bool:
    """Whether ranks agree, and not by luck, and not because they count alike."""
    together = pl.col("ranks").list.len() > 1
    least = MIN_VALUES if sequences.select(together.all()).item() else MANY_VALUES
    telling = (pl.col("values") >= least) & (pl.col("changes") > 1)
    return bool(sequences.select((together & telling).any()).item())


def _finding(pattern: _Pattern, names: list[str], positions: int) -> Finding:
    sizes = {len(group) for group in pattern.groups}
    agree = (
        f"{_listed(names, ', ')}: {_listed(map(_group, pattern.groups), '; ')} agree at the last {positions} positions"
    )
    if pattern.summed:
        return Finding("warning", "replicated sum", pattern.role, f"{agree}, and each rank is added")
    if len(sizes) == 1:
        detail = f"{agree}; the mean is right, as each group has as many ranks, a sum would not be"
        return Finding("note", "replicated mean", pattern.role, detail)
    severity: Severity = "note" if 1 in sizes else "warning"
    return Finding(severity, "replicated mean", pattern.role, f"{agree}, and groups with more ranks weigh more")


def _group(ranks: tuple[int | None, ...]) -> str:
    known = [rank for rank in ranks if rank is not None]
    unknown = [f"{len(ranks) - len(known)} without a number"] if len(known) < len(ranks) else []
    return f"rank{'s' * (len(ranks) > 1)} {' and '.join([*([numbers(known)] if known else []), *unknown])}"


def _listed(words: Iterable[str], separator: str) -> str:
    """The first ones, and how many more."""
    words = list(words)
    more = [f"{len(words) - _MAX_LISTED} more"] if len(words) > _MAX_LISTED else []
    return separator.join([*words[:_MAX_LISTED], *more])
