"""The documents of writers that are gone, folded into one file.

Adds first; single files go later, and only while a folded file that is whole says the same. Single
files win over folded ones, so a copy that comes back changes nothing.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.documents import decode_beat, read_document
from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.layout import RunLayout, sha16
from rl_eventlog.reader import RunFiles, read_folded

from .removal import is_gone


def fold_writers(files: RunFiles, *, assume_dead: bool = False) -> int:
    """Fold the single documents of writers that are gone.

    Returns:
        Writers in the new file; 0 where fewer than two have single documents, and nothing is made.
    """
    layout = files.layout
    gone = [writer for writer, facts in sorted(files.writers.items()) if is_gone(facts, assume_dead=assume_dead)]
    entries = [_entry(layout, writer) for writer in gone if layout.writer(writer).is_file()]
    if len(entries) < 2:
        return 0
    lines = "".join(json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in entries)
    folded: bytes = pa.compress(lines.encode(), codec="zstd", asbytes=True)
    folder = layout.writers / "compacted"
    make_folder(folder)
    write_durably(folder / f"{sha16(folded)}.jsonl.zst", folded)
    return len(entries)


def remove_folded(files: RunFiles, grace_seconds: float) -> list[Path]:
    """Remove single documents that an intact folded file, older than the grace time, repeats."""
    removed = []
    for path in sorted((files.layout.writers / "compacted").glob("*.jsonl.zst")):
        intact = sha16(path.read_bytes()) == path.name.partition(".")[0]
        if not intact or time.time() - path.stat().st_mtime < grace_seconds:
            continue
        for entry in read_folded(path):
            writer = entry["writer"]
            if entry != _entry(files.layout, writer):
                continue  # gone already, or it has changed since
            for single in (files.layout.writer(writer), files.layout.end(writer), files.layout.beat(writer)):
                single.unlink(missing_ok=True)
                removed.append(single)
    return removed


def _entry(layout: RunLayout, writer: str) -> dict[str, Any]:
    """A line of a folded file, from the single documents."""
    end, beat = layout.end(writer), layout.beat(writer)
    return {
        "writer": writer,
        "open": read_document(layout.writer(writer)) if layout.writer(writer).is_file() else None,
        "end": read_document(end) if end.is_file() else None,
        "beat": decode_beat(beat.read_bytes()) if beat.is_file() else None,
    }
