"""The documents of writers that are gone, folded into one file.

Adds first; the single files go later, and only while the folded file says the same. Single files win
over folded ones, so a copy that comes back changes nothing.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from rl_eventlog.documents import decode_beat, read_document
from rl_eventlog.durable import make_folder, write_durably
from rl_eventlog.layout import sha16
from rl_eventlog.reader import RunFiles

from .removal import is_gone


def fold_writers(files: RunFiles) -> int:
    """Fold the single documents of writers of earlier attempts and of those that are gone.

    Returns:
        Writers in the new file; 0 where fewer than two have single documents, and nothing is made.
    """
    last = files.launches[-1].id if files.launches else ""
    entries = []
    for writer, facts in sorted(files.writers.items()):
        ended = facts.launch != last or facts.end is not None
        if ended and is_gone(facts, assume_dead=False) and files.layout.writer(writer).is_file():
            entries.append(_entry(files, writer))
    if len(entries) < 2:
        return 0
    text = "".join(json.dumps(entry, ensure_ascii=False, sort_keys=True) + "\n" for entry in entries)
    folded = pa.compress(text.encode(), codec="zstd", asbytes=True)
    assert isinstance(folded, bytes)
    folder = files.layout.writers / "compacted"
    make_folder(folder)
    write_durably(folder / f"{sha16(folded)}.jsonl.zst", folded)
    return len(entries)
