"""What each process was promised: a count of the rows of every log call that returned, kept outside the event log.

- The count is in memory shared with a file, so it survives SIGKILL as the kernel has it.
- It is raised after the call returned: a row that is counted was acknowledged.
- It counts metrics, samples and markers; timings and hyperparameters are checked by their seqs alone.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_eventlog import EventWriter

TABLES = ("metrics", "samples", "markers")
_COUNTS = struct.Struct(f"<{len(TABLES)}q")
_SUFFIX = ".acknowledged"


def open_witnessed(folder: Path, root: Path, **options: Any) -> EventWriter:
    """Open an event writer that counts what it acknowledged into `<folder>/<writer id>.acknowledged`.

    Args:
        folder: an existing folder.
        root: as in `EventWriter.open`.
        options: as in `EventWriter.open`.
    """
    writer = _WitnessedWriter.open(root, **options)
    writer.witness(folder)
    return writer


class _WitnessedWriter(EventWriter):
    def witness(self, folder: Path) -> None:
        with (folder / f"{self.writer_id}{_SUFFIX}").open("w+b") as file:
            file.write(bytes(_COUNTS.size))
            file.flush()
            self._shared = mmap.mmap(file.fileno(), _COUNTS.size)

    def log_metrics(self, metrics: Mapping[str, Any], *args: Any, **options: Any) -> None:
        """Log scalars, each of which is a row."""
        super().log_metrics(metrics, *args, **options)
        self._acknowledge("metrics", len(metrics))

    def log_samples(self, samples: Any, step: int | None = None, *, split: str = "validation") -> None:
        """Log samples, a list of records or a mapping of columns."""
        super().log_samples(samples, step, split=split)
        self._acknowledge(
            "samples", len(next(iter(samples.values()))) if isinstance(samples, Mapping) else len(samples)
        )

    def mark(self, name: str, *, step: int | None = None, level: str = "info", text: str = "", **fields: Any) -> None:
        """Log a marker."""
        super().mark(name, step=step, level=level, text=text, **fields)
        self._acknowledge("markers", 1)

    def _acknowledge(self, table: str, rows: int) -> None:
        counts = list(_COUNTS.unpack_from(self._shared))
        counts[TABLES.index(table)] += rows
        _COUNTS.pack_into(self._shared, 0, *counts)


def acknowledged(folder: Path) -> dict[str, dict[str, int]]:
    """Rows acknowledged, by writer and table, from all counts in `folder` and below."""
    return {
        path.name.removesuffix(_SUFFIX): dict(zip(TABLES, _COUNTS.unpack(path.read_bytes()), strict=True))
        for path in folder.rglob(f"*{_SUFFIX}")
    }
