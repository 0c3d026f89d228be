"""The documents of writers that are gone, folded into one file.

- Adds first. Single documents and smaller folded files go later, and only while an intact folded file,
  older than the grace time, says all that they say.
- Single files win over folded ones, so a copy that comes back changes nothing.
- The earliest writer keeps its own documents: who joins the run finds its uid there if `run.json` is lost.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.documents import decode_beat, read_document
from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.layout import RunLayout, sha16
from rl_eventlog.reader import RunFiles, combine_entries, read_folded

from .gone import is_gone
from .removal import Ages, Reclaimed, unlink

Entries = dict[str, dict[str, Any]]
"""Lines of a folded file, by writer."""


def fold_writers(files: RunFiles, *, assume_dead: bool) -> int:
    """Fold the single documents of writers that are gone, and the folded files there are, into one.

    Returns:
        Writers in the new file whose documents no folded file had; 0 where there are none, and no file is made.
    """
    known: Entries = {}
    for entries in _intact_folded(files.layout).values():
        for writer, entry in entries.items():
            known[writer] = combine_entries(known[writer], entry) if writer in known else entry
    fresh: Entries = {}
    for writer, facts in files.writers.items():
        single = _single_entry(files.layout, writer) if is_gone(facts, assume_dead=assume_dead) else None
        if single and not _says_all(known.get(writer), single):
            fresh[writer] = combine_entries(known[writer], single) if writer in known else single
    folded = known | fresh
    if not fresh or len(folded) < 2:
        return 0
    lines = "".join(f"{_line(entry)}\n" for _, entry in sorted(folded.items()))
    content: bytes = pa.compress(lines.encode(), codec="zstd", asbytes=True)
    folder = files.layout.writers / "compacted"
    make_folder(folder)
    write_durably(folder / f"{sha16(content)}.jsonl.zst", content)
    return len(fresh)


def remove_folded(files: RunFiles, reclaimed: Reclaimed, *, assume_dead: bool, grace_seconds: float) -> None:
    """Remove single documents and folded files that an intact folded file, older than the grace time, repeats."""
    ages = Ages(files.path, grace_seconds)
    folded = _intact_folded(files.layout)
    for path, entries in folded.items():
        covers = [other for other, more in folded.items() if _is_repeated((path, entries), (other, more))]
        _remove_or_wait([path], covers, ages, reclaimed)
    folded = _intact_folded(files.layout)
    earliest = min(files.writers, default=None)
    for writer, facts in files.writers.items():
        if writer == earliest or not is_gone(facts, assume_dead=assume_dead):
            continue
        if single := _single_entry(files.layout, writer):
            covers = [path for path, entries in folded.items() if _says_all(entries.get(writer), single)]
            _remove_or_wait(_single_files(files.layout, writer), covers, ages, reclaimed)


def _intact_folded(layout: RunLayout) -> dict[Path, Entries]:
    """Folded files that are what their names say, with their entries."""
    found = {}
    for path in sorted((layout.writers / "compacted").glob("*.jsonl.zst")):
        try:
            if sha16(path.read_bytes()) == path.name.partition(".")[0]:
                found[path] = {entry["writer"]: entry for entry in read_folded(path)}
        except (OSError, ValueError):
            continue  # the reader names it
    return found


def _is_repeated(one: tuple[Path, Entries], other: tuple[Path, Entries]) -> bool:
    """Whether `other` says all that `one` says; of two that say the same, one is repeated and not the other."""
    if one[0] == other[0] or not _all_said(one[1], other[1]):
        return False
    return one[0].name < other[0].name or not _all_said(other[1], one[1])


def _all_said(entries: Entries, by: Entries) -> bool:
    return all(_says_all(by.get(writer), entry) for writer, entry in entries.items())


def _says_all(entry: dict[str, Any] | None, other: dict[str, Any]) -> bool:
    return entry is not None and _line(combine_entries(entry, other)) == _line(entry)


def _line(entry: dict[str, Any]) -> str:
    """As it stands in the file. Entries are compared as text: a NaN is no other NaN's equal."""
    return json.dumps(entry, sort_keys=True)


def _single_files(layout: RunLayout, writer: str) -> list[Path]:
    return [path for path in (layout.beat(writer), layout.end(writer), layout.writer(writer)) if path.is_file()]


def _single_entry(layout: RunLayout, writer: str) -> dict[str, Any] | None:
    """The single documents of a writer as a line of a folded file; None where it has none, or one is unreadable."""
    if not (files := _single_files(layout, writer)):
        return None
    try:
        return {
            "writer": writer,
            "open": read_document(layout.writer(writer)) if layout.writer(writer) in files else None,
            "end": read_document(layout.end(writer)) if layout.end(writer) in files else None,
            "beat": decode_beat(layout.beat(writer).read_bytes()) if layout.beat(writer) in files else None,
        }
    except (OSError, ValueError):
        return None


def _remove_or_wait(paths: list[Path], covers: list[Path], ages: Ages, reclaimed: Reclaimed) -> None:
    if any(map(ages.is_old, covers)):
        for path in paths:
            unlink(path, reclaimed)
    elif covers:
        reclaimed.waiting.extend(paths)
