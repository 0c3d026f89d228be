"""Choosing rows by name.

A pattern is a shell glob over the whole name: `*` any characters (`/` too), `?` one character,
`[ab]` one of these, `[!ab]` none of these. `train/*` takes `train/loss` and `train/actor/loss`. A text
without these characters is a name; `[*]` is a literal star.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import polars as pl

_MAGIC = re.compile(r"[*?[]")


class NamePatterns:
    """A pattern, or several, one of which a name must match.

    Args:
        patterns: one or several.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        self._globs = [pattern for pattern in wanted if _MAGIC.search(pattern)]
        self._names = [pattern for pattern in wanted if pattern not in self._globs]
        self._regex = "|".join(f"(?:{glob_to_regex(pattern)})" for pattern in self._globs)
        self.matches = lru_cache(maxsize=None)(self._matches)

    def expression(self, column: str) -> pl.Expr:
        """Whether the name in a column matches."""
        matches = pl.col(column).is_in(self._names)
        return matches | pl.col(column).str.contains(self._regex) if self._globs else matches

    def _matches(self, name: str) -> bool:
        return bool(pl.select(pl.lit(name).alias("name")).select(self.expression("name")).item())

    def may_lie_between(self, lowest: str, highest: str) -> bool:
        """Whether a name that matches could be one of these, both included, in their order."""
        beginnings = (pattern[: found.start()] for pattern in self._globs if (found := _MAGIC.search(pattern)))
        return any(lowest <= name <= highest for name in self._names) or any(
            lowest[: len(beginning)] <= beginning <= highest[: len(beginning)] for beginning in beginnings
        )


def glob_to_regex(pattern: str) -> str:
    """The pattern as a regular expression of Polars; `fnmatch.translate` uses syntax that it lacks."""
    parts = []
    position = 0
    while position < len(pattern):
        letter = pattern[position]
        end = pattern.find("]", position + 2 + pattern.startswith("!", position + 1)) if letter == "[" else -1
        if end > 0:
            parts.append(_character_class(pattern[position + 1 : end]))
            position = end + 1
            continue
        parts.append({"*": ".*", "?": "."}.get(letter) or re.escape(letter))
        position += 1
    return f"(?s)^{''.join(parts)}$"


def _character_class(content: str) -> str:
    """What stands between `[` and `]`; a range that runs backwards holds nothing, as in `fnmatch`."""
    negated = content.startswith("!")
    members = []
    position = int(negated)
    while position < len(content):
        first = last = content[position]
        if content[position + 1 : position + 2] == "-" and position + 2 < len(content):
            last = content[position + 2]
            position += 2
        position += 1
        if first <= last:
            members.append(rf"\x{{{ord(first):X}}}-\x{{{ord(last):X}}}")
    if not members:
        return "." if negated else r"[^\s\S]"
    return f"[{'^' * negated}{''.join(members)}]"
