"""`Runs`: many runs under one folder. A folder that cannot be read is reported and left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl

from rl_eventlog import reduce
from rl_eventlog.errors import EventLogError, RunNotFoundError
from rl_eventlog.reader import Problem, find_runs
from rl_eventlog.reader.attempts import IDENTITIES
from rl_eventlog.reader.segments import polars_schema

from .run import Run
from .tables import Build, Frontier, Merge, Tables


class Runs(Tables):
    """The runs at or below a folder, in the order of their names.

    Frames of the tables have a column `run` first: the folder relative to the root.

    Args:
        root: folder that holds runs, at most two levels down, or is one.

    Raises:
        RunNotFoundError: there is no such folder.

    Attributes:
        root: the folder.
        problems: runs that could not be opened or read, and why.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self.problems: list[Problem] = []
        self._runs: dict[str, Run] = {}
        self.refresh()

    def __repr__(self) -> str:
        return f"Runs({str(self.root)!r})"

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, name: str) -> Run:
        """The run in the folder of that name, relative to the root."""
        return self._runs[name]

    @property
    def names(self) -> list[str]:
        """Folders of the runs, relative to the root."""
        return list(self._runs)

    def refresh(self) -> Runs:
        """Look for runs again.

        Returns:
            These runs.
        """
        if not self.root.is_dir():
            raise RunNotFoundError(f"{self.root}: no such folder; give one that holds runs")
        self.problems = []
        self._runs = {}
        for path in find_runs(self.root):
            try:
                self._runs[self._name(path)] = Run(path)
            except (EventLogError, OSError) as error:
                self.problems.append(Problem(path, str(error)))
        return self

    def _name(self, path: Path) -> str:
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def frame(self, table: str, build: Build, frontier: Frontier | None = None) -> pl.LazyFrame:
        """As for one run, with the column `run`; a run that cannot be read goes to `problems`."""
        nothing = build(pl.LazyFrame(schema=polars_schema(table)), pl.DataFrame(schema=IDENTITIES))
        return self._of_each(table, lambda run: run.frame(table, build, frontier), nothing)

    def merged_metrics(
        self, merge: Merge, names: reduce.NamePatterns | None, frontier: Frontier | None = None
    ) -> pl.LazyFrame:
        """As for one run, with the column `run`; a run that cannot be read goes to `problems`."""
        nothing = pl.LazyFrame(schema=reduce.MERGED_SCHEMA)
        return self._of_each("metrics", lambda run: run.merged_metrics(merge, names, frontier), nothing)

    def _of_each(self, table: str, frame: Callable[[Run], pl.LazyFrame], nothing: pl.LazyFrame) -> pl.LazyFrame:
        frames = []
        for name, run in self._runs.items():
            try:
                frames.append(frame(run).select(pl.lit(name).alias("run"), pl.all()))
            except (EventLogError, OSError) as error:
                problem = Problem(run.path, f"{table}: {error}")
                self.problems += [problem] if problem not in self.problems else []
        return pl.concat(frames or [nothing.select(pl.lit("").alias("run"), pl.all())])
