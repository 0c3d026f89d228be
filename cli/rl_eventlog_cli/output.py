"""How every command speaks.

- Data goes to stdout, words go to stderr.
- What a run holds is hostile text: it reaches a terminal only as `rich.text.Text`, with its control characters
  shown as escapes, and never as markup. JSON is ASCII.
- No colour and no progress bar in a pipe, with `NO_COLOR` or on a dumb terminal. In a pipe nothing is cut or wrapped.
- JSON is strict: NaN and the infinities are the strings "NaN", "Infinity", "-Infinity"; null means null.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 100_000
"""Columns where there is no terminal: wide enough to cut nothing."""

_LONGEST_WHOLE_WORD = 20

# control, format (direction marks too), surrogate, line and paragraph separators
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plain(text: object) -> str:
    r"""`text` on one line, with every character that could steer a terminal as an escape such as ``\x1b``."""
    found = str(text)
    if found.isascii() and found.isprintable():  # most are
        return found
    return "".join(
        character.encode("unicode_escape").decode() if unicodedata.category(character) in _UNSAFE else character
        for character in found
    )


def words(text: object) -> None:
    """Say one thing to the user, on stderr. Line breaks are kept."""
    print("\n".join(plain(line) for line in str(text).split("\n")), file=sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr that takes nothing for markup and colours nothing by itself."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Iterable[str] = (), heading: bool = True
) -> None:
    """Print a table on stdout. Cells are untrusted; None is an empty cell; long ones wrap on a terminal.

    Args:
        columns: the headings.
        rows: one cell a column.
        right: headings of the columns to align on the right.
        heading: whether to print the headings.
    """
    cells = [["" if cell is None else plain(cell) for cell in row] for row in rows]
    numbers = set(right)
    widths = [
        max(map(cell_len, column)) for column in zip(columns if heading else [""] * len(columns), *cells, strict=True)
    ]
    if sum(widths) + 2 * (len(widths) - 1) <= console().width:
        _lines(columns if heading else None, cells, widths, [column in numbers for column in columns])
        return
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=heading, header_style="bold")
    for index, column in enumerate(columns):
        longest = max(len(word) for row in [columns, *cells] for word in (row[index].split() or [""]))
        justify: Literal["left", "right"] = "right" if column in numbers else "left"
        # words stay whole as far as there is room
        grid.add_column(column, overflow="fold", justify=justify, min_width=min(longest, _LONGEST_WHOLE_WORD))
    for row in cells:
        grid.add_row(*map(Text, row))
    console().print(grid)


def _lines(heads: Sequence[str] | None, cells: list[list[str]], widths: list[int], right: list[bool]) -> None:
    """A table that needs no wrapping: rich takes half a millisecond a row."""

    def row(found: Sequence[str]) -> str:
        parts = []
        for cell, width, is_number in zip(found, widths, right, strict=True):
            space = " " * (width - cell_len(cell))
            parts.append(space + cell if is_number else cell + space)
        return "  ".join(parts).rstrip()

    if heads is not None:
        line(row(heads), style="bold")
    print("\n".join(map(row, cells)), end="\n" * bool(cells))


def line(text: str = "", *, style: str = "") -> None:
    """Print one line of data on stdout; on a terminal a long one wraps."""
    console().print(Text(plain(text), style=style))


def to_paste(command: str) -> None:
    """Print a command on stdout, on one line however long, so that it can be copied as it is."""
    print(f"  {plain(command)}")


def print_json(value: object) -> None:
    """Print one JSON document on stdout."""
    print(json.dumps(jsonable(value), indent=2, allow_nan=False))


def jsonable(value: object) -> Any:
    """`value` as strict JSON knows it: times as ISO 8601 in UTC, NaN and infinities as strings."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NON_FINITE[str(value)]
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Iterable):
        return [jsonable(item) for item in value]
    raise TypeError(f"no JSON for {type(value).__name__}")


def fields(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, not those of what is in them."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


_NON_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def clock(moment: datetime | None, *, utc: bool) -> str:
    """A time to the second with its offset, in local time or UTC; empty where there is none."""
    if moment is None:
        return ""
    return moment.astimezone(timezone.utc if utc else None).isoformat(sep=" ", timespec="seconds")


def duration(seconds: float | None) -> str:
    """A duration in one unit that suits it: `12 s`, `3 min`, `2.5 h`, `8 d`; empty where there is none."""
    if seconds is None:
        return ""
    seconds = max(seconds, 0.0)
    for unit, length, limit in (("s", 1.0, 120.0), ("min", 60.0, 7200.0), ("h", 3600.0, 172_800.0)):
        if seconds < limit:
            return f"{seconds / length:.1f} {unit}" if unit == "h" else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def number(value: float | None) -> str:
    """A value with six significant digits, `NaN` and `Infinity` by name; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.6g}" if math.isfinite(value) else _NON_FINITE[str(value)]
