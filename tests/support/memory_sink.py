"""A target without a client: one row a line in a file, so that what it holds survives kills.

It is as unforgiving as a target may be: rows arrive one by one, a kill leaves half of a commit, and a
commit sent again must go on exactly where the first try stopped, with exactly the same rows.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from rl_eventlog.errors import SinkUnavailableError
from rl_eventlog.sinks.base import Cursor, Payload, Position, RunDescription, Sent, Sink

Row = dict[str, Any]


class MemorySink(Sink):
    """Rows in `<folder>/rows.jsonl`, the cursor in `<folder>/cursor.json`.

    Args:
        folder: the target.
        address: what the target is known as; None for its folder.
        fail_after: rows after which the target stops answering; None for never.
        before_row: called before each row, to die there.
    """

    kind: ClassVar[str] = "memory"

    def __init__(
        self,
        folder: Path,
        *,
        address: str | None = None,
        fail_after: int | None = None,
        before_row: Callable[[], None] | None = None,
    ) -> None:
        self._folder = folder
        self._address = address or str(folder)
        self._fail_after = fail_after
        self._before_row = before_row or (lambda: None)
        self._rows = folder / "rows.jsonl"
        self._cursor = folder / "cursor.json"
        self.calls: list[str] = []
        self.positions: list[Position] = []

    @property
    def address(self) -> str:
        return self._address

    @property
    def location(self) -> str:
        return str(self._folder)

    def open(self, run: RunDescription, position: Position) -> Cursor | None:
        self.calls.append("open")
        self.positions.append(position)
        self._folder.mkdir(exist_ok=True)
        return Cursor(**json.loads(self._cursor.read_text())) if self._cursor.exists() else None

    def send(self, payload: Payload, cursor: Cursor) -> Sent:
        self.calls.append(f"send {cursor.commit}")
        rows = [{"commit": cursor.commit, **row} for row in _rows(payload)]
        there = [row for row in self.rows() if row["commit"] == cursor.commit]
        assert there == rows[: len(there)], "a commit sent again has other rows than the first time"
        with self._rows.open("a") as file:
            for number, row in enumerate(rows[len(there) :], len(there)):
                if self._fail_after is not None and number >= self._fail_after:
                    raise SinkUnavailableError("the target does not answer")
                self._before_row()
                file.write(json.dumps(row) + "\n")
                file.flush()
        temporary = self._cursor.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(cursor)))
        temporary.replace(self._cursor)
        return Sent({"rows": len(self.rows())})

    def finish(self, run: RunDescription) -> None:
        self.calls.append(f"finish {run.status}")

    def close(self) -> None:
        self.calls.append("close")

    def rows(self) -> list[Row]:
        """Everything the target holds, in the order of its arrival."""
        return [json.loads(line) for line in self._rows.read_text().splitlines()] if self._rows.exists() else []

    def points(self) -> list[Row]:
        """The points among them."""
        return [row for row in self.rows() if row["what"] == "point"]

    def versions(self) -> dict[tuple[str, str | None, float], list[float]]:
        """(series, axis, position) -> the values that arrived for it, in order."""
        found: dict[tuple[str, str | None, float], list[float]] = defaultdict(list)
        for row in self.points():
            found[row["series"], row["axis"], row["position"]].append(float(row["value"]))
        return dict(found)

    def doubled(self) -> list[tuple[Any, ...]]:
        """What arrived more than once: a version of a point, a sample."""
        keys = Counter(tuple(value for name, value in row.items() if name != "commit") for row in self.rows())
        return [key for key, count in keys.items() if count > 1]


def _rows(payload: Payload) -> list[Row]:
    tables = {"point": payload.points, "param": payload.params, "sample": payload.samples}
    columns = ("role", "step", "split", "dataset", "sample_index", "prompt", "response", "reward", "attempt")
    rows = []
    for what, table in tables.items():
        for row in table.to_pylist():
            chosen = {name: row[name] for name in columns} if what == "sample" else row
            # text, so that NaN equals NaN
            texts = {"time": row["time"].isoformat(), **({"value": str(row["value"])} if what == "point" else {})}
            rows.append({"what": what, **chosen, **texts})
    return rows
