"""Artifacts: files kept by content under `artifacts/`. The same content is stored once."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rl_eventlog.durable import make_folder, rename_durably, temporary_path
from rl_eventlog.layout import RunLayout

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file to keep, and what its row says of it."""

    source: BinaryIO
    name: str
    kind: str
    path: str | None = None
    """Where it came from."""

    def store(self, layout: RunLayout) -> dict[str, Any]:
        """Copy it into the run, close the source, and return the row of the artifacts table.

        Raises:
            OSError: it could not be read or written; nothing of it stays.
        """
        with self.source:
            sha256, size = _copy(self.source, layout)
        return {
            "name": self.name,
            "kind": self.kind,
            "sha256": sha256,
            "bytes": size,
            "media_type": mimetypes.guess_type(self.path or self.name)[0],
            "path": None if self.path is None else str(Path(self.path)),
        }


def _copy(source: BinaryIO, layout: RunLayout) -> tuple[str, int]:
    """Digest and size, bytes."""
    make_folder(layout.path / "artifacts")
    temporary = temporary_path(layout.path / "artifacts")
    digest = hashlib.sha256()
    size = 0
    try:
        with temporary.open("xb") as copy:
            while block := source.read(_BLOCK):
                digest.update(block)
                size += len(block)
                copy.write(block)
            copy.flush()
            os.fsync(copy.fileno())
        place = layout.artifact(digest.hexdigest())
        make_folder(place.parent)
        rename_durably(temporary, place)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    return digest.hexdigest(), size
