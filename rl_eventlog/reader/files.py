"""`RunFiles`: one look at the folder of a run.

- Never writes, and needs no file but those that hold the rows it returns.
- May be used while the run is written: it sees the run as of the look; `refresh` looks again.
- What is damaged is named in `problems`; what is good is used.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rl_eventlog.documents import read_document
from rl_eventlog.errors import RunNotFoundError, SegmentError
from rl_eventlog.layout import RunLayout, SegmentName
from rl_eventlog.schema import TABLES
from rl_eventlog.segment.open_segment import read_open
from rl_eventlog.segment.sealed import read_footer
from rl_eventlog.types import Identity, Span

from .attempts import IDENTITIES, Launch, Standing, order_launches, standings
from .by_writer import NameFilter, rows_by_writer
from .contradictions import Contradiction, contradictions
from .facts import Problem, WriterFacts, facts_of_documents, facts_of_segment, latest, read_documents
from .segments import TableFiles, event_files, look, rows


class RunFiles:
    """The files of a run. Make it with `RunFiles.open`.

    Attributes:
        path: folder of the run.
        run_uid: id of the run.
        name: its display name.
        writers: facts by writer id.
        launches: launches in the order of their attempts.
    """

    def __init__(self, path: Path, run_uid: str, writers: dict[str, WriterFacts], problems: list[Problem]) -> None:
        """Use `open`."""
        self.path = path
        self.layout = RunLayout(path)
        self.run_uid = run_uid
        self.writers = writers
        self.launches: list[Launch] = order_launches(writers)
        self._problems = problems
        self._tables: dict[str, TableFiles] = {}
        self._digests = False

    @classmethod
    def open(cls, path: Path, *, digests: bool = False) -> RunFiles:
        """Look at a run.

        Args:
            path: its folder.
            digests: compare each sealed file with the digest in its name.

        Raises:
            RunNotFoundError: the path holds no run.
            SchemaVersionError: a newer major version wrote it.
            OSError: the folder cannot be looked into.
        """
        layout = RunLayout(path)
        if not _is_run(path):
            _folders(path)  # raises where the folder cannot be looked into
            there = "is not there" if not path.exists() else "has neither run.json, writers/ nor events/"
            raise RunNotFoundError(f"{path}: no run of rl-eventlog: it {there}; give the folder <root>/<run>")
        documents, problems = read_documents(layout)
        writers = {
            writer: facts
            for writer, found in documents.items()
            if (facts := facts_of_documents(writer, found, problems))
        }
        for identity in _identities_of_segments(layout, writers):
            writers[identity.writer] = facts_of_segment(identity, documents.get(identity.writer), problems)
            problems.append(Problem(layout.writer(identity.writer), "no usable document; its segments say who it is"))
        run_uid = _run_uid(layout, writers, problems)
        foreign = [facts for facts in writers.values() if facts.identity.run_uid != run_uid]
        for facts in foreign:
            problems.append(
                Problem(layout.writer(facts.writer), f"of another run ({facts.identity.run_uid}), left out")
            )
            del writers[facts.writer]
        files = cls(path, run_uid, writers, problems)
        files._digests = digests
        return files

    def refresh(self) -> RunFiles:
        """Look again."""
        return RunFiles.open(self.path, digests=self._digests)

    @property
    def name(self) -> str:
        """Display name: what the last writer says, else the folder's."""
        return next((facts.name for facts in latest(self.writers.values()) if facts.name), self.path.name)

    @property
    def project(self) -> str | None:
        """Project at the targets: the last that a writer gave."""
        return next((facts.project for facts in latest(self.writers.values()) if facts.project), None)

    @property
    def group(self) -> str | None:
        """Group of runs: the last that a writer gave."""
        return next((facts.group for facts in latest(self.writers.values()) if facts.group), None)

    @property
    def notes(self) -> str | None:
        """Free text: the last that a writer gave."""
        return next((facts.notes for facts in latest(self.writers.values()) if facts.notes), None)

    @property
    def tags(self) -> tuple[str, ...]:
        """Free words: the last that a writer gave."""
        return next((facts.tags for facts in latest(self.writers.values()) if facts.tags), ())

    @property
    def problems(self) -> list[Problem]:
        """Files that could not be used, as far as tables were looked at."""
        return [*self._problems, *(problem for files in self._tables.values() for problem in files.problems)]

    def table(self, table: str) -> TableFiles:
        """The files of one table, as of the first look at it."""
        if table not in self._tables:
            self._tables[table] = look(self.layout, table, self.run_uid, digests=self._digests)
        return self._tables[table]

    def rows(self, table: str, *, frontier: Mapping[str, int] | None = None) -> pl.LazyFrame:
        """Rows by the coverage rule: each (writer, seq) once, columns of the sealed form.

        Args:
            table: name of the table.
            frontier: last seq to use by writer; writers that are not in it give nothing.
        """
        frame = rows(self.table(table))
        if frontier is None:
            return frame
        limits = pl.LazyFrame(
            {"writer": list(frontier), "last_seq": list(frontier.values())},
            schema={"writer": pl.String(), "last_seq": pl.Int64()},
        )
        return frame.join(limits, on="writer").filter(pl.col("seq") <= pl.col("last_seq")).drop("last_seq")

    def rows_by_writer(
        self,
        table: str,
        writers: Sequence[str],
        *,
        columns: Sequence[str],
        names: NameFilter | None = None,
        frontier: Mapping[str, int] | None = None,
    ) -> Generator[pa.Table, None, None]:
        """The rows of `rows`, of one writer after the other: see `rl_eventlog.reader.by_writer`."""
        return rows_by_writer(self.table(table), writers, columns, names=names, last_seqs=frontier)

    def last_seqs(self, table: str) -> dict[str, int]:
        """By writer the last seq that has no gap before it; writers without row 0 are left out."""
        result = {}
        for writer, spans in self.table(table).coverage.covered.items():
            first = next(iter(spans), None)
            if first is not None and first.first == 0:
                result[writer] = first.last
        return result

    def gaps(self, table: str) -> dict[str, list[Span]]:
        """Seqs that were written and that no usable file holds, by writer."""
        ends = {
            w: facts.end.last_seq[table]
            for w, facts in self.writers.items()
            if facts.end and table in facts.end.last_seq
        }
        return self.table(table).coverage.gaps(ends)

    def standings(self) -> list[Standing]:
        """Of each writer its attempt, rank and incarnation."""
        return standings(self.writers, self.launches)

    def contradictions(self) -> list[Contradiction]:
        """Launches that contradict the order in which they are attempts."""
        return contradictions(self.writers, self.launches)

    def identities(self) -> pl.DataFrame:
        """The standings as a frame, one row a writer."""
        return pl.DataFrame(self.standings(), schema=IDENTITIES, orient="row")


def find_runs(root: Path) -> list[Path]:
    """Folders of runs at or below `root`, at most two levels down, sorted.

    A folder that cannot be looked into is among them: opening it tells what is wrong.

    Raises:
        OSError: the root cannot be listed.
    """
    if _may_be_run(root):
        return [root]
    found: list[Path] = []
    for child in _folders(root):
        try:
            found += [child] if _may_be_run(child) else filter(_may_be_run, _folders(child))
        except OSError:
            found.append(child)
    return found


def _may_be_run(path: Path) -> bool:
    try:
        return _is_run(path)
    except OSError:
        return True


def _is_run(path: Path) -> bool:
    return (path / "writers").is_dir() or (path / "events").is_dir() or (path / "run.json").is_file()


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _run_uid(layout: RunLayout, writers: Mapping[str, WriterFacts], problems: list[Problem]) -> str:
    """Of run.json; where that is gone or torn, or writers differ, of the earliest writer."""
    earliest = min(writers.values(), key=lambda facts: facts.writer, default=None)
    try:
        uid = str(read_document(layout.run_json)["run_uid"])
    except FileNotFoundError:
        uid = None
    except (OSError, ValueError, KeyError) as error:
        problems.append(Problem(layout.run_json, f"unreadable, its writers are asked instead: {error}"))
        uid = None
    if earliest is None:
        return uid or ""
    uids = {facts.identity.run_uid for facts in writers.values()}
    return uid if uid in uids else earliest.identity.run_uid


def _identities_of_segments(layout: RunLayout, known: Mapping[str, WriterFacts]) -> list[Identity]:
    """Identities of writers without a usable document, from their segments."""
    found: dict[str, Identity] = {}
    for table in TABLES:
        for path, name in event_files(layout, table):
            if name.writer in known or name.writer in found:
                continue
            try:
                there = (
                    _sealed_identities(path, name, {*known, *found}) if name.level != "open" else _open_identity(path)
                )
            except (SegmentError, OSError):
                continue  # named when the table is looked at
            found |= {identity.writer: identity for identity in there if identity.writer not in known}
    return list(found.values())


def _open_identity(path: Path) -> list[Identity]:
    """Only a valid batch vouches for the schema message that names the writer."""
    content = read_open(path)
    return [content.identity] if content.pieces else []


def _sealed_identities(path: Path, name: SegmentName, known: AbstractSet[str]) -> list[Identity]:
    footer = read_footer(path, name)
    if footer.holds.keys() <= known:
        return []
    columns = ["writer", "launch", "role", "rank", "data_rank", "node"]
    try:
        table = pq.read_table(path, columns=columns).group_by(columns).aggregate([])
        return [Identity(run_uid=footer.run_uid, **row) for row in table.to_pylist()]
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise SegmentError(path, str(error)) from error
