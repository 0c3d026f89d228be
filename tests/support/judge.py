"""The judge of what writers left: a process that never imports rl_eventlog reads the raw files.

Run as a module it is that process: each line of stdin is the folder of a run, as a JSON string; it answers
with a line, the verdict. `Judge` is its other end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.planned import TABLES, expected, logged
from tests.support.spec_run import Key, read_table

_CHECKOUT = Path(__file__).parents[2]

Spans = list[tuple[int, int]]
"""First and last seqs, in order."""


@dataclass(slots=True)
class Verdict:
    """What there is."""

    spans: dict[str, dict[str, Spans]]
    """Seqs that can be read, by table and writer. No seq comes twice."""
    wrong: list[str]
    """Rows that were never logged so, or that two files give differently."""
    unusable: list[str]
    """Event files that cover nothing."""
    damage: list[str]
    """Bytes of open segments between valid batches."""
    files: dict[str, int]
    """Usable event files by level; `torn`: open ones with a torn tail; `temporary`: in the making."""

    def rows(self, table: str) -> int:
        """Number of rows of a table, of all writers."""
        return sum(last - first + 1 for spans in self.spans[table].values() for first, last in spans)

    def has(self, table: str, writer: str, count: int) -> bool:
        """Whether the first `count` rows of a writer are there."""
        first, last = next(iter(self.spans[table].get(writer, [])), (0, -1))
        return count == 0 or (first == 0 and last >= count - 1)

    def holes(self) -> dict[str, dict[str, Spans]]:
        """Tables and writers whose rows are not one span from seq 0 on."""
        found: dict[str, dict[str, Spans]] = {}
        for table, writers in self.spans.items():
            for writer, spans in writers.items():
                if len(spans) > 1 or spans[0][0] != 0:
                    found.setdefault(table, {})[writer] = spans
        return found


class Judge:
    """The judge's process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.judge"],
            cwd=_CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def look(self, run: Path) -> Verdict:
        """Read a run's folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(str(run)) + "\n")
        self._process.stdin.flush()
        return Verdict(**json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def judge(run: Path) -> Verdict:
    """Read the raw files of a run."""
    verdict = Verdict({}, [], [], [], {"compacted": 0, "sealed": 0, "open": 0, "torn": 0, "temporary": 0})
    for table in TABLES:
        found = read_table(run, table)
        for (writer, seq), row in found.rows.items():
            if repr(logged(table, row)) != repr(expected(table, seq)):
                verdict.wrong.append(f"{table} {writer} {seq}: {logged(table, row)}")
        verdict.wrong += found.differing
        verdict.unusable += found.unusable
        verdict.damage += found.damage
        verdict.spans[table] = _spans(sorted(found.rows))
        for level, count in found.usable.items():
            verdict.files[level] += count
        verdict.files["torn"] += len(found.torn)
        verdict.files["temporary"] += found.temporary
    return verdict


def _spans(keys: list[Key]) -> dict[str, Spans]:
    found: dict[str, Spans] = {}
    for writer, seq in keys:
        spans = found.setdefault(writer, [])
        if spans and spans[-1][1] == seq - 1:
            spans[-1] = (spans[-1][0], seq)
        else:
            spans.append((seq, seq))
    return found


def _serve() -> None:
    for line in sys.stdin:
        verdict = judge(Path(json.loads(line)))
        ours = [name for name in sys.modules if name.startswith("rl_eventlog")]
        assert not ours, f"the judge has imported what it judges: {ours}"
        print(json.dumps(asdict(verdict)), flush=True)


if __name__ == "__main__":
    _serve()
