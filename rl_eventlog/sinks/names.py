"""Names and values that fit a target's rules.

- `key` and `path_part` are injective: two names never become one. Short results can be read back by
  eye, since each escaped character is ``_0x<hex code point>_``.
- A name too long for the target keeps its beginning and ends in a digest of the whole name.
- `cut` shortens a text and says so in the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from rl_eventlog.layout import sha16

MAX_KEY_LENGTH = 250
"""Characters in a key of MLflow: metric, param or tag."""
MAX_PATH_PART_LENGTH = 128
"""Characters in one part of a path."""

_OPENER = "_0x"
_KEY_CHARACTER = re.compile(r"[\w.\- :/]")
_PATH_CHARACTER = re.compile(r"[A-Za-z0-9_.\-]")


@dataclass(frozen=True, slots=True)
class Key:
    """A name in the form that the target takes."""

    text: str
    digest: str | None = None
    """32 hex digits of the whole name's SHA-256 where `text` holds only its beginning, else None."""


def key(name: str) -> Key:
    """`name` as a key of MLflow.

    Kept: letters and digits of any script, ``_ - . :``, space, and ``/`` where it separates two parts.
    """
    return _fit(name, lambda index: _KEY_CHARACTER.match(name[index]) is not None, MAX_KEY_LENGTH)


def path_part(name: str) -> str:
    """`name` as one part of a path or URL: ASCII letters, digits, ``_``, ``-`` and ``.`` are kept."""
    return _fit(name, lambda index: _PATH_CHARACTER.match(name[index]) is not None, MAX_PATH_PART_LENGTH).text


def cut(text: str, limit: int) -> str:
    """`text` with at most `limit` characters; a shortened one ends in a note with length and digest."""
    if len(text) <= limit:
        return text
    note = f" [cut: {len(text)} characters, sha256 {sha16(text.encode())}]"
    return text[: limit - len(note)] + note


def _fit(name: str, allowed: Callable[[int], bool], limit: int) -> Key:
    tokens = [
        name[index] if allowed(index) and not _ambiguous(name, index) else f"{_OPENER}{ord(name[index]):x}_"
        for index in range(len(name))
    ] or [f"{_OPENER}_"]
    text = "".join(tokens)
    if len(text) <= limit:
        return Key(text)
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # h is no hex digit, so no escaped character looks like this ending; tokens stay whole for the same reason
    ending = f"{_OPENER}h{digest}_"
    kept, room = [], limit - len(ending)
    for token in tokens:
        room -= len(token)
        if room < 0:
            break
        kept.append(token)
    return Key("".join(kept) + ending, digest)


def _ambiguous(name: str, index: int) -> bool:
    """Tell characters that are allowed, but not at this place: escapes look-alikes and path tricks."""
    match name[index]:
        case "_":
            return name.startswith(_OPENER, index)
        case "/":
            return index in (0, len(name) - 1) or name[index - 1] == "/"
        case ".":
            # the first character of a part that is `.` or `..`
            part = name[index:].split("/", 1)[0]
            return part in (".", "..") and (index == 0 or name[index - 1] == "/")
        case _:
            return False
