"""The small JSON documents of a run and the heartbeat's block: encoding, and reading what may be torn.

Times are ISO 8601 in UTC with microseconds. Unknown keys are kept by readers and mean nothing to them.
"""

from __future__ import annotations

import json
import zlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

BEAT_BYTES = 1024
_CRC_DIGITS = 8


def now_utc() -> datetime:
    """The present, with its zone."""
    return datetime.now(timezone.utc)


def time_text(time: datetime) -> str:
    """A time as documents hold it."""
    return time.astimezone(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Read `time_text` back.

    Raises:
        ValueError: the text is no time.
    """
    time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)


def encode_document(document: dict[str, Any]) -> bytes:
    """A document as it is written: one readable JSON object. Half a surrogate pair becomes its JSON escape."""
    return json.dumps(document, indent=1, ensure_ascii=False, default=str).encode(errors="backslashreplace") + b"\n"


def read_document(path: Path) -> dict[str, Any]:
    """Read a document.

    Raises:
        ValueError: it is torn or no JSON object.
        OSError: it cannot be read.
    """
    try:
        document = json.loads(path.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path}: a JSON object is expected")  # noqa: TRY004 -- one error for all that is torn
    return document


def encode_beat(beat: dict[str, Any]) -> bytes:
    """The block: JSON, spaces, CRC-32 of what precedes as 8 hex digits, newline."""
    text = json.dumps(beat, ensure_ascii=True, separators=(",", ":"))
    room = BEAT_BYTES - _CRC_DIGITS - 1
    if len(text) > room:  # only the labels can be long
        text = json.dumps(beat | {"open_timers": []}, ensure_ascii=True, separators=(",", ":"))
    block = text.encode().ljust(room)
    return block + b"%08x\n" % zlib.crc32(block)


def decode_beat(block: bytes) -> dict[str, Any] | None:
    """The beat in a block; None where the CRC does not hold."""
    room = BEAT_BYTES - _CRC_DIGITS - 1
    if len(block) != BEAT_BYTES or block[room:] != b"%08x\n" % zlib.crc32(block[:room]):
        return None
    beat = json.loads(block[:room])
    return beat if isinstance(beat, dict) else None
