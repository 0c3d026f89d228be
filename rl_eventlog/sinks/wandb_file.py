"""Reads the records of the `.wandb` files that the W&B client writes offline.

- The client has no reader of its own any more; its protobuf messages still come with it.
- A record is given out whole, its checksums compared, or the reader raises: nothing is skipped.

A file is 7 bytes of header and then blocks of 32 KiB, the first one including the header. A block
holds chunks: CRC-32 of type and data, length, type, data. A record is one chunk, or a first, middle
and last one; a block's last bytes are zeros where no chunk header fits.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from wandb.proto import wandb_internal_pb2

_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
_BLOCK = 32 * 1024
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Any]:
    """All records, `wandb_internal_pb2.Record`, in the order they were written.

    Raises:
        ValueError: the file is no such file, is cut off or damaged; the message names the byte.
        OSError: it cannot be read.
    """
    for offset, data in _messages(path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]  # made at import
        try:
            record.ParseFromString(data)
        except DecodeError as error:
            raise _damaged(path, offset, "not a W&B record") from error
        yield record


def _messages(path: Path) -> Iterator[tuple[int, bytes]]:
    parts: list[bytes] = []
    start = 0
    for offset, kind, data in _chunks(path):
        if (kind in (_FULL, _FIRST)) == bool(parts):
            raise _damaged(path, offset, "a chunk without its beginning or end")
        start = start if parts else offset
        parts.append(data)
        if kind in (_FULL, _LAST):
            yield start, b"".join(parts)
            parts = []
    if parts:
        raise _damaged(path, start, "cut off within a record")


def _chunks(path: Path) -> Iterator[tuple[int, int, bytes]]:
    content = path.read_bytes()
    if content[: len(_HEADER)] != _HEADER:
        raise _damaged(path, 0, "not a .wandb file of a known version")
    offset = len(_HEADER)
    while offset < len(content):
        left = _BLOCK - offset % _BLOCK
        if left < _CHUNK_HEADER.size:
            offset += left
            continue
        start = offset + _CHUNK_HEADER.size
        if start > len(content):
            raise _damaged(path, offset, "cut off within a chunk")
        checksum, length, kind = _CHUNK_HEADER.unpack_from(content, offset)
        data = content[start : start + length]
        if len(data) < length:
            raise _damaged(path, offset, "cut off within a chunk")
        if zlib.crc32(data, zlib.crc32(bytes([kind]))) != checksum or not _FULL <= kind <= _LAST:
            raise _damaged(path, offset, "checksum does not match")
        yield offset, kind, data
        offset = start + length


def _damaged(path: Path, offset: int, reason: str) -> ValueError:
    return ValueError(f"{path}: {reason} at byte {offset}")
