"""The tables of one run, or of many, as LazyFrames.

- Nothing is read before a frame is collected, except which files there are.
- Where attempts or incarnations overlap, the view `latest` shows what holds; `all` shows each attempt.
- Reduced metrics, timings and hyperparameters come sorted, ready to be plotted; rows as logged come in
  no order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Literal, get_args

import polars as pl

from rl_eventlog import reduce
from rl_eventlog.reduce import Attempts
from rl_eventlog.schema import table as table_schema

Ranks = Literal["reduced", "each"]
Per = Literal["step", "run"]
Names = str | Iterable[str] | None
Frontier = Mapping[str, Mapping[str, int]]
Build = Callable[[pl.LazyFrame, pl.DataFrame], pl.LazyFrame]
"""(rows of a table, identities of the writers) -> the frame a user sees."""
Merge = Callable[[reduce.Read, pl.DataFrame], reduce.Merged]
"""(what reads the metrics of writers, identities of the writers) -> the merged metrics."""


class Tables(ABC):
    """What `Run` and `Runs` have in common. `Runs` puts a column `run` first in every frame.

    Arguments that mean the same everywhere:

    - `names`: a name, a shell glob over the whole name (`train/*`; `*` crosses `/`), or several of
      them; None for all.
    - `role`: only this role; None for all.
    - `attempts`: `latest`: where attempts overlap, the latest one; `all`: every attempt, apart.
    - `frontier`: table -> writer -> last seq to use (-1: the writer is known, its rows are not); writers
      that are not in it do not exist: nor do they hide what others logged. None: everything there is.

    Times are UTC in microseconds. `attempt` counts from 1.
    """

    @abstractmethod
    def frame(self, table: str, build: Build, frontier: Frontier | None = None) -> pl.LazyFrame:
        """Build a frame from the rows of a table, as logged, and the identities of their writers.

        Args:
            table: name of the table.
            build: called with both for each run.
            frontier: see the class.
        """

    @abstractmethod
    def merged_metrics(
        self, merge: Merge, names: reduce.NamePatterns | None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """Build a frame from the metrics of one rank after the other.

        Args:
            merge: called with both for each run, when the frame is collected.
            names: which metrics; None for all.
            frontier: see the class.
        """

    def metrics(
        self,
        names: Names = None,
        *,
        ranks: Ranks = "reduced",
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """Metrics, merged over ranks as their writers declared, or rank by rank.

        Args:
            names: see the class.
            ranks: `reduced`: one row a (role, name, axis, position); metrics declared `none`, or with a
                reduction that this version does not know, are not in it. `each`: one row a rank.
            attempts: see the class; `all` merges the ranks within each attempt.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, name, axis` (null: the training step), `step` (int64), `position` (float64, on the
            axis; the step where axis is null), `time` (the latest of the merged rows), `value`,
            `ranks`, `ranks_nan` (int32: ranks with a row, with a NaN), `attempt`; sorted by series and
            position.
            With ``ranks="each"`` also `rank, data_rank, node, writer, seq, weight, reduction`.
        """
        _check("ranks", ranks, Ranks)
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            chosen = reduce.with_position(_chosen(rows, names, role))
            identified = reduce.identify(chosen, identities)
            by = ("name", "axis", "position")
            return reduce.each_rank(reduce.select_view(identified, identities, by=by, attempts=attempts))

        if ranks == "each":
            return self.frame("metrics", build, frontier)
        merge = partial(reduce.merge_metrics, role=role, attempts=attempts)
        return self.merged_metrics(merge, None if names is None else reduce.NamePatterns(names), frontier)

    def timings(
        self,
        names: Names = None,
        *,
        ranks: Ranks = "reduced",
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """Timings: the spans of a rank and step added up, then the slowest rank.

        Args:
            names: see the class.
            ranks: `reduced`: one row a (role, name, step); `each`: one row a rank.
            attempts: see the class.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, name, step` (null where none), `time` (the latest), `duration_seconds` (of the
            slowest rank), `mean_seconds`, `p95_seconds` (over the ranks), `imbalance` (the slowest over
            the mean, 1.0 where all are even; null where the mean is 0), `slowest_rank` (null where it
            has no number), `count` (spans), `ranks` (with a span), `attempt`; sorted by name and step.
            With ``ranks="each"``: `role, name, step, time, start` (of the first span, null where
            unknown), `duration_seconds, count, attempt, rank, data_rank, node`.
        """
        _check("ranks", ranks, Ranks)
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            view = _spans(rows, identities, names, role, attempts)
            if ranks == "each":
                return reduce.sum_spans(view)
            return reduce.merge_timings(view).sort("role", "name", "step", "attempt")

        return self.frame("timings", build, frontier)

    def stragglers(
        self,
        names: Names = None,
        *,
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """The ranks that others waited for: how often, how long, on which node. Numbers, no verdict.

        A typical rank is the median of a step's ranks (the lower one of two in the middle). A slow rank has
        a `median_ratio` above 1 in every step; one that was slow once has its loss in one, `worst_seconds`.
        Labels within others are rows of their own: what ``a/b`` loses is lost in ``a`` too.

        Args:
            names: see the class.
            attempts: see the class; `all` also counts steps that were logged again.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, name, rank, node` (a rank that moved has a row for each), `steps` (in which others could
            be compared), `slowest_steps`, `slowest_share` (in which it was the slowest), `lost_seconds`
            (its time beyond the typical rank's in these), `worst_seconds` (the most in one step),
            `median_ratio` (its time over the typical rank's, the median over the steps),
            `duration_seconds`; what lost most comes first.
        """
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            found = reduce.find_stragglers(_spans(rows, identities, names, role, attempts))
            order = ["lost_seconds", "role", "name", "rank", "node"]
            return found.sort(order, descending=[True, False, False, False, False])

        return self.frame("timings", build, frontier)

    def phases(
        self,
        names: Names = None,
        *,
        per: Per = "step",
        whole: str | None = None,
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """Where the time of a step went, by labels: ``a/b`` is part of ``a`` where ``a`` was timed in the step.

        Seconds are means over the ranks that timed anything in the step, so that parts add up. Timings
        without a step are left out.

        Args:
            names: see the class; shares are of the whole step all the same.
            per: `step`: one row a step and label; `run`: one a label.
            whole: the label that covers a step, ``total_step_time``: all others are part of it. None: the
                labels that are part of no other add up to the step.
            attempts: see the class.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, step, name, attempt, parent` (null: none), `depth, seconds, share` (of the step),
            `self_seconds, self_share` (without its parts; negative where these overlapped), `ranks`
            (that timed it); sorted by step and name.
            With ``per="run"``: `role, name, parent, depth, steps` (that have it), `mean_seconds`,
            `median_seconds` (over these), `seconds, share, self_seconds, self_share` (of all steps);
            what took longest comes first.
        """
        _check("per", per, Per)
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            view = _spans(rows, identities, None, role, attempts)
            if per == "step":
                found = reduce.phases_of_steps(view, whole=whole).sort("role", "step", "attempt", "name")
            else:
                found = reduce.phases_of_run(view, whole=whole)
                found = found.sort("role", "seconds", "name", descending=[False, True, False])
            return _chosen(found, names, None)

        return self.frame("timings", build, frontier)

    def hparams(
        self, *, history: bool = False, role: str | None = None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """Hyperparameters, nested keys joined with `.`, values as JSON.

        Args:
            history: every value that was logged, oldest first, in place of the latest.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, key, value, time, attempt`: one row a (role, key), the latest by (attempt, time), sorted.
            With ``history=True`` one row a logged value, and also `step, rank, data_rank, node, writer,
            seq`.
        """

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            identified = reduce.identify(_chosen(rows, None, role), identities)
            if history:
                return reduce.hparam_history(identified)
            return reduce.latest_hparams(identified).sort("role", "key")

        return self.frame("hparams", build, frontier)

    def samples(
        self,
        *,
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """Generated responses with what belongs to them.

        Args:
            attempts: see the class; of a (role, split, dataset, step) the latest attempt has all rows.
            role: see the class.
            frontier: see the class.

        Returns:
            The columns of the table, identity first, and `attempt`.
        """
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            identified = reduce.identify(_chosen(rows, None, role), identities)
            by = ("split", "dataset", "step")
            view = reduce.select_view(identified, identities, by=by, attempts=attempts, repeats="all")
            return view.select(*table_schema("samples").sealed.names, "attempt")

        return self.frame("samples", build, frontier)

    def markers(
        self, names: Names = None, *, role: str | None = None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """What happened: checkpoints, exceptions, ..., of every attempt.

        Returns:
            The columns of the table, identity first, and `attempt`.
        """
        return self._rows("markers", names, role, frontier)

    def gpu_samples(self, *, role: str | None = None, frontier: Frontier | None = None) -> pl.LazyFrame:
        """Looks at GPUs and hosts, of every attempt.

        Returns:
            The columns of the table, identity first, and `attempt`.
        """
        return self._rows("gpu_samples", None, role, frontier)

    def artifacts(
        self, names: Names = None, *, role: str | None = None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """Files kept under ``artifacts/``, of every attempt.

        Returns:
            The columns of the table, identity first, and `attempt`.
        """
        return self._rows("artifacts", names, role, frontier)

    def distributions(
        self,
        names: Names = None,
        *,
        ranks: Ranks = "reduced",
        attempts: Attempts = "latest",
        role: str | None = None,
        frontier: Frontier | None = None,
    ) -> pl.LazyFrame:
        """Distributions, merged over ranks bin by bin, with their quantiles.

        Args:
            names: see the class.
            ranks: `reduced`: one row a (role, name, axis, position); `each`: one row a rank.
            attempts: see the class; `all` merges the ranks within each attempt.
            role: see the class.
            frontier: see the class.

        Returns:
            `role, name, axis` (null: the training step), `step` (int64), `position` (float64, on the
            axis; the step where axis is null), `time` (the latest of the merged rows), `count` (of
            values), `sum, mean, std` (of the population), `min, max` (exact), `p50, p90, p95, p99` (linear,
            within 1%), `ranks` (int32: with a row), `attempt`, and the merged bins as in the table:
            `bin_index, bin_count, negative_bin_index, negative_bin_count, zero_count, gamma`, of given
            histograms `edges, edge_counts`; sorted by series and position.
            With ``ranks="each"`` the columns of the table, identity first, and `attempt`.
        """
        _check("ranks", ranks, Ranks)
        _check("attempts", attempts, Attempts)

        def build(rows: pl.LazyFrame, identities: pl.DataFrame) -> pl.LazyFrame:
            chosen = reduce.with_position(_chosen(rows, names, role))
            identified = reduce.identify(chosen, identities)
            view = reduce.select_view(identified, identities, by=("name", "axis", "position"), attempts=attempts)
            if ranks == "each":
                return view.select(*table_schema("distributions").sealed.names, "attempt")
            return reduce.merge_distributions(view).sort("role", "name", "axis", "position", "attempt")

        return self.frame("distributions", build, frontier)

    def _rows(self, table: str, names: Names, role: str | None, frontier: Frontier | None) -> pl.LazyFrame:
        return self.frame(table, partial(_as_logged, table=table, names=names, role=role), frontier)


def _as_logged(
    rows: pl.LazyFrame, identities: pl.DataFrame, *, table: str, names: Names, role: str | None
) -> pl.LazyFrame:
    identified = reduce.identify(_chosen(rows, names, role), identities)
    return identified.select(*table_schema(table).sealed.names, "attempt")


def _spans(
    rows: pl.LazyFrame, identities: pl.DataFrame, names: Names, role: str | None, attempts: Attempts
) -> pl.LazyFrame:
    identified = reduce.identify(_chosen(rows, names, role), identities)
    return reduce.select_view(identified, identities, by=("name", "step"), attempts=attempts, repeats="all")


def _chosen(rows: pl.LazyFrame, names: Names, role: str | None) -> pl.LazyFrame:
    if role is not None:
        rows = rows.filter(pl.col("role") == role)
    if names is not None:
        rows = rows.filter(reduce.NamePatterns(names).expression("name"))
    return rows


def _check(argument: str, value: str, allowed: object) -> None:
    if value not in get_args(allowed):
        raise ValueError(f"{argument}={value!r}: give one of {', '.join(map(repr, get_args(allowed)))}")
