"""Choosing rows by name.

A pattern is a shell glob over the whole name: `*` any characters (`/` too), `?` one character,
`[ab]` one of these, `[!ab]` none of these. `train/*` takes `train/loss` and `train/actor/loss`. A text
without these characters is a name; `[*]` is a literal star.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import polars as pl

_MAGIC = re.compile(r"[*?[]")


def name_matches(column: str, patterns: str | Iterable[str]) -> pl.Expr:
    """Whether a name matches the pattern, or one of several."""
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    globs = [pattern for pattern in wanted if _MAGIC.search(pattern)]
    name = pl.col(column)
    matches = name.is_in([pattern for pattern in wanted if pattern not in globs])
    if globs:
        matches |= name.str.contains("|".join(f"(?:{glob_to_regex(pattern)})" for pattern in globs))
    return matches


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
