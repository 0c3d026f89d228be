"""Artifacts: files kept by content under `artifacts/`. The same content is stored once."""

from __future__ import annotations

import hashlib
import mimetypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from rl_eventlog.durable import make_folder, rename_durably, temporary_path
from rl_eventlog.layout import RunLayout

_BLOCK = 1 << 20


def store_artifact(layout: RunLayout, source: BinaryIO, name: str, kind: str, path: str | None) -> dict[str, Any]:
    """Copy a file into the run and return its row of the artifacts table.

    Raises:
        OSError: it could not be read or written; nothing of it stays.
    """
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
    return {
        "name": name,
        "kind": kind,
        "sha256": digest.hexdigest(),
        "bytes": size,
        "media_type": mimetypes.guess_type(path or name)[0],
        "path": None if path is None else str(Path(path)),
    }
