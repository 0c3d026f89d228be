"""The stored form of a payload: three Arrow IPC streams behind one another, and its digest.

What `decode` returns has the content that `encode` was given, row for row. The digest of a commit
is the SHA-256 of the digest before it and the payload's bytes, so it names the whole history.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from rl_eventlog.schema import table
from rl_eventlog.sinks.base import Payload

NO_DIGEST = "0" * 64
"""What stands before the first commit."""

SAMPLES = pa.schema(
    [
        pa.field("role", pa.string(), nullable=False),
        pa.field("rank", pa.int32()),
        pa.field("attempt", pa.int32(), nullable=False),
        *table("samples").open,
    ]
)


def encode(payload: Payload) -> bytes:
    """Write the three tables."""
    out = pa.BufferOutputStream()
    for content in (payload.points, payload.params, payload.samples):
        with pa.ipc.new_stream(out, content.schema) as stream:
            stream.write_table(content.combine_chunks())
    return bytes(out.getvalue().to_pybytes())


def decode(data: bytes) -> Payload:
    """Read the three tables from bytes that were checked against their digest."""
    source = pa.BufferReader(data)
    points, params, samples = (pa.ipc.open_stream(source).read_all() for _ in range(3))
    return Payload(points, params, samples)


def chain(previous: str, data: bytes) -> str:
    """The digest of the commit that comes after `previous` with this payload."""
    return hashlib.sha256(previous.encode() + data).hexdigest()
