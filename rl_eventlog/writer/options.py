"""The arguments of `EventWriter.open`, checked before anything is made.

Numbers may come as texts, as environment variables and command lines hand them over. What cannot be
used raises an error that names the argument and what it may be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_eventlog.errors import IdentityError, OptionError

from .text import text_of
from .values import number_of, step_of

_DIGITS = re.compile(r"[+-]?[0-9]{1,18}")


def rank_number(name: str, value: Any) -> int | None:
    """A rank or a number of ranks; None where it is not given.

    Raises:
        IdentityError: it is no whole number.
    """
    number = _whole(value)
    if number is None and value is not None:
        raise IdentityError(f"{name}={value!r} is no whole number: pass {name}= as an int, or leave it out")
    return number


def step_number(name: str, value: Any) -> int | None:
    """A training step; None where it is not given.

    Raises:
        OptionError: it is no whole number.
    """
    number = _whole(value)
    if number is None and value is not None:
        raise OptionError(f"{name}={value!r} is no whole number: pass {name}= as an int, or leave it out")
    return number


def above_zero(name: str, value: Any, *, of: str) -> int:
    """A whole number above 0, `of` what it counts.

    Raises:
        OptionError: it is none.
    """
    number = _whole(value)
    if number is None or number <= 0:
        raise OptionError(f"{name}={value!r} is no number of {of}: pass a whole number above 0")
    return number


def duration(name: str, value: Any, *, most: float, unit: str = "seconds") -> float:
    """A time above 0, at most `most`, in the unit.

    Raises:
        OptionError: it is none.
    """
    try:
        number = float(value) if isinstance(value, str) else number_of(value)
    except ValueError:
        number = None
    if number is None or not 0 < number <= most:
        raise OptionError(f"{name}={value!r} is no time: pass {unit} above 0, at most {most:g}")
    return number


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The path as it stays when the process changes its folder; links stay links."""
    return Path(os.path.abspath(path))  # noqa: PTH100 -- as said


def one_of(name: str, value: Any, allowed: tuple[str | None, ...]) -> None:
    """Check a word.

    Raises:
        OptionError: it is none of those allowed.
    """
    if value not in allowed:
        words = ", ".join(f'"{word}"' for word in allowed if word is not None)
        raise OptionError(f"{name}={value!r} is not known: pass one of {words}")


def tag_texts(tags: Any) -> tuple[str, ...]:
    """Tags as texts; a text is one tag.

    Raises:
        OptionError: they are no collection.
    """
    if isinstance(tags, str) or tags is None:
        return (text_of(tags),) if tags else ()
    if not isinstance(tags, Iterable):
        raise OptionError(f"tags={tags!r} are no texts: pass a list of them")
    return tuple(text_of(tag) for tag in tags)


def _whole(value: Any) -> int | None:
    if isinstance(value, str):
        return int(value) if _DIGITS.fullmatch(value.strip()) else None
    return step_of(value)
