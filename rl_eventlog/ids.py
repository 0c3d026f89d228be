"""ULIDs in lower case: 48 bits of milliseconds, 80 random bits, sortable by time of making."""

from __future__ import annotations

import os
import re
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
ULID = re.compile(r"[0-7][0-9a-hjkmnp-tv-z]{25}")


def new_ulid() -> str:
    """Make a new ULID: 26 characters of `ALPHABET`."""
    number = (time.time_ns() // 1_000_000) << 80 | int.from_bytes(os.urandom(10), "big")
    return "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def ulid_milliseconds(ulid: str) -> int:
    """The time a ULID was made, in milliseconds since 1970."""
    number = 0
    for letter in ulid[:10]:
        number = number << 5 | ALPHABET.index(letter)
    return number
