"""`Run`: one run, read from its files. It never writes, and works while the run is written."""

from __future__ import annotations

import os
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple

import polars as pl

from rl_eventlog import reduce
from rl_eventlog.documents import now_utc
from rl_eventlog.reader import RunFiles

from .info import RunInfo, describe
from .state import Thresholds
from .tables import Build, Frontier, Merge, Names, Tables


class LastValues(NamedTuple):
    """The last value of each metric."""

    values: pl.DataFrame
    """The columns of `Run.metrics`, one row a (role, name, axis), sorted."""
    warnings: pl.DataFrame
    """The columns of `Run.warnings`."""


class Run(Tables):
    """One run.

    A Run is a look at the files at one time: `refresh()` looks again. Of each table the files are
    listed at its first use. The arguments `names` (a name, a glob such as ``train/*``, or several),
    `role`, `attempts` (``latest`` or ``all``) and `frontier` mean the same in every method; see
    `rl_eventlog.run.tables.Tables`.

    Args:
        path: folder of the run.
        check: `footer`: trust sealed files whose footer matches their name; `digest`: compare each
            with the digest in its name, which reads all of them.
        thresholds: when silence of a rank becomes a finding in `info`.

    Raises:
        RunNotFoundError: the path holds no run.
        SchemaVersionError: a newer major version wrote it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        check: Literal["footer", "digest"] = "footer",
        thresholds: Thresholds | None = None,
    ) -> None:
        if check not in ("footer", "digest"):
            raise ValueError(f"check={check!r}: give 'footer' or 'digest'")
        self.thresholds = thresholds or Thresholds()
        self._look(RunFiles.open(Path(path), digests=check == "digest"))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def path(self) -> Path:
        """Folder of the run."""
        return self.files.path

    @property
    def name(self) -> str:
        """Display name of the run."""
        return self.files.name

    @cached_property
    def info(self) -> RunInfo:
        """Attempts, roles, ranks seen and expected, nodes, time span, state, gaps and problems.

        No row is read for it; the answer stays until `refresh()`.
        """
        return describe(self.files, read=self._read, thresholds=self.thresholds)

    def refresh(self) -> Run:
        """Look at the files again.

        Returns:
            This run. Frames made before keep what they saw.
        """
        self._look(self.files.refresh())
        return self

    def warnings(self) -> pl.DataFrame:
        """What merging had to decide or to leave out, and what differs where it should not.

        Returns:
            `kind, role, name, detail`. Kinds: `changed_reduction`, `unknown_reduction`, `bad_weight`,
            `replicas_differ`, `bins_differ` (rows of `distributions` that are left out), `hparam_changed`,
            `hparam_differs`, `resume_step_differs`; of launches (`name` is null) `restart_order`,
            `launch_again`, `launches_overlap`.
        """
        merged = reduce.merge_metrics(self._read_metrics(), self._identities)
        return self._with_other_warnings(merged)

    def last_values(self, names: Names = None, *, role: str | None = None) -> LastValues:
        """The last value of each metric: what `metrics` has at its highest position with a value.

        Args:
            names: a name, a glob, or several; None for all.
            role: only this role; None for all.

        Returns:
            The values, and the warnings of `warnings` as far as these values tell.
        """
        read = self._read_metrics(None if names is None else reduce.NamePatterns(names))
        last = reduce.last_values(read, self._identities, role=role)
        return LastValues(last.points, self._with_other_warnings(last))

    def _with_other_warnings(self, merged: reduce.Merged) -> pl.DataFrame:
        rows = reduce.with_position(reduce.identify(self.files.rows("distributions"), self._identities))
        view = reduce.select_view(rows, self._identities, by=("name", "axis", "position"))
        found = [
            reduce.distribution_warnings(view),
            reduce.hparam_warnings(reduce.identify(self.files.rows("hparams"), self._identities)),
            reduce.resume_warnings(self._identities),
        ]
        launches = [(kind, role, None, detail) for kind, role, detail in self.files.contradictions()]
        others = [*pl.collect_all(found), pl.DataFrame(launches, schema=merged.warnings.schema, orient="row")]
        return pl.concat([merged.warnings, *others])

    def _look(self, files: RunFiles) -> None:
        self.files = files
        self._read = now_utc()
        for name in ("info", "_identities"):
            self.__dict__.pop(name, None)

    def frame(self, table: str, build: Build, frontier: Frontier | None = None) -> pl.LazyFrame:
        """See `Tables.frame`."""
        last_seqs = None if frontier is None else frontier.get(table, {})
        return build(self.files.rows(table, frontier=last_seqs), self._known(frontier))

    def merged_metrics(
        self, merge: Merge, names: reduce.NamePatterns | None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """See `Tables.merged_metrics`."""
        read = self._read_metrics(names, frontier)
        identities = self._known(frontier)
        return pl.defer(lambda: merge(read, identities).points, schema=reduce.MERGED_SCHEMA)

    def _read_metrics(self, names: reduce.NamePatterns | None = None, frontier: Frontier | None = None) -> reduce.Read:
        """What reads metrics by writer, from the files as of now."""
        self.files.table("metrics")
        last_seqs = None if frontier is None else frontier.get("metrics", {})
        return partial(
            self.files.rows_by_writer, "metrics", columns=reduce.READ_COLUMNS, names=names, frontier=last_seqs
        )

    @cached_property
    def _identities(self) -> pl.DataFrame:
        return self.files.identities()

    def _known(self, frontier: Frontier | None) -> pl.DataFrame:
        """Identities of the writers of a frontier: one that came later must not hide what was seen then."""
        if frontier is None:
            return self._identities
        known = {writer for seqs in frontier.values() for writer in seqs}
        return self._identities.filter(pl.col("writer").is_in(known))
