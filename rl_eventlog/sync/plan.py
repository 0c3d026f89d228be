"""What to send: the difference between what a target is to hold and what it holds.

- Order: role, axis (the training step first), position, attempt, series.
- A commit has at most `MAX_POINTS` points and ends between two positions, unless one alone has more.
- All samples of a split and step that are sent together are in one commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

import polars as pl
import pyarrow as pa

from rl_eventlog.sinks.base import PARAMS, POINTS, Payload
from rl_eventlog.types import Span, Spans

from .completeness import find_limits, find_marks, split
from .names import SeriesKey, assign, default_name
from .options import SyncOptions
from .payload import SAMPLES
from .record import HeldPoint, PlanState
from .source import Source
from .view import POINT, SCHEMA, SERIES, beyond, changes, place, with_integer_steps

MAX_POINTS = 100_000
MAX_SAMPLES = 10_000

_SEND_ORDER = ("role", "axis", "position", "attempt", "series")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that one sync sends."""

    state: PlanState
    points: pl.DataFrame
    """In send order: the columns of a view, `series` and `correction`."""
    params: pl.DataFrame
    samples: pl.DataFrame
    held: pl.DataFrame
    """Points kept back, with `reason`."""
    held_samples: pl.DataFrame
    hidden: int
    """Points that the target holds and the latest view no longer has."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return self.points.is_empty() and self.params.is_empty() and self.samples.is_empty()

    def payloads(self) -> Iterator[Payload]:
        """One a commit."""
        if self.is_empty:
            return
        params = _to_arrow(self.params, PARAMS)
        for points, samples in zip_longest(_cut_points(self.points), _cut_samples(self.samples)):
            yield Payload(
                _to_arrow(self.points.clear() if points is None else points, POINTS),
                params,
                _to_arrow(self.samples.clear() if samples is None else samples, SAMPLES),
            )
            params = params.slice(0, 0)


def make_plan(source: Source, before: PlanState | None, options: SyncOptions) -> Plan:
    """Compare the run with what was sent.

    Args:
        source: the run.
        before: what the last plan was made from; None before the first.
        options: what to send.
    """
    before = before or PlanState(frontier={})
    frontier = source.frontier(before.frontier)
    placed, unplaced = place(source.points(frontier))
    axes = placed.select("role", "axis").unique().sort("role", "axis").rows()
    marks = () if options.final else find_marks(source.writers, source.progress, axes)
    limits = {} if options.final or options.hold == "none" else find_limits(source.writers, source.checkpoints())
    to_send, held = split(placed, marks, limits, source.attempts)
    view, target = with_integer_steps(to_send), _target_holds(source, before)
    points, renamed = _name(changes(view, target), target, before.renamed)
    all_samples = source.samples(frontier)
    samples, held_samples = split(_unsent_samples(all_samples, before), marks, limits, source.attempts)
    state = PlanState(
        frontier=frontier,
        marks=marks,
        limits=limits,
        carried=_carried(beyond(target, view)),
        renamed=renamed,
        samples=_sent_samples(before, samples),
        options={"final": options.final, "hold": options.hold},
        held=held.height + held_samples.height,
        unplaced=unplaced,
    )
    return Plan(
        state=state,
        points=points,
        params=_changed_params(source.params(frontier), source.params(before.frontier)),
        samples=_whole_samples(all_samples, samples),
        held=held,
        held_samples=held_samples,
        hidden=beyond(target, with_integer_steps(placed)).height,
    )


def nothing_new(source: Source, before: PlanState | None) -> bool:
    """Whether a plan must come out empty: no row or writer more than the last one knew, nothing held back."""
    return before is not None and not before.held and source.frontier(before.frontier) == before.frontier


def _target_holds(source: Source, before: PlanState) -> pl.DataFrame:
    """The points at the target, computed again: `view.POINT` and `value`."""
    placed, _ = place(source.points(before.frontier))
    sent, _ = split(placed, before.marks, before.limits, source.attempts)
    view = with_integer_steps(sent).select(*POINT, "value")
    carried = pl.DataFrame(
        [(*point.key, point.position, point.value) for point in before.carried],
        schema={name: SCHEMA[name] for name in (*POINT, "value")},
        orient="row",
    )
    return pl.concat([view, beyond(carried, view)])


def _carried(points: pl.DataFrame) -> tuple[HeldPoint, ...]:
    rows = points.sort(POINT).iter_rows()
    return tuple(HeldPoint(SeriesKey(*key), position, value) for *key, position, value in rows)


def _name(
    points: pl.DataFrame, target: pl.DataFrame, renamed: Mapping[SeriesKey, str]
) -> tuple[pl.DataFrame, dict[SeriesKey, str]]:
    """Add `series`, sort, and tell all names that are not the default one."""
    names = assign(_series(points), _series(target), renamed)
    named = pl.DataFrame(
        [(*key, name) for key, name in names.items()],
        schema={**{name: pl.String() for name in SERIES}, "series": pl.String()},
        orient="row",
    )
    points = points.join(named, on=SERIES, how="left", nulls_equal=True).sort(_SEND_ORDER, nulls_last=False)
    return points, {**renamed, **{key: name for key, name in names.items() if name != default_name(key)}}


def _series(points: pl.DataFrame) -> list[SeriesKey]:
    return [SeriesKey(*key) for key in points.select(SERIES).unique().iter_rows()]


def _changed_params(now: pl.DataFrame, sent: pl.DataFrame) -> pl.DataFrame:
    return now.join(sent, on=["key", "value"], how="anti").sort("key")


def _unsent_samples(samples: pl.LazyFrame, before: PlanState) -> pl.DataFrame:
    """Which samples were not sent: `writer`, `seq` and what completeness is judged by, no content."""
    rows = samples.select("writer", "seq", "role", "step", "attempt").collect()
    spans = [(writer, first, last) for writer, spans in before.samples.items() for first, last in spans]
    sent = pl.DataFrame(spans, schema={"writer": pl.String(), "first": pl.Int64(), "last": pl.Int64()}, orient="row")
    known = rows.lazy().join_where(
        sent.lazy(),
        pl.col("writer") == pl.col("writer_right"),
        pl.col("seq") >= pl.col("first"),
        pl.col("seq") <= pl.col("last"),
    )
    unsent = rows.join(known.select("writer", "seq").collect(), on=["writer", "seq"], how="anti")
    return unsent.with_columns(axis=pl.lit(None, pl.String), position=pl.col("step").cast(pl.Float64))


def _whole_samples(samples: pl.LazyFrame, chosen: pl.DataFrame) -> pl.DataFrame:
    """The chosen samples with their content, in send order."""
    if chosen.is_empty():
        return samples.collect_schema().to_frame()
    rows = samples.join(chosen.select("writer", "seq").lazy(), on=["writer", "seq"], how="semi").collect()
    return rows.sort("split", "step", "dataset", "sample_index", "writer", "seq")


def _sent_samples(before: PlanState, samples: pl.DataFrame) -> dict[str, tuple[tuple[int, int], ...]]:
    sent = {writer: Spans(Span(first, last) for first, last in spans) for writer, spans in before.samples.items()}
    for (writer,), rows in samples.sort("seq").group_by("writer"):
        spans = sent.setdefault(str(writer), Spans())
        breaks = rows["seq"].diff().fill_null(0).ne(1).cum_sum()
        for span in rows.group_by(breaks).agg(first=pl.col("seq").min(), last=pl.col("seq").max()).to_dicts():
            spans.add(Span(span["first"], span["last"]))
    return {writer: tuple((span.first, span.last) for span in spans) for writer, spans in sorted(sent.items())}


def _cut_points(points: pl.DataFrame) -> Iterator[pl.DataFrame]:
    if points.is_empty():  # a commit of params or samples alone
        yield points
    places = points.select(pl.struct("role", "axis", "position").rle_id()).to_series()
    start = 0
    while start < points.height:
        end = start + MAX_POINTS
        if end < points.height:
            first_of_place = int(places.search_sorted(places[end], side="left"))
            end = first_of_place if first_of_place > start else end
        yield points.slice(start, end - start)
        start = end


def _cut_samples(samples: pl.DataFrame) -> Iterator[pl.DataFrame]:
    chunk: list[pl.DataFrame] = []
    for group in samples.partition_by("split", "step", maintain_order=True):
        if chunk and sum(part.height for part in chunk) + group.height > MAX_SAMPLES:
            yield pl.concat(chunk)
            chunk = []
        chunk.append(group)
    if chunk:
        yield pl.concat(chunk)


def _to_arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    table = frame.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest())
    return table.cast(schema).combine_chunks()
