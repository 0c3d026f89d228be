"""Whatever happens to the files of a run, in whatever order: no row is read twice, and none is lost.

The machine writes, rotates, seals, compacts and reclaims, also half-way; it lets someone seal a copy of a
live segment, and brings back old copies and cut ones. The model is the set of rows whose append had
returned.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rl_eventlog.documents import encode_document, now_utc, time_text
from rl_eventlog.durable import write_durably
from rl_eventlog.layout import RunLayout, open_name
from rl_eventlog.maintain import compact, fold, removal, seal
from rl_eventlog.maintain.removal import Reclaimed
from rl_eventlog.reader import RunFiles
from rl_eventlog.segment.coverage import Candidate
from rl_eventlog.segment.open_segment import OpenSegment
from rl_eventlog.segment.seal import seal_open
from rl_eventlog.types import Identity
from tests.support.segment_files import RUN, START, example_batch

TABLE = "timings"
NAMES = ("01jzw00000000000000000000a", "01jzw00000000000000000000b", "01jzw00000000000000000000c")
MAX_COPIES = 40


class Writer:
    """One writer as the format has it, without threads and clocks."""

    def __init__(self, layout: RunLayout, name: str) -> None:
        self.layout = layout
        self.identity = Identity(RUN, name, "launch-1", "trainer", NAMES.index(name), None, "node-1")
        self.folder = layout.shard(TABLE, "node-1")
        self.number = 0
        self.segment: OpenSegment | None = None
        self.next_seq = 0
        self.rotated: list[Path] = []
        self.sealed: list[Path] = []
        self.ended = False
        document: dict[str, Any] = {
            "run_uid": RUN,
            "writer": name,
            "launch": "launch-1",
            "role": "trainer",
            "node": "node-1",
        }
        document |= {"rank": self.identity.rank, "name": "r", "format_version": "1.0", "host": "elsewhere"}
        write_durably(layout.writer(name), encode_document(document | {"opened": time_text(now_utc())}))

    def write(self, rows: int) -> set[tuple[str, int]]:
        """Rows that are acknowledged."""
        if self.segment is None:
            path = self.folder / open_name(self.identity.writer, self.number)
            self.segment = OpenSegment(path, TABLE, self.identity, self.next_seq)
        first = self.next_seq
        self.segment.append(example_batch(TABLE, rows, start=first))
        self.next_seq = self.segment.next_seq
        return {(self.identity.writer, seq) for seq in range(first, self.next_seq)}

    def rotate(self) -> None:
        if self.segment is not None:
            self.segment.close()
            self.rotated.append(self.segment.path)
            self.number += 1
            self.segment = None

    def seal(self) -> None:
        while self.rotated:
            path = self.rotated.pop()
            if path.exists():
                seal_open(path, int(path.stem.rpartition("-")[2]), TABLE)
                self.sealed.append(path)

    def remove_sealed(self) -> None:
        while self.sealed:
            self.sealed.pop().unlink(missing_ok=True)

    def end(self) -> None:
        self.rotate()
        self.ended = True
        self.rotated, self.sealed = [], []  # from now on its files are anyone's to look after
        last = {"last_seq": {TABLE: self.next_seq - 1}} if self.next_seq else {"last_seq": {}}
        record = {"writer": self.identity.writer, "ended": time_text(now_utc()), "reason": "closed", **last}
        write_durably(self.layout.end(self.identity.writer), encode_document(record))


def _rows(candidates: Iterable[Candidate]) -> set[tuple[str, int]]:
    return {
        (writer, seq)
        for candidate in candidates
        for writer, spans in candidate.holds.items()
        for span in spans
        for seq in range(span.first, span.last + 1)
    }


@dataclass(frozen=True)
class Copy:
    """A file as it once was."""

    path: Path
    content: bytes = field(repr=False)


class FilesOfARun(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.elsewhere = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        # the machine cuts no power: waiting for the disk would be most of its time
        self.stack.enter_context(patch("os.fsync", lambda _: None))
        self.acknowledged: set[tuple[str, int]] = set()
        self.copies: list[Copy] = []
        self.cut = False

    def teardown(self) -> None:
        for writer in self.writers:
            if writer.segment:
                writer.segment.close()
        self.stack.close()

    @initialize(segments=st.integers(0, 2))
    def begin(self, segments: int) -> None:
        self.layout = RunLayout(self.path)
        for folder in (
            self.layout.writers,
            self.layout.shard(TABLE, "node-1"),
            self.layout.events / TABLE / "compacted",
        ):
            folder.mkdir(parents=True)
        self.writers = [Writer(self.layout, name) for name in NAMES]
        for rows in range(1, segments + 1):
            self.all_fill_a_segment_and_seal_it(rows)

    def live(self) -> list[Writer]:
        return [writer for writer in self.writers if not writer.ended]

    def files(self) -> list[Path]:
        return sorted(path for path in (self.layout.events / TABLE).glob("*/*") if not path.name.startswith("."))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), rows=st.integers(1, 4))
    def write(self, data: st.DataObject, rows: int) -> None:
        self.acknowledged |= data.draw(st.sampled_from(self.live())).write(rows)

    @rule(rows=st.integers(1, 4))
    def all_fill_a_segment_and_seal_it(self, rows: int) -> None:
        for writer in self.live():
            self.acknowledged |= writer.write(rows)
            writer.rotate()
            writer.seal()

    @rule(which=st.sampled_from(range(len(NAMES))), then_seal=st.booleans())
    def rotate(self, which: int, then_seal: bool) -> None:
        self.writers[which].rotate()
        if then_seal:
            self.writers[which].seal()

    @rule(which=st.sampled_from(range(len(NAMES))))
    def the_owner_removes_what_it_sealed(self, which: int) -> None:
        self.writers[which].remove_sealed()

    @precondition(lambda self: len(self.live()) > 1)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.live())).end()

    @precondition(lambda self: any(path.suffix == ".arrows" for path in self.files()))
    @rule(data=st.data(), part=st.floats(0.2, 1.0))
    def someone_seals_a_copy_of_a_segment(self, data: st.DataObject, part: float) -> None:
        path = data.draw(st.sampled_from([path for path in self.files() if path.suffix == ".arrows"]))
        content = path.read_bytes()
        copy = self.elsewhere / path.name
        copy.write_bytes(content[: int(len(content) * part)])
        try:
            made = seal_open(copy, int(path.stem.rpartition("-")[2]), TABLE)
        except ValueError:  # cut within its schema message
            made = []
        for sealed in made:
            shutil.copy(sealed, path.parent)
            sealed.unlink()
        copy.unlink()

    @rule(reclaim=st.booleans())
    def seal(self, reclaim: bool) -> None:
        report = seal(self.path, reclaim_covered=reclaim, grace_seconds=0)
        assert self.cut or not report.problems

    @rule(reclaim=st.sampled_from([False, False, True]))
    def compact(self, reclaim: bool) -> None:
        compact(self.path, reclaim_covered=reclaim, grace_seconds=0)

    @rule(keep=st.lists(st.booleans(), min_size=1, max_size=6))
    def reclaim_is_killed_half_way(self, keep: list[bool]) -> None:
        """Any part of what would be removed is: more than a kill can do, which leaves the first ones."""
        remaining = keep * 40

        def unlink(path: Path, reclaimed: Reclaimed) -> None:
            if not remaining.pop():
                path.unlink(missing_ok=True)
                reclaimed.removed.append(path)

        with patch.object(removal, "unlink", unlink), patch.object(fold, "unlink", unlink):
            compact(self.path, reclaim_covered=True, grace_seconds=0)

    @precondition(lambda self: any(path.suffix == ".parquet" for path in self.files()))
    @rule(data=st.data())
    def a_copy_is_made(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.files()))
        self.copies = [*self.copies[-MAX_COPIES:], Copy(path, path.read_bytes())]

    @precondition(lambda self: self.copies)
    @rule(data=st.data(), part=st.one_of(st.just(1.0), st.floats(0.0, 0.99)), altered=st.booleans())
    def an_old_copy_comes_back(self, data: st.DataObject, part: float, altered: bool) -> None:
        """Whole, or cut by a full disk, or altered behind its footer, where the file is gone meanwhile."""
        copy = data.draw(st.sampled_from(self.copies))
        path, content = copy.path, copy.content
        if not path.exists():
            if altered and path.suffix == ".parquet":
                content = content[:4] + bytes([content[4] ^ 0xFF]) + content[5:]
            path.write_bytes(content[: int(len(content) * part)])
            self.cut = self.cut or part < 1.0

    @precondition(lambda self: sum(path.suffix == ".parquet" for path in self.files()) > 1)
    @rule(data=st.data())
    def a_file_whose_rows_others_hold_is_altered(self, data: st.DataObject) -> None:
        """Behind its footer: only the digest tells that it holds nothing any more."""
        look = RunFiles.open(self.path, digests=True).table(TABLE)
        # an open segment is no cover here: its owner, who read the sealed file back once, removes it
        closed = [candidate for candidate in look.candidates if candidate.level != "open"]
        spare = [one.path for one in closed if _rows([one]) <= _rows(other for other in closed if other is not one)]
        if spare:
            path = data.draw(st.sampled_from(spare))
            content = path.read_bytes()
            path.write_bytes(content[:4] + bytes([content[4] ^ 0xFF]) + content[5:])

    @invariant()
    def no_row_is_doubled_and_none_is_lost(self) -> None:
        read = RunFiles.open(self.path, digests=True).rows(TABLE).select("writer", "seq", "time").collect().rows()
        counts = Counter((writer, seq) for writer, seq, _ in read)
        assert counts == Counter(self.acknowledged)
        assert all(time == START + timedelta(microseconds=seq) for _, seq, time in read)


TestFilesOfARun = FilesOfARun.TestCase
TestFilesOfARun.settings = settings(max_examples=min(settings().max_examples * 2 // 5, 400), stateful_step_count=40)
